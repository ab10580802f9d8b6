//! What a connect may do: the bearer narrowed by the actor's current row (contract 04 §9, 01 §6.11).
//!
//! The row only ever narrows: a capability counts when the bearer claims it AND the row still holds it, and channel
//! lists come from the row alone. A view whose authority is decided elsewhere is refused here, as the contract has it
//! for a callout without that verifier.

use cotal_ledger::{Acl, LedgerError};
use cotal_wire::{
    BearerClaims, ConnId, LifecycleUid, Permissions, Space, View,
    grants::{self, AgentGrants, ConnectPrincipal, GrantError, Profile},
};

/// Why no permissions were built. The order of the variants is the order of the checks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PermitRefusal {
    /// The top-level `scope` says something else than `act.scope`.
    #[error("the bearer's scope and its act.scope differ; exchange for a new bearer")]
    ScopesDiffer,
    /// No `act.lifecycleUid`.
    #[error("the bearer names no lifecycle; exchange for a new bearer")]
    NoLifecycle,
    /// The actor's row refused or could not be read.
    #[error("{0}")]
    Ledger(String),
    /// The row is another incarnation's.
    #[error("the actor was granted anew since this bearer was issued; exchange for a new bearer")]
    OtherLifecycle,
    /// A capability that the row no longer holds.
    #[error("the actor no longer holds the capability {0}; exchange for a new bearer")]
    CapabilityGone(String),
    /// The view's capability is not in the bearer.
    #[error("the view {view} needs the capability {needed}")]
    ViewNeeds {
        /// The view.
        view: View,
        /// The capability.
        needed: &'static str,
    },
    /// `manager-service` is a material exchange.
    #[error("manager-service is no connect: its material comes from the manager authority exchange")]
    ManagerService,
    /// No verifier of live sessions.
    #[error("session-caller needs a session verifier, which this callout does not have")]
    NoSessionVerifier,
    /// No authorizer of manager instances.
    #[error("manager-caller needs a manager authorizer, which this callout does not have")]
    NoManagerAuthorizer,
    /// No service endpoint host.
    #[error("service-endpoint needs a service endpoint host, which this callout does not have")]
    NoServiceEndpoints,
    /// A pin that the bearer does not carry, or an entry of the row that is not what its list holds.
    #[error(transparent)]
    Template(#[from] GrantError),
}

/// Builds the permissions of one connect. `resolve` reads the actor's row, fresh; it is called once, and only when the
/// bearer alone gives no reason to refuse.
pub fn build(
    space: &Space,
    claims: &BearerClaims,
    nonce: ConnId,
    resolve: impl FnOnce(&BearerClaims) -> Result<Acl, LedgerError>,
) -> Result<Permissions, PermitRefusal> {
    let (lifecycle_uid, acl) = current(claims, resolve)?;
    let profile = match claims.act.view {
        Some(view) => {
            check_view(view, claims)?;
            Profile::of_view(view, &claims.act)?
        }
        None => agent(claims, &acl)?,
    };
    let who = ConnectPrincipal {
        principal: claims.principal(),
        conn_id: nonce,
        lifecycle_uid: Some(lifecycle_uid.clone()),
    };
    Ok(grants::permissions(&space.token(), &who, &profile)?)
}

/// Channels and role are the row's, capabilities the bearer's: never the row's whole scope.
fn agent(claims: &BearerClaims, acl: &Acl) -> Result<Profile, GrantError> {
    let grants = AgentGrants::of_row(
        &acl.allow_subscribe,
        &acl.allow_publish,
        acl.role.as_deref(),
        claims.capabilities(),
    )?;
    Ok(Profile::Agent(grants))
}

/// Step 7's refusals: the view's capability first, then what only another verifier could decide.
fn check_view(view: View, claims: &BearerClaims) -> Result<(), PermitRefusal> {
    if let Some(needed) = view.required_scope().filter(|_| !view.is_covered_by(claims.capabilities())) {
        return Err(PermitRefusal::ViewNeeds { view, needed });
    }
    match view {
        View::ManagerService => Err(PermitRefusal::ManagerService),
        View::SessionCaller => Err(PermitRefusal::NoSessionVerifier),
        View::ManagerCaller => Err(PermitRefusal::NoManagerAuthorizer),
        View::ServiceEndpoint => Err(PermitRefusal::NoServiceEndpoints),
        View::TransferWriter
        | View::Admin
        | View::Purger
        | View::ChannelPurger
        | View::ChannelWriter
        | View::Deployer => Ok(()),
    }
}

