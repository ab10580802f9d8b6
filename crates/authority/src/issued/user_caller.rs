//! Issuing a user's caller at its connect (contract 05 §13, 03 §H.8).

use cotal_wire::{
    ConnId, EpError, Generation, LifecycleUid, Permissions, Principal, SpaceToken,
    grants::Issued,
    rows::{AcceptedRow, IssuedAuthorityRef, IssuedEvidence, IssuedPermissions, SourceRef},
};

use super::session::IssuerSession;

/// Who connects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserCaller {
    /// Owner and actor, as the ledger was just read.
    pub principal: Principal,
    /// The incarnation.
    pub uid: LifecycleUid,
    /// The inbox nonce that the client chose, from its connect options and from nowhere else.
    pub conn_id: ConnId,
}

/// What the accepted row of a connection's token asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CallerStep {
    /// Nothing was issued to this nonce.
    Issue,
    /// This issuance is held already: a renewal.
    Confirm(IssuedAuthorityRef),
}

impl IssuerSession {
    /// Issues a caller's authority at its first connect, or confirms it at a later one under the same nonce, and
    /// returns the permissions to sign.
    ///
    /// `mint` builds them, the generation pinned in its rows and the accepted row's read among them. A nonce that holds
    /// another caller's issuance is `permission-denied`; another ceiling than was issued is `failed-precondition`; a
    /// concurrent connect under the same nonce is `conflict`; a lost connection or an ambiguous write is
    /// `unavailable`, and nothing is sent twice. Whatever refuses, the connect must be denied.
    pub async fn issue_user_caller(
        &self,
        caller: &UserCaller,
        mint: impl FnOnce(Issued) -> Result<Permissions, EpError> + Send,
    ) -> Result<Permissions, EpError> {
        let lease = self.enter().await?;
        let store = lease.store();
        let space = store.space();
        // The token is the nonce's alone, whatever the generation.
        let fresh = Issued::for_connection(Generation::mint(self.entropy()), &caller.conn_id);
        let token = fresh.accepted.clone();

        match caller_step(space, caller, store.accepted_row(&token).await?)? {
            CallerStep::Issue => {
                let authority = IssuedAuthorityRef {
                    space: space.clone(),
                    principal: caller.principal.clone(),
                    uid: caller.uid.clone(),
                    generation: fresh.generation.clone(),
                };
                let permissions = mint(fresh)?;
                let sources = vec![SourceRef::actor_ledger(space, &caller.principal, &caller.uid)];
                let ceiling = IssuedPermissions::of_grants(&permissions)?;
                let evidence = IssuedEvidence::new(authority, sources, ceiling, None)?;
                let staged = store.stage(evidence).await?;
                let (released, ()) = staged.release(async { Ok(()) }).await?;
                released.accept(&token).await?;
                Ok(permissions)
            }
            CallerStep::Confirm(authority) => {
                let permissions = mint(Issued { generation: authority.generation.clone(), accepted: token })?;
                store.confirm(&authority, &IssuedPermissions::of_grants(&permissions)?).await?;
                Ok(permissions)
            }
        }
    }
}

/// Decides on what the accepted row names.
pub(crate) fn caller_step(
    space: &SpaceToken,
    caller: &UserCaller,
    accepted: Option<AcceptedRow>,
) -> Result<CallerStep, EpError> {
    match accepted {
        None => Ok(CallerStep::Issue),
        Some(AcceptedRow { authority }) if authority.is_of(space, &caller.principal, &caller.uid) => {
            Ok(CallerStep::Confirm(authority))
        }
        Some(_) => Err(EpError::permission_denied(
            "issued authority: this nonce holds another caller's issuance; connect under another nonce",
        )),
    }
}

#[cfg(test)]
mod tests {
    use cotal_wire::EpCode;

    use super::*;

    #[test]
    fn a_nonce_is_one_callers_for_ever() {
        let space = SpaceToken::parse("demo").unwrap();
        let caller = UserCaller {
            principal: Principal::parse_key("local.a").unwrap(),
            uid: LifecycleUid::parse(&"u".repeat(26)).unwrap(),
            conn_id: ConnId::parse("inbox-nonce-1").unwrap(),
        };
        let held = IssuedAuthorityRef {
            space: space.clone(),
            principal: caller.principal.clone(),
            uid: caller.uid.clone(),
            generation: Generation::parse(&"0".repeat(32)).unwrap(),
        };
        let step = |authority: Option<IssuedAuthorityRef>| {
            caller_step(&space, &caller, authority.map(|authority| AcceptedRow { authority }))
        };
        assert_eq!(step(None), Ok(CallerStep::Issue));
        assert_eq!(step(Some(held.clone())), Ok(CallerStep::Confirm(held.clone())));
        let other_uid = LifecycleUid::parse(&"v".repeat(26)).unwrap();
        for foreign in [
            IssuedAuthorityRef { space: SpaceToken::parse("other").unwrap(), ..held.clone() },
            IssuedAuthorityRef { principal: Principal::parse_key("local.b").unwrap(), ..held.clone() },
            IssuedAuthorityRef { uid: other_uid, ..held },
        ] {
            assert_eq!(step(Some(foreign)).unwrap_err().code, EpCode::PermissionDenied);
        }
    }
}
