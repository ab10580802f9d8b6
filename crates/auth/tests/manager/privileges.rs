//! What each credential that is issued around a manager may do at the broker: all of it, and ten things that it may not.

use cotal_testkit::{
    manager::COMMANDS,
    privilege::{Privilege, permissions_of},
    runs::run_id,
};
use cotal_trust::{nkey::Seed, system::SystemClock};
use cotal_wire::{
    Clock as _, ConnId, EndpointName, Owner, Sha256Hex, User,
    grants::runs::{AdmitterPin, RunCaller, run_admitter},
    manager_authority::{CredentialName, Kind, Operation, RunId, StandingRole},
};
use serde_json::{Value, json};

use super::{
    rig::{Activated, Rig, SESSION, retirement, session},
    running::{Running, TAKEOVER, activation, creds_of, journal, keys},
    stage::claims_of,
};

/// Somebody else's instance, or lifecycle.
const OTHER: &str = "jjjjjjjjjjjjjjjjjjjjjjjjjj";

/// Nothing of this is anybody's here: no agent's rail, no store of others, no wildcard.
fn nobody(owner: &Owner, more: &str) -> String {
    format!(
        "cotal.demo.chat.{owner}.cli.general
         cotal.demo.ctl.delivery-admin.{owner}.manager_{OTHER}
         $KV.cotal_auth_demo.epgate.manager.{OTHER}
         $KV.cotal_auth_demo.plane
         $KV.cotal_auth_demo.gate.{OTHER}
         $KV.cotal_records_demo.lifecycle.{owner}.cli
         $JS.API.STREAM.DELETE.CHAT_demo
         $JS.API.STREAM.LIST
         $JS.API.CONSUMER.CREATE.DM_demo.x.y
         $KV.cotal_issued_demo.v1.x
         {more}"
    )
}

fn deaf(more: &str) -> String {
    format!(
        "cotal.demo.>
         cotal.demo.chat.>
         _INBOX.>
         $KV.>
         cotal.demo.inst.>
         {more}"
    )
}

/// Where a connection of this key is answered.
fn inbox(key: &Seed<User>) -> String {
    format!("_INBOX_{}.>", key.public())
}

impl Rig {
    /// Tries a credential that was granted to the manager.
    async fn hold(&self, answer: &Value, name: CredentialName, privilege: Privilege) {
        let jwt = answer["credentials"][name.as_str()]["jwt"].as_str().expect("it is granted");
        self.hold_user(
            jwt,
            &self.manager.creds(answer, name),
            Privilege { name: name.as_str(), ..privilege },
        )
        .await;
    }

    async fn hold_user(&self, jwt: &str, creds: &str, privilege: Privilege) {
        let mut client = self.connected(creds).await;
        privilege.hold(&mut client, &permissions_of(&claims_of(jwt))).await;
    }
}

