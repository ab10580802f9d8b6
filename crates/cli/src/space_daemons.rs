//! The daemons of a space: which there are, how each is started and by what it is recognised.

use std::path::{Path, PathBuf};

use cotal_trust::idp::IdpPin;
use cotal_wire::Space;
use cotal_workspace::root::Root;

use crate::{broker_lock, context::Context, daemon::Daemon};

/// File name of the broker's configuration under `.cotal/`.
const BROKER_CONFIG: &str = "nats-server.conf";
/// Directory of the broker's JetStream store under `.cotal/`.
const BROKER_STORE: &str = "jetstream";
/// Directory of the broker's accounts under `.cotal/`.
const BROKER_ACCOUNTS: &str = "nats-accounts";
/// Creds of the account publisher under `.cotal/auth/`.
const ACCOUNT_PUBLISHER: &str = "broker-accounts.creds";

/// Where a development IdP listens.
const DEV_IDP_ORIGIN: &str = "http://127.0.0.1:";
/// Path of its auth base URL.
const DEV_IDP_PATH: &str = "/api/auth";

/// `<root>/.cotal/nats-server.conf`.
pub fn broker_config_path(root: &Root) -> PathBuf {
    root.cotal_dir().join(BROKER_CONFIG)
}

/// `<root>/.cotal/jetstream`.
pub fn broker_store_dir(root: &Root) -> PathBuf {
    root.cotal_dir().join(BROKER_STORE)
}

/// `<root>/.cotal/nats-accounts`: the accounts that the broker knows.
pub fn broker_accounts_dir(root: &Root) -> PathBuf {
    root.cotal_dir().join(BROKER_ACCOUNTS)
}

/// `<root>/.cotal/auth/broker-accounts.creds`: by which a running broker is told of an account.
pub fn account_publisher_path(root: &Root) -> PathBuf {
    root.auth_dir().join(ACCOUNT_PUBLISHER)
}

/// The port of a rendered broker configuration: its first `port`, before any block.
pub fn broker_port(config: &str) -> Option<u16> {
    config.lines().find_map(|line| line.strip_prefix("port: "))?.parse().ok()
}

/// The broker of a root, which serves every space of it.
pub fn broker(ctx: &Context, program: &Path) -> Daemon {
    let config = broker_config_path(&ctx.root);
    Daemon {
        name: "nats-server".into(),
        files: ctx.root.daemon_files("nats-server", None),
        program: program.to_owned(),
        arguments: vec!["-c".into(), config.clone().into()],
        marks: vec!["-c".into(), config.display().to_string()],
        directory: ctx.root.path().to_owned(),
        lock: Some(broker_lock::path(&ctx.root)),
    }
}

/// The auth service of a space.
pub fn auth_service(ctx: &Context, space: &Space, flags: Vec<String>) -> Daemon {
    let marks = ["auth-service", "--space", space.as_str()].map(str::to_owned);
    of_this_program(ctx, "auth-service", space, marks.to_vec(), flags)
}

/// The delivery daemon of a space, on the broker at `server`; the URL matters to a start alone.
pub fn delivery(ctx: &Context, space: &Space, server: Option<&str>) -> Daemon {
    let marks = ["delivery", "--space", space.as_str()].map(str::to_owned);
    let flags = server.map(|server| vec!["--server".to_owned(), server.to_owned()]);
    of_this_program(ctx, "delivery", space, marks.to_vec(), flags.unwrap_or_default())
}

/// The development IdP of a space at its port, by which it is told from another space's.
pub fn dev_idp(ctx: &Context, space: &Space, port: u16, auto_approve: bool) -> Daemon {
    let marks = ["dev-idp", "--port", &port.to_string()].map(str::to_owned);
    let flags = auto_approve.then(|| "--auto-approve".to_owned());
    of_this_program(ctx, "dev-idp", space, marks.to_vec(), flags.into_iter().collect())
}

/// The development IdP that an earlier `up` may have left, at the port of the space's pin. A run that ended before it
/// had pinned one leaves no port: then any development IdP of the root is taken for it.
pub fn left_dev_idp(ctx: &Context, space: &Space, pin: Option<&IdpPin>) -> Daemon {
    match pin.and_then(|pin| dev_idp_port(&pin.url)) {
        Some(port) => dev_idp(ctx, space, port, false),
        None => of_this_program(ctx, "dev-idp", space, vec!["dev-idp".to_owned()], Vec::new()),
    }
}

/// The auth base URL of a development IdP at a port.
pub fn dev_idp_url(port: u16) -> String {
    format!("{DEV_IDP_ORIGIN}{port}{DEV_IDP_PATH}")
}

/// The port of a development IdP's auth base URL; `None` for any other provider's.
pub fn dev_idp_port(url: &str) -> Option<u16> {
    url.strip_prefix(DEV_IDP_ORIGIN)?.strip_suffix(DEV_IDP_PATH)?.parse().ok()
}

fn of_this_program(
    ctx: &Context,
    name: &str,
    space: &Space,
    marks: Vec<String>,
    flags: Vec<String>,
) -> Daemon {
    Daemon {
        name: format!("{name} of space {:?}", space.as_str()),
        files: ctx.root.daemon_files(name, Some(space)),
        program: ctx.executable.clone(),
        arguments: marks.iter().cloned().chain(flags).map(Into::into).collect(),
        marks,
        directory: ctx.root.path().to_owned(),
        lock: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_development_idp_is_recognised_by_its_port() {
        let tmp = tempfile::tempdir().unwrap();
        let (home, root) = (cotal_workspace::root::Home::at(tmp.path()), Root::at(tmp.path()));
        let ctx = Context::of_parts(home, root, "cotal".into(), |_| None, std::io::sink(), std::io::sink());
        let space = Space::parse("main").unwrap();
        let pin = |url: &str| IdpPin::from_url(url).unwrap();
        let started = dev_idp(&ctx, &space, 4780, true);
        let left = left_dev_idp(&ctx, &space, Some(&pin(&dev_idp_url(4780))));
        assert_eq!(left.marks, ["dev-idp", "--port", "4780"]);
        assert_eq!(started.marks, left.marks);
        assert_eq!(started.arguments, ["dev-idp", "--port", "4780", "--auto-approve"]);
        assert_ne!(left_dev_idp(&ctx, &space, Some(&pin(&dev_idp_url(4781)))).marks, left.marks);
        assert_eq!(left_dev_idp(&ctx, &space, Some(&pin("https://id.example/api/auth"))).marks, ["dev-idp"]);
    }

    #[test]
    fn the_port_is_read_back_from_a_configuration() {
        assert_eq!(broker_port("# x\nhost: 127.0.0.1\nport: 4333\nwebsocket {\n  port: 1\n}\n"), Some(4333));
        assert_eq!(broker_port("websocket {\n  port: 1\n}\n"), None);
    }
}
