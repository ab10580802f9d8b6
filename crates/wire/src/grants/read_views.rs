//! Read views: observer and the god view (contract 01 §6.4).

use super::{
    ConnectPrincipal, Permissions,
    rows::{
        JS_FLOW_CONTROL, JS_INFO, Space, ack, cons, cons_and_delete, consumer, consumer_create_unnamed,
        inbox, message_get, stream_info,
    },
};

pub(super) fn observer(space: &Space, who: &ConnectPrincipal) -> Permissions {
    Permissions::allowing(
        observer_publish(space),
        vec![format!("{}.chat.>", space.prefix), inbox(&who.conn_id)],
    )
}

pub(super) fn admin(space: &Space, who: &ConnectPrincipal) -> Permissions {
    let mut publish = observer_publish(space);
    publish.push(stream_info(&space.dm));
    publish.extend(read_stream(&space.dm));
    let subscribe = ["chat", "inst", "svc"].map(|kind| format!("{}.{kind}.>", space.prefix));
    Permissions::allowing(publish, subscribe.into_iter().chain([inbox(&who.conn_id)]).collect())
}

fn observer_publish(space: &Space) -> Vec<String> {
    let Space { chat, presence, channels, membership, delivery, .. } = space;
    let mut publish = vec![JS_INFO.to_owned(), stream_info(chat), stream_info(presence)];
    publish.extend(read_stream(chat));
    publish.extend(cons_and_delete(presence));
    for bucket in [channels, membership] {
        publish.extend([stream_info(bucket), message_get(bucket)]);
        publish.extend(cons_and_delete(bucket));
    }
    publish.push(JS_FLOW_CONTROL.to_owned());
    publish.extend([stream_info(delivery), message_get(delivery)]);
    publish
}

/// Reading a whole message stream with consumers of one's own.
fn read_stream(stream: &str) -> impl Iterator<Item = String> {
    [consumer_create_unnamed(stream)].into_iter().chain(cons(stream)).chain([
        consumer("MSG.NEXT", stream, ">"),
        consumer("DELETE", stream, ">"),
        ack(stream, ">"),
    ])
}
