//! The agent template: a user connection without a view, and static agents (contract 01 §6.1).

use super::{
    AgentGrants, ConnectPrincipal, Permissions, Rules,
    endpoint_rows::{Caller, RowList},
    rows::{
        JS_FLOW_CONTROL, JS_INFO, Space, bind, cons_and_delete, consumer, consumer_create_unnamed, inbox,
        message_get, stream_info,
    },
};
use crate::{
    names::{dlv_consumer, dm_consumer, history_consumer, role_consumer},
    token::LifecycleUid,
};

pub(super) fn agent(
    space: &Space,
    who: &ConnectPrincipal,
    uid: &LifecycleUid,
    grants: &AgentGrants,
) -> Permissions {
    let Space { prefix, chat, dm, task, dlv, presence, channels, delivery, .. } = space;
    let own = who.principal.key();
    let history = history_consumer(&who.principal, uid);
    let mut publish = RowList::default();

    publish.extend(grants.allow_publish.iter().map(|channel| format!("{prefix}.chat.{own}.{channel}")));
    publish.extend([
        format!("{prefix}.inst.*.*.{own}"),
        format!("{prefix}.svc.*.{own}"),
        format!("{prefix}.ctl.delivery.{own}"),
    ]);
    publish.add(JS_INFO.to_owned());
    publish.extend([chat, presence, channels].map(|stream| stream_info(stream)));
    // The broker pins the trailing filter to the one in the body, so that history follows the read ACL.
    publish.extend(
        grants
            .allow_subscribe
            .iter()
            .map(|channel| consumer("CREATE", chat, &format!("{history}.{prefix}.chat.*.*.{channel}"))),
    );
    publish.extend(["INFO", "MSG.NEXT", "DELETE"].map(|verb| consumer(verb, chat, &history)));
    publish.extend(bind(dm, &dm_consumer(&who.principal, uid)));
    publish.extend(bind(dlv, &dlv_consumer(&who.principal, uid)));
    publish.extend(cons_and_delete(presence));
    publish.add(JS_FLOW_CONTROL.to_owned());
    publish.add(space.own_presence(&who.principal));
    publish.add(message_get(channels));
    publish.extend(cons_and_delete(channels));
    publish.extend([stream_info(delivery), message_get(delivery)]);
    if let Some(role) = &grants.role {
        publish.add(stream_info(task));
        publish.extend(bind(task, &role_consumer(role)));
    }

    let mut caller = Caller::new(space, &who.principal, uid, grants.issued.as_ref());
    caller.describe_everywhere();
    caller.contract_fetch();
    caller.baseline();
    caller.accepted_read();
    caller.ask_manager(grants.capabilities.commands());
    let caller = caller.into_rows();
    publish.extend(caller.publish.into_rows());

    let mut subscribe = RowList::default();
    subscribe.add(inbox(&who.conn_id));
    subscribe.add(format!("{prefix}.ctl.delivery.{own}.>"));
    subscribe.extend(grants.allow_subscribe.iter().map(|channel| format!("{prefix}.chat.*.*.{channel}")));
    subscribe.extend(caller.subscribe.into_rows());

    // A consumer's body cannot be confined by subject, so no agent creates one where others' messages lie.
    let deny = [dm, task, dlv]
        .into_iter()
        .flat_map(|stream| {
            [
                consumer_create_unnamed(stream),
                consumer("CREATE", stream, ">"),
                consumer("DURABLE.CREATE", stream, ">"),
            ]
        })
        .collect();
    Permissions {
        publish: Rules { allow: publish.into_rows(), deny },
        subscribe: Rules { allow: subscribe.into_rows(), deny: Vec::new() },
    }
}
