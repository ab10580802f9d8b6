//! Whose a session is: every manager writes the one ledger of sessions, and may put its own name into another's row
//! (contract 01 §6.6, 03 §R).

use cotal_testkit::{
    manager::TestManager,
    rows::{Rows, ServedSession, ServingManager},
};
use cotal_trust::system::SystemClock;
use cotal_wire::{
    Actor, Clock, LifecycleUid, Owner, Principal, SessionId, UnixMillis, UnixSecs,
    manager_authority::Operation, names::session_owner_key, rows::SessionOwnership,
};
use serde_json::{Value, json};

use super::{
    rig::{PERSON, Rig, manager_of},
    stage::claims_of,
};

/// A person, and the manager that serves it.
struct Party {
    sub: &'static str,
    holder: Principal,
    uid: LifecycleUid,
    serving: ServingManager,
    manager: TestManager,
}

impl Party {
    async fn of(rig: &Rig, rows: &Rows, sub: &'static str) -> Self {
        rig.stage.grant_human(sub, "cli", &["supervise"], &["general"]);
        let (owner, actor) = (rig.stage.owner_of(sub), Actor::parse("cli").unwrap());
        let row = rig.stage.ledger.read_interactive(&owner, &actor).unwrap().unwrap();
        let serving = ServingManager::register(rows, &owner, 0).await.unwrap();
        let mut manager = manager_of(&rig.stage, sub);
        manager.instance = serving.instance.clone();
        let uid = LifecycleUid::parse(row.lifecycle_uid.as_deref().unwrap()).unwrap();
        Self { sub, holder: Principal::new(&owner, actor), uid, serving, manager }
    }

    fn owner(&self) -> Owner {
        self.holder.owner.clone()
    }
}

struct Ledger<'r> {
    rig: &'r Rig,
    rows: Rows,
    /// When each of its sessions ends.
    exp: UnixMillis,
}

fn id(letter: char) -> SessionId {
    SessionId::parse(&letter.to_string().repeat(43)).unwrap()
}

impl<'r> Ledger<'r> {
    fn of(rig: &'r Rig, rows: Rows) -> Self {
        Self { rig, rows, exp: SystemClock.now_millis().plus(3_600_000) }
    }

    /// The row, as any manager of the space may write it.
    async fn says(&self, session: char, served_by: &Party, held_by: &Party) {
        let row = ServedSession {
            id: id(session),
            instance: served_by.serving.instance.clone(),
            epoch: 0,
            holder: held_by.holder.clone(),
            uid: held_by.uid.clone(),
            exp: self.exp,
        };
        row.write(&self.rows, "active").await.unwrap();
    }

    /// The serving side, asked for by a party's manager.
    async fn served(&self, session: char, party: &Party) -> Result<Value, String> {
        let key = party.manager.one_shot().public();
        let exp = SystemClock.now_secs().0 + 600;
        let more = json!({ "session": {
            "id": key, "endpoint": "manager", "sessionId": id(session), "epoch": 0, "exp": exp,
        } });
        let (status, answer) =
            self.rig.send(party.sub, &party.manager.request(Operation::Session, &more)).await;
        granted(status == 200, answer)
    }

    /// The calling side, asked for by a party's person.
    async fn redeemed(&self, session: char, party: &Party) -> Result<Value, String> {
        let mut body = self.rig.stage.human(party.sub, "cli");
        body["view"] = json!("session-caller");
        body["sessionGrant"] = json!({
            "v": 1, "endpoint": "manager", "sessionId": id(session), "sig": "the-signature", "serving": { "epoch": 0 },
        });
        let (status, answer) = self.rig.daemon.exchange(&body).await;
        granted(status == 200, answer)
    }

    async fn bound(&self, session: char, owner: Owner, until: UnixSecs) {
        let row = SessionOwnership { owner, until }.to_bytes();
        self.rows.put("auth", &session_owner_key(&id(session)), row).await.unwrap();
    }
}

