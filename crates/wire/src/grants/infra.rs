//! Connections that the service opens for itself on the data account (contract 01 §6.8 and §6.12, 07 §7.1).
//!
//! Each subscribes to its own inbox and to nothing else. Of the standing ones only the two sealed scanners may create
//! a consumer, by name and filter.

use super::{
    Permissions,
    rows::{
        JS_INFO, bind, cons_and_delete, consumer, direct_get, direct_get_by_body, inbox, message_get,
        stream_create, stream_info, stream_update,
    },
};
use crate::{
    manager_authority::{served_run_cancel_subject, served_run_subjects},
    names::{GOAL_INDEX_SCAN_CONSUMER, LEDGER_SCAN_CONSUMER, Names, PLANE_KEY, RECORDS_SCAN_CONSUMER},
    token::{ConnId, SpaceToken},
};

/// The supervised connect reader, `cotal:auth-reader:<space>`: reads both authority stores, and the sessions that callers
/// redeem. It writes nothing.
pub fn connect_reader(space: &SpaceToken, conn: &ConnId) -> Permissions {
    let names = Names::new(space);
    let (auth, records) = (names.auth_stream(), names.records_stream());
    let sessions = Names::kv_stream(&names.sessions_bucket());
    let publish = vec![
        JS_INFO.to_owned(),
        stream_info(&auth),
        stream_info(&records),
        message_get(&auth),
        message_get(&records),
        stream_info(&sessions),
        message_get(&sessions),
    ];
    Permissions::allowing(publish, vec![inbox(conn)])
}

/// The store connection of a callout replica, `cotal:auth-replica-store:<space>`: proves both authority stores, reads
/// whether the space admits service endpoints, and creates issuance rows. Deny-new is read by its connect reader.
pub fn replica_store(space: &SpaceToken, conn: &ConnId) -> Permissions {
    let names = Names::new(space);
    let auth = names.auth_stream();
    let publish = vec![
        stream_info(&auth),
        stream_info(&names.records_stream()),
        message_get(&auth),
        Names::kv_subject(&names.auth_bucket(), "natkey.*"),
    ];
    Permissions::allowing(publish, vec![inbox(conn)])
}

/// The mint writer, `cotal:auth-mint:<space>`: creates both authority stores, writes gates, credential rows, lineage,
/// issuance rows, whose managers' instances and sessions are, heads and reservations.
pub fn authority_writer(space: &SpaceToken, conn: &ConnId) -> Permissions {
    let names = Names::new(space);
    let (auth, records) = (names.auth_stream(), names.records_stream());
    let mut publish = vec![
        JS_INFO.to_owned(),
        stream_create(&auth),
        stream_create(&records),
        stream_update(&records),
        stream_info(&auth),
        stream_info(&records),
        message_get(&auth),
        message_get(&records),
    ];
    publish.extend(records_direct_get(&records));
    publish.extend(
        ["gate.>", "cred.>", "bysrc.>", "natkey.>", "epowner.manager.*", "sessowner.*"]
            .map(|k| Names::kv_subject(&names.auth_bucket(), k)),
    );
    publish.extend(["lifecycle.>", "uid.>"].map(|k| Names::kv_subject(&names.records_bucket(), k)));
    Permissions::allowing(publish, vec![inbox(conn)])
}

/// The barrier executor, `cotal:auth-barrier:<space>`: takeovers, retirements, and the plane claim.
pub fn barrier_executor(space: &SpaceToken, conn: &ConnId) -> Permissions {
    let names = Names::new(space);
    let (auth, records) = (names.auth_stream(), names.records_stream());
    let mut publish = vec![JS_INFO.to_owned(), stream_info(&auth), stream_info(&records)];
    publish.extend(names.frontier_streams().iter().filter(|s| **s != records).map(|s| stream_info(s)));
    publish.extend([message_get(&auth), message_get(&records)]);
    publish.extend(records_direct_get(&records));
    publish.extend(
        ["gate.>", "cred.>", "stage.*", PLANE_KEY].map(|k| Names::kv_subject(&names.auth_bucket(), k)),
    );
    publish.extend(["lifecycle.>", "frontier.*"].map(|k| Names::kv_subject(&names.records_bucket(), k)));
    Permissions::allowing(publish, vec![inbox(conn)])
}

/// The sealed scanner of the auth stream, `cotal:auth-scan:<space>` (contract 02 §9).
pub fn ledger_scanner(space: &SpaceToken, conn: &ConnId) -> Permissions {
    let names = Names::new(space);
    let filter = Names::kv_subject(&names.auth_bucket(), ">");
    scanner(&names.auth_stream(), LEDGER_SCAN_CONSUMER, &filter, conn)
}

