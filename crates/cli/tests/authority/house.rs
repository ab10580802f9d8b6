//! A space with its IdP, its broker and its delivery daemon, people in it, and what is true in its stores.

use std::{collections::HashMap, sync::Arc, time::Duration};

use anyhow::{Result, ensure};
use cotal_broker::{
    Connection, Connector, Custody, Lifetime,
    kv::{Bucket, LeaderRead},
};
use cotal_dev_idp::{DevIdp, DevIdpOptions};
use cotal_ledger::{GrantInput, Ledger};
use cotal_testkit::{
    daemons::Seat,
    process::Process,
    raw::{ConnectOutcome, RawClient},
    space::TestSpace,
};
use cotal_trust::{
    idp::http_client,
    system::{SystemClock, SystemEntropy},
};
use cotal_wire::{
    Actor, ConnId, DerivedOwner, LifecycleUid, Names, Permissions, Principal, Rules,
    names::{self, PLANE_KEY},
    rows::{HeadState, LifecycleHead, NatkeyRow, PlaneClaim},
};
use cotal_workspace::{broker_config::BrokerPolicy, material::Discovery};
use serde_json::{Value, json};

pub(crate) const COTAL: &str = env!("CARGO_BIN_EXE_cotal");
/// Longer than any retirement that waits for a delivery daemon that does not answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(120);
const NONCE: &str = "nonce-0123456789";
const CHANNEL: &str = "general";

pub(crate) struct House {
    pub(crate) space: TestSpace,
    pub(crate) seat: Seat,
    pub(crate) caller: Caller,
}

/// What asks the service and the broker, whatever becomes of either.
#[derive(Clone)]
pub(crate) struct Caller {
    idp: Arc<DevIdp>,
    http: reqwest::Client,
    broker: String,
    sentinel: String,
}

/// An interactive actor.
#[derive(Clone)]
pub(crate) struct Person {
    sub: String,
    pub(crate) principal: Principal,
    owner: DerivedOwner,
    actor: Actor,
    pub(crate) uid: LifecycleUid,
}

/// What the door said to a request to retire somebody.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Told {
    /// `retired: true`.
    Retired,
    /// A refusal: its status, and its `outcome`.
    Refused(u16, Option<String>),
    /// The connection failed, or nothing came.
    Nothing,
}

impl House {
    /// A space whose delivery daemon is yet to be started, from credentials that are there.
    pub(crate) async fn start(name: &str) -> Self {
        Self::start_bounded(name, None).await
    }

    pub(crate) async fn start_bounded(name: &str, max_file_store: Option<u64>) -> Self {
        let idp = DevIdp::start(DevIdpOptions::default(), Arc::new(SystemClock), Arc::new(SystemEntropy));
        let idp = idp.await.unwrap();
        let policy = BrokerPolicy::default();
        let space = TestSpace::start_bounded(name, &idp.base_url(), policy, max_file_store).await;
        space.provision_delivery().await.unwrap();
        let seat = Seat::of(&space, COTAL);
        let caller = Caller {
            idp: Arc::new(idp),
            http: http_client(ANSWER_WITHIN).unwrap(),
            broker: space.server.url(),
            sentinel: space.material.callout.sentinel_creds.to_string(),
        };
        Self { space, seat, caller }
    }

    pub(crate) fn url(&self) -> String {
        self.space.server.url()
    }

    pub(crate) async fn delivery(&self) -> Process {
        self.seat.ready_delivery(&self.url()).await.unwrap()
    }

    pub(crate) async fn service(&self) -> (Process, Discovery) {
        self.seat.ready_auth_service(&self.url()).await.unwrap()
    }

    /// People of one owner each, granted in the space's own ledger.
    pub(crate) fn people(&self, prefix: &str, count: usize) -> Vec<Person> {
        (0..count).map(|n| self.person(&format!("{prefix}{n}"))).collect()
    }

