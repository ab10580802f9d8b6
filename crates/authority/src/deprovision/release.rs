//! What a managed agent left on the broker, all of it, before its grant goes (contract 05 §10).

use cotal_broker::Connector;
use cotal_wire::{Channel, Clock, EpError, LifecycleUid, Principal};

use super::{Footprint, deprovision_agent, fence_lifecycle_acl};
use crate::delivery_admin::DeliveryAdmin;

/// Fences the incarnation's read ACL, asks the delivery daemon for its memberships, and removes the footprint: the
/// channels that the grant names and those of the inventory.
///
/// Without the whole inventory, what the grant names is removed all the same, and then the call fails: whoever holds the
/// grant keeps it for a retry. A failure of the removal is told before that of the inventory.
pub async fn release_footprint(
    connector: &Connector,
    delivery: &DeliveryAdmin,
    clock: &dyn Clock,
    principal: &Principal,
    uid: &LifecycleUid,
    granted: Vec<Channel>,
) -> Result<(), EpError> {
    fence_lifecycle_acl(connector, clock, principal, uid).await?;
    // After the fence: a join that this inventory does not see then takes its own row back.
    let inventory = delivery.lifecycle_memberships(principal, uid).await;
    let (found, whole) = match inventory {
        Ok(listed) => read(&listed),
        Err(refusal) => (Vec::new(), Err(refusal)),
    };
    let footprint = Footprint::new(principal.clone(), uid.clone(), granted.into_iter().chain(found));
    let account = deprovision_agent(connector, &footprint).await.map_err(|error| EpError {
        message: format!("the agent's footprint is not known to be gone, so its grant stays: {error}"),
        ..error.cause.clone()
    })?;
    tracing::info!(%principal, %uid, ?account, "a managed agent's footprint was released");
    whole.map_err(|refusal| EpError {
        message: format!(
            "the agent's memberships could not be listed, so its grant stays for a retry: {}",
            refusal.message
        ),
        ..refusal
    })
}

/// The channels that a membership key can name, and whether all of them were.
fn read(listed: &[String]) -> (Vec<Channel>, Result<(), EpError>) {
    let (named, strange): (Vec<_>, Vec<_>) =
        listed.iter().map(|entry| Channel::parse(entry).map_err(|_| entry)).partition(Result::is_ok);
    let whole = if strange.is_empty() {
        Ok(())
    } else {
        Err(EpError::failed_precondition(format!(
            "{} of the rows that the delivery daemon lists name no channel; remove them by hand",
            strange.len()
        )))
    };
    (named.into_iter().flatten().collect(), whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_that_names_no_channel_leaves_the_inventory_incomplete() {
        let of = |list: &[&str]| read(&list.iter().map(ToString::to_string).collect::<Vec<_>>());
        let (channels, whole) = of(&["general", "team.a"]);
        assert_eq!((channels.len(), whole), (2, Ok(())));
        let (channels, whole) = of(&["general", "team.*"]);
        assert_eq!(channels, [Channel::parse("general").unwrap()]);
        assert!(whole.is_err());
    }
}
