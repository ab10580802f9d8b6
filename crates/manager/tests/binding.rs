//! Closed result binding (contract 08 §8.3): an answer is used when every coordinate is the request's, and in no other case.
//!
//! Each kind has one good answer. Every member of it is then changed, dropped and joined by another, one at a time, at every
//! depth: what still binds must be listed as free, with the reason why the participant cannot know it.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::type_complexity,
    clippy::needless_pass_by_value,
    reason = "a test that cannot go on ends"
)]

use std::cell::Cell;

use StandingRole::{Executor, GoalWriter, Serve, SessionLedger, Supervisor};
use cotal_manager::remote::{
    ManagerIdentity,
    requests::{Current, Requests},
    results::{self, Known},
};
use cotal_trust::{
    creds::{self, Creds},
    jwt::{UserClaims, encode_user},
    nkey::Seed,
    system::SystemEntropy,
};
use cotal_wire::{
    Account, Actor, DigestRef, EndpointName, Generation, LifecycleUid, Nkey, OpId, Owner, Permissions,
    Principal, Revision, Space, UnixMillis, UnixSecs, User,
    es_value::EsValue,
    manager_authority::{
        Answers, Attempt, CredentialName, EnrollmentTarget, Incarnation, Kind, OperatorTurn, RenewedRun,
        RequestId, RunId, ServedSession, StandingActors, StandingRole, SubmissionId, Turn, Unbound,
    },
    rows::{IssuedAuthorityRef, IssuedPermissions, RunAdmission},
};
use cotal_workspace::root::Root;
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use zeroize::Zeroizing;

const NOW: u64 = 1_800_000_000;

/// A host's side of the answers, and the participant that asks.
struct House {
    identity: ManagerIdentity,
    actor: Actor,
    owner: Owner,
    account: Seed<Account>,
    signing: Seed<Account>,
    current: Current,
    agent: Incarnation,
    _dir: tempfile::TempDir,
}

/// One kind's request, its good answer, and what binds it.
struct Case {
    name: &'static str,
    answer: Value,
    bind: Box<dyn Fn(&EsValue) -> Result<(), Unbound>>,
    /// Paths whose value the participant cannot know: another of the same type still binds.
    free: &'static [&'static str],
    /// Members that may be missing.
    optional: &'static [&'static str],
}

