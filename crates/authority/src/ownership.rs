//! Whose an instance or a session is, by the host's own word: bound once, before anything is granted that lets a tenant write the
//! other rows of it.
//!
//! These say whatever their writer likes: another's name, for one. Where there is no row of the host's, they are believed: of the
//! static mesh, or from before.

use cotal_wire::{
    EpCode, EpError, Owner, SessionId,
    names::{epowner_key, session_owner_key},
    rows::Ownership,
};

use crate::{
    credential::create_same, registration::EndpointInstance, store::at_key, stores::AuthorityStores,
};

/// What has an owner.
#[derive(Debug, Clone, Copy)]
pub enum Owned<'a> {
    /// An endpoint's instance.
    Instance(&'a EndpointInstance),
    /// A session that a remote manager serves.
    Session(&'a SessionId),
}

impl Owned<'_> {
    fn key(self) -> String {
        match self {
            Self::Instance(at) => epowner_key(&at.endpoint, &at.instance),
            Self::Session(session) => session_owner_key(session),
        }
    }

    fn anothers(self) -> EpError {
        EpError::permission_denied(match self {
            Self::Instance(_) => "this instance is another owner's; make one of your own",
            Self::Session(_) => {
                "another owner's manager serves this session; serve one of this manager's own"
            }
        })
    }
}

/// Binds it to its owner. The same again is no failure; one of another owner's is `permission-denied`.
pub async fn bind(stores: &AuthorityStores, owned: Owned<'_>, owner: &Owner) -> Result<(), EpError> {
    match bound(stores, owned).await? {
        Some(bound) if bound == *owner => return Ok(()),
        Some(_) => return Err(owned.anothers()),
        None => {}
    }
    let row = Ownership(owner.clone()).to_bytes();
    match create_same(stores.auth_store(), &owned.key(), row, "owner").await {
        Ok(_) => Ok(()),
        Err(refusal) if refusal.code == EpCode::Conflict => Err(owned.anothers()),
        Err(refusal) => Err(refusal),
    }
}

/// The owner that it is bound to, read where it leads; `None` when it never was.
async fn bound(stores: &AuthorityStores, owned: Owned<'_>) -> Result<Option<Owner>, EpError> {
    let key = owned.key();
    let Some(entry) = stores.auth_store().read(&key).await? else { return Ok(None) };
    Ok(Some(at_key(&key, Ownership::parse(&entry.value))?.0))
}

/// Whether it is bound, and to somebody else.
pub(crate) async fn is_anothers(
    stores: &AuthorityStores,
    owned: Owned<'_>,
    owner: &Owner,
) -> Result<bool, EpError> {
    Ok(bound(stores, owned).await?.is_some_and(|bound| bound != *owner))
}