/// The sealed scanner of the records stream, `cotal:records-scan:<space>` (contract 02 §9), which besides obligations
/// enumerates the manager's goal index through a consumer of its own (contract 05 §8.7).
pub fn records_scanner(space: &SpaceToken, conn: &ConnId) -> Permissions {
    let names = Names::new(space);
    let stream = names.records_stream();
    let filter = Names::kv_subject(&names.records_bucket(), "oblig.>");
    let mut permissions = scanner(&stream, RECORDS_SCAN_CONSUMER, &filter, conn);
    let goals = Names::kv_subject(&names.records_bucket(), "goalidx.manager.>");
    permissions.publish.allow.extend(scan_rows(&stream, GOAL_INDEX_SCAN_CONSUMER, &goals));
    permissions
}

/// The remote manager issuer, `cotal:remote-manager-issuer:<space>`: issues into the families of endpoint instances, reads
/// what its decisions stand on where it leads, and hears the requests that managers serve for runs. It answers none.
///
/// No published list has it all (contract 12 D16). It writes no agent's rows, which the published list let it: those are the
/// mint writer's.
pub fn remote_manager_issuer(space: &SpaceToken, conn: &ConnId) -> Permissions {
    let names = Names::new(space);
    let (auth, records) = (names.auth_stream(), names.records_stream());
    let admission = Names::kv_stream(&names.admission_bucket());
    let mut publish = vec![
        JS_INFO.to_owned(),
        stream_info(&auth),
        stream_info(&records),
        message_get(&auth),
        message_get(&records),
    ];
    publish.extend(["epgate.>", "epcred.>"].map(|key| Names::kv_subject(&names.auth_bucket(), key)));
    publish.extend([
        stream_info(&admission),
        message_get(&admission),
        direct_get(&names.epc_stream(), &format!("{}.epc.*", names.subject_prefix())),
    ]);
    let mut subscribe = vec![inbox(conn)];
    subscribe.extend(served_run_subjects(space));
    subscribe.push(served_run_cancel_subject(space));
    Permissions::allowing(publish, subscribe)
}

/// Creates a space's resources, `cotal:provisioner:<space>`: no message is read, no stream deleted or purged.
pub fn provisioner(space: &SpaceToken, conn: &ConnId) -> Permissions {
    let names = Names::new(space);
    let kv = |bucket: String| Names::kv_stream(&bucket);
    let artifacts = Names::object_stream(&names.artifacts_bucket());
    let mut publish = vec![JS_INFO.to_owned()];

    let created = names
        .message_streams()
        .into_iter()
        .chain([artifacts.clone()])
        .chain(names.endpoint_streams())
        .chain(names.authority_buckets().map(kv))
        .chain(names.messaging_buckets().map(kv));
    publish.extend(created.flat_map(|stream| [stream_create(&stream), stream_info(&stream)]));

    let expiring = [names.presence_bucket(), names.delivery_bucket(), names.manager_bucket()];
    let hardened =
        [names.records_bucket(), names.issued_bucket(), names.accepted_bucket(), names.admission_bucket()];
    publish.extend(expiring.map(kv).iter().map(|s| stream_update(s)));
    publish.extend(hardened.map(kv).iter().map(|s| stream_update(s)));
    publish.push(stream_update(&artifacts));

    for stream in [names.dm_stream(), names.dlv_stream(), names.task_stream()] {
        publish.extend(["CREATE", "DURABLE.CREATE", "INFO"].map(|verb| consumer(verb, &stream, ">")));
    }
    let registries = [names.acl_bucket(), names.channels_bucket()];
    publish.extend(registries.iter().map(|bucket| Names::kv_subject(bucket, ">")));
    for stream in registries.map(kv) {
        publish.extend([message_get(&stream), direct_get(&stream, ">")]);
    }
    let records = names.records_stream();
    publish.extend(cons_and_delete(&records));
    publish.push(message_get(&records));
    publish.push(direct_get(&records, &Names::kv_subject(&names.records_bucket(), "mgrslot.>")));
    Permissions::allowing(publish, vec![inbox(conn)])
}

/// Both forms of a Direct Get on the records store: by body, and by subject.
fn records_direct_get(records: &str) -> [String; 2] {
    [direct_get_by_body(records), direct_get(records, ">")]
}

fn scanner(stream: &str, name: &str, filter: &str, conn: &ConnId) -> Permissions {
    let mut publish = vec![JS_INFO.to_owned(), stream_info(stream)];
    publish.extend(scan_rows(stream, name, filter));
    Permissions::allowing(publish, vec![inbox(conn)])
}

fn scan_rows(stream: &str, name: &str, filter: &str) -> [String; 4] {
    let [info, next, _] = bind(stream, name);
    // The create is pinned to the name and to its whole filter; the body cannot say otherwise.
    let create = consumer("CREATE", stream, &format!("{name}.{filter}"));
    [create, info, next, consumer("DELETE", stream, name)]
}