impl House {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let space = Space::parse("main").unwrap();
        let (identity, _) =
            ManagerIdentity::load_or_create(&Root::at(dir.path()), &space, &SystemEntropy).unwrap();
        let owner = Owner::parse(&format!("u_{}", "a".repeat(26))).unwrap();
        let account = Seed::generate(&SystemEntropy);
        let current = Current {
            owner: owner.clone(),
            account: account.public().clone(),
            proof: DigestRef::parse(&format!("sha256:{}", "0".repeat(64))).unwrap(),
            epoch: 3,
        };
        let agent = Incarnation {
            owner: owner.clone(),
            actor: Actor::parse("scout").unwrap(),
            lifecycle_uid: LifecycleUid::mint(&SystemEntropy),
        };
        Self {
            identity,
            actor: Actor::parse("cli").unwrap(),
            owner,
            account,
            signing: Seed::generate(&SystemEntropy),
            current,
            agent,
            _dir: dir,
        }
    }

    fn requests(&self) -> Requests<'_> {
        Requests::of(&self.identity, &self.actor, &SystemEntropy)
    }

    fn known(&self) -> Known {
        Known { owner: Some(self.owner.clone()), account: Some(self.account.public().clone()) }
    }

    fn claims(&self, key: &Nkey<User>, principal: &Principal, exp: u64) -> UserClaims {
        UserClaims {
            name: "remote-manager".into(),
            subject: key.clone(),
            issuer_account: self.account.public().clone(),
            permissions: Permissions::default(),
            tags: cotal_trust::jwt::principal_tags(principal),
            exp: Some(UnixSecs(exp)),
        }
    }

    fn credential(&self, key: &Nkey<User>, principal: &Principal, seconds: u64) -> Value {
        let claims = self.claims(key, principal, NOW + seconds);
        json!({ "jwt": encode_user(&claims, &self.signing, UnixSecs(NOW)), "exp": NOW + seconds })
    }

    fn serves(&self) -> Principal {
        Principal::new(self.owner.clone(), StandingRole::Serve.actor(self.identity.instance()))
    }

    fn standing(&self, roles: &[StandingRole]) -> Value {
        let mut credentials = Map::new();
        for role in roles {
            let principal = Principal::new(self.owner.clone(), role.actor(self.identity.instance()));
            let seconds = if *role == StandingRole::Executor { 300 } else { 86_400 };
            let entry = self.credential(self.identity.seed(*role).public(), &principal, seconds);
            credentials.insert(role.as_str().into(), entry);
        }
        credentials.into()
    }

    /// The host's record of a run that this manager may drive.
    fn admission(&self, run: &RunId) -> RunAdmission {
        let authority = IssuedAuthorityRef {
            space: self.identity.space().token(),
            principal: self.serves(),
            uid: LifecycleUid::mint(&SystemEntropy),
            generation: Generation::mint(&SystemEntropy),
        };
        RunAdmission::issued(
            &EndpointName::manager().token(),
            run,
            self.identity.instance(),
            (authority, Revision(7)),
            IssuedPermissions::of_grants(&Permissions::default()).unwrap(),
            UnixMillis(5),
        )
    }

    /// The members that an answer repeats of its request, and more.
    fn echo(request: &impl serde::Serialize, drop: &[&str], more: Value) -> Value {
        let mut answer = serde_json::to_value(request).unwrap();
        let members = answer.as_object_mut().unwrap();
        members.retain(|member, _| !drop.contains(&member.as_str()));
        let Value::Object(more) = more else { unreachable!() };
        members.extend(more);
        answer
    }

    /// Answers of the manager's own lifecycle name its lifecycle `lifecycleUid`.
    fn material(
        &self,
        request: &impl serde::Serialize,
        drop: &[&str],
        credentials: Value,
        more: Value,
    ) -> Value {
        let first =
            credentials.as_object().unwrap().values().map(|entry| entry["exp"].as_u64().unwrap()).min();
        let mut answer = Self::echo(
            request,
            &[&["managerLifecycleUid"][..], drop].concat(),
            json!({
                "owner": self.owner,
                "lifecycleUid": self.identity.lifecycle(),
                "issuedAt": NOW * 1000,
                "expiresAt": first.unwrap() * 1000,
                "actors": StandingActors::of(self.identity.instance()),
                "credentials": credentials,
            }),
        );
        let Value::Object(more) = more else { unreachable!() };
        answer.as_object_mut().unwrap().extend(more);
        answer
    }

    fn service(&self) -> Vec<Case> {
        let requests = self.requests();
        let key = || Seed::<User>::generate(&SystemEntropy).public().clone();
        let run = RenewedRun {
            run_id: RunId::parse(&format!("run-{}", "0".repeat(32))).unwrap(),
            holder: format!("{}.{}", key(), "0".repeat(16)).parse().unwrap(),
            takeover_id: "0".repeat(16).parse().unwrap(),
            epoch: 1,
            fencing_token: 1,
            driver_id: key(),
            mediator_id: key(),
        };
        let session = ServedSession { id: key(), session_id: "s".into(), epoch: 0, exp: UnixSecs(NOW + 60) };
        let artifacts = vec![EsValue::parse(b"{\"urn\":\"ai.cotal.manager\"}").unwrap()];
        let proof = format!("sha256:{}", "1".repeat(64));
        let one = |name: &str, key: &Nkey<User>, principal: &Principal| {
            Value::Object(Map::from_iter([(name.to_owned(), self.credential(key, principal, 60))]))
        };
        let prepare = requests.prepare();
        let activate = requests.activate(&self.owner, artifacts);
        let renew = requests.renew(&self.current);
        let standing = requests.standing_bundle(&self.current);
        let (session_key, reader_key, requester_key) = (session.id.clone(), key(), key());
        let session = requests.session(&self.owner, session);
        let reader = requests.transfer_reader(&self.owner, reader_key.clone());
        let retire = requests.retire(&self.current, requester_key.clone(), self.agent.clone());
        let caller = run_caller(&self.owner, run.run_id.as_str());
        let pair = json!({
            "runDriver": self.credential(&run.driver_id, &caller, 60),
            "runMediator": self.credential(&run.mediator_id, &caller, 60),
        });
        let driver = requests.run_driver(&self.current, run);
        let none = json!({});
        let free = &["/issuedAt"][..];
        let serves = self.serves();
        [
            (
                "prepare",
                prepare.clone(),
                self.material(&prepare, &[], self.standing(&[Supervisor, Executor]), none.clone()),
                free,
            ),
            (
                "activate",
                activate.clone(),
                self.material(
                    &activate,
                    &["contractArtifacts"],
                    self.standing(&[Serve, GoalWriter, SessionLedger]),
                    json!({ "nextRegistrationProof": proof }),
                ),
                &["/issuedAt", "/nextRegistrationProof"][..],
            ),
            (
                "renew",
                renew.clone(),
                self.material(&renew, &[], self.standing(&[Supervisor, Executor]), none.clone()),
                free,
            ),
            (
                "renewStandingBundle",
                standing.clone(),
                self.material(&standing, &[], self.standing(&StandingRole::ALL), none.clone()),
                free,
            ),
            (
                "session",
                session.clone(),
                self.material(
                    &session,
                    &["session"],
                    one("sessionServing", &session_key, &serves),
                    none.clone(),
                ),
                free,
            ),
            (
                "transferReader",
                reader.clone(),
                self.material(
                    &reader,
                    &["transferReader"],
                    one("transferReader", &reader_key, &serves),
                    none.clone(),
                ),
                free,
            ),
            (
                "retire",
                retire.clone(),
                self.material(
                    &retire,
                    &[],
                    one("retirementRequester", &requester_key, &serves),
                    none.clone(),
                ),
                free,
            ),
            ("renewRunDriver", driver.clone(), self.material(&driver, &[], pair, none), free),
        ]
        .into_iter()
        .map(|(name, request, answer, free)| {
            let known = self.known();
            Case {
                name,
                answer,
                bind: Box::new(move |answer| results::bind_service(&request, &known, answer).map(drop)),
                free,
                optional: &[],
            }
        })
        .collect()
    }

    fn agents(&self) -> Vec<Case> {
        let requests = self.requests();
        let target = EnrollmentTarget {
            actor: self.agent.actor.clone(),
            role: None,
            label: Some("l".into()),
            capabilities: Some(vec![]),
            subscribe: Some(vec!["general".parse().unwrap()]),
            allow_subscribe: Some(vec!["general".parse().unwrap()]),
            allow_publish: None,
            token_hash: Some("0".repeat(64).parse().unwrap()),
        };
        let sentinel = Seed::generate(&SystemEntropy);
        let jwt = encode_user(
            &self.claims(sentinel.public(), &self.serves(), NOW + 1),
            &self.signing,
            UnixSecs(NOW),
        );
        let sentinel = creds::format(&Creds { jwt, seed: sentinel });
        let enroll = requests.enroll(&self.current, target);
        let prepare = requests.prepare_retirement(&self.current, self.agent.clone());
        let secret = Zeroizing::new("secret".to_owned());
        let retained = requests.retained(&self.current, self.agent.clone(), &secret, &sentinel);
        let goals = requests.goal_index(&self.current);
        let admin = requests.admin(&self.current, self.agent.clone());
        let runtime = requests.runtime(&self.current, self.agent.clone());
        let owner = || self.owner.clone();
        let owned = json!({ "owner": self.owner });
        let with = |more: Value| {
            let mut all = owned.clone();
            all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            all
        };
        let mut cases = vec![
            Case {
                name: "enrollment",
                answer: Self::echo(
                    &enroll,
                    &["identities", "target"],
                    with(json!({
                        "material": {
                            "owner": self.owner, "actor": self.agent.actor, "lifecycleUid": self.agent.lifecycle_uid,
                            "sentinelCreds": sentinel.as_str(), "subscribe": ["general"], "allowSubscribe": ["general"],
                            "allowPublish": [], "agentBearerExchangeUrl": "https://auth.example",
                        },
                        "runtimeIntent": { "state": "reserved" },
                    })),
                ),
                bind: {
                    let owner = owner();
                    Box::new(move |answer| results::bind_enrollment(&enroll, &owner, answer).map(drop))
                },
                // The host chooses the lifecycle and clamps the lists; sentinel and exchange are its own, of a form.
                free: &[
                    "/material/lifecycleUid",
                    "/material/sentinelCreds",
                    "/material/allowSubscribe/0",
                    "/material/agentBearerExchangeUrl",
                ],
                optional: &["/runtimeIntent"],
            },
            Case {
                name: "prepare-retirement",
                answer: Self::echo(
                    &prepare,
                    &["identities", "registrationProof", "serveEpoch"],
                    with(json!({ "prepared": true })),
                ),
                bind: {
                    let owner = owner();
                    Box::new(move |answer| results::bind_prepare_retirement(&prepare, &owner, answer))
                },
                free: &[],
                optional: &[],
            },
            Case {
                name: "retained",
                answer: Self::echo(
                    &retained,
                    &["identities", "actorToken", "sentinelCreds"],
                    with(json!({ "authority": {
                        "owner": self.owner, "actor": self.agent.actor, "lifecycleUid": self.agent.lifecycle_uid,
                        "scope": ["role:x"], "allowSubscribe": ["general"], "allowPublish": ["general"], "role": "r",
                        "parent": format!("{}.cli", self.owner),
                    } })),
                ),
                bind: {
                    let owner = owner();
                    Box::new(move |answer| results::bind_retained(&retained, &owner, answer).map(drop))
                },
                free: &[
                    "/authority/scope/0",
                    "/authority/allowSubscribe/0",
                    "/authority/allowPublish/0",
                    "/authority/role",
                    "/authority/parent",
                ],
                optional: &["/authority/role", "/authority/parent"],
            },
            Case {
                name: "goal index",
                answer: Self::echo(
                    &goals,
                    &["identities"],
                    with(json!({ "entries": [{
                        "v": 1, "endpoint": "manager", "owner": self.owner, "actor": "cli", "uid": "u".repeat(26),
                        "goalId": "g", "iid": "i",
                        "allocated": { "name": "n", "actor": "a", "uid": "u", "readinessDeadlineMs": 1 },
                    }] })),
                ),
                bind: {
                    let owner = owner();
                    Box::new(move |answer| results::bind_goal_index(&goals, &owner, answer).map(drop))
                },
                free: &[
                    "/entries/0/actor",
                    "/entries/0/uid",
                    "/entries/0/goalId",
                    "/entries/0/iid",
                    "/entries/0/allocated/name",
                    "/entries/0/allocated/actor",
                    "/entries/0/allocated/uid",
                    "/entries/0/allocated/readinessDeadlineMs",
                ],
                optional: &["/entries/0/allocated", "/entries/0/allocated/readinessDeadlineMs", "/entries/0"],
            },
            Case {
                name: "admin",
                answer: Self::echo(&admin, &[], with(json!({ "authorized": false }))),
                bind: {
                    let owner = owner();
                    Box::new(move |answer| results::bind_admin(&admin, &owner, answer).map(drop))
                },
                free: &["/authorized"],
                optional: &[],
            },
        ];
        for kind in [Kind::RuntimeCreate, Kind::RuntimeStatus] {
            let (request, owner) = (runtime.clone(), owner());
            let as_kind = cotal_wire::manager_authority::RuntimeRequestAs(kind, &runtime);
            cases.push(Case {
                name: kind.as_str(),
                answer: Self::echo(
                    &as_kind,
                    &["identities", "registrationProof", "serveEpoch"],
                    with(json!({ "state": "bound", "readiness": "ready", "retirementPhase": "intent" })),
                ),
                bind: Box::new(move |answer| results::bind_runtime(kind, &request, &owner, answer).map(drop)),
                free: &[],
                optional: &["/retirementPhase"],
            });
        }
        cases
    }

    fn maintenance_and_runs(&self) -> Vec<Case> {
        let requests = self.requests();
        let key = || Seed::<User>::generate(&SystemEntropy).public().clone();
        let (evict, reconcile) = (
            requests.evict(vec![self.serves().key()]),
            requests.reconcile(cotal_wire::InstanceId::mint(&SystemEntropy)),
        );
        let run_id = RunId::parse(&format!("run-{}", "f".repeat(32))).unwrap();
        let admit = requests.admit_run(&self.current, run_id.clone(), "cotal.main".into());
        let name = SubmissionId::parse("nightly-1").unwrap();
        let submit = requests.submit_run(&self.current, name.clone(), run_id.clone(), "cotal.main".into());
        let cancel = requests.cancel_run(&self.current, run_id.clone(), "cotal.main".into());
        let revoke = requests.revoke_run(&self.current, run_id.clone(), "why".into());
        let attempt = Attempt {
            run_id: run_id.clone(),
            takeover_id: "t".parse().unwrap(),
            epoch: 1,
            fencing_token: 1,
            driver_id: key(),
            mediator_id: key(),
            served: None,
        };
        let operator = OperatorTurn {
            id: key(),
            takeover_id: "t".parse().unwrap(),
            run_id: None,
            answers: Some(Answers { run_id: run_id.clone(), step_key: "s".into(), amend: false }),
            served: Some("cotal.main".into()),
        };
        // Whoever asked for the run, a static mesh's caller too: its turn is the manager's owner's.
        let caller = run_caller(&self.owner, run_id.as_str());
        let asks = Principal::new(self.owner.clone(), self.actor.clone());
        let pair = json!({
            "driver": self.credential(&attempt.driver_id, &caller, 60),
            "mediator": self.credential(&attempt.mediator_id, &caller, 60),
        });
        let one = json!({ "operator": self.credential(&operator.id, &asks, 60) });
        let attempt = requests.attempt_run(&self.current, Turn::Attempt(attempt));
        let operator = requests.attempt_run(&self.current, Turn::Operator(operator));
        let (op, owner) = (OpId::mint(&SystemEntropy), self.owner.clone());
        let ended = |kind: &str, request: &RequestId| {
            json!({
                "v": 1, "kind": kind, "requestId": request, "runId": run_id,
                "revocation": { "version": 1, "runId": run_id, "by": "a.b", "reason": "earlier", "revokedAt": 1 },
            })
        };
        let mut cases = vec![
            Case {
                name: "evict",
                answer: Self::echo(
                    &evict,
                    &[],
                    json!({ "owner": owner, "evictions": [{
                        "principal": self.serves().key(), "kicked": 1, "remaining": 0, "verifiedGone": false,
                        "scanComplete": true, "note": "n",
                    }] }),
                ),
                bind: {
                    let owner = owner.clone();
                    Box::new(move |answer| results::bind_maintenance(&evict, &owner, answer).map(drop))
                },
                free: &[
                    "/evictions/0/kicked",
                    "/evictions/0/remaining",
                    "/evictions/0/verifiedGone",
                    "/evictions/0/scanComplete",
                    "/evictions/0/note",
                ],
                optional: &["/evictions/0/note"],
            },
            Case {
                name: "reconcile",
                answer: Self::echo(
                    &reconcile,
                    &[],
                    json!({ "owner": owner, "reconciliation": {
                        "endpoint": "manager", "instanceId": reconcile.target_instance_id, "holderPrincipal": self.serves().key(),
                        "opId": op, "freezeToken": 7,
                        "before": { "generation": 2, "processEpoch": 0, "registrationRevision": 0, "nameAuthorityRevision": 0 },
                        "liveness": { "state": "gone", "detail": "d" }, "familyRows": 1, "revoked": ["k"], "evicted": ["p"],
                        "reopenedAtGeneration": 3,
                    } }),
                ),
                bind: {
                    let owner = owner.clone();
                    Box::new(move |answer| results::bind_maintenance(&reconcile, &owner, answer).map(drop))
                },
                // What the host did to a gate that is not this manager's: for people.
                free: &[
                    "/reconciliation/holderPrincipal",
                    "/reconciliation/opId",
                    "/reconciliation/freezeToken",
                    "/reconciliation/before/processEpoch",
                    "/reconciliation/before/registrationRevision",
                    "/reconciliation/before/nameAuthorityRevision",
                    "/reconciliation/liveness/detail",
                    "/reconciliation/familyRows",
                    "/reconciliation/revoked/0",
                    "/reconciliation/evicted/0",
                    "/reconciliation/reopenedAtGeneration",
                ],
                optional: &["/reconciliation/revoked/0", "/reconciliation/evicted/0"],
            },
            Case {
                name: "admission",
                answer: json!({
                    "v": 1, "kind": "manager-run-admission", "requestId": admit.envelope.request_id, "runId": run_id,
                    "revision": 9, "admission": self.admission(&run_id).to_value(),
                }),
                bind: Box::new(move |answer| results::bind_run_admission(&admit, answer).map(drop)),
                free: &["/revision", "/admission/admittedAt"],
                optional: &[],
            },
            Case {
                name: "submission",
                answer: json!({
                    "v": 1, "kind": "manager-run-submission", "requestId": submit.envelope.request_id,
                    "submissionId": name, "runId": run_id, "revision": 9,
                    "admission": self.admission(&run_id).to_value(), "created": true,
                }),
                bind: Box::new(move |answer| results::bind_run_submission(&submit, answer).map(drop)),
                free: &["/revision", "/admission/admittedAt", "/created"],
                optional: &[],
            },
            Case {
                name: "cancel",
                answer: ended("manager-run-cancel", &cancel.envelope.request_id),
                bind: Box::new(move |answer| results::bind_run_cancel(&cancel, answer)),
                free: &["/revocation/by", "/revocation/reason", "/revocation/revokedAt"],
                optional: &[],
            },
            Case {
                name: "revoke",
                answer: ended("manager-run-revoke", &revoke.envelope.request_id),
                bind: Box::new(move |answer| results::bind_run_revoke(&revoke, answer)),
                free: &["/revocation/by", "/revocation/reason", "/revocation/revokedAt"],
                optional: &[],
            },
        ];
        for (name, request, credentials) in [("attempt", attempt, pair), ("operator", operator, one)] {
            let owner = owner.clone();
            cases.push(Case {
                name,
                answer: Self::echo(&request, &[], json!({ "owner": owner, "credentials": credentials })),
                bind: Box::new(move |answer| results::bind_run_attempt(&request, &owner, answer).map(drop)),
                free: &[],
                optional: &[],
            });
        }
        cases
    }

    fn cases(&self) -> Vec<Case> {
        [self.service(), self.agents(), self.maintenance_and_runs()].into_iter().flatten().collect()
    }
}

