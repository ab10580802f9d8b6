//! Answers of maintenance and about runs.

use cotal_manager::remote::results;
use cotal_trust::nkey::Seed;
use cotal_wire::{
    OpId, Principal, User,
    manager_authority::{Answers, Attempt, OperatorTurn, RequestId, RunId, SubmissionId, Turn},
};
use serde_json::json;

use crate::house::{Case, House, run_caller};

impl House {
    pub(crate) fn maintenance_and_runs(&self) -> Vec<Case> {
        let requests = self.requests();
        let key = || Seed::<User>::generate(self.entropy).public().clone();
        let (evict, reconcile) = (
            requests.evict(vec![self.serves().key()]),
            requests.reconcile(cotal_wire::InstanceId::mint(self.entropy)),
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
        let (op, owner) = (OpId::mint(self.entropy), self.owner.clone());
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
}