    pub(crate) fn person(&self, sub: &str) -> Person {
        let owner = self.space.material.owner_secret.derive(&self.caller.idp.origin(), sub).unwrap();
        let actor = Actor::parse("cli").unwrap();
        let input =
            GrantInput::new(owner.clone(), actor.clone()).allow_subscribe([CHANNEL]).allow_publish([CHANNEL]);
        let ledger = Ledger::at(&self.seat.state_dir);
        let row = ledger.grant_interactive(&input, &SystemClock, &SystemEntropy).unwrap();
        let uid = LifecycleUid::parse(&row.lifecycle_uid.unwrap()).unwrap();
        let principal = Principal::new(&owner, actor.clone());
        Person { sub: sub.to_owned(), principal, owner, actor, uid }
    }

    // --- what is true ---

    pub(crate) async fn reader(&self) -> Connection {
        let connector = Connector::new(
            &self.url(),
            self.space.space.clone(),
            self.space.material.data_account.clone(),
            Custody::new(),
            Arc::new(SystemClock),
            Arc::new(SystemEntropy),
        );
        let everything = |conn: &ConnId| Permissions {
            publish: Rules { allow: vec!["$JS.API.>".into(), "fill.>".into()], deny: vec![] },
            subscribe: Rules { allow: vec![format!("_INBOX_{conn}.>")], deny: vec![] },
        };
        let lifetime = Lifetime::OneShot { ttl_secs: 600, principal: None };
        connector.open("reader".into(), &everything, lifetime).await.unwrap()
    }

    fn names(&self) -> Names {
        Names::new(&self.space.space.token())
    }

    pub(crate) async fn plane_row(&self, reader: &Connection) -> Option<PlaneClaim> {
        match Bucket::new(reader, &self.names().auth_bucket()).leader_read(PLANE_KEY).await.ok()? {
            LeaderRead::Value(entry) => Some(PlaneClaim::parse(&entry.value).unwrap()),
            LeaderRead::Marker(_) => panic!("the plane row was deleted"),
            LeaderRead::Absent => None,
        }
    }

    /// `active`, `retiring`, `retired`, or `absent`.
    pub(crate) async fn head(&self, reader: &Connection, person: &Person) -> &'static str {
        let records = Bucket::new(reader, &self.names().records_bucket());
        match records.leader_read(&names::head_key(&person.principal)).await.unwrap() {
            LeaderRead::Value(entry) => {
                let head = LifecycleHead::parse(&person.principal, &entry.value).unwrap();
                assert_eq!(*head.lifecycle_uid(), person.uid);
                match head.state() {
                    HeadState::Active => "active",
                    HeadState::Retiring(_) => "retiring",
                    HeadState::Retired => "retired",
                }
            }
            LeaderRead::Absent | LeaderRead::Marker(_) => "absent",
        }
    }

    pub(crate) async fn assert_retired(&self, people: &[Person]) {
        let reader = self.reader().await;
        for person in people {
            assert_eq!(self.head(&reader, person).await, "retired", "{}", person.principal);
        }
        reader.close().await.unwrap();
    }

    /// Whoever was told `retired: true` is retired: no success is false.
    pub(crate) async fn assert_told_the_truth(&self, told: &[(Person, Told)]) {
        let retired: Vec<_> = told
            .iter()
            .filter(|(_, told)| *told == Told::Retired)
            .map(|(person, _)| person.clone())
            .collect();
        self.assert_retired(&retired).await;
    }

    /// Every connect that a service of this space says it minted has its own issuance row. Answers how many.
    pub(crate) async fn assert_every_connect_has_its_row(&self, logs: &[String]) -> usize {
        let reader = self.reader().await;
        let auth = Bucket::new(&reader, &self.names().auth_bucket());
        let mut rows = HashMap::new();
        for key in auth.keys("natkey.>").await.unwrap() {
            let LeaderRead::Value(entry) = auth.leader_read(&key).await.unwrap() else { continue };
            let row = NatkeyRow::parse(&key, &entry.value).unwrap();
            rows.insert(row.user.to_string(), format!("{}.{}", row.owner, row.actor));
        }
        reader.close().await.unwrap();
        let mut minted = 0;
        for line in logs.iter().flat_map(|log| log.lines()).filter(|line| line.contains(" outcome=minted ")) {
            let field =
                |name: &str| line.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
            // A kill may cut a line short. The total is the last thing in it.
            let (Some(user), Some(owner), Some(actor), Some(_)) =
                (field("req"), field("owner"), field("actor"), field("total_ms"))
            else {
                continue;
            };
            assert_eq!(rows.get(user), Some(&format!("{owner}.{actor}")), "{user} was minted without a row");
            minted += 1;
        }
        minted
    }
}

