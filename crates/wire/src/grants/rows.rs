//! Rows that many templates share, spelled once.

use crate::{
    names::{JS_API, Names},
    token::{ConnId, Principal, SpaceToken},
};

/// `$JS.API.INFO`.
pub(super) const JS_INFO: &str = "$JS.API.INFO";
/// Flow control of ordered consumers.
pub(super) const JS_FLOW_CONTROL: &str = "$JS.FC.>";

/// Where a client receives its replies.
pub(super) fn inbox(conn_id: &ConnId) -> String {
    format!("_INBOX_{conn_id}.>")
}

pub(super) fn stream_info(stream: &str) -> String {
    format!("{JS_API}.STREAM.INFO.{stream}")
}

pub(super) fn stream_create(stream: &str) -> String {
    format!("{JS_API}.STREAM.CREATE.{stream}")
}

pub(super) fn stream_update(stream: &str) -> String {
    format!("{JS_API}.STREAM.UPDATE.{stream}")
}

pub(super) fn stream_delete(stream: &str) -> String {
    format!("{JS_API}.STREAM.DELETE.{stream}")
}

pub(super) fn stream_purge(stream: &str) -> String {
    format!("{JS_API}.STREAM.PURGE.{stream}")
}

/// A leader read of one message.
pub(super) fn message_get(stream: &str) -> String {
    format!("{JS_API}.STREAM.MSG.GET.{stream}")
}

/// A Direct Get by subject; `tail` is a subject filter.
pub(super) fn direct_get(stream: &str, tail: &str) -> String {
    format!("{JS_API}.DIRECT.GET.{stream}.{tail}")
}

/// A Direct Get whose body says what is read.
pub(super) fn direct_get_by_body(stream: &str) -> String {
    format!("{JS_API}.DIRECT.GET.{stream}")
}

/// A consumer verb with a tail: a name, a name and its filter, or `>`.
pub(super) fn consumer(verb: &str, stream: &str, tail: &str) -> String {
    format!("{JS_API}.CONSUMER.{verb}.{stream}.{tail}")
}

/// Creating a consumer whose name is in the body alone.
pub(super) fn consumer_create_unnamed(stream: &str) -> String {
    format!("{JS_API}.CONSUMER.CREATE.{stream}")
}

pub(super) fn ack(stream: &str, tail: &str) -> String {
    format!("$JS.ACK.{stream}.{tail}")
}

/// The chapter's `cons(X)`: create and inspect any named consumer.
pub(super) fn cons(stream: &str) -> [String; 2] {
    [consumer("CREATE", stream, ">"), consumer("INFO", stream, ">")]
}

/// `cons(X)` and the right to delete what it made.
pub(super) fn cons_and_delete(stream: &str) -> [String; 3] {
    let [create, info] = cons(stream);
    [create, info, consumer("DELETE", stream, ">")]
}

/// Reading from a durable that someone else created.
pub(super) fn bind(stream: &str, durable: &str) -> [String; 3] {
    [
        consumer("INFO", stream, durable),
        consumer("MSG.NEXT", stream, durable),
        ack(stream, &format!("{durable}.>")),
    ]
}

/// The subjects and streams of a space that templates name.
pub(super) struct Space {
    pub(super) names: Names,
    /// `cotal.<S>`.
    pub(super) prefix: String,
    pub(super) chat: String,
    pub(super) dm: String,
    pub(super) task: String,
    pub(super) dlv: String,
    pub(super) presence: String,
    pub(super) channels: String,
    pub(super) membership: String,
    pub(super) delivery: String,
    pub(super) manager: String,
    pub(super) records: String,
}

impl Space {
    pub(super) fn new(space: &SpaceToken) -> Self {
        let names = Names::new(space);
        Self {
            prefix: names.subject_prefix(),
            chat: names.chat_stream(),
            dm: names.dm_stream(),
            task: names.task_stream(),
            dlv: names.dlv_stream(),
            presence: Names::kv_stream(&names.presence_bucket()),
            channels: Names::kv_stream(&names.channels_bucket()),
            membership: Names::kv_stream(&names.membership_bucket()),
            delivery: Names::kv_stream(&names.delivery_bucket()),
            manager: Names::kv_stream(&names.manager_bucket()),
            records: names.records_stream(),
            names,
        }
    }

    /// The principal's own presence key.
    pub(super) fn own_presence(&self, principal: &Principal) -> String {
        Names::kv_subject(&self.names.presence_bucket(), &principal.key())
    }

    /// Every key of the channel registry.
    pub(super) fn channel_keys(&self) -> String {
        Names::kv_subject(&self.names.channels_bucket(), ">")
    }
}
