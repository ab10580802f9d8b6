//! Connections of one workflow run (contract 01 §6.8, §6.10; 03 §P.1).
//!
//! Each is pinned to its run by name: no row of any of them reaches another run's journal or admission.

use sha2::{Digest, Sha256};

use super::{
    Permissions,
    endpoint_rows::Caller,
    rows::{
        JS_FLOW_CONTROL, JS_INFO, Space, ack, cons_and_delete, consumer, inbox, message_get, stream_info,
    },
};
use crate::{
    endpoint_token::{EndpointToken, IdToken},
    manager_authority::{RunId, Takeover},
    names::{Names, admission_key, replay_consumer, revocation_key, submission_key},
    token::{Actor, ConnId, InstanceId, LifecycleUid, Owner, Principal, Sha256Hex, SpaceToken},
};

/// One driver's turn at one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunPin {
    /// The endpoint that hosts it.
    pub endpoint: EndpointToken,
    /// The run.
    pub run: RunId,
    /// Whose run it is: the owner that was admitted.
    pub owner: Owner,
    /// Under which takeover.
    pub takeover: Takeover,
    /// The hosting instance.
    pub instance: InstanceId,
    /// The turn's epoch.
    pub epoch: u64,
}

/// What an operator may look at or answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperatorPin {
    /// The endpoint that hosts the run.
    pub endpoint: EndpointToken,
    /// Names the operator's own replay.
    pub takeover: Takeover,
    /// The run whose journal is read, if one is.
    pub run: Option<RunId>,
    /// The one checkpoint that may be answered: read off the journal, never an input.
    pub answers: Option<IdToken>,
}

/// What an admitter may write: one run's admission and revocation, and the submission that names it, if one does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdmitterPin {
    /// The endpoint that hosts the run.
    pub endpoint: EndpointToken,
    /// The run.
    pub run: RunId,
    /// The digest that names the keyed submission's row.
    pub submission: Option<Sha256Hex>,
}

/// As whom a run asks others: derived from its id alone, under the owner that was admitted (contract 03 §J).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunCaller {
    /// `<owner>.wf_<12 hex>`
    pub principal: Principal,
    /// The 26 hex characters that follow.
    pub uid: LifecycleUid,
}

impl RunCaller {
    /// The caller of a run.
    pub fn of(run: &RunId, owner: &Owner) -> Self {
        let hex = Sha256Hex::of_digest(&Sha256::digest(run.as_str()).into());
        let (actor, rest) = hex.as_str().split_at(12);
        Self {
            principal: Principal::new(owner.clone(), Actor::of_checked(&format!("wf_{actor}"))),
            uid: LifecycleUid::of_checked(&rest[..26]),
        }
    }
}

/// `run-driver`: appends to the run's journal, replays it, and writes the run's own records. It reads no record and has
/// no effect on anything else: that is the mediator's.
pub fn run_driver(space: &SpaceToken, pin: &RunPin, conn: &ConnId) -> Permissions {
    let names = Names::new(space);
    let mut publish = vec![names.run_journal_subject(&pin.run)];
    publish.extend(replay_rows(&names, &pin.run, &pin.takeover));
    publish.extend(run_records(&names, pin));
    publish.push(JS_INFO.to_owned());
    Permissions::allowing(publish, vec![inbox(conn)])
}

/// `run-mediator`: has the run's effects, as the run's caller, and never appends to its journal. What it starts on an
/// instance, it starts on the run's own.
pub fn run_mediator(space: &SpaceToken, pin: &RunPin, conn: &ConnId) -> Permissions {
    let space = Space::new(space);
    let Space { names, prefix, chat, presence, records, .. } = &space;
    let RunPin { endpoint, run, owner, takeover, instance, epoch } = pin;
    let registries = [names.channels_bucket(), names.members_bucket()];

    let mut publish: Vec<String> = replay_rows(names, run, takeover).into();
    publish.extend(run_records(names, pin));
    publish.push(Names::kv_subject(&names.records_bucket(), &format!("cp.{endpoint}.>")));
    publish
        .extend([records, &names.epf_stream(), &names.ept_stream(), chat].map(|stream| message_get(stream)));
    publish.extend([
        format!("{prefix}.epf.{endpoint}.cp.>"),
        format!("{prefix}.ept.{endpoint}.{instance}.{epoch}.*.schedule"),
        stream_info(chat),
    ]);
    publish.extend(["CREATE", "INFO", "MSG.NEXT", "DELETE"].map(|verb| consumer(verb, chat, ">")));
    publish.extend([ack(chat, ">"), stream_info(presence)]);
    publish.extend(cons_and_delete(presence));
    publish.push(JS_FLOW_CONTROL.to_owned());
    for bucket in &registries {
        publish.extend([Names::kv_subject(bucket, ">"), message_get(&Names::kv_stream(bucket))]);
    }

    let as_run = RunCaller::of(run, owner);
    let mut caller = Caller::new(&space, &as_run.principal, &as_run.uid, None);
    caller.describe_everywhere();
    caller.ask_as_run(instance);
    caller.contract_fetch();
    caller.reply_rail();
    let caller = caller.into_rows();
    publish.extend(caller.publish.into_rows());
    publish.push(JS_INFO.to_owned());

    let mut subscribe = caller.subscribe.into_rows();
    subscribe.push(inbox(conn));
    Permissions::allowing(publish, subscribe)
}

