//! The delivery daemon, who may ask it, and its users of the system account (contract 01 §6.6 and §6.7).
//!
//! The two system-account users know no space: the observer reads the connections of one data account, the evictor
//! closes connections by number. Neither is ever a client of the data account.

use super::{
    Permissions,
    rows::{
        JS_FLOW_CONTROL, JS_INFO, Space, ack, bind, cons, cons_and_delete, consumer, consumer_create_unnamed,
        inbox, message_get, stream_info,
    },
};
use crate::{
    names::Names,
    subject::{ControlService, Subjects},
    token::{Account, Actor, ConnId, Nkey, Owner, Principal, SpaceToken, TokenError, User},
};

/// Under which a membership observer receives its replies. It names no connection: the system account has no other
/// user that reads there.
pub const OBSERVER_INBOX: &str = "_INBOX.cotal-membership";
/// Under which a connection evictor receives its replies: the client library's own prefix.
pub const EVICTOR_INBOX: &str = "_INBOX";
/// Every server answers with its own state and with the cluster that it knows.
pub const SERVER_STATE: &str = "$SYS.REQ.SERVER.PING.STATSZ";

/// The lease of the one shard that is ever run.
const LEASE_KEYS: &str = "lease.*";

/// Asks a manager's space questions and the delivery daemon everything: the oracle and the barriers of the auth
/// service, one call each.
pub fn supervisor(space: &SpaceToken, principal: &Principal, conn: &ConnId) -> Permissions {
    let subjects = Subjects::new(space);
    let space = Space::new(space);
    let leases = Names::kv_subject(&space.names.manager_bucket(), LEASE_KEYS);
    let mut publish = vec![
        JS_INFO.to_owned(),
        stream_info(&space.manager),
        message_get(&space.manager),
        leases,
        space.own_presence(principal),
        stream_info(&space.presence),
    ];
    publish.extend(cons(&space.presence));
    let admin = subjects.control(ControlService::DeliveryAdmin, principal);
    publish.extend([JS_FLOW_CONTROL.to_owned(), admin.clone()]);
    Permissions::allowing(publish, vec![inbox(conn), format!("{admin}.>")])
}

/// Asks the delivery daemon, and does nothing else.
pub fn endpoint_evictor(space: &SpaceToken, principal: &Principal, conn: &ConnId) -> Permissions {
    let subjects = Subjects::new(space);
    let admin = subjects.control(ControlService::DeliveryAdmin, principal);
    let replies = subjects.control_reply_filter(ControlService::DeliveryAdmin, principal);
    Permissions::allowing(vec![admin, JS_INFO.to_owned()], vec![replies, inbox(conn)])
}