/// Contract 03 §J, spelled out.
fn run_caller(owner: &Owner, run_id: &str) -> Principal {
    let hex = cotal_wire::canonical::raw_digest(run_id.as_bytes()).hex().to_string();
    Principal::new(owner.clone(), Actor::parse(&format!("wf_{}", &hex[..12])).unwrap())
}

fn es(value: &Value) -> EsValue {
    EsValue::parse(value.to_string().as_bytes()).unwrap()
}

/// Every path of a document, the root left out.
fn paths(value: &Value, at: &str, found: &mut Vec<String>) {
    let mut inner = |key: String, value: &Value| {
        let path = format!("{at}/{key}");
        found.push(path.clone());
        paths(value, &path, found);
    };
    match value {
        Value::Object(members) => members.iter().for_each(|(key, value)| inner(key.clone(), value)),
        Value::Array(items) => items.iter().enumerate().for_each(|(at, value)| inner(at.to_string(), value)),
        _ => {}
    }
}

/// Another value of the same type.
fn another(value: &Value) -> Value {
    match value {
        Value::Null => json!(null),
        Value::Bool(flag) => json!(!flag),
        Value::Number(number) => json!(number.as_u64().unwrap_or(0) + 1),
        Value::String(text) => {
            // The last character moved on within the alphabet of every token, or one more where that is none.
            let mut text = text.clone();
            match text.pop() {
                Some('b') | None => text.push('c'),
                Some(_) => text.push('b'),
            }
            json!(text)
        }
        Value::Array(items) => items.iter().chain(items).cloned().collect(),
        Value::Object(members) => json!([members]),
    }
}

