//! The daemons of a space: which there are, how each is started and by what it is recognised.

use std::path::{Path, PathBuf};

use cotal_wire::Space;
use cotal_workspace::root::Root;

use crate::{context::Context, daemon::Daemon};

/// File name of the broker's configuration under `.cotal/`.
const BROKER_CONFIG: &str = "nats-server.conf";
/// Directory of the broker's JetStream store under `.cotal/`.
const BROKER_STORE: &str = "jetstream";

/// `<root>/.cotal/nats-server.conf`.
pub fn broker_config_path(root: &Root) -> PathBuf {
    root.cotal_dir().join(BROKER_CONFIG)
}

/// `<root>/.cotal/jetstream`.
pub fn broker_store_dir(root: &Root) -> PathBuf {
    root.cotal_dir().join(BROKER_STORE)
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
    }
}

/// The auth service of a space.
pub fn auth_service(ctx: &Context, space: &Space, flags: Vec<String>) -> Daemon {
    let marks = ["auth-service", "--space", space.as_str()].map(str::to_owned);
    of_this_program(ctx, "auth-service", space, marks.to_vec(), flags)
}

/// The development IdP of a space.
pub fn dev_idp(ctx: &Context, space: &Space, port: u16, auto_approve: bool) -> Daemon {
    let mut flags = vec!["--port".to_owned(), port.to_string()];
    flags.extend(auto_approve.then(|| "--auto-approve".to_owned()));
    of_this_program(ctx, "dev-idp", space, vec!["dev-idp".to_owned()], flags)
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
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_is_read_back_from_a_configuration() {
        assert_eq!(broker_port("# x\nhost: 127.0.0.1\nport: 4333\nwebsocket {\n  port: 1\n}\n"), Some(4333));
        assert_eq!(broker_port("websocket {\n  port: 1\n}\n"), None);
    }
}