fn granted(is: bool, answer: Value) -> Result<Value, String> {
    if is { Ok(answer) } else { Err(answer["error"].as_str().unwrap().to_owned()) }
}

const NOT_HERS: &str = "session redemption refused: the session is another owner's";
const NOT_ITS: &str = "the session is another owner's; serve one of this manager's own";

#[tokio::test]
async fn both_sides_of_a_session_are_one_owners_whatever_its_row_says_and_whoever_asks_first() {
    let rig = Rig::start().await;
    let rows = Rows::over(&rig.stage.space.anything().await.unwrap(), &rig.stage.space.space);
    let (alice, bob) = (Party::of(&rig, &rows, PERSON).await, Party::of(&rig, &rows, "bob").await);
    let ledger = Ledger::of(&rig, rows);
    let not_its = |answer: Result<Value, String>| assert_eq!(answer.unwrap_err(), NOT_ITS);

    // Her caller asks first, and his manager says then that it serves her session.
    ledger.says('c', &alice, &alice).await;
    let bearer = ledger.redeemed('c', &alice).await.unwrap()["token"].as_str().unwrap().to_owned();
    for holder in [&alice, &bob] {
        ledger.says('c', &bob, holder).await;
        not_its(ledger.served('c', &bob).await);
    }
    assert_eq!(ledger.redeemed('c', &bob).await.unwrap_err(), NOT_HERS);
    ledger.says('c', &alice, &alice).await;
    ledger.served('c', &alice).await.unwrap();
    rig.stage.connected(&bearer).await;

    // His manager says that it serves her caller, whom nobody has granted anything yet.
    ledger.says('h', &bob, &alice).await;
    not_its(ledger.served('h', &bob).await);
    ledger.says('h', &alice, &alice).await;
    ledger.redeemed('h', &alice).await.expect("a refusal binds nothing");

    // He makes it his own on both sides, before anybody has asked: then it is his, and nothing of hers.
    ledger.says('b', &bob, &bob).await;
    ledger.served('b', &bob).await.unwrap();
    ledger.says('b', &alice, &alice).await;
    assert_eq!(ledger.redeemed('b', &alice).await.unwrap_err(), NOT_HERS);
    not_its(ledger.served('b', &alice).await);

    // What the exchange was told holds at the connect, too.
    ledger.bound('c', bob.owner(), SystemClock.now_secs().plus(600)).await;
    rig.stage.refused(Some(&bearer)).await;
    rig.daemon.stop().await.unwrap();
}

#[tokio::test]
async fn nothing_that_is_granted_under_a_session_outlives_what_the_host_has_bound_it_for() {
    let rig = Rig::start().await;
    let rows = Rows::over(&rig.stage.space.anything().await.unwrap(), &rig.stage.space.space);
    let alice = Party::of(&rig, &rows, PERSON).await;
    let ledger = Ledger::of(&rig, rows);
    ledger.says('s', &alice, &alice).await;
    let until = SystemClock.now_secs().plus(300);
    ledger.bound('s', alice.owner(), until).await;
    let served = ledger.served('s', &alice).await.unwrap();
    assert_eq!(served["credentials"]["sessionServing"]["exp"], until.0);
    let redeemed = ledger.redeemed('s', &alice).await.unwrap();
    let bearer = redeemed["token"].as_str().unwrap();
    assert_eq!(claims_of(bearer)["act"]["session"]["exp"], until.0);
    rig.stage.connected(bearer).await;

    ledger.bound('s', alice.owner(), UnixSecs(until.0 - 400)).await;
    let over = ledger.redeemed('s', &alice).await.unwrap_err();
    assert_eq!(over, "session redemption refused: the session has expired");
    assert!(ledger.served('s', &alice).await.unwrap_err().starts_with("the session has ended"));
    rig.stage.refused(Some(bearer)).await;
    rig.daemon.stop().await.unwrap();
}