/// Values of every other type.
fn others(value: &Value) -> impl Iterator<Item = Value> {
    let kind = std::mem::discriminant(value);
    [json!(null), json!(true), json!(7), json!(-1), json!(0.5), json!("x"), json!([7]), json!({ "x": 1 })]
        .into_iter()
        .filter(move |other| {
            std::mem::discriminant(other) != kind || matches!(other, Value::Number(n) if n.as_u64().is_none())
        })
}

fn without(answer: &Value, path: &str) -> Value {
    let mut answer = answer.clone();
    let (parent, key) = path.rsplit_once('/').unwrap();
    match answer.pointer_mut(parent).unwrap() {
        Value::Object(members) => drop(members.remove(key)),
        Value::Array(items) => drop(items.remove(key.parse().unwrap())),
        _ => unreachable!(),
    }
    answer
}

fn with(answer: &Value, path: &str, value: Value) -> Value {
    let mut answer = answer.clone();
    *answer.pointer_mut(path).unwrap() = value;
    answer
}

#[test]
fn every_good_answer_binds() {
    let house = House::new();
    for case in house.cases() {
        (case.bind)(&es(&case.answer)).unwrap_or_else(|why| panic!("{}: {why}", case.name));
        for optional in case.optional {
            let answer = without(&case.answer, optional);
            (case.bind)(&es(&answer)).unwrap_or_else(|why| panic!("{} without {optional}: {why}", case.name));
        }
    }
    assert_eq!(house.cases().len(), 23, "every operation and every kind");
}

