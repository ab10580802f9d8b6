//! Answers about agents, and to questions.

use cotal_manager::remote::results;
use cotal_trust::{
    creds::{self, Creds},
    jwt::encode_user,
    nkey::Seed,
};
use cotal_wire::{
    UnixSecs,
    manager_authority::{EnrollmentTarget, Kind},
};
use serde_json::{Value, json};
use zeroize::Zeroizing;

use crate::house::{Case, House, NOW};

impl House {
    pub(crate) fn agents(&self) -> Vec<Case> {
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
        let sentinel = Seed::generate(self.entropy);
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
}
