//! Serving an endpoint, and registering one (contract 01 §6.3 and §6.8, 07 §12.5, 10 §8).

use std::collections::BTreeSet;

use super::{
    Permissions,
    rows::{JS_INFO, bind, cons_and_delete, direct_get, direct_get_by_body, inbox, message_get, stream_info},
};
use crate::{
    endpoint_token::{Command, DESCRIBE, EndpointToken},
    names::{
        Names, effects_consumer, epgate_key, eprepair_key, govern_key, pool_consumer, service_spec_key,
        service_status_key,
    },
    token::{ConnId, InstanceId, SpaceToken},
};

/// What one instance serves, at one epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServeSurface {
    /// The endpoint.
    pub endpoint: EndpointToken,
    /// The instance.
    pub instance: InstanceId,
    /// Its process epoch.
    pub epoch: u64,
    /// The commands that it answers itself. `describe` is always added.
    pub commands: BTreeSet<Command>,
    /// Whether any of its commands is journaled.
    pub journal: bool,
    /// The work pools that it owns.
    pub pools: BTreeSet<Command>,
}

/// The words of both rails, the plain one and that of issued callers: an endpoint serves both (contract 02 §2.1). The
/// second says how many slots follow the coordinates of a reply.
const RAILS: [(&str, &str); 2] = [("ep", "*.*.*.*"), ("ep.v1", "*.*.*.*.*")];

/// `endpoint-serve`: hears its registered commands, in the endpoint's queue group on the class rail, and answers under
/// its own instance and epoch.
pub fn endpoint_serve(space: &SpaceToken, conn: &ConnId, surface: &ServeSurface) -> Permissions {
    let names = Names::new(space);
    let prefix = names.subject_prefix();
    let ServeSurface { endpoint, instance, epoch, commands, journal, pools } = surface;
    let own = format!("{endpoint}.{instance}.{epoch}");

    let commands = commands.iter().map(Command::as_str).filter(|name| *name != DESCRIBE).chain([DESCRIBE]);
    let mut subscribe = Vec::new();
    for command in commands {
        for (rail, _) in RAILS {
            subscribe.extend([
                // Queue-qualified: the class rail is heard in the group alone.
                format!("{prefix}.{rail}.one.{endpoint}.{command}.> {endpoint}"),
                format!("{prefix}.{rail}.all.{endpoint}.{command}.>"),
                format!("{prefix}.{rail}.inst.{endpoint}.{instance}.{command}.>"),
            ]);
        }
    }
    subscribe.extend([format!("{prefix}.ept.{own}.*.fire"), inbox(conn)]);

    let mut publish: Vec<_> =
        RAILS.iter().map(|(rail, slots)| format!("{prefix}.{rail}.reply.{own}.{slots}")).collect();
    publish.extend([
        format!("{prefix}.epe.{own}.>"),
        format!("{prefix}.ept.{own}.*.schedule"),
        format!("{prefix}.epr.{own}.>"),
    ]);
    if *journal {
        publish.extend(bind(&names.epf_stream(), &effects_consumer(endpoint)));
    }
    for pool in pools {
        publish.extend(bind(&names.epw_stream(), &pool_consumer(endpoint, pool)));
    }
    if *journal || !pools.is_empty() {
        publish.push(JS_INFO.to_owned());
    }
    Permissions::allowing(publish, subscribe)
}

/// `endpoint-serve-executor`: what a host that registers one instance itself may touch.
pub fn endpoint_serve_executor(
    space: &SpaceToken,
    conn: &ConnId,
    endpoint: &EndpointToken,
    instance: &InstanceId,
) -> Permissions {
    let names = Names::new(space);
    let (auth, records, artifacts) = (names.auth_stream(), names.records_stream(), names.epc_stream());
    let records_keys = record_subjects(&names, endpoint, instance);
    let artifact_tail = format!("{}.epc", names.subject_prefix());

    let mut publish = vec![JS_INFO.to_owned()];
    publish.extend(auth_subjects(&names, endpoint, instance));
    publish.extend(records_keys.clone());
    publish.extend([
        format!("{artifact_tail}.*"),
        direct_get(&artifacts, &format!("{artifact_tail}.>")),
        direct_get_by_body(&artifacts),
        message_get(&auth),
    ]);
    publish.extend(cons_and_delete(&auth));
    publish.extend(records_keys.iter().map(|subject| direct_get(&records, subject)));
    publish.push(message_get(&records));
    Permissions::allowing(publish, vec![inbox(conn)])
}

/// The registration executor of ONE instance, `cotal:auth-registration:<space>` (contract 12 D16): publishes artifacts,
/// provisions the gate, runs the ceremony. It creates no consumer; a family is listed by STREAM.INFO.
pub fn registration_executor(
    space: &SpaceToken,
    conn: &ConnId,
    endpoint: &EndpointToken,
    instance: &InstanceId,
) -> Permissions {
    let names = Names::new(space);
    let (auth, records) = (names.auth_stream(), names.records_stream());
    let every_artifact = format!("{}.epc.*", names.subject_prefix());
    let mut publish = vec![
        JS_INFO.to_owned(),
        stream_info(&auth),
        stream_info(&records),
        message_get(&auth),
        message_get(&records),
        every_artifact.clone(),
        direct_get(&names.epc_stream(), &every_artifact),
    ];
    publish.extend(auth_subjects(&names, endpoint, instance));
    publish.extend(record_subjects(&names, endpoint, instance));
    Permissions::allowing(publish, vec![inbox(conn)])
}

/// Gate, repair cursor and credential family of one instance.
pub(super) fn auth_subjects(names: &Names, endpoint: &EndpointToken, instance: &InstanceId) -> [String; 3] {
    let keys = [
        epgate_key(endpoint, instance),
        eprepair_key(endpoint, instance),
        format!("epcred.{endpoint}.{instance}.>"),
    ];
    keys.map(|key| Names::kv_subject(&names.auth_bucket(), &key))
}

/// Spec and status of one instance, and its endpoint's governance head.
pub(super) fn record_subjects(names: &Names, endpoint: &EndpointToken, instance: &InstanceId) -> [String; 3] {
    let keys =
        [service_spec_key(endpoint, instance), service_status_key(endpoint, instance), govern_key(endpoint)];
    keys.map(|key| Names::kv_subject(&names.records_bucket(), &key))
}
