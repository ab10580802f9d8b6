//! Whose an endpoint's instance is, by the host's own word: bound once, before anything is granted that lets a tenant write the
//! other rows of it.
//!
//! These say whatever their writer likes: another's name, for one. Where there is no row of the host's, they are believed: of the
//! static mesh, or from before. How many instances an owner may have is [`crate::Plane::bind_instance`]'s.

use cotal_wire::{EpCode, EpError, Owner, names::epowner_key, rows::Ownership};

use crate::{
    credential::{Created, create_same},
    registration::EndpointInstance,
    store::at_key,
    stores::AuthorityStores,
};

/// What is refused to whoever names another's instance.
pub(crate) fn anothers() -> EpError {
    EpError::permission_denied("this instance is another owner's; make one of your own")
}

/// The owner that an instance is bound to, read where it leads; `None` when it never was.
pub(crate) async fn instance_owner(
    stores: &AuthorityStores,
    at: &EndpointInstance,
) -> Result<Option<Owner>, EpError> {
    let key = epowner_key(&at.endpoint, &at.instance);
    let Some(entry) = stores.auth_store().read(&key).await? else { return Ok(None) };
    Ok(Some(at_key(&key, Ownership::parse(&entry.value))?.0))
}

/// Binds an instance that was not bound a moment ago. One of another owner's is `permission-denied`.
pub(crate) async fn bind_instance(
    stores: &AuthorityStores,
    at: &EndpointInstance,
    owner: &Owner,
) -> Result<Created, EpError> {
    let row = Ownership(owner.clone()).to_bytes();
    let key = epowner_key(&at.endpoint, &at.instance);
    create_same(stores.auth_store(), &key, row, "owner").await.map_err(|refusal| match refusal.code {
        EpCode::Conflict => anothers(),
        _ => refusal,
    })
}