/// Steps 2 to 5: what the bearer claims is what the actor's current incarnation holds. Step 1, that the owner is a
/// derived one, is its type's.
fn current(
    claims: &BearerClaims,
    resolve: impl FnOnce(&BearerClaims) -> Result<Acl, LedgerError>,
) -> Result<(&LifecycleUid, Acl), PermitRefusal> {
    let capabilities = claims.capabilities();
    if !claims.scope.is_empty() && sorted(&claims.scope) != sorted(capabilities) {
        return Err(PermitRefusal::ScopesDiffer);
    }
    let lifecycle_uid = claims.act.lifecycle_uid.as_ref().ok_or(PermitRefusal::NoLifecycle)?;
    let acl = resolve(claims).map_err(|error| PermitRefusal::Ledger(error.to_string()))?;
    if acl.lifecycle_uid != *lifecycle_uid {
        return Err(PermitRefusal::OtherLifecycle);
    }
    if let Some(gone) = capabilities.iter().find(|capability| !acl.scope.contains(capability)) {
        return Err(PermitRefusal::CapabilityGone(gone.clone()));
    }
    Ok((lifecycle_uid, acl))
}

fn sorted(scope: &[String]) -> Vec<&str> {
    let mut sorted: Vec<_> = scope.iter().map(String::as_str).collect();
    sorted.sort_unstable();
    sorted
}

#[cfg(test)]
mod tests {
    use cotal_ledger::RowKind;
    use cotal_wire::{Act, Actor, DerivedOwner, Sha256Hex, TransferWriterClaim, UnixSecs};

    use super::*;

    const UID: &str = "abcdefghijklmnopqrstuvwxyz01";

    fn claims(view: Option<View>, scope: &[&str]) -> BearerClaims {
        let owner = DerivedOwner::parse("u_aaaaaaaaaaaaaaaaaaaaaaaaaa").unwrap();
        BearerClaims {
            owner: owner.clone(),
            space: Space::parse("demo").unwrap(),
            act: Act {
                owner,
                actor: Actor::parse("cli").unwrap(),
                scope: Some(texts(scope)),
                parent: None,
                lifecycle_uid: Some(LifecycleUid::parse(UID).unwrap()),
                credential_id: None,
                view,
                manager_instance_id: None,
                session: None,
                transfer_writer: None,
            },
            scope: texts(scope),
            exp: UnixSecs(2_000_000_000),
        }
    }

    fn texts(list: &[&str]) -> Vec<String> {
        list.iter().map(|entry| (*entry).to_owned()).collect()
    }

    fn acl(scope: &[&str]) -> Acl {
        Acl {
            allow_subscribe: texts(&["general"]),
            allow_publish: texts(&["announce"]),
            role: None,
            lifecycle_uid: LifecycleUid::parse(UID).unwrap(),
            scope: texts(scope),
            kind: RowKind::Interactive,
            parent_has_run: false,
        }
    }

    fn permit(claims: &BearerClaims, acl: Acl) -> Result<Permissions, PermitRefusal> {
        let nonce = ConnId::parse("nonce-0001").unwrap();
        build(&Space::parse("demo").unwrap(), claims, nonce, |_| Ok(acl))
    }

    #[test]
    fn what_the_bearer_alone_refuses_reads_no_row() {
        let unread = |claims: &BearerClaims| {
            let nonce = ConnId::parse("nonce-0001").unwrap();
            build(&Space::parse("demo").unwrap(), claims, nonce, |_| panic!("the row was read"))
        };
        let mut differing = claims(None, &["spawn"]);
        differing.scope = texts(&["admin"]);
        differing.act.lifecycle_uid = None;
        assert_eq!(unread(&differing), Err(PermitRefusal::ScopesDiffer));
        let mut nameless = claims(None, &["spawn"]);
        nameless.act.lifecycle_uid = None;
        assert_eq!(unread(&nameless), Err(PermitRefusal::NoLifecycle));
    }

    #[test]
    fn the_top_level_scope_may_be_absent_or_in_another_order() {
        let mut reordered = claims(Some(View::ManagerCaller), &["spawn", "admin"]);
        reordered.scope = texts(&["admin", "spawn"]);
        assert_eq!(permit(&reordered, acl(&["spawn", "admin"])), Err(PermitRefusal::NoManagerAuthorizer));
        reordered.scope = Vec::new();
        assert_eq!(permit(&reordered, acl(&["spawn", "admin"])), Err(PermitRefusal::NoManagerAuthorizer));
        reordered.scope = texts(&["admin"]);
        assert_eq!(permit(&reordered, acl(&["spawn", "admin"])), Err(PermitRefusal::ScopesDiffer));
    }

