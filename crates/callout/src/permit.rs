//! What a connect may do: the bearer narrowed by the actor's current row (contract 04 §9, 01 §6.11).
//!
//! The row only ever narrows: a capability counts when the bearer claims it AND the row still holds it, and channel
//! lists come from the row alone. What a session or a manager decides is not decided here: such a [`Permit`] says whom to
//! ask first, and gives its permissions only to whoever has.

use cotal_ledger::{Acl, LedgerError, RowKind};
use cotal_wire::{
    BearerClaims, ConnId, InstanceId, LifecycleUid, Permissions, SessionClaim, Space, SpaceToken, View,
    grants::{self, AgentGrants, Capabilities, ConnectPrincipal, GrantError, Issued, Profile},
    view::SCOPE_RUN,
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
    /// The session does not admit the bearer now.
    #[error("{0}")]
    Session(String),
    /// The session ends at another moment than the bearer says.
    #[error("the session's end is another one than the bearer was signed for; exchange for a new bearer")]
    SessionEndMoved,
    /// No authorizer of manager instances.
    #[error("manager-caller needs a manager authorizer, which this callout does not have")]
    NoManagerAuthorizer,
    /// The manager instance does not serve the owner now.
    #[error("{0}")]
    Manager(String),
    /// More connects are being issued authority than this callout issues at once.
    #[error("too many connects are being issued authority at once; connect again")]
    TooManyIssuing,
    /// Nothing was issued.
    #[error("{0}")]
    Issuer(String),
    /// No service endpoint host.
    #[error("service-endpoint needs a service endpoint host, which this callout does not have")]
    NoServiceEndpoints,
    /// A pin that the bearer does not carry, or an entry of the row that is not what its list holds.
    #[error(transparent)]
    Template(#[from] GrantError),
}

/// What the actor's row permits, and who must be asked before it is signed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Permit {
    /// These rows; nobody is asked.
    Granted(Permissions),
    /// The rows of one session, while it lives.
    Session(SessionPermit),
    /// The rows of one manager instance, while it serves the owner.
    Manager(ManagerPermit),
}

/// What a `session-caller` may do, once its session is known to live.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionPermit {
    /// The session, as the bearer names it.
    pub claim: SessionClaim,
    /// Its rows.
    pub permissions: Permissions,
}

/// What a `manager-caller` may do, once its manager is known to serve it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManagerPermit {
    space: SpaceToken,
    who: ConnectPrincipal,
    instance: InstanceId,
    capabilities: Capabilities,
    issuable: bool,
}

impl ManagerPermit {
    /// The instance that the bearer is bound to.
    pub fn instance(&self) -> &InstanceId {
        &self.instance
    }

    /// Whether the caller is one that gets an issued pair, where there is an issuer (contract 03 §H.8): a person's actor,
    /// or an agent that may run and whose parent may.
    pub const fn is_issuable(&self) -> bool {
        self.issuable
    }

    /// Its rows, with the generation of an issued pair in them, or without.
    pub fn permissions(&self, issued: Option<&Issued>) -> Result<Permissions, GrantError> {
        let profile = Profile::ManagerCaller {
            instance: self.instance.clone(),
            capabilities: self.capabilities,
            issued: issued.cloned(),
        };
        grants::permissions(&self.space, &self.who, &profile)
    }
}

/// Builds the permit of one connect. `resolve` reads the actor's row, fresh; it is called once, and only when the bearer
/// alone gives no reason to refuse.
pub fn build(
    space: &Space,
    claims: &BearerClaims,
    nonce: ConnId,
    resolve: impl FnOnce(&BearerClaims) -> Result<Acl, LedgerError>,
) -> Result<Permit, PermitRefusal> {
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
    let space = space.token();
    if let Profile::ManagerCaller { instance, capabilities, issued: _ } = profile {
        let issuable = is_issuable(&acl);
        return Ok(Permit::Manager(ManagerPermit { space, who, instance, capabilities, issuable }));
    }
    let permissions = grants::permissions(&space, &who, &profile)?;
    Ok(match (&profile, &claims.act.session) {
        (Profile::SessionCaller { .. }, Some(claim)) => {
            Permit::Session(SessionPermit { claim: claim.clone(), permissions })
        }
        _ => Permit::Granted(permissions),
    })
}

