//! The endpoint rails, on which anybody of a space may ask: a subject reads as itself and as nothing else, what a request says
//! agrees with its subject by a second reading, and no refusal and no log line repeats what stands in it.
//!
//! Input: a subject, a newline, and a body.
#![no_main]

use cotal_fuzz::{json, parts};
use cotal_wire::{
    EpError, InstanceId,
    endpoint_subject::{MAX_ENDPOINT_SUBJECT, ReplySubject, RequestSubject},
    envelope::{EndpointReply, EndpointRequest},
};
use libfuzzer_sys::fuzz_target;

/// Longest refusal: a member, and its rule.
const LONGEST: usize = 400;
/// Shorter texts may stand in a refusal or a log line by chance.
const LONG: usize = 24;
/// Who answers.
const INSTANCE: &str = "i0000000000000000000000000";
const EPOCH: u64 = 7;

fuzz_target!(|data: &[u8]| {
    let [Some(subject), body] = parts::<2>(data) else { return };
    let subject = String::from_utf8_lossy(subject);
    let asked = RequestSubject::parse(&subject);
    let answered = ReplySubject::parse(&subject);
    assert!(asked.is_none() || answered.is_none(), "a request is no reply");
    if let Some(asked) = &asked {
        is_of_one_subject(&subject, asked.build().as_deref());
        reaches_its_caller(asked);
    }
    if let Some(answered) = &answered {
        is_of_one_subject(&subject, answered.build().as_deref());
    }
    let Some(body) = body else { return };
    request(body, asked.as_ref());
    reply(body);
});

fn is_of_one_subject<E>(subject: &str, built: Result<&str, &E>)
where
    E: std::fmt::Debug,
{
    assert_eq!(built.expect("what was read is written"), subject);
    assert!(!subject.contains(['*', '>', ' ']) && subject.len() <= MAX_ENDPOINT_SUBJECT);
    assert!(subject.split('.').all(|token| !token.is_empty()));
}

/// An answer goes to the caller's own block, whatever a transport says.
fn reaches_its_caller(asked: &RequestSubject) {
    let to = asked.reply(&instance(), EPOCH);
    // Long names leave no room for the responder's.
    let Ok(text) = to.build() else { return };
    let read = ReplySubject::parse(&text).expect("an answer's subject is one");
    assert_eq!(read, to);
    assert_eq!((&read.caller, &read.nonce, &read.space), (&asked.caller, &asked.nonce, &asked.space));
}

fn request(body: &[u8], subject: Option<&RequestSubject>) {
    let request = match EndpointRequest::parse(body) {
        Ok(request) => request,
        Err(refusal) => return is_short(&refusal, body),
    };
    let said = json(body);
    assert_eq!((&said["v"], &said["id"]), (&1.into(), &request.id.as_str().into()));
    assert_eq!(said["op"]["endpoint"], request.op.endpoint.as_str());
    assert_eq!(said["op"]["command"], request.op.command.as_str());
    assert_eq!(said["from"]["id"], request.from.id.as_str());
    let shown = format!("{request:?}");
    let named = format!("{:?}{:?}", request.id, request.op);
    if let Some(auth) = request.auth.as_ref().filter(|auth| auth.len() >= LONG) {
        assert!(named.contains(auth.as_str()) || !shown.contains(auth.as_str()), "Debug shows an authorization");
    }
    let bound = request.check_bind(&instance(), EPOCH);
    let ours = said.get("bind").is_none_or(|bind| bind["instanceId"] == INSTANCE && bind["epoch"] == EPOCH);
    assert_eq!(bound.is_ok(), ours);

    let Some(subject) = subject else { return };
    match request.agree_with(subject) {
        Ok(()) => {
            assert_eq!(said["from"]["id"], subject.caller.principal.key());
            assert_eq!(request.op.endpoint.token(), subject.endpoint);
            assert_eq!(said["op"]["command"], subject.command.as_str());
            if let Some(triple) = subject.target.triple() {
                assert_eq!(said["target"]["owner"], triple.principal.owner.as_str());
                assert_eq!(said["target"]["actor"], triple.principal.actor.as_str());
                assert_eq!(said["target"]["lifecycleUid"], triple.lifecycle_uid.as_str());
            }
        }
        Err(refusal) => is_short(&refusal, body),
    }
}

fn reply(body: &[u8]) {
    let reply = match EndpointReply::parse(body) {
        Ok(reply) => reply,
        Err(refusal) => return is_short(&refusal, body),
    };
    let again = EndpointReply::parse(&reply.to_bytes()).expect("what was written reads");
    assert_eq!((&again.id, &again.receipt), (&reply.id, &reply.receipt));
    match (&again.result, &reply.result) {
        (Ok(_), Ok(_)) => {}
        (Err(again), Err(reply)) => {
            assert_eq!((&again.code, &again.message, again.outcome), (&reply.code, &reply.message, reply.outcome));
        }
        _ => panic!("a refusal is no success"),
    }
}

/// A refusal names a member and a rule, and repeats no value.
fn is_short(refusal: &EpError, body: &[u8]) {
    let said = &refusal.message;
    assert!(said.len() < LONGEST && !said.contains('\n'), "{said}");
    let Ok(document) = serde_json::from_slice::<serde_json::Value>(body) else { return };
    for text in document.as_object().into_iter().flat_map(|members| members.values()).filter_map(|it| it.as_str()) {
        let by_chance = text.len() < LONG || !text.bytes().all(|byte| byte.is_ascii_digit());
        assert!(by_chance || !said.contains(text), "a refusal repeats a value: {said}");
    }
}

fn instance() -> InstanceId {
    InstanceId::parse(INSTANCE).expect("an instance")
}
