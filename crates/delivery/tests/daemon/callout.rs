//! A user that an auth callout placed: it carries no tags, and is known by the name of its JWT.

use cotal_authority::{claim_oracle::Verdict, evict::Evictor as _};
use cotal_testkit::{
    broker::NatsServer,
    raw::{ConnectOutcome, RawClient},
};
use cotal_trust::{
    callout_account::CalloutAuth,
    jwt::{self, CalloutOutcome, UserClaims},
    system::{SystemClock, SystemEntropy},
};
use cotal_wire::{Clock, Nkey, Permissions, Rules};

use crate::house::{House, Trust, eventually, principal};

/// Answers every connect: the user is placed in the data account under the name that its token asks for.
async fn serve(callout: CalloutAuth, house: &House) {
    let label = "cotal:auth-service:main".to_owned();
    let connection = house.connector.open_creds(label, &callout.callout_creds).await.unwrap();
    let mut requests = connection.subscribe("$SYS.REQ.USER.AUTH", None).await.unwrap();
    connection.flush().await.unwrap();
    let data = house.account.data_account();
    tokio::spawn(async move {
        while let Some(message) = requests.next().await {
            let sender = Nkey::parse(message.header("Nats-Server-Xkey").unwrap()).unwrap();
            let token = cotal_trust::xkey::open(&callout.xkey, &sender, &message.payload).unwrap();
            let request = jwt::decode_callout_request(&token).unwrap();
            let (user, now) = (Nkey::parse(&request.user_nkey).unwrap(), SystemClock.now_secs());
            let own = || Rules { allow: vec!["_INBOX.x.>".into()], deny: Vec::new() };
            let claims = UserClaims {
                name: request.auth_token.to_string(),
                subject: Nkey::clone(&user),
                issuer_account: data.account.clone(),
                permissions: Permissions { publish: own(), subscribe: own() },
                tags: Vec::new(),
                exp: Some(now.plus(300)),
            };
            let placed = jwt::encode_user(&claims, &data.signing, now);
            let answer = jwt::encode_authorization_response(
                &user,
                &Nkey::parse(&request.server_id).unwrap(),
                callout.account.public(),
                CalloutOutcome::Allow(&placed),
                &callout.signing,
                now,
            );
            let sealed =
                cotal_trust::xkey::seal(&callout.xkey, &sender, answer.as_bytes(), &SystemEntropy).unwrap();
            connection.publish(message.reply.as_deref().unwrap(), &[], sealed.into()).await.unwrap();
        }
    });
}

#[tokio::test]
async fn a_user_that_the_callout_placed_is_seen_and_ended_by_the_name_of_its_principal() {
    let trust = Trust::new();
    let data = trust.account.data_account();
    let callout = CalloutAuth::create(
        &trust.account.space,
        &trust.trust.operator,
        &data.account,
        &SystemEntropy,
        SystemClock.now_secs(),
    );
    let extra = [(callout.account.public().to_string(), callout.jwt.clone())];
    let server = NatsServer::start_with(|port, store| trust.config(port, store, &extra)).await;
    let house = House::on(trust, &server.url(), 1).await;
    let sentinel = callout.sentinel_creds.to_string();
    serve(callout, &house).await;
    let _daemon = house.daemon().await;

    let (alice, bob) = (principal("alice"), principal("bob"));
    let mut clients = Vec::new();
    for who in [&alice, &alice, &bob] {
        let (client, outcome) =
            RawClient::connect(&server.url(), Some(&sentinel), Some(&who.name()), Some("nonce")).await;
        assert_eq!(outcome, ConnectOutcome::Connected);
        clients.push(client.unwrap());
    }
    let admin = house.admin();
    assert_eq!(admin.principal_liveness(&alice).await, Verdict::Live);
    let eviction = admin.evict(&[alice.clone()].into()).await.remove(0);
    assert!(eviction.verified_gone && eviction.kicked == 2, "{eviction:?}");
    clients.pop().unwrap().ping().await.unwrap();
    for client in &mut clients {
        client.ended().await;
    }
    eventually("alice is gone", async || admin.principal_liveness(&alice).await == Verdict::Gone).await;
}
