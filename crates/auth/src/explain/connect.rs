//! The connect, check by check (contract 04 §8.4).

use cotal_authority::{ConnectReader, foresight::RootForeseen, issued};
use cotal_callout::permit::{self, Permit};
use cotal_ledger::{AuthorizedGrant, Ledger, LedgerError};
use cotal_wire::{Act, BearerClaims, ConnId, CredentialId, InstanceId, View, view::AGENT_BEARER_TTL_SECS};

use super::{
    CheckName,
    exchange::NO_STORES,
    seen::{Granted, NoBearer, blocking, within},
    walk::Walk,
};

/// A name as a well-behaved client has one: only its grammar matters to permissions.
const NONCE: &str = "explain-0000000000";

const NO_BEARER: &str = "an exchange would give no bearer";
const NO_MANAGER_YET: &str = "only the running service can say which manager it would be bound to";
const NO_ROOT_YET: &str = "the first exchange makes the root credential that this looks at";

impl Walk<'_> {
    /// The connect, as the callout runs it over the bearer that the exchange would have signed.
    pub(super) async fn connect(
        &mut self,
        granted: Option<Granted>,
        view: Result<Option<View>, NoBearer>,
        root: Option<RootForeseen>,
        selects: bool,
        signs: bool,
        reader: Option<&ConnectReader>,
    ) {
        let bearer = granted.as_ref().zip(view.ok());
        // The exchange asks for the manager and the root before it signs (contract 05 §4).
        let signed = selects && signs && root.is_some();
        match bearer.as_ref().filter(|_| signed) {
            Some((Granted { agent, .. }, view)) => {
                let cap = if *agent { AGENT_BEARER_TTL_SECS } else { View::ttl_cap_secs(*view) };
                self.ok(CheckName::Bearer, format!("the exchange's own, which lives {cap} s at the most"));
            }
            None if bearer.is_some() && signs && root.is_some() => {
                self.not_reached(CheckName::Bearer, NO_MANAGER_YET);
            }
            None => self.not_reached(CheckName::Bearer, NO_BEARER),
        }
        self.remark(
            CheckName::ConnectLimits,
            "connects a minute, of the actor, of its owner, and of the host for a bad bearer: `cotal auth watch` shows \
             RATE_LIMITED",
        );
        let Some((granted, view)) = bearer else {
            self.not_reached(CheckName::ConnectRow, NO_BEARER);
            self.not_reached(CheckName::ConnectCredential, NO_BEARER);
            self.nonce();
            for check in [CheckName::Permissions, CheckName::ViewAuthority, CheckName::IssuedPair] {
                self.not_reached(check, NO_BEARER);
            }
            return self.issuance_row();
        };
        // The row decides before the credential is looked at, and whichever credential that is.
        let credential = match &root {
            Some(RootForeseen::Stands { id, .. }) => Some(id.clone()),
            _ => None,
        };
        let claims = self.claims(&granted.grant, view, credential.clone());
        self.connect_row(granted, &claims).await;
        match (credential, reader) {
            (Some(_), Some(reader)) => match within(reader.authorize_connect(&claims)).await {
                Ok(()) => self.ok(CheckName::ConnectCredential, "active, and the one that the head names"),
                Err(error) => {
                    let again = (!granted.agent).then(|| self.mend.regrant(&granted.row));
                    self.refused(CheckName::ConnectCredential, error.message, again);
                }
            },
            _ if root == Some(RootForeseen::ToBeMade) => {
                self.not_reached(CheckName::ConnectCredential, NO_ROOT_YET);
            }
            (_, None) => self.not_reached(CheckName::ConnectCredential, NO_STORES),
            _ => self.not_reached(CheckName::ConnectCredential, NO_BEARER),
        }
        self.nonce();
        let permit = self.permissions(claims).await;
        self.view_authority(view);
        self.issued_pair(view, permit.as_ref());
        self.issuance_row();
    }

    async fn connect_row(&mut self, granted: &Granted, claims: &BearerClaims) {
        let (ledger, of) = (Ledger::at(&self.inputs.state_dir), claims.clone());
        let grant = &granted.grant;
        match blocking(move || ledger.authorize_connect(&of)).await {
            Ok(Ok(())) => self.ok(CheckName::ConnectRow, "the row grants what the bearer says"),
            Ok(Err(error)) => {
                let mend = match &error {
                    // A row in each space: the person's is the one that a command takes away.
                    LedgerError::Broken(_) => self.mend.revoke(&grant.owner, &grant.actor),
                    LedgerError::Refused(_) => self.mend.regrant(&granted.row),
                };
                self.refused(CheckName::ConnectRow, error.to_string(), Some(mend));
            }
            Err(error) => self.refused(CheckName::ConnectRow, error, None),
        }
    }

    async fn permissions(&mut self, claims: BearerClaims) -> Option<Permit> {
        let pinned = match claims.act.view {
            Some(View::TransferWriter) => Some("the one object that the request's transferWriter names"),
            Some(View::SessionCaller) => Some("the one session that the request's sessionGrant names"),
            _ => None,
        };
        if let Some(pinned) = pinned {
            self.remark(CheckName::Permissions, pinned);
            return None;
        }
        let (ledger, space) = (Ledger::at(&self.inputs.state_dir), self.inputs.space.clone());
        let built = blocking(move || {
            let nonce = ConnId::parse(NONCE).map_err(|error| error.to_string())?;
            permit::build(&space, &claims, nonce, |claims| ledger.resolve_acl(claims))
                .map_err(|refusal| refusal.to_string())
        });
        let built = built.await.and_then(|built| built).and_then(|permit| {
            let permissions = match &permit {
                Permit::Granted(permissions) => permissions.clone(),
                Permit::Session(session) => session.permissions.clone(),
                Permit::Manager(manager) => manager.permissions(None).map_err(|error| error.to_string())?,
            };
            Ok((permit, permissions))
        });
        match built {
            Ok((permit, permissions)) => {
                let (publish, subscribe) =
                    (permissions.publish.allow.len(), permissions.subscribe.allow.len());
                let says = format!("{publish} subjects to publish, {subscribe} to subscribe");
                self.ok(CheckName::Permissions, says);
                Some(permit)
            }
            Err(refusal) => {
                self.refused(CheckName::Permissions, refusal, None);
                None
            }
        }
    }

    fn view_authority(&mut self, view: Option<View>) {
        let check = CheckName::ViewAuthority;
        match view {
            Some(View::SessionCaller) => self.remark(
                check,
                "the session's row is read again: active, its holder's, unexpired, and served by a manager at the same epoch",
            ),
            Some(View::ManagerCaller) => self.remark(
                check,
                "the manager instance of the bearer is asked about again: its gate open, the owner's or this host's, \
                 registered, and at one epoch",
            ),
            _ => self.ok(check, "not asked: the actor's row decides"),
        }
    }

    fn issued_pair(&mut self, view: Option<View>, permit: Option<&Permit>) {
        let check = CheckName::IssuedPair;
        match permit {
            _ if view != Some(View::ManagerCaller) => {
                self.ok(check, "not asked: only a manager-caller is issued a pair");
            }
            Some(Permit::Manager(manager)) if manager.is_issuable() => {
                match issued::check_space(&self.inputs.space) {
                    Ok(_) => self.ok(
                        check,
                        "issued at the first connect under a connection name, and confirmed at each later one",
                    ),
                    Err(refusal) => self.refused(check, refusal.message, None),
                }
            }
            Some(_) => self.ok(check, "none: an agent gets one only while it and its parent hold run"),
            None => self.not_reached(check, "no permissions were built"),
        }
    }

    fn nonce(&mut self) {
        self.remark(
            CheckName::InboxNonce,
            "the client's own connection name: 8 to 120 of A-Z a-z 0-9 _ -, with the inbox prefix _INBOX_<name>",
        );
    }

    fn issuance_row(&mut self) {
        self.remark(CheckName::IssuanceRow, "the service writes one a connect; this walk writes none");
    }

    /// What the bearer would say.
    fn claims(
        &self,
        grant: &AuthorizedGrant,
        view: Option<View>,
        credential_id: Option<CredentialId>,
    ) -> BearerClaims {
        let ttl = View::ttl_cap_secs(view);
        BearerClaims {
            owner: grant.owner.clone(),
            space: self.inputs.space.clone(),
            act: Act {
                owner: grant.owner.clone(),
                actor: grant.actor.clone(),
                scope: Some(grant.scope.clone()),
                parent: grant.parent.clone(),
                lifecycle_uid: Some(grant.lifecycle_uid.clone()),
                credential_id,
                view,
                // Permissions are the same in number, whichever instance they are for.
                manager_instance_id: (view == Some(View::ManagerCaller))
                    .then(|| InstanceId::mint(&*self.inputs.entropy)),
                session: None,
                transfer_writer: None,
            },
            scope: grant.scope.clone(),
            exp: self.inputs.clock.now_secs().plus(ttl),
        }
    }
}