#[tokio::test]
async fn each_credential_reaches_what_it_is_for_and_nothing_else() {
    let rig = Rig::start().await;
    let Activated { prepared, answer: activated, .. } = rig.activated().await;
    let id = rig.manager.one_shot().public().to_string();
    let soon = SystemClock.now_secs().0 + 600;
    let session = rig.granted(Operation::Session, session(&id, soon)).await;
    let retire = rig.granted(Operation::Retire, retirement(&rig, &rig.manager.owner, 0)).await;
    let reader = rig.granted(Operation::TransferReader, json!({})).await;

    let (iid, owner) = (&rig.manager.instance, &rig.manager.owner);
    let one_shot = inbox(rig.manager.one_shot());
    let of_role = |role: StandingRole| inbox(rig.manager.key(role));

    let served = |(rail, command): (&str, &str)| {
        format!(
            "cotal.demo.{rail}.one.manager.{command}.> manager
             cotal.demo.{rail}.all.manager.{command}.>
             cotal.demo.{rail}.inst.manager.{iid}.{command}.>"
        )
    };
    let commands = || COMMANDS.into_iter().chain(["describe"]);
    let rails = ["ep", "ep.v1"].into_iter().flat_map(|rail| commands().map(move |command| (rail, command)));
    let serves = rails.map(served).collect::<Vec<_>>().join("\n");
    let serve = Privilege {
        publishes: format!(
            "cotal.demo.ep.reply.manager.{iid}.0.o.a.u.n
             cotal.demo.ep.v1.reply.manager.{iid}.0.o.a.u.g.n
             cotal.demo.epe.manager.{iid}.0.goal.o.a.u.g.x
             cotal.demo.ept.manager.{iid}.0.t1.schedule
             cotal.demo.epr.manager.{iid}.0.x"
        ),
        hears: format!("{serves}\ncotal.demo.ept.manager.{iid}.0.t1.fire\n{}", of_role(StandingRole::Serve)),
        never_publishes: nobody(
            owner,
            &format!(
                "cotal.demo.ep.reply.manager.{iid}.1.o.a.u.n
                 cotal.demo.ep.reply.manager.{OTHER}.0.o.a.u.n
                 cotal.demo.ep.one.manager.spawn.{owner}.cli.u.n
                 $KV.cotal_auth_demo.epgate.manager.{iid}
                 cotal.demo.epf.manager.goal.o.a.u.g.bind"
            ),
        ),
        never_hears: deaf(&format!(
            "cotal.demo.ep.one.manager.spawn.>
             cotal.demo.ep.one.manager.purge.> manager
             cotal.demo.ep.one.auth.> auth
             cotal.demo.ep.inst.manager.{OTHER}.spawn.>"
        )),
        ..Privilege::default()
    };
    rig.hold(&activated, CredentialName::Serve, serve).await;

    let goals_of = |caller: &str| {
        format!(
            "cotal.demo.epf.manager.goal.{caller}.a.u.g.bind
             cotal.demo.epf.manager.goal.{caller}.a.u.g.result
             $KV.cotal_records_demo.goal.manager.{caller}.a.u.g
             $KV.cotal_records_demo.goalidx.manager.{caller}.a.u.g
             $KV.cotal_records_demo.goaleff.manager.{caller}.a.u.g"
        )
    };
    let goals = Privilege {
        publishes: format!(
            "$JS.API.INFO
             {}
             {}
             $JS.API.STREAM.MSG.GET.EPF_demo
             $JS.API.STREAM.MSG.GET.KV_cotal_records_demo",
            goals_of(owner.as_str()),
            goals_of("local")
        ),
        hears: of_role(StandingRole::GoalWriter),
        never_publishes: nobody(
            owner,
            &format!(
                "{}
                 cotal.demo.epf.auth.goal.{owner}.a.u.g.bind
                 cotal.demo.epf.manager.dec.{owner}.a.u.r
                 cotal.demo.ep.reply.manager.{iid}.0.o.a.u.n
                 $KV.cotal_sessions_demo.session.s",
                goals_of(&format!("u_{}", "z".repeat(26)))
            ),
        ),
        never_hears: deaf(""),
        ..Privilege::default()
    };
    rig.hold(&activated, CredentialName::GoalWriter, goals).await;

    let ledger = Privilege {
        publishes: "$JS.API.INFO
                    $KV.cotal_sessions_demo.session.s
                    $JS.API.STREAM.INFO.KV_cotal_sessions_demo
                    $JS.API.STREAM.MSG.GET.KV_cotal_sessions_demo"
            .to_owned(),
        hears: of_role(StandingRole::SessionLedger),
        never_publishes: nobody(
            owner,
            &format!(
                "$KV.cotal_sessions_demo.chat.o.s
                 $KV.cotal_auth_demo.session.s
                 cotal.demo.eps.manager.{SESSION}.0.out
                 cotal.demo.ep.reply.manager.{iid}.0.o.a.u.n"
            ),
        ),
        never_hears: deaf(""),
        ..Privilege::default()
    };
    rig.hold(&activated, CredentialName::SessionLedger, ledger).await;

    let serving = Privilege {
        publishes: format!("cotal.demo.eps.manager.{SESSION}.0.out"),
        hears: format!("cotal.demo.eps.manager.{SESSION}.0.in\n{one_shot}"),
        never_publishes: nobody(
            owner,
            &format!(
                "cotal.demo.eps.manager.{SESSION}.0.in
                 cotal.demo.eps.manager.{SESSION}.1.out
                 cotal.demo.eps.manager.{}.0.out
                 $JS.API.INFO",
                "t".repeat(22)
            ),
        ),
        never_hears: deaf(&format!("cotal.demo.eps.manager.{SESSION}.0.out\ncotal.demo.eps.>")),
        ..Privilege::default()
    };
    rig.hold(&session, CredentialName::SessionServing, serving).await;

    let (target, uid) = (format!("{owner}.worker.{}", "u".repeat(26)), &rig.manager.uid);
    let caller = format!("{owner}.manager_serve_{iid}.{uid}");
    let retires = "cotal.demo.ep.one.auth.retire-lifecycle.handle";
    let requester = Privilege {
        publishes: format!(
            "{retires}.{target}.{caller}.nonce
             cotal.demo.ep.one.auth.describe.{caller}.nonce
             $JS.API.DIRECT.GET.EPC_demo.cotal.demo.epc.x"
        ),
        hears: format!("cotal.demo.ep.reply.*.*.*.{caller}.*\n{one_shot}"),
        never_publishes: nobody(
            owner,
            &format!(
                "{retires}.{owner}.other.{}.{caller}.n
                 {retires}.{owner}.worker.{OTHER}.{caller}.n
                 {retires}.{target}.{owner}.cli.{uid}.n
                 cotal.demo.ep.one.manager.spawn.{caller}.n",
                "u".repeat(26)
            ),
        ),
        never_hears: deaf(""),
        ..Privilege::default()
    };
    rig.hold(&retire, CredentialName::RetirementRequester, requester).await;

    let reads = Privilege {
        publishes: format!(
            "$JS.API.STREAM.CREATE.OBJ_cotal_xfer_demo_{iid}
             $JS.API.STREAM.INFO.OBJ_cotal_xfer_demo_{iid}
             $JS.API.CONSUMER.CREATE.OBJ_cotal_xfer_demo_{iid}.x
             $JS.API.STREAM.MSG.GET.OBJ_cotal_xfer_demo_{iid}
             $JS.API.STREAM.PURGE.OBJ_cotal_xfer_demo_{iid}
             $O.cotal_xfer_demo_{iid}.M.x"
        ),
        hears: one_shot,
        never_publishes: nobody(
            owner,
            &format!(
                "$O.cotal_xfer_demo_{iid}.C.x
                 $O.cotal_xfer_demo_{OTHER}.M.x
                 $JS.API.STREAM.DELETE.OBJ_cotal_xfer_demo_{iid}
                 $JS.API.STREAM.INFO.OBJ_cotal_xfer_demo_{OTHER}
                 $JS.API.STREAM.INFO.OBJ_cotal_artifacts_demo"
            ),
        ),
        never_hears: deaf(""),
        ..Privilege::default()
    };
    rig.hold(&reader, CredentialName::TransferReader, reads).await;

    // Last: they may write over the gate that everything else stands on.
    for (name, role) in [
        (CredentialName::Supervisor, StandingRole::Supervisor),
        (CredentialName::Executor, StandingRole::Executor),
    ] {
        let actor = role.actor(iid);
        let record = "$JS.API.DIRECT.GET.KV_cotal_records_demo.$KV.cotal_records_demo";
        let privilege = Privilege {
            publishes: format!(
                "$JS.API.INFO
                 $JS.API.STREAM.INFO.KV_cotal_manager_demo
                 $JS.API.STREAM.MSG.GET.KV_cotal_manager_demo
                 $KV.cotal_manager_demo.lease.{iid}
                 $KV.cotal_presence_demo.{owner}.{actor}
                 $JS.API.STREAM.INFO.KV_cotal_presence_demo
                 $JS.API.CONSUMER.CREATE.KV_cotal_presence_demo.x
                 $JS.API.CONSUMER.INFO.KV_cotal_presence_demo.x
                 $JS.FC.x
                 $KV.cotal_auth_demo.epgate.manager.{iid}
                 $KV.cotal_auth_demo.eprepair.manager.{iid}
                 $KV.cotal_auth_demo.epcred.manager.{iid}.x
                 $KV.cotal_records_demo.svc.manager.{iid}.spec
                 $KV.cotal_records_demo.svc.manager.{iid}.status
                 $KV.cotal_records_demo.govern.manager
                 cotal.demo.epc.x
                 $JS.API.DIRECT.GET.EPC_demo.cotal.demo.epc.x
                 $JS.API.DIRECT.GET.EPC_demo
                 $JS.API.STREAM.MSG.GET.KV_cotal_auth_demo
                 $JS.API.CONSUMER.CREATE.KV_cotal_auth_demo.x
                 $JS.API.CONSUMER.INFO.KV_cotal_auth_demo.x
                 $JS.API.CONSUMER.DELETE.KV_cotal_auth_demo.x
                 {record}.svc.manager.{iid}.spec
                 {record}.svc.manager.{iid}.status
                 {record}.govern.manager
                 $JS.API.STREAM.MSG.GET.KV_cotal_records_demo"
            ),
            hears: of_role(role),
            never_publishes: nobody(
                owner,
                &format!(
                    "$KV.cotal_manager_demo.renewal
                     $KV.cotal_manager_demo.lease.{OTHER}
                     $KV.cotal_presence_demo.{owner}.cli
                     $KV.cotal_records_demo.svc.manager.{OTHER}.spec
                     cotal.demo.ep.reply.manager.{iid}.0.o.a.u.n
                     $JS.API.CONSUMER.CREATE.KV_cotal_records_demo.x"
                ),
            ),
            never_hears: deaf(""),
            ..Privilege::default()
        };
        rig.hold(&prepared, name, privilege).await;
    }
    rig.daemon.stop().await.unwrap();
}

