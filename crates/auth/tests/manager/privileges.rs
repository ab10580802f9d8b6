//! What each credential that is issued around a manager may do at the broker: all of it, and ten things that it may not.

use cotal_testkit::{
    manager::COMMANDS,
    privilege::{Privilege, permissions_of},
};
use cotal_trust::{nkey::Seed, system::SystemClock};
use cotal_wire::{
    Clock as _, Owner, User,
    manager_authority::{CredentialName, Operation, StandingRole},
};
use serde_json::{Value, json};

use super::{
    rig::{Activated, Rig, SESSION, retirement, session},
    stage::claims_of,
};

/// Somebody else's instance, or lifecycle.
pub(super) const OTHER: &str = "jjjjjjjjjjjjjjjjjjjjjjjjjj";

/// Nothing of this is anybody's here: no agent's rail, no store of others, no wildcard.
pub(super) fn nobody(owner: &Owner, more: &str) -> String {
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

pub(super) fn deaf(more: &str) -> String {
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
pub(super) fn inbox(key: &Seed<User>) -> String {
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

    pub(super) async fn hold_user(&self, jwt: &str, creds: &str, privilege: Privilege) {
        let mut client = self.connected(creds).await;
        privilege.hold(&mut client, &permissions_of(&claims_of(jwt))).await;
    }

    fn inbox_of(&self, role: StandingRole) -> String {
        inbox(self.manager.key(role))
    }

    /// Serves every command at its own epoch, on both rails.
    fn serves(&self) -> Privilege {
        let (iid, owner) = (&self.manager.instance, &self.manager.owner);
        let served = |(rail, command): (&str, &str)| {
            format!(
                "cotal.demo.{rail}.one.manager.{command}.> manager
                 cotal.demo.{rail}.all.manager.{command}.>
                 cotal.demo.{rail}.inst.manager.{iid}.{command}.>"
            )
        };
        let commands = || COMMANDS.into_iter().chain(["describe"]);
        let rails =
            ["ep", "ep.v1"].into_iter().flat_map(|rail| commands().map(move |command| (rail, command)));
        let serves = rails.map(served).collect::<Vec<_>>().join("\n");
        Privilege {
            publishes: format!(
                "cotal.demo.ep.reply.manager.{iid}.0.o.a.u.n
                 cotal.demo.ep.v1.reply.manager.{iid}.0.o.a.u.g.n
                 cotal.demo.epe.manager.{iid}.0.goal.o.a.u.g.x
                 cotal.demo.ept.manager.{iid}.0.t1.schedule
                 cotal.demo.epr.manager.{iid}.0.x"
            ),
            hears: format!(
                "{serves}\ncotal.demo.ept.manager.{iid}.0.t1.fire\n{}",
                self.inbox_of(StandingRole::Serve)
            ),
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
        }
    }

    /// Writes the goals of its owner's callers, and of the static mesh's.
    fn writes_goals(&self) -> Privilege {
        let (iid, owner) = (&self.manager.instance, &self.manager.owner);
        let goals_of = |caller: &str| {
            format!(
                "cotal.demo.epf.manager.goal.{caller}.a.u.g.bind
                 cotal.demo.epf.manager.goal.{caller}.a.u.g.result
                 $KV.cotal_records_demo.goal.manager.{caller}.a.u.g
                 $KV.cotal_records_demo.goalidx.manager.{caller}.a.u.g
                 $KV.cotal_records_demo.goaleff.manager.{caller}.a.u.g"
            )
        };
        Privilege {
            publishes: format!(
                "$JS.API.INFO
                 {}
                 {}
                 $JS.API.STREAM.MSG.GET.EPF_demo
                 $JS.API.STREAM.MSG.GET.KV_cotal_records_demo",
                goals_of(owner.as_str()),
                goals_of("local")
            ),
            hears: self.inbox_of(StandingRole::GoalWriter),
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
        }
    }

    /// Writes the rows of sessions.
    fn keeps_sessions(&self) -> Privilege {
        let (iid, owner) = (&self.manager.instance, &self.manager.owner);
        Privilege {
            publishes: "$JS.API.INFO
                        $KV.cotal_sessions_demo.session.s
                        $JS.API.STREAM.INFO.KV_cotal_sessions_demo
                        $JS.API.STREAM.MSG.GET.KV_cotal_sessions_demo"
                .to_owned(),
            hears: self.inbox_of(StandingRole::SessionLedger),
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
        }
    }

    /// Answers in one session.
    fn serves_a_session(&self) -> Privilege {
        let owner = &self.manager.owner;
        let one_shot = inbox(self.manager.one_shot());
        Privilege {
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
        }
    }

    /// Asks for the end of one agent.
    fn retires(&self) -> Privilege {
        let (iid, owner) = (&self.manager.instance, &self.manager.owner);
        let one_shot = inbox(self.manager.one_shot());
        let (target, uid) = (format!("{owner}.worker.{}", "u".repeat(26)), &self.manager.uid);
        let caller = format!("{owner}.manager_serve_{iid}.{uid}");
        let retires = "cotal.demo.ep.one.auth.retire-lifecycle.handle";
        Privilege {
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
        }
    }

    /// Reads and clears one store of transfers.
    fn reads_transfers(&self) -> Privilege {
        let (iid, owner) = (&self.manager.instance, &self.manager.owner);
        let one_shot = inbox(self.manager.one_shot());
        Privilege {
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
        }
    }

    /// Registers, and holds the lease.
    fn registers(&self, role: StandingRole) -> Privilege {
        let (iid, owner) = (&self.manager.instance, &self.manager.owner);
        let actor = role.actor(iid);
        let record = "$JS.API.DIRECT.GET.KV_cotal_records_demo.$KV.cotal_records_demo";
        Privilege {
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
            hears: self.inbox_of(role),
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
        }
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
    for (answer, name, privilege) in [
        (&activated, CredentialName::Serve, rig.serves()),
        (&activated, CredentialName::GoalWriter, rig.writes_goals()),
        (&activated, CredentialName::SessionLedger, rig.keeps_sessions()),
        (&session, CredentialName::SessionServing, rig.serves_a_session()),
        (&retire, CredentialName::RetirementRequester, rig.retires()),
        (&reader, CredentialName::TransferReader, rig.reads_transfers()),
        // Last: they may write over the gate that everything else stands on.
        (&prepared, CredentialName::Supervisor, rig.registers(StandingRole::Supervisor)),
        (&prepared, CredentialName::Executor, rig.registers(StandingRole::Executor)),
    ] {
        rig.hold(answer, name, privilege).await;
    }
    rig.daemon.stop().await.unwrap();
}
