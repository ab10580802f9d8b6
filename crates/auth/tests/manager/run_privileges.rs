//! What each credential of a run may do at the broker: all of it, and more than ten things that it may not.

use cotal_testkit::{privilege::Privilege, runs::run_id};
use cotal_trust::nkey::Seed;
use cotal_wire::{
    ConnId, EndpointName, Sha256Hex, User,
    grants::runs::{AdmitterPin, RunCaller, run_admitter},
    manager_authority::{Kind, RunId},
};
use serde_json::{Value, json};

use super::{
    privileges::{OTHER, deaf, inbox, nobody},
    running::{Running, TAKEOVER, activation, creds_of, journal, keys},
};

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