/// What replays a run's journal under a takeover.
fn replay(run: &RunId, takeover: &str) -> String {
    let durable = format!("wfj_{run}_{takeover}");
    format!(
        "$JS.API.CONSUMER.CREATE.WFJ_demo.{durable}.{}
         $JS.API.CONSUMER.INFO.WFJ_demo.{durable}
         $JS.API.CONSUMER.MSG.NEXT.WFJ_demo.{durable}
         $JS.ACK.WFJ_demo.{durable}.x
         $JS.API.CONSUMER.DELETE.WFJ_demo.{durable}",
        journal(run)
    )
}

/// What a run records of itself.
fn records(run: &RunId) -> String {
    let records = "$KV.cotal_records_demo";
    format!(
        "{records}.run.manager.{run}.x
         {records}.program.manager.{run}
         {records}.notice.manager.{run}.x
         {records}.migration.manager.{run}.x"
    )
}

#[tokio::test]
async fn each_credential_of_a_run_reaches_its_own_run_and_nothing_else() {
    let running = Running::start().await;
    let mut caller = running.caller().await;
    let (run, other) = (running.admitted(&mut caller).await, run_id());
    running.publish(&journal(&run), &activation(&run)).await;
    running.pauses(&run, "token-1").await;
    let (both, [looker, answerer]) = (keys(), keys());
    let granted = async |payload: Value| {
        let (status, answer) = running.ask(Kind::RunAttempt, payload).await;
        assert_eq!(status, 200, "{answer}");
        answer["credentials"].clone()
    };
    let pair = granted(json!({ "attempt": Running::attempt(&run, 1, 1, &both) })).await;
    let looks = json!({ "operator": { "id": looker.public(), "takeoverId": "t1", "runId": run } });
    let looks = granted(looks).await;
    let subject = caller.answers(running.manager(), &run).await;
    let answers = granted(Running::answering(&run, &answerer, &subject)).await;

    let (iid, owner) = (&running.manager().instance, &running.manager().owner);
    let as_run = RunCaller::of(&run, owner);
    let as_run = format!("{}.{}", as_run.principal, as_run.uid);
    // What none of the four may, whatever of its run it may.
    let never = |more: &str| {
        let (replay, records) = (replay(&other, TAKEOVER), records(&other));
        let more = format!(
            "{}
             {replay}
             {records}
             $KV.cotal_admission_demo.admission.v1.manager.{run}
             $KV.cotal_admission_demo.revoked.v1.manager.{run}
             $JS.API.STREAM.PURGE.WFJ_demo
             $JS.API.STREAM.MSG.GET.WFJ_demo
             $JS.API.STREAM.MSG.GET.KV_cotal_auth_demo
             {more}",
            journal(&other)
        );
        nobody(owner, &more)
    };
    let unheard = || deaf("cotal.demo.wfj.>\ncotal.demo.ep.one.manager.run-start.> manager");
    let hold = async |of: &Value, name: &'static str, key: &Seed<User>, privilege: Privilege| {
        let jwt = &of[name]["jwt"];
        let privilege = Privilege { name, ..privilege };
        running.rig.hold_user(jwt.as_str().expect("it is granted"), &creds_of(jwt, key), privilege).await;
    };

    let drives = Privilege {
        publishes: format!(
            "{}
             {}
             {}
             $JS.API.INFO",
            journal(&run),
            replay(&run, TAKEOVER),
            records(&run)
        ),
        hears: inbox(&both[0]),
        never_publishes: never(&format!(
            "$JS.API.CONSUMER.CREATE.WFJ_demo.wfj_{run}_{TAKEOVER}.{}
             $JS.API.STREAM.MSG.GET.KV_cotal_records_demo
             $KV.cotal_records_demo.cp.manager.token-1.status
             cotal.demo.epf.manager.cp.token-1
             cotal.demo.ep.one.manager.spawn.{as_run}.n",
            journal(&other)
        )),
        never_hears: unheard(),
        ..Privilege::default()
    };
    hold(&pair, "driver", &both[0], drives).await;

    let mediates = Privilege {
        publishes: format!(
            "{}
             {}
             $KV.cotal_records_demo.cp.manager.token-1.x
             $JS.API.STREAM.MSG.GET.KV_cotal_records_demo
             $JS.API.STREAM.MSG.GET.EPF_demo
             $JS.API.STREAM.MSG.GET.EPT_demo
             $JS.API.STREAM.MSG.GET.CHAT_demo
             cotal.demo.epf.manager.cp.token-1
             cotal.demo.ept.manager.{iid}.1.t.schedule
             $JS.API.STREAM.INFO.CHAT_demo
             $JS.API.CONSUMER.CREATE.CHAT_demo.x
             $JS.API.CONSUMER.INFO.CHAT_demo.x
             $JS.API.CONSUMER.MSG.NEXT.CHAT_demo.x
             $JS.API.CONSUMER.DELETE.CHAT_demo.x
             $JS.ACK.CHAT_demo.x
             $JS.API.STREAM.INFO.KV_cotal_presence_demo
             $JS.API.CONSUMER.CREATE.KV_cotal_presence_demo.x
             $JS.API.CONSUMER.INFO.KV_cotal_presence_demo.x
             $JS.API.CONSUMER.DELETE.KV_cotal_presence_demo.x
             $JS.FC.x
             $KV.cotal_channels_demo.x
             $JS.API.STREAM.MSG.GET.KV_cotal_channels_demo
             $KV.cotal_members_demo.x
             $JS.API.STREAM.MSG.GET.KV_cotal_members_demo
             cotal.demo.ep.one.manager.describe.{as_run}.n
             cotal.demo.ep.one.manager.spawn.{as_run}.n
             cotal.demo.ep.one.manager.turn.owner.{owner}.{as_run}.n
             cotal.demo.ep.one.manager.despawn.owner.{owner}.{as_run}.n
             cotal.demo.ep.inst.manager.{iid}.spawn.{as_run}.n
             cotal.demo.ep.inst.manager.{iid}.describe.{as_run}.n
             cotal.demo.ep.inst.manager.{iid}.resolve-cwd.{as_run}.n
             $JS.API.DIRECT.GET.EPC_demo.cotal.demo.epc.x
             $JS.API.INFO",
            replay(&run, TAKEOVER),
            records(&run)
        ),
        hears: format!("cotal.demo.ep.reply.*.*.*.{as_run}.*\n{}", inbox(&both[1])),
        never_publishes: never(&format!(
            "{}
             $KV.cotal_records_demo.goal.manager.o.a.u.g
             $KV.cotal_records_demo.answer.manager.token-1.a1
             $KV.cotal_presence_demo.{owner}.cli
             cotal.demo.epf.manager.goal.o.a.u.g.bind
             cotal.demo.ept.manager.{iid}.2.t.schedule
             cotal.demo.ept.manager.{OTHER}.1.t.schedule
             cotal.demo.ep.inst.manager.{OTHER}.spawn.{as_run}.n
             cotal.demo.ep.one.manager.spawn.{owner}.cli.{OTHER}.n
             cotal.demo.ep.one.manager.despawn.owner.local.{as_run}.n
             cotal.demo.ep.one.manager.run-start.{as_run}.n",
            journal(&run)
        )),
        never_hears: unheard(),
        ..Privilege::default()
    };
    hold(&pair, "mediator", &both[1], mediates).await;

    let reads = "$JS.API.STREAM.MSG.GET.KV_cotal_records_demo
                 $JS.API.STREAM.MSG.GET.KV_cotal_admission_demo
                 $JS.API.INFO";
    let own = format!("{}\n{}", journal(&run), records(&run));
    let operates = Privilege {
        publishes: format!("{reads}\n{}", replay(&run, "t1")),
        hears: inbox(&looker),
        never_publishes: never(&format!(
            "{own}
             {}
             $KV.cotal_records_demo.answer.manager.token-1.a1
             $KV.cotal_records_demo.cp.manager.token-1.status
             cotal.demo.epf.manager.cp.token-1
             $JS.API.STREAM.MSG.GET.EPF_demo",
            replay(&run, TAKEOVER)
        )),
        never_hears: unheard(),
        ..Privilege::default()
    };
    hold(&looks, "operator", &looker, operates).await;

    let operates = Privilege {
        publishes: format!(
            "{reads}
             $KV.cotal_records_demo.answer.manager.token-1.a1
             $KV.cotal_records_demo.cp.manager.token-1.status
             cotal.demo.epf.manager.cp.token-1
             $JS.API.STREAM.MSG.GET.EPF_demo"
        ),
        hears: inbox(&answerer),
        never_publishes: never(&format!(
            "{own}
             {}
             $KV.cotal_records_demo.answer.manager.token-2.a1
             $KV.cotal_records_demo.cp.manager.token-2.status
             cotal.demo.epf.manager.cp.token-2",
            replay(&run, "t1")
        )),
        never_hears: unheard(),
        ..Privilege::default()
    };
    hold(&answers, "operator", &answerer, operates).await;
    running.rig.daemon.stop().await.unwrap();
}

