//! What the operator's commands open for one question each. No list of them is public: these are the smallest that
//! let the command do its work (contract 12 D16).

use super::{
    Permissions,
    rows::{JS_INFO, inbox, message_get, stream_info},
};
use crate::{
    names::{Names, RENEWAL_KEY},
    token::{ConnId, SpaceToken},
};

/// Reads the head of a name, `cotal:operator-mapping:<space>`: which incarnation is the active one.
pub fn mapping_reader(space: &SpaceToken, conn: &ConnId) -> Permissions {
    let records = Names::new(space).records_stream();
    let publish = vec![JS_INFO.to_owned(), stream_info(&records), message_get(&records)];
    Permissions::allowing(publish, vec![inbox(conn)])
}

/// Reads who holds the delivery lease, `cotal:operator-status:<space>`.
pub fn delivery_lease_reader(space: &SpaceToken, conn: &ConnId) -> Permissions {
    let delivery = Names::kv_stream(&Names::new(space).delivery_bucket());
    let publish = vec![JS_INFO.to_owned(), stream_info(&delivery), message_get(&delivery)];
    Permissions::allowing(publish, vec![inbox(conn)])
}

/// Renews the delivery daemon's credentials, `cotal:operator-renewal:<space>`: reads both leases and holds the one of
/// the renewal, and nothing else of the manager's (contract 08 §7.4).
pub fn renewal_owner(space: &SpaceToken, conn: &ConnId) -> Permissions {
    let names = Names::new(space);
    let manager = names.manager_bucket();
    let (leases, delivery) = (Names::kv_stream(&manager), Names::kv_stream(&names.delivery_bucket()));
    let publish = vec![
        JS_INFO.to_owned(),
        stream_info(&leases),
        message_get(&leases),
        stream_info(&delivery),
        message_get(&delivery),
        Names::kv_subject(&manager, RENEWAL_KEY),
    ];
    Permissions::allowing(publish, vec![inbox(conn)])
}
