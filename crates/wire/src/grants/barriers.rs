//! One-shot connections that a barrier opens beside its own: contract 07 §7.1 publishes no list for what they write, so
//! each names the exact keys of its one call (contract 12 D16).

use super::{
    Permissions,
    rows::{JS_INFO, inbox, message_get, stream_info},
};
use crate::{
    endpoint_token::KeySegment,
    names::{Names, session_key, srcgate_key},
    token::{ConnId, SessionId, SpaceToken},
};

/// Ends the credential pair of one session, `cotal:session-pair:<space>`: its row in either bucket, and the two
/// ledger rows that carry its id.
pub fn session_pair(space: &SpaceToken, session: &SessionId, conn: &ConnId) -> Permissions {
    let names = Names::new(space);
    let (auth, sessions) = (names.auth_bucket(), names.sessions_bucket());
    let streams = [&auth, &sessions].map(|bucket| Names::kv_stream(bucket));
    let mut publish = vec![JS_INFO.to_owned()];
    publish.extend(streams.iter().map(|stream| stream_info(stream)));
    publish.extend(streams.iter().map(|stream| message_get(stream)));
    publish.extend([&sessions, &auth].map(|bucket| Names::kv_subject(bucket, &session_key(session))));
    publish.push(Names::kv_subject(&auth, &format!("cred.*.{session}.c")));
    publish.push(Names::kv_subject(&auth, &format!("epcred.*.*.{session}.s")));
    Permissions::allowing(publish, vec![inbox(conn)])
}

/// Revokes one capability handle, `cotal:handle-revocation:<space>`: freezes its source gate and marks the ledger rows
/// that derive from it.
pub fn handle_revocation(
    space: &SpaceToken,
    issuer_key: &KeySegment,
    id: &KeySegment,
    conn: &ConnId,
) -> Permissions {
    let names = Names::new(space);
    let (auth, records) = (names.auth_stream(), names.records_stream());
    let mut publish = vec![JS_INFO.to_owned(), stream_info(&auth), stream_info(&records), message_get(&auth)];
    let keys = [srcgate_key(issuer_key, id), "cred.>".to_owned(), "epcred.>".to_owned()];
    publish.extend(keys.map(|key| Names::kv_subject(&names.auth_bucket(), &key)));
    Permissions::allowing(publish, vec![inbox(conn)])
}