/// Contract 03 §H.8: a person's row; an agent's, when it and its direct parent both hold `run` now.
fn is_issuable(acl: &Acl) -> bool {
    match acl.kind {
        RowKind::Interactive => true,
        RowKind::ManagedAgent => acl.parent_has_run && acl.scope.iter().any(|scope| scope == SCOPE_RUN),
    }
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

/// Step 7's refusals that need nobody's answer: the view's capability first.
fn check_view(view: View, claims: &BearerClaims) -> Result<(), PermitRefusal> {
    if let Some(needed) = view.required_scope().filter(|_| !view.is_covered_by(claims.capabilities())) {
        return Err(PermitRefusal::ViewNeeds { view, needed });
    }
    match view {
        View::ManagerService => Err(PermitRefusal::ManagerService),
        View::ServiceEndpoint => Err(PermitRefusal::NoServiceEndpoints),
        View::SessionCaller
        | View::ManagerCaller
        | View::TransferWriter
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
        match asked(claims, acl)? {
            Permit::Granted(permissions) => Ok(permissions),
            Permit::Session(_) | Permit::Manager(_) => panic!("somebody must be asked first"),
        }
    }

    fn asked(claims: &BearerClaims, acl: Acl) -> Result<Permit, PermitRefusal> {
        let nonce = ConnId::parse("nonce-0001").unwrap();
        build(&Space::parse("demo").unwrap(), claims, nonce, |_| Ok(acl))
    }

    fn caller(scope: &[&str]) -> BearerClaims {
        let mut claims = claims(Some(View::ManagerCaller), scope);
        claims.act.manager_instance_id = Some(InstanceId::parse(UID).unwrap());
        claims
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
        assert_eq!(unread(&differing).unwrap_err(), PermitRefusal::ScopesDiffer);
        let mut nameless = claims(None, &["spawn"]);
        nameless.act.lifecycle_uid = None;
        assert_eq!(unread(&nameless).unwrap_err(), PermitRefusal::NoLifecycle);
    }

    #[test]
    fn the_top_level_scope_may_be_absent_or_in_another_order() {
        let mut reordered = claims(Some(View::Purger), &["spawn", "admin"]);
        reordered.scope = texts(&["admin", "spawn"]);
        assert!(permit(&reordered, acl(&["spawn", "admin"])).is_ok());
        reordered.scope = Vec::new();
        assert!(permit(&reordered, acl(&["spawn", "admin"])).is_ok());
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
        assert_eq!(refused.unwrap_err(), PermitRefusal::Ledger("gone".to_owned()));
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
    fn views_that_do_not_connect_and_views_without_their_pin_are_refused() {
        let all = ["admin", "spawn", "supervise"];
        for (view, refusal) in [
            (View::ManagerService, PermitRefusal::ManagerService),
            (View::SessionCaller, PermitRefusal::Template(GrantError::NoPin("session-caller"))),
            (View::ManagerCaller, PermitRefusal::Template(GrantError::NoPin("manager-caller"))),
            (View::ServiceEndpoint, PermitRefusal::NoServiceEndpoints),
            (View::TransferWriter, PermitRefusal::Template(GrantError::NoPin("transfer-writer"))),
        ] {
            assert_eq!(asked(&claims(Some(view), &all), acl(&all)).unwrap_err(), refusal);
        }
    }

    #[test]
    fn a_session_is_asked_about_and_its_rows_are_its_rail() {
        let mut bearer = claims(Some(View::SessionCaller), &["spawn"]);
        let claim = SessionClaim {
            endpoint: cotal_wire::SessionEndpoint::parse("manager").unwrap(),
            session_id: cotal_wire::SessionId::parse(&"s".repeat(22)).unwrap(),
            epoch: 3,
            exp: UnixSecs(2_000_000_000),
        };
        bearer.act.session = Some(claim.clone());
        let Ok(Permit::Session(session)) = asked(&bearer, acl(&["spawn"])) else { panic!("not asked") };
        assert_eq!(session.claim, claim);
        let rail = format!("cotal.demo.eps.manager.{}.3", "s".repeat(22));
        assert_eq!(session.permissions.publish.allow, [format!("{rail}.in")]);
        let heard = [format!("{rail}.out"), "_INBOX_nonce-0001.>".to_owned()];
        assert_eq!(session.permissions.subscribe.allow, heard);
    }

    #[test]
    fn a_manager_is_asked_about_and_its_rows_carry_the_pair_that_was_issued() {
        let Ok(Permit::Manager(manager)) = asked(&caller(&["spawn"]), acl(&["spawn"])) else {
            panic!("not asked")
        };
        assert_eq!(manager.instance().as_str(), UID);
        let plain = manager.permissions(None).unwrap();
        assert!(!rows(&plain).contains(".ep.v1."));
        let conn = ConnId::parse("nonce-0001").unwrap();
        let generation = cotal_wire::Generation::parse(&"7".repeat(32)).unwrap();
        let issued = Issued::for_connection(generation.clone(), &conn);
        let versioned = manager.permissions(Some(&issued)).unwrap();
        assert!(versioned.publish.allow.iter().any(|row| row.ends_with(issued.accepted.as_str())));
        let requests: Vec<_> = versioned.publish.allow.iter().filter(|row| row.contains(".ep.v1.")).collect();
        assert!(!requests.is_empty() && requests.iter().all(|row| row.contains(generation.as_str())));
        assert!(!versioned.publish.allow.iter().any(|row| row.contains(".ep.inst.")));
    }

    #[test]
    fn a_person_is_issued_a_pair_and_an_agent_only_while_it_and_its_parent_may_run() {
        for (kind, scope, parent_has_run, issuable) in [
            (RowKind::Interactive, &[][..], false, true),
            (RowKind::ManagedAgent, &["run"], true, true),
            (RowKind::ManagedAgent, &["run"], false, false),
            (RowKind::ManagedAgent, &["spawn"], true, false),
            (RowKind::ManagedAgent, &[], false, false),
        ] {
            let acl = Acl { kind, parent_has_run, ..acl(scope) };
            let Ok(Permit::Manager(manager)) = asked(&caller(&[]), acl) else { panic!("not asked") };
            assert_eq!(manager.is_issuable(), issuable, "{kind:?} {scope:?} {parent_has_run}");
        }
    }

    #[test]
    fn no_other_view_asks_anybody() {
        let scope = ["admin", "spawn"];
        for view in
            [View::Admin, View::Purger, View::ChannelPurger, View::ChannelWriter, View::Deployer].map(Some)
        {
            assert!(matches!(asked(&claims(view, &scope), acl(&scope)), Ok(Permit::Granted(_))), "{view:?}");
        }
        assert!(matches!(asked(&claims(None, &[]), acl(&[])), Ok(Permit::Granted(_))));
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
