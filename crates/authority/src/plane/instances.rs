//! Whose the instances of a space's managers are, by the host's own word, and how many an owner has.
//!
//! The gate of each of them stands for good, and every selection of the space scans all gates: an owner has no more of them than
//! [`MOST_INSTANCES`]. What the host said of an instance it never takes back, so it is remembered once it was read.

use std::{collections::HashMap, sync::Arc};

use cotal_wire::{EndpointName, EpCode, EpError, InstanceId, Owner, rows::Ownership};
use parking_lot::Mutex;
use tokio::sync::OnceCell;

use super::Plane;
use crate::{
    ConnectReader,
    credential::Created,
    ownership::{anothers, bind_instance, instance_owner},
    registration::EndpointInstance,
    scanner::{LedgerScanner, Scanned},
};

/// Most instances that one owner's managers are prepared under. A manager keeps its own for good.
const MOST_INSTANCES: usize = 4_096;
/// Of how many instances it is remembered whose they are.
const REMEMBERED: usize = 16_384;

/// What is known of them.
pub(super) struct Instances {
    ledger: Arc<LedgerScanner>,
    /// Of each owner; counted when a new one is first prepared, and kept from then on.
    counts: OnceCell<Mutex<HashMap<Owner, usize>>>,
    owners: Mutex<HashMap<InstanceId, Owner>>,
}

/// A further instance of an owner. Dropped, there is none after all.
struct Further<'a> {
    counts: &'a Mutex<HashMap<Owner, usize>>,
    owner: Option<&'a Owner>,
}

/// A manager's instance as an endpoint's.
fn at(instance: &InstanceId) -> EndpointInstance {
    EndpointInstance { endpoint: EndpointName::manager().token(), instance: instance.clone() }
}

impl Instances {
    pub(super) fn counted_by(ledger: Arc<LedgerScanner>) -> Self {
        Self { ledger, counts: OnceCell::new(), owners: Mutex::default() }
    }

    /// Whether the host says that it is somebody else's.
    pub(super) async fn is_anothers(
        &self,
        reader: &ConnectReader,
        instance: &InstanceId,
        owner: &Owner,
    ) -> Result<bool, EpError> {
        if let Some(known) = self.owners.lock().get(instance) {
            return Ok(known != owner);
        }
        let bound =
            reader.decided(|_| async { instance_owner(reader.stores(), &at(instance)).await }).await?;
        // Who is bound to nobody may be bound later.
        let Some(bound) = bound else { return Ok(false) };
        let anothers = bound != *owner;
        let mut owners = self.owners.lock();
        if owners.len() >= REMEMBERED {
            owners.clear();
        }
        owners.insert(instance.clone(), bound);
        Ok(anothers)
    }

    /// Room for one more of this owner's, or `resource-exhausted`.
    async fn further<'a>(&'a self, owner: &'a Owner) -> Result<Further<'a>, EpError> {
        let count = || async { Ok::<_, EpError>(Mutex::new(counted(&self.ledger.manager_owners().await?))) };
        let counts = self.counts.get_or_try_init(count).await?;
        let mut of = counts.lock();
        let many = of.entry(owner.clone()).or_default();
        if *many >= MOST_INSTANCES {
            return Err(too_many());
        }
        *many += 1;
        Ok(Further { counts, owner: Some(owner) })
    }
}

impl Further<'_> {
    fn stays(mut self) {
        self.owner = None;
    }
}

impl Drop for Further<'_> {
    fn drop(&mut self) {
        let Some(owner) = self.owner else { return };
        if let Some(many) = self.counts.lock().get_mut(owner) {
            *many = many.saturating_sub(1);
        }
    }
}

/// How many each owner has. A row that cannot be read is nobody's, and a marker none.
fn counted(rows: &[Scanned]) -> HashMap<Owner, usize> {
    let mut counts = HashMap::new();
    for row in rows {
        match row.value.as_deref().map(Ownership::parse) {
            Some(Ok(Ownership(owner))) => *counts.entry(owner).or_default() += 1,
            Some(Err(error)) => tracing::warn!(key = %row.key, %error, "whose an instance is cannot be read"),
            None => {}
        }
    }
    counts
}

fn too_many() -> EpError {
    EpError::new(
        EpCode::ResourceExhausted,
        format!(
            "this owner has {MOST_INSTANCES} manager instances already; use the one that the manager keeps in its state \
             directory, or ask the operator of the space to remove some that are gone"
        ),
    )
}

impl Plane {
    /// Binds a manager's instance to its owner, before anything is granted that lets a tenant write its other rows. One of
    /// another owner's is `permission-denied`.
    ///
    /// `chosen` says that a tenant chose it, who may never have registered it: one more than an owner may have is
    /// `resource-exhausted` then. What a platform assigned, or was registered before, is bound in any case.
    pub async fn bind_instance(
        &self,
        instance: &InstanceId,
        owner: &Owner,
        chosen: bool,
    ) -> Result<(), EpError> {
        self.fence.check()?;
        match instance_owner(&self.stores, &at(instance)).await? {
            Some(bound) if bound == *owner => return Ok(()),
            Some(_) => return Err(anothers()),
            None => {}
        }
        let further = if chosen { Some(self.instances.further(owner).await?) } else { None };
        if bind_instance(&self.stores, &at(instance), owner).await? == Created::Here
            && let Some(further) = further
        {
            further.stays();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use cotal_wire::Revision;

    use super::*;

    #[test]
    fn instances_are_counted_by_the_owner_that_the_host_names() {
        let owner = |letter: char| Owner::parse(&format!("u_{}", letter.to_string().repeat(26))).unwrap();
        let row = |value: Option<Vec<u8>>| Scanned {
            key: "epowner.manager.i".to_owned(),
            revision: Revision(1),
            value: value.map(Bytes::from),
        };
        let of = |letter| row(Some(Ownership(owner(letter)).to_bytes()));
        let counts = counted(&[of('a'), of('b'), row(None), of('a'), row(Some(b"{}".to_vec()))]);
        assert_eq!(counts, HashMap::from([(owner('a'), 2), (owner('b'), 1)]));
    }
}