#[test]
fn no_coordinate_may_be_another_one_missing_or_of_another_type() {
    let house = House::new();
    for Case { name, answer, bind, free, optional } in house.cases() {
        let binds = |answer: &Value| bind(&es(answer)).is_ok();
        let mut all = Vec::new();
        paths(&answer, "", &mut all);
        // An admission's evidence is the host's record; the participant looks at whose run it is.
        let opaque = |path: &str| {
            path.starts_with("/admission/") && !["/admission/runId", "/admission/instanceId"].contains(&path)
        };
        for path in all.iter().filter(|path| !opaque(path)) {
            let value = answer.pointer(path).unwrap();
            let is_free = free.contains(&path.as_str());
            // A list of what is free is as long as the host says.
            let is_list = value.is_array()
                && (optional.contains(&format!("{path}/0").as_str())
                    || free.contains(&format!("{path}/0").as_str())
                    || value.as_array().is_some_and(Vec::is_empty));
            if !(value.is_object() || is_free || is_list) {
                assert!(!binds(&with(&answer, path, another(value))), "{name}: another {path} binds");
            }
            if !(optional.contains(&path.as_str()) || is_free && path.ends_with("/0")) {
                assert!(!binds(&without(&answer, path)), "{name}: it binds without {path}");
            }
            for other in others(value) {
                let listed = is_free && matches!((value, &other), (Value::String(_), Value::String(_)));
                if !listed {
                    assert!(!binds(&with(&answer, path, other.clone())), "{name}: {path} may be {other}");
                }
            }
            if let Value::Object(members) = value {
                let mut more = members.clone();
                more.insert("more".into(), json!(1));
                assert!(!binds(&with(&answer, path, more.into())), "{name}: {path} may hold more");
            }
        }
        let mut more = answer.clone();
        more["more"] = json!(1);
        assert!(!binds(&more), "{name}: it may hold more");
        for none in [json!(null), json!([answer]), json!("x"), json!({})] {
            assert!(!binds(&none), "{name}: {none} binds");
        }
    }
}

