//! Maintenance profiles and operator instruments (contract 01 §6.5).

use super::{
    ConnectPrincipal, InstrumentTier, Issued, Permissions, Rules,
    endpoint_rows::{Caller, LAUNCH, RowList},
    rows::{
        JS_FLOW_CONTROL, JS_INFO, Space, cons, direct_get, inbox, message_get, stream_create, stream_delete,
        stream_info, stream_purge,
    },
};
use crate::{
    names::Names,
    token::{InstanceId, LifecycleUid},
};

/// Connects, and does nothing.
pub(super) fn probe(who: &ConnectPrincipal) -> Permissions {
    Permissions {
        publish: Rules { allow: Vec::new(), deny: vec![">".to_owned()] },
        subscribe: Rules { allow: vec![inbox(&who.conn_id)], deny: Vec::new() },
    }
}

pub(super) fn purger(space: &Space, who: &ConnectPrincipal) -> Permissions {
    Permissions::allowing(
        vec![JS_INFO.to_owned(), stream_purge(&space.chat), stream_purge(&space.dm)],
        vec![inbox(&who.conn_id)],
    )
}

pub(super) fn channel_writer(space: &Space, who: &ConnectPrincipal) -> Permissions {
    let channels = &space.channels;
    Permissions::allowing(
        vec![
            JS_INFO.to_owned(),
            space.channel_keys(),
            stream_info(channels),
            stream_create(channels),
            message_get(channels),
            direct_get(channels, ">"),
        ],
        vec![inbox(&who.conn_id)],
    )
}

pub(super) fn channel_purger(space: &Space, who: &ConnectPrincipal) -> Permissions {
    let channels = &space.channels;
    Permissions::allowing(
        vec![
            JS_INFO.to_owned(),
            space.channel_keys(),
            stream_info(channels),
            message_get(channels),
            direct_get(channels, ">"),
            stream_purge(&space.chat),
        ],
        vec![inbox(&who.conn_id)],
    )
}

pub(super) fn operator(space: &Space, who: &ConnectPrincipal) -> Permissions {
    let Space { prefix, presence, channels, .. } = space;
    let own = who.principal.key();
    let mut publish = vec![
        format!("{prefix}.chat.{own}.>"),
        format!("{prefix}.inst.*.*.{own}"),
        format!("{prefix}.svc.*.{own}"),
        space.own_presence(&who.principal),
        JS_INFO.to_owned(),
        stream_info(presence),
    ];
    publish.extend(cons(presence));
    publish.extend([stream_info(channels), message_get(channels), direct_get(channels, ">")]);
    publish.extend(cons(channels));
    publish.push(JS_FLOW_CONTROL.to_owned());
    Permissions::allowing(publish, vec![inbox(&who.conn_id)])
}

pub(super) fn control_caller(
    space: &Space,
    who: &ConnectPrincipal,
    uid: &LifecycleUid,
    tier: InstrumentTier,
    issued: Option<&Issued>,
) -> Permissions {
    let mut caller = instrument(space, who, uid, tier, issued);
    if tier == InstrumentTier::Privileged {
        let services = Names::kv_subject(&space.names.records_bucket(), "svc.>");
        caller.publish.extend([
            stream_info(&space.records),
            message_get(&space.records),
            direct_get(&space.records, &services),
        ]);
    }
    with_inbox(who, caller.publish.into_rows(), caller.subscribe)
}

pub(super) fn deployer(
    space: &Space,
    who: &ConnectPrincipal,
    uid: &LifecycleUid,
    tier: InstrumentTier,
    issued: Option<&Issued>,
) -> Permissions {
    let mut publish = vec![JS_INFO.to_owned()];
    for bucket in [&space.presence, &space.channels, &space.membership] {
        publish.extend(read_bucket(bucket));
        publish.extend(cons(bucket));
    }
    for bucket in [&space.manager, &space.delivery] {
        publish.extend(read_bucket(bucket));
    }
    publish.push(JS_FLOW_CONTROL.to_owned());
    let mut caller = instrument_caller(space, who, uid, tier, issued);
    if tier == InstrumentTier::Privileged {
        caller.ask_manager([&LAUNCH]);
    }
    let caller = caller.into_rows();
    publish.extend(caller.publish.into_rows());
    with_inbox(who, publish, caller.subscribe)
}

/// The sole holder of `STREAM.DELETE`: everything of the space, and the named transfer stores.
pub(super) fn teardown(
    space: &Space,
    who: &ConnectPrincipal,
    uid: &LifecycleUid,
    transfers: &[InstanceId],
) -> Permissions {
    let Space { names, chat, presence, channels, .. } = space;
    let mut publish = vec![JS_INFO.to_owned()];
    publish.extend(cons(presence));
    publish.extend([message_get(channels), direct_get(channels, ">")]);
    publish.extend(cons(channels));
    publish.push(JS_FLOW_CONTROL.to_owned());
    let caller = instrument(space, who, uid, InstrumentTier::Admin, None);
    publish.extend(caller.publish.into_rows());
    let buckets = names.messaging_buckets().into_iter().chain(names.authority_buckets());
    let objects =
        [names.artifacts_bucket()].into_iter().chain(transfers.iter().map(|i| names.transfer_bucket(i)));
    let streams = names
        .message_streams()
        .into_iter()
        .chain(buckets.map(|bucket| Names::kv_stream(&bucket)))
        .chain(names.endpoint_streams())
        .chain(objects.map(|bucket| Names::object_stream(&bucket)));
    publish.extend(streams.flat_map(|stream| [stream_info(&stream), stream_delete(&stream)]));
    publish.push(stream_purge(chat));
    publish.push(space.channel_keys());
    with_inbox(who, publish, caller.subscribe)
}

fn read_bucket(bucket: &str) -> [String; 3] {
    [stream_info(bucket), message_get(bucket), direct_get(bucket, ">")]
}

fn instrument_caller<'a>(
    space: &'a Space,
    who: &'a ConnectPrincipal,
    uid: &'a LifecycleUid,
    tier: InstrumentTier,
    issued: Option<&'a Issued>,
) -> Caller<'a> {
    let mut caller = Caller::new(space, &who.principal, uid, issued);
    caller.describe_everywhere();
    caller.contract_fetch();
    caller.accepted_read();
    caller.ask_manager(tier.commands());
    caller
}

fn instrument(
    space: &Space,
    who: &ConnectPrincipal,
    uid: &LifecycleUid,
    tier: InstrumentTier,
    issued: Option<&Issued>,
) -> super::endpoint_rows::CallerRows {
    instrument_caller(space, who, uid, tier, issued).into_rows()
}

fn with_inbox(who: &ConnectPrincipal, publish: Vec<String>, caller: RowList) -> Permissions {
    let subscribe = [inbox(&who.conn_id)].into_iter().chain(caller.into_rows()).collect();
    Permissions::allowing(publish, subscribe)
}
