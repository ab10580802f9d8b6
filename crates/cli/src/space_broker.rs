//! The broker of a space as an operator's command reaches it: where it listens, and connections that the command signs
//! for itself with the space's own key.

use std::time::Duration;

use cotal_broker::{Connector, connector::Lifetime, custody::Custody};
use cotal_wire::{ConnId, InfraRole, Space, grants::operator};
use cotal_workspace::{
    broker_config::{DEFAULT_HOST, DEFAULT_PORT},
    file,
    printed::at,
    registry::MeshRegistry,
    trust_files,
};
use tokio::net::TcpStream;
use url::Url;

use crate::{
    context::{Context, not_here},
    outcome::CliError,
    space_daemons,
};

/// How long a one-shot credential of a command lives, in seconds.
pub const ONE_SHOT_SECS: u64 = 300;

/// How long a broker may take to accept.
const LISTENS_WITHIN: Duration = Duration::from_secs(2);
/// How long it may take to let a user in.
pub const TAKES_WITHIN: Duration = Duration::from_secs(8);

/// The broker's URL, as the last `up` of this root recorded it, else as its configuration says. `None` before the
/// first `up`.
pub fn server(ctx: &Context, space: &Space) -> Result<Option<String>, CliError> {
    let here = ctx.root.path().to_str();
    let entry = MeshRegistry::new(ctx.home.clone()).get(space)?;
    if let Some(entry) = entry.filter(|entry| Some(entry.root.as_str()) == here) {
        return Ok(Some(entry.server));
    }
    let config = file::read_text(&space_daemons::broker_config_path(&ctx.root))?;
    let port = config.as_deref().and_then(|config| space_daemons::broker_port(config));
    Ok(port.map(|port| format!("nats://{DEFAULT_HOST}:{port}")))
}

/// Opens connections to the broker of a space. `None` where no broker or no account of the space is known here.
pub fn connector(ctx: &Context, space: &Space) -> Result<Option<Connector>, CliError> {
    server(ctx, space)?.map_or(Ok(None), |server| connector_to(ctx, space, &server))
}

/// The same to a broker that is told. `None` where no account of the space is known here.
pub fn connector_to(ctx: &Context, space: &Space, server: &str) -> Result<Option<Connector>, CliError> {
    let Some(account) = trust_files::load_account(&ctx.root, space)? else { return Ok(None) };
    Ok(Some(Connector::new(
        server,
        space.clone(),
        account.data_account(),
        Custody::new(),
        ctx.clock.clone(),
        ctx.entropy.clone(),
    )))
}

/// Whether anything takes connections at one of these URLs.
pub async fn listens(servers: &str) -> bool {
    for server in servers.split(',') {
        let Ok(url) = Url::parse(server.trim()) else { continue };
        let Some(host) = url.host_str() else { continue };
        let at = (host.trim_matches(['[', ']']), url.port().unwrap_or(DEFAULT_PORT));
        let connect = tokio::time::timeout(LISTENS_WITHIN, TcpStream::connect(at));
        if matches!(connect.await, Ok(Ok(_))) {
            return true;
        }
    }
    false
}

/// Whether the broker takes what the space's account signs: a connection that may read the delivery lease, opened and
/// ended. The error is a sentence.
pub async fn takes(connector: &Connector) -> Result<(), String> {
    let token = connector.space().token();
    let grants = move |conn: &ConnId| operator::delivery_lease_reader(&token, conn);
    let lifetime = Lifetime::OneShot { ttl_secs: ONE_SHOT_SECS, principal: None };
    let label = InfraRole::OPERATOR_STATUS.label(connector.space());
    let opening = tokio::time::timeout(TAKES_WITHIN, connector.open(label, &grants, lifetime));
    let opened = opening.await.map_err(|_| "it does not answer".to_owned())?;
    let connection = opened.map_err(|refusal| refusal.message)?;
    // That it was opened says it, however it ends.
    let _ = connection.close().await;
    Ok(())
}

/// As [`connector`], or the sentence that says how to come by one.
pub fn required_connector(ctx: &Context, space: &Space) -> Result<Connector, CliError> {
    connector(ctx, space)?.ok_or_else(|| {
        not_here(ctx, space, || {
            format!(
                "no broker of space {:?} is known here: run this on the machine and in the directory that ran `cotal up \
                 --user-auth{}`",
                space.as_str(),
                at(space)
            )
        })
    })
}