#[test]
fn an_answer_binds_to_its_own_request_alone() {
    let house = House::new();
    let (first, second) = (house.cases(), house.cases());
    for (at, case) in first.iter().enumerate() {
        for (other, asked) in second.iter().enumerate() {
            let bound = (asked.bind)(&es(&case.answer)).is_ok();
            assert!(
                !bound,
                "{} of one request binds to {} of another ({at}, {other})",
                case.name, asked.name
            );
        }
    }
}

/// Mutates the credential of a `prepare` and says whether it still binds.
fn rebinds(house: &House, mutate: impl Fn(&mut UserClaims)) -> bool {
    rebinds_signed(house, mutate, |claims, house| encode_user(claims, &house.signing, UnixSecs(NOW)))
}

fn rebinds_signed(
    house: &House,
    mutate: impl Fn(&mut UserClaims),
    sign: impl Fn(&UserClaims, &House) -> String,
) -> bool {
    let request = house.requests().prepare();
    let roles = [StandingRole::Supervisor, StandingRole::Executor];
    let mut credentials = house.standing(&roles);
    let principal = Principal::new(house.owner.clone(), roles[1].actor(house.identity.instance()));
    let mut claims = house.claims(house.identity.seed(roles[1]).public(), &principal, NOW + 300);
    mutate(&mut claims);
    credentials["executor"]["jwt"] = sign(&claims, house).into();
    let answer = house.material(&request, &[], credentials, json!({}));
    results::bind_service(&request, &house.known(), &es(&answer)).is_ok()
}