impl Caller {
    /// Who the IdP's subject is in this space.
    pub(crate) fn owner_of(&self, house: &House, sub: &str) -> DerivedOwner {
        house.space.material.owner_secret.derive(&self.idp.origin(), sub).unwrap()
    }

    /// What the IdP says of somebody, for ten minutes.
    pub(crate) fn idp_token(&self, sub: &str) -> String {
        self.idp.mint_token(sub, 600)
    }

    /// A bearer, or nothing where the service does not answer one.
    pub(crate) async fn exchange(&self, service: &Discovery, person: &Person) -> Option<String> {
        let body = json!({ "idpToken": self.idp.mint_token(&person.sub, 600), "actor": person.actor });
        let (status, answer) = self.post(service, "exchange", &body).await?;
        (status == 200).then(|| answer["token"].as_str().unwrap().to_owned())
    }

    pub(crate) async fn bearer(&self, service: &Discovery, person: &Person) -> String {
        self.exchange(service, person).await.expect("the exchange answers")
    }

    pub(crate) async fn retire(&self, service: &Discovery, person: &Person) -> Told {
        let body = json!({ "owner": person.owner, "actor": person.actor, "lifecycleUid": person.uid });
        match self.post(service, "interactive-lifecycle/retire", &body).await {
            Some((200, answer)) if answer["retired"] == true => Told::Retired,
            Some((status, answer)) => Told::Refused(status, answer["outcome"].as_str().map(str::to_owned)),
            None => Told::Nothing,
        }
    }

    async fn post(&self, service: &Discovery, path: &str, body: &Value) -> Option<(u16, Value)> {
        self.post_to(&format!("{}/{path}", service.url), Some(service.cap.as_str()), body).await
    }

    /// A request to any face; nothing when nobody answers it.
    pub(crate) async fn post_to(&self, url: &str, cap: Option<&str>, body: &Value) -> Option<(u16, Value)> {
        let mut request = self.http.post(url);
        if let Some(cap) = cap {
            request = request.bearer_auth(cap);
        }
        let answer = request.json(body).send().await.ok()?;
        let status = answer.status().as_u16();
        Some((status, answer.json().await.ok()?))
    }

    /// Connects straight to the broker, as a client does.
    pub(crate) async fn connect(&self, bearer: &str) -> Option<RawClient> {
        self.try_connect(bearer).await.0
    }

    pub(crate) async fn try_connect(&self, bearer: &str) -> (Option<RawClient>, ConnectOutcome) {
        RawClient::connect(&self.broker, Some(&self.sentinel), Some(bearer), Some(NONCE)).await
    }
}

/// Its connection is gone: the broker, which answers, hung up.
pub(crate) async fn assert_gone(client: &mut RawClient) {
    let told = client.ping().await;
    assert!(told.is_err(), "a connection of somebody who is retired still lives");
}

pub(crate) fn ensure_fenced(service: &Process, code: Option<i32>) -> Result<()> {
    ensure!(code == Some(1), "it ended with {code:?}: {}", service.said());
    ensure!(service.said().contains("fenced"), "it does not say why: {}", service.said());
    Ok(())
}
