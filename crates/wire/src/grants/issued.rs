//! The issuer and the deprovisioner: connections of minutes, each for one purpose (contract 01 §6.8, 02 §9).

use super::{
    Permissions,
    rows::{
        JS_FLOW_CONTROL, JS_INFO, cons_and_delete, consumer, direct_get, inbox, message_get, stream_info,
    },
};
use crate::{
    channel::Channel,
    names::{Names, accepted_key_filter, dlv_consumer, dm_consumer, lifecycle_subject_key, member_key},
    token::{ConnId, LifecycleUid, Principal, SpaceToken},
};

/// The lifecycle that a deprovisioner is pinned to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// Owner and actor.
    pub principal: Principal,
    /// The incarnation.
    pub uid: LifecycleUid,
}

/// Writes evidence, attempts, index and accepted rows, `cotal:issuer:<space>`; reads the issued store, and the auth
/// store for the gates that issued authority rests on. It writes no authority row.
pub fn issuer(space: &SpaceToken, conn: &ConnId) -> Permissions {
    Permissions::allowing(issuer_rows(&Names::new(space)), vec![inbox(conn)])
}

/// The issuer that a callout holds: it proves the accepted store besides, and reads accepted rows as their clients do
/// (contract 05 §13). No published list has these two rows; they are the least that it needs (contract 12 D16).
pub fn issuer_session(space: &SpaceToken, conn: &ConnId) -> Permissions {
    let names = Names::new(space);
    let accepted = names.accepted_bucket();
    let stream = Names::kv_stream(&accepted);
    let mut publish = issuer_rows(&names);
    publish.extend([
        stream_info(&stream),
        direct_get(&stream, &Names::kv_subject(&accepted, accepted_key_filter())),
    ]);
    Permissions::allowing(publish, vec![inbox(conn)])
}

fn issuer_rows(names: &Names) -> Vec<String> {
    let (issued, accepted) = (names.issued_bucket(), names.accepted_bucket());
    let stream = Names::kv_stream(&issued);
    let mut publish = vec![
        JS_INFO.to_owned(),
        Names::kv_subject(&issued, ">"),
        Names::kv_subject(&accepted, ">"),
        stream_info(&stream),
        message_get(&stream),
        message_get(&names.auth_stream()),
    ];
    publish.extend(cons_and_delete(&stream));
    publish.push(JS_FLOW_CONTROL.to_owned());
    publish
}

/// Removes what one ended lifecycle left on the broker: its two durables, its read-ACL row, and its membership rows on
/// these channels, each by its own name. `cotal:deprovisioner:<space>`.
pub fn deprovisioner(space: &SpaceToken, ended: &Ended, channels: &[Channel], conn: &ConnId) -> Permissions {
    let names = Names::new(space);
    let Ended { principal, uid } = ended;
    let durables = [
        (names.dm_stream(), dm_consumer(principal, uid)),
        (names.dlv_stream(), dlv_consumer(principal, uid)),
    ];
    let verb = |verb: &'static str| durables.clone().map(|(stream, name)| consumer(verb, &stream, &name));
    let row = |bucket: &str, key: &str| {
        let subject = Names::kv_subject(bucket, key);
        [subject.clone(), direct_get(&Names::kv_stream(bucket), &subject)]
    };

    let acl = names.acl_bucket();
    let mut publish = vec![JS_INFO.to_owned()];
    publish.extend(verb("DELETE"));
    publish.push(stream_info(&Names::kv_stream(&acl)));
    publish.extend(row(&acl, &lifecycle_subject_key(principal, uid)));
    publish.extend(verb("INFO"));
    if !channels.is_empty() {
        let members = names.members_bucket();
        publish.push(stream_info(&Names::kv_stream(&members)));
        publish
            .extend(channels.iter().flat_map(|channel| row(&members, &member_key(channel, principal, uid))));
    }
    Permissions::allowing(publish, vec![inbox(conn)])
}