/// The delivery daemon. The list is that of the whole profile, the durable message backstop included, so that
/// either implementation can run on it.
pub fn delivery(space: &SpaceToken, conn: &ConnId) -> Permissions {
    let subjects = Subjects::new(space);
    let space = Space::new(space);
    let Space { names, prefix, chat, dlv, presence, channels, delivery, records, .. } = &space;
    let (inbox_stream, timers, requests) = (names.inbox_stream(), names.ept_stream(), names.ept_req_stream());
    let [members, acl] = [names.members_bucket(), names.acl_bucket()].map(|bucket| Names::kv_stream(&bucket));
    let reader = "reader";

    let mut publish = vec![JS_INFO.to_owned()];
    publish.extend([chat, &inbox_stream, dlv].map(|stream| stream_info(stream)));
    publish.push(consumer_create_unnamed(chat));
    publish.extend(cons(chat));
    publish.extend(["DURABLE.CREATE", "MSG.NEXT", "DELETE"].map(|verb| consumer(verb, chat, ">")));
    publish.push(ack(chat, ">"));
    publish.extend([
        consumer("CREATE", &inbox_stream, &format!("{reader}.>")),
        consumer("DURABLE.CREATE", &inbox_stream, reader),
    ]);
    publish.extend(["INFO", "MSG.NEXT", "DELETE"].map(|verb| consumer(verb, &inbox_stream, reader)));
    publish.push(ack(&inbox_stream, &format!("{reader}.>")));
    publish.push(JS_FLOW_CONTROL.to_owned());
    publish.extend([presence, channels, &members, &acl].into_iter().flat_map(|bucket| kv_read(bucket)));
    publish.push(Names::kv_subject(&names.members_bucket(), ">"));
    publish.extend([stream_info(delivery), message_get(delivery)]);
    publish.push(Names::kv_subject(&names.delivery_bucket(), LEASE_KEYS));
    let timer_writer = names.timer_writer_consumer();
    publish.extend(bind(&requests, &timer_writer));
    publish.push(consumer("DURABLE.CREATE", &requests, &timer_writer));
    publish.extend([&requests, &timers, records].map(|stream| stream_info(stream)));
    publish.extend([&timers, records].map(|stream| message_get(stream)));
    publish.extend(["ept.*.*.*.*.armed", "dinbox.*.*.*", "dlv.*.*.*"].map(|tail| format!("{prefix}.{tail}")));
    let services = [ControlService::Delivery, ControlService::DeliveryAdmin];
    publish.extend(services.map(|service| subjects.control_replies(service)));

    let mut subscribe = vec![inbox(conn)];
    subscribe.extend(services.map(|service| subjects.control_filter(service)));
    Permissions::allowing(publish, subscribe)
}

/// Writes the membership feed from the membership rows.
pub fn membership_rw(space: &SpaceToken, conn: &ConnId) -> Permissions {
    let space = Space::new(space);
    let members = Names::kv_stream(&space.names.members_bucket());
    let mut publish = vec![JS_INFO.to_owned()];
    publish.extend([&members, &space.membership].into_iter().flat_map(|bucket| kv_read(bucket)));
    publish.extend([Names::kv_subject(&space.names.membership_bucket(), ">"), JS_FLOW_CONTROL.to_owned()]);
    Permissions::allowing(publish, vec![inbox(conn)])
}

/// A user of the system account that sees the connections of one data account.
///
/// One row more than the contract's list: [`SERVER_STATE`]. Without it a sweep of a cluster could not tell which
/// servers ought to have answered, and every verdict there would be unknown. It carries counters of the server, the
/// names of its cluster and no account.
pub fn membership_observer(account: &Nkey<Account>) -> Permissions {
    let events = ["CONNECT", "DISCONNECT"].map(|event| format!("$SYS.ACCOUNT.{account}.{event}"));
    let subscribe = [format!("{OBSERVER_INBOX}.>")].into_iter().chain(events).collect();
    Permissions::allowing(vec![connections_subject(account), SERVER_STATE.to_owned()], subscribe)
}

/// A user of the system account that closes connections by server and number.
pub fn connection_evictor() -> Permissions {
    Permissions::allowing(vec![kick_subject("*")], vec![format!("{EVICTOR_INBOX}.>")])
}

/// Where every server is asked for the connections of a data account.
pub fn connections_subject(account: &Nkey<Account>) -> String {
    format!("$SYS.REQ.ACCOUNT.{account}.CONNZ")
}

/// Where one server is told to close a connection.
pub fn kick_subject(server_id: &str) -> String {
    format!("$SYS.REQ.SERVER.{server_id}.KICK")
}

/// Whom a static user with no actor of its own speaks for: `local.<nkey>` (contract 01 §3.3).
pub fn nkey_principal(user: &Nkey<User>) -> Result<Principal, TokenError> {
    Ok(Principal::new(Owner::local(), Actor::parse(user.as_str())?))
}

/// The contract's `kvRead`: everything that lists and reads a bucket.
fn kv_read(bucket: &str) -> Vec<String> {
    let mut rows = vec![stream_info(bucket), message_get(bucket)];
    rows.extend(cons_and_delete(bucket));
    rows
}