    #[test]
    fn the_row_is_checked_in_order_before_the_view() {
        let bearer = claims(Some(View::Admin), &["spawn"]);
        let refused =
            build(&Space::parse("demo").unwrap(), &bearer, ConnId::parse("nonce-0001").unwrap(), |_| {
                Err(LedgerError::Refused("gone".to_owned()))
            });
        assert_eq!(refused, Err(PermitRefusal::Ledger("gone".to_owned())));
        let mut other = acl(&[]);
        other.lifecycle_uid = LifecycleUid::parse("zzzzzzzzzzzzzzzzzzzzzzzzzzzz").unwrap();
        assert_eq!(permit(&bearer, other), Err(PermitRefusal::OtherLifecycle));
        assert_eq!(permit(&bearer, acl(&[])), Err(PermitRefusal::CapabilityGone("spawn".to_owned())));
        assert_eq!(
            permit(&bearer, acl(&["spawn"])),
            Err(PermitRefusal::ViewNeeds { view: View::Admin, needed: "admin" })
        );
    }

    #[test]
    fn a_view_is_refused_without_its_capability_even_when_the_row_holds_it() {
        for view in View::ALL {
            if let Some(needed) = view.required_scope() {
                let refused = permit(&claims(Some(view), &[]), acl(&["admin", "spawn", "supervise"]));
                assert_eq!(refused, Err(PermitRefusal::ViewNeeds { view, needed }));
            }
        }
    }

    #[test]
    fn views_whose_authority_is_decided_elsewhere_are_refused() {
        let all = ["admin", "spawn", "supervise"];
        for (view, refusal) in [
            (View::ManagerService, PermitRefusal::ManagerService),
            (View::SessionCaller, PermitRefusal::NoSessionVerifier),
            (View::ManagerCaller, PermitRefusal::NoManagerAuthorizer),
            (View::ServiceEndpoint, PermitRefusal::NoServiceEndpoints),
            (View::TransferWriter, PermitRefusal::Template(GrantError::NoPin("transfer-writer"))),
        ] {
            assert_eq!(permit(&claims(Some(view), &all), acl(&all)), Err(refusal));
        }
    }

    fn rows(permissions: &Permissions) -> String {
        [&permissions.publish.allow, &permissions.subscribe.allow].map(|list| list.join("\n")).join("\n")
    }

    #[test]
    fn an_agent_gets_the_rows_channels_and_only_the_bearers_capabilities() {
        let plain = permit(&claims(None, &[]), acl(&["spawn", "admin"])).unwrap();
        let me = "u_aaaaaaaaaaaaaaaaaaaaaaaaaa.cli";
        assert!(plain.publish.allow.contains(&format!("cotal.demo.chat.{me}.announce")));
        assert!(plain.subscribe.allow.contains(&"cotal.demo.chat.*.*.general".to_owned()));
        assert!(plain.subscribe.allow.contains(&"_INBOX_nonce-0001.>".to_owned()));
        assert_eq!(plain.publish.deny.len(), 9);
        assert!(!rows(&plain).contains(".manager.spawn."), "the row's own scope widens nothing");
        let spawner = permit(&claims(None, &["spawn"]), acl(&["spawn", "admin"])).unwrap();
        assert!(rows(&spawner).contains(".manager.spawn."));
    }

    #[test]
    fn an_agent_with_empty_lists_reads_and_posts_nowhere() {
        let mut empty = acl(&[]);
        (empty.allow_subscribe, empty.allow_publish) = (Vec::new(), Vec::new());
        let permissions = permit(&claims(None, &[]), empty).unwrap();
        assert!(!rows(&permissions).contains(".chat."));
        assert!(!permissions.publish.allow.is_empty() && !permissions.subscribe.allow.is_empty());
    }

    #[test]
    fn an_entry_of_the_row_that_is_no_channel_refuses_the_connect() {
        let mut odd = acl(&[]);
        odd.allow_publish = texts(&["general", "a b"]);
        assert!(matches!(
            permit(&claims(None, &[]), odd),
            Err(PermitRefusal::Template(GrantError::Entry(_)))
        ));
    }

    #[test]
    fn no_view_gets_the_rows_channels() {
        for view in [View::Purger, View::ChannelPurger, View::ChannelWriter, View::Deployer] {
            let scope = ["admin", "spawn"];
            let permissions = permit(&claims(Some(view), &scope), acl(&scope)).unwrap();
            let rows = rows(&permissions);
            assert!(!rows.contains("general") && !rows.contains("announce"), "{view}: {rows}");
            assert!(permissions.subscribe.allow.contains(&"_INBOX_nonce-0001.>".to_owned()), "{view}");
        }
    }

    #[test]
    fn a_transfer_writer_is_pinned_to_its_one_object() {
        let mut bearer = claims(Some(View::TransferWriter), &["admin"]);
        bearer.act.transfer_writer = Some(TransferWriterClaim {
            instance_id: cotal_wire::InstanceId::parse(UID).unwrap(),
            hex: Sha256Hex::parse(&"ab".repeat(32)).unwrap(),
        });
        let permissions = permit(&bearer, acl(&["admin"])).unwrap();
        assert_eq!(permissions.publish.allow.len(), 4);
        assert!(permissions.publish.allow.iter().all(|row| row.contains(UID)));
    }
}
