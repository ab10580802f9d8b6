//! A callout that checks nothing: it opens the request, signs a user, seals the answer. What is left is the price of
//! a callout as such.

use std::sync::Arc;

use anyhow::{Context, Result};
use bytes::Bytes;
use cotal_broker::{Connector, Custody};
use cotal_trust::{
    jwt::{CalloutOutcome, UserClaims, decode_callout_request, encode_authorization_response, encode_user},
    system::{SystemClock, SystemEntropy},
    xkey,
};
use cotal_wire::{Clock, Nkey, Permissions, Rules, Space};
use cotal_workspace::{material::UserAuthMaterial, root::Root, secret_store::FsSecretStore};

/// Serves until the process is killed; prints `ready` once subscribed.
pub(crate) async fn serve(root: &Root, space: &Space, server: &str) -> Result<()> {
    let store = FsSecretStore::open(root)?;
    let material = Arc::new(UserAuthMaterial::load(&store, &root.user_auth_state_dir(space)?, space).await?);
    let connector = Connector::new(
        server,
        space.clone(),
        material.data_account.clone(),
        Custody::new(),
        Arc::new(SystemClock),
        Arc::new(SystemEntropy),
    );
    let connection = connector.open_creds("bare-callout".into(), &material.callout.callout_creds).await?;
    let mut requests = connection.subscribe("$SYS.REQ.USER.AUTH", Some("bare-callout")).await?;
    connection.flush().await?;
    println!("ready");
    let inbox = format!("_INBOX_{}.>", "bench");
    while let Some(message) = requests.next().await {
        let (material, connection, inbox) = (material.clone(), connection.clone(), inbox.clone());
        tokio::spawn(async move {
            let answer = answer(&material, &message, inbox);
            if let (Ok(sealed), Some(reply)) = (answer, message.reply.as_deref()) {
                let _ = connection.publish(reply, &[], Bytes::from(sealed)).await;
            }
        });
    }
    Ok(())
}

fn answer(material: &UserAuthMaterial, message: &cotal_broker::Message, inbox: String) -> Result<Vec<u8>> {
    let now = SystemClock.now_secs();
    let server_xkey = Nkey::parse(message.header("Nats-Server-Xkey").context("no xkey")?)?;
    let plain = xkey::open(&material.callout.xkey, &server_xkey, &message.payload)?;
    let request = decode_callout_request(&plain)?;
    let user = Nkey::parse(&request.user_nkey)?;
    let claims = UserClaims {
        name: "bench".into(),
        subject: user.clone(),
        issuer_account: material.data_account.account.clone(),
        permissions: Permissions {
            publish: Rules { allow: vec!["bench.>".into()], deny: vec![] },
            subscribe: Rules { allow: vec![inbox], deny: vec![] },
        },
        tags: vec![],
        exp: Some(now.plus(300)),
    };
    let jwt = encode_user(&claims, &material.data_account.signing, now);
    let response = encode_authorization_response(
        &user,
        &Nkey::parse(&request.server_id)?,
        material.callout.account.public(),
        CalloutOutcome::Allow(&jwt),
        &material.callout.signing,
        now,
    );
    Ok(xkey::seal(&material.callout.xkey, &server_xkey, response.as_bytes(), &SystemEntropy)?)
}