#[test]
fn a_credential_is_for_the_named_key_principal_account_and_time_or_it_is_none() {
    let house = House::new();
    let other = || Seed::<User>::generate(&SystemEntropy).public().clone();
    assert!(rebinds(&house, |_| {}));
    assert!(rebinds(&house, |claims| claims.name = "anything".into()), "the label is the host's");
    assert!(!rebinds(&house, |claims| claims.subject = other()));
    assert!(!rebinds(&house, |claims| claims.subject =
        house.identity.seed(StandingRole::Supervisor).public().clone()));
    assert!(
        !rebinds(&house, |claims| claims.issuer_account = Seed::generate(&SystemEntropy).public().clone())
    );
    for exp in [None, Some(NOW + 299), Some(NOW + 301)] {
        assert!(!rebinds(&house, |claims| claims.exp = exp.map(UnixSecs)), "{exp:?}");
    }
    for tags in [vec![], vec!["owner:x".to_owned()], {
        let serves =
            Principal::new(house.owner.clone(), StandingRole::Serve.actor(house.identity.instance()));
        cotal_trust::jwt::principal_tags(&serves)
    }] {
        assert!(!rebinds(&house, |claims| claims.tags = tags.clone()), "{tags:?}");
    }
    // The account itself may sign; whoever is no account may not, and a signature is of its issuer.
    assert!(rebinds_signed(
        &house,
        |_| {},
        |claims, house| encode_user(claims, &house.account, UnixSecs(NOW))
    ));
    assert!(!rebinds_signed(
        &house,
        |_| {},
        |claims, house| {
            let mut jwt = encode_user(claims, &house.signing, UnixSecs(NOW));
            let last = jwt.pop();
            jwt.push(if last == Some('A') { 'B' } else { 'A' });
            jwt
        }
    ));
    assert!(!rebinds_signed(
        &house,
        |_| {},
        |claims, house| encode_user(claims, &house.signing, UnixSecs(NOW + 300))
    ));
    for text in ["", "a.b.c", "not a jwt"] {
        assert!(!rebinds_signed(&house, |_| {}, |_, _| text.to_owned()), "{text}");
    }
}

