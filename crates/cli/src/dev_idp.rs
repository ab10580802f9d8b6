//! `cotal dev-idp`: the development identity provider in the foreground (contract 04 §17, 12 D21).

use std::path::PathBuf;

use cotal_dev_idp::{DevIdp, DevIdpOptions};
use cotal_workspace::file;
use tokio::signal::unix::{SignalKind, signal};

use crate::{context::Context, outcome::CliError};

/// The port when neither the flag nor `DEV_IDP_PORT` names one (contract 04 §17).
pub const DEFAULT_PORT: u16 = cotal_dev_idp::DEFAULT_PORT;
/// The environment variable that names the port (contract 04 §17).
const PORT_VARIABLE: &str = "DEV_IDP_PORT";

/// `cotal dev-idp`
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  cotal dev-idp --port 4780 --auto-approve")]
pub struct DevIdpArgs {
    /// Port on 127.0.0.1; 0 takes a free one.
    #[arg(long, value_name = "PORT")]
    pub port: Option<u16>,
    /// Approve every device code by itself.
    #[arg(long)]
    pub auto_approve: bool,
}

/// Runs until it is told to stop.
pub async fn run(args: DevIdpArgs, ctx: &Context) -> Result<(), CliError> {
    let port = port(args.port, ctx.env(PORT_VARIABLE).as_deref())?;
    let options = DevIdpOptions { port, auto_approve: args.auto_approve, state_file: state_file(port, ctx)? };
    let kept = options.state_file.is_some();
    // Taken before the first line is printed: who reads it may stop the process at once.
    let mut interrupted = signal(SignalKind::interrupt())?;
    let mut terminated = signal(SignalKind::terminate())?;
    let idp = DevIdp::start(options, ctx.clock.clone(), ctx.entropy.clone()).await.map_err(|e| {
        CliError::failed(format!(
            "the development IdP cannot start on 127.0.0.1:{port}: {e}; try another --port"
        ))
    })?;
    ctx.say(format!("development IdP at {}", idp.base_url()))?;
    ctx.note("NOT FOR PRODUCTION: it signs in any user name, and listens on loopback only.");
    if args.auto_approve {
        ctx.note("Every device code is approved by itself.");
    }
    if !kept {
        ctx.note("On a free port its key and its sessions end with it.");
    }
    tokio::select! {
        _ = interrupted.recv() => {}
        _ = terminated.recv() => {}
    }
    idp.stop().await;
    Ok(())
}

fn port(flag: Option<u16>, variable: Option<&str>) -> Result<u16, CliError> {
    match (flag, variable) {
        (Some(port), _) => Ok(port),
        (None, None) => Ok(DEFAULT_PORT),
        (None, Some(value)) => value
            .parse()
            .map_err(|_| CliError::failed(format!("{PORT_VARIABLE} must be a port number, 0 to 65535"))),
    }
}

/// A named port keeps its key and its sessions over a restart, or everybody would have to log in again.
fn state_file(port: u16, ctx: &Context) -> Result<Option<PathBuf>, CliError> {
    if port == 0 {
        return Ok(None);
    }
    ctx.home.ensure()?;
    Ok(Some(kept_at(port, ctx)))
}

/// Where the one of a port keeps what it needs after a restart.
fn kept_at(port: u16, ctx: &Context) -> PathBuf {
    ctx.home.path().join(format!("dev-idp.{port}.json"))
}

/// Whether one has run on this machine at that port.
pub fn has_run(port: u16, ctx: &Context) -> Result<bool, CliError> {
    Ok(file::is_regular(&kept_at(port, ctx))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flag_wins_over_the_variable_and_that_over_the_default() {
        assert_eq!(port(Some(1), Some("2")).unwrap(), 1);
        assert_eq!(port(None, Some("2")).unwrap(), 2);
        assert_eq!(port(None, None).unwrap(), 4780);
        assert!(port(None, Some("70000")).is_err());
    }
}