/// The service's own connection of one admission: it leaves the service never, and is as narrow.
#[tokio::test]
async fn what_admits_a_run_writes_the_rows_of_that_run_and_nothing_else() {
    let running = Running::start().await;
    let (run, other) = (run_id(), run_id());
    let digest = |letter: &str| Sha256Hex::parse(&letter.repeat(64)).unwrap();
    let endpoint = EndpointName::manager().token();
    let (space, conn) = (running.rig.stage.space.space.token(), ConnId::parse("nonce-admitter").unwrap());
    let rows = "$KV.cotal_admission_demo";
    let submission = format!("{rows}.submission.v1.manager.{}", digest("a"));
    let kept = format!(
        "$JS.API.INFO
         {rows}.admission.v1.manager.{run}
         {rows}.revoked.v1.manager.{run}
         $JS.API.STREAM.MSG.GET.KV_cotal_admission_demo"
    );
    for (name, keyed) in [("admitter", None), ("admitter of a submission", Some(digest("a")))] {
        let (publishes, more) = match &keyed {
            None => (kept.clone(), submission.as_str()),
            Some(_) => (format!("{kept}\n{submission}"), ""),
        };
        let privilege = Privilege {
            name,
            publishes,
            hears: format!("_INBOX_{conn}.>"),
            never_publishes: nobody(
                &running.manager().owner,
                &format!(
                    "{rows}.admission.v1.manager.{other}
                     {rows}.revoked.v1.manager.{other}
                     {rows}.admission.v1.auth.{run}
                     {rows}.admission.v2.manager.{run}
                     {rows}.submission.v1.manager.{}
                     {}
                     $JS.API.STREAM.PURGE.KV_cotal_admission_demo
                     $JS.API.STREAM.MSG.DELETE.KV_cotal_admission_demo
                     $JS.API.STREAM.MSG.GET.KV_cotal_records_demo
                     {more}",
                    digest("b"),
                    journal(&run)
                ),
            ),
            never_hears: deaf("$KV.cotal_admission_demo.>"),
        };
        let pin = AdmitterPin { endpoint: endpoint.clone(), run: run.clone(), submission: keyed };
        let signed = run_admitter(&space, &pin, &conn);
        let mut client = running.rig.connected(&running.user(signed.clone())).await;
        privilege.hold(&mut client, &signed).await;
    }
    running.rig.daemon.stop().await.unwrap();
}