/// `run-operator`, of one served call: reads records and admissions, replays the one run that is named, and answers the
/// one checkpoint that is named.
pub fn run_operator(space: &SpaceToken, pin: &OperatorPin, conn: &ConnId) -> Permissions {
    let names = Names::new(space);
    let OperatorPin { endpoint, takeover, run, answers } = pin;
    let mut publish =
        vec![message_get(&names.records_stream()), message_get(&Names::kv_stream(&names.admission_bucket()))];
    if let Some(run) = run {
        publish.extend(replay_rows(&names, run, takeover));
    }
    if let Some(token) = answers {
        let record =
            |kind: &str| Names::kv_subject(&names.records_bucket(), &format!("{kind}.{endpoint}.{token}.>"));
        publish.extend([
            record("answer"),
            record("cp"),
            format!("{}.epf.{endpoint}.cp.{token}", names.subject_prefix()),
            message_get(&names.epf_stream()),
        ]);
    }
    publish.push(JS_INFO.to_owned());
    Permissions::allowing(publish, vec![inbox(conn)])
}

/// `run-admitter`, of one admission, revocation or keyed submission: those exact keys, and the reads of their store.
pub fn run_admitter(space: &SpaceToken, pin: &AdmitterPin, conn: &ConnId) -> Permissions {
    let bucket = Names::new(space).admission_bucket();
    let AdmitterPin { endpoint, run, submission } = pin;
    let mut publish = vec![
        JS_INFO.to_owned(),
        Names::kv_subject(&bucket, &admission_key(endpoint, run)),
        Names::kv_subject(&bucket, &revocation_key(endpoint, run)),
    ];
    publish.extend(
        submission.iter().map(|digest| Names::kv_subject(&bucket, &submission_key(endpoint, digest))),
    );
    publish.push(message_get(&Names::kv_stream(&bucket)));
    Permissions::allowing(publish, vec![inbox(conn)])
}

/// Replaying a run's journal through the one durable of a takeover: its name and its filter are in the subject, which the
/// body cannot contradict.
fn replay_rows(names: &Names, run: &RunId, takeover: &Takeover) -> [String; 5] {
    let (stream, durable) = (names.wfj_stream(), replay_consumer(run, takeover));
    [
        consumer("CREATE", &stream, &format!("{durable}.{}", names.run_journal_subject(run))),
        consumer("INFO", &stream, &durable),
        consumer("MSG.NEXT", &stream, &durable),
        ack(&stream, &format!("{durable}.>")),
        consumer("DELETE", &stream, &durable),
    ]
}

/// The records that are a run's own.
fn run_records(names: &Names, RunPin { endpoint, run, .. }: &RunPin) -> [String; 4] {
    [
        format!("run.{endpoint}.{run}.>"),
        format!("program.{endpoint}.{run}"),
        format!("notice.{endpoint}.{run}.>"),
        format!("migration.{endpoint}.{run}.>"),
    ]
    .map(|key| Names::kv_subject(&names.records_bucket(), &key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runs_caller_is_derived_from_its_id_and_from_nothing_of_the_request() {
        // printf 'run-0123456789abcdef0123456789abcdef' | sha256sum
        let run = RunId::parse("run-0123456789abcdef0123456789abcdef").unwrap();
        let caller = RunCaller::of(&run, &Owner::local());
        assert_eq!(caller.principal.key(), "local.wf_cbde062663ff");
        assert_eq!(caller.uid.as_str(), "7c9c7bc613d1227cf916d36c9d");
    }
}