#[test]
fn the_first_answer_names_owner_and_account_and_every_later_one_must_agree() {
    let house = House::new();
    let request = house.requests().prepare();
    let credentials = house.standing(&[StandingRole::Supervisor, StandingRole::Executor]);
    let answer = es(&house.material(&request, &[], credentials, json!({})));
    let first = results::bind_service(&request, &Known::default(), &answer).unwrap();
    assert_eq!((&first.owner, &first.account), (&house.owner, house.account.public()));
    assert_eq!(first.expires_at.0, (NOW + 300) * 1000, "the least, and not a ceiling");
    let held = first.creds(CredentialName::Executor, house.identity.seed(StandingRole::Executor));
    assert!(
        held.is_some()
            && first.creds(CredentialName::Serve, house.identity.seed(StandingRole::Serve)).is_none()
    );
    for known in [
        Known { owner: Some(Owner::parse(&format!("u_{}", "b".repeat(26))).unwrap()), account: None },
        Known { owner: None, account: Some(Seed::generate(&SystemEntropy).public().clone()) },
    ] {
        assert!(results::bind_service(&request, &known, &answer).is_err(), "{known:?}");
    }
}

#[test]
fn a_refusal_repeats_nothing_of_the_answer() {
    let house = House::new();
    let marked = Cell::new(0);
    for case in house.cases() {
        let mut all = Vec::new();
        paths(&case.answer, "", &mut all);
        for path in all.iter().filter(|path| case.answer.pointer(path).unwrap().is_string()) {
            let secret = "SECRETSECRETSECRETSECRETSECRET";
            let refused = (case.bind)(&es(&with(&case.answer, path, json!(secret))));
            if let Err(why) = refused {
                marked.set(marked.get() + 1);
                assert!(!why.to_string().contains(secret), "{why}");
            }
        }
    }
    assert!(marked.get() > 100);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// Two answers of different requests, spliced anywhere, bind to neither.
    #[test]
    fn no_splice_of_two_answers_binds(kind in 0usize..21, cut in any::<proptest::sample::Index>()) {
        let house = House::new();
        let (mine, foreign) = (house.cases(), house.cases());
        let (mine, foreign) = (&mine[kind], &foreign[kind]);
        let mut all = Vec::new();
        paths(&mine.answer, "", &mut all);
        let path = &all[cut.index(all.len())];
        let (own, theirs) = (mine.answer.pointer(path).unwrap(), foreign.answer.pointer(path).unwrap());
        let spliced = with(&mine.answer, path, theirs.clone());
        let bound = (mine.bind)(&es(&spliced)).is_ok();
        let free = mine.free.contains(&path.as_str());
        // What is the same in both, or free, binds; what is signed differs at every signature of another key alone.
        prop_assert!(bound == (own == theirs) || free || path.ends_with("/jwt") || path.ends_with("sentinelCreds")
            || path == "/material" || path.starts_with("/credentials"), "{} {}", mine.name, path);
        // One that differs from the foreign answer in what is free alone is as good as it.
        let told = |answer: &Value| {
            let there = mine.free.iter().filter(|path| answer.pointer(path).is_some());
            there.fold(answer.clone(), |told, path| with(&told, path, json!(null)))
        };
        let same = told(&spliced) == told(&foreign.answer);
        prop_assert!(same || (foreign.bind)(&es(&spliced)).is_err(), "{} {}", mine.name, path);
    }

    #[test]
    fn text_of_no_host_binds_to_nothing(text in "\\PC{0,200}") {
        if let Ok(value) = EsValue::parse(text.as_bytes()) {
            let house = House::new();
            for case in house.cases() {
                prop_assert!((case.bind)(&value).is_err());
            }
        }
    }
}
