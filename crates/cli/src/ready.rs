//! Waiting for a daemon to be ready (contract 04 §6.5): as long as it lives, within bounds, and not a moment after it
//! has died.

use std::{
    future::Future,
    path::Path,
    time::{Duration, Instant},
};

use cotal_authority::delivery_admin::DeliveryAdmin;
use cotal_broker::Connector;
use cotal_trust::idp::{IdpPin, JwksResolver, http_client};
use cotal_workspace::material::Discovery;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    net::TcpStream,
};

use crate::{context::Context, daemon::Running, loopback, outcome::CliError};

/// How often readiness is asked for.
const POLL: Duration = Duration::from_millis(200);
/// How long one answer may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// How long a wait lasts at least, while the process lives.
pub const BASE: Duration = Duration::from_secs(15);
/// How long it lasts at most. Whoever waits says so.
pub const MOST: Duration = Duration::from_secs(120);

/// What a wait does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Ask again.
    Again,
    /// Give up: the process is gone.
    Died,
    /// Give up: it took too long.
    TooLong,
}

/// The rule: a dead process ends the wait at once; a live one extends it to `MOST`; one of which nothing is known
/// gets `BASE`.
pub fn step(elapsed: Duration, alive: Option<bool>) -> Step {
    match alive {
        Some(false) => Step::Died,
        Some(true) if elapsed < MOST => Step::Again,
        None if elapsed < BASE => Step::Again,
        _ => Step::TooLong,
    }
}

/// Asks until there is an answer, or the rule gives up.
async fn wait_for<T, F, A>(running: &mut Running, mut ask: F) -> Result<T, CliError>
where
    F: FnMut() -> A,
    A: Future<Output = Result<Option<T>, CliError>>,
{
    let started = Instant::now();
    loop {
        if let Some(answer) = ask().await? {
            return Ok(answer);
        }
        match step(started.elapsed(), running.is_alive().ok()) {
            Step::Again => tokio::time::sleep(POLL).await,
            Step::Died => return Err(running.died()),
            Step::TooLong => {
                return Err(CliError::failed(format!(
                    "{} is not ready after {} s: see {}",
                    running.daemon().name,
                    started.elapsed().as_secs(),
                    running.daemon().files.log.display()
                )));
            }
        }
    }
}

/// Waits until a live broker greets with INFO.
pub async fn broker(running: &mut Running, host: &str, port: u16) -> Result<(), CliError> {
    wait_for(running, || async { Ok(greets(host, port).await.then_some(())) }).await
}

/// Whether a NATS server greets at this address.
pub async fn greets(host: &str, port: u16) -> bool {
    let greeting = async {
        let stream = TcpStream::connect((host, port)).await.ok()?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).await.ok()?;
        Some(line)
    };
    matches!(tokio::time::timeout(ANSWER_WITHIN, greeting).await, Ok(Some(line)) if line.starts_with("INFO "))
}

/// Waits until a delivery daemon answers and holds the lease. The lease's row alone proves nothing: one that was killed
/// leaves it behind, ready, for half a minute.
pub async fn delivery(running: &mut Running, connector: &Connector) -> Result<(), CliError> {
    wait_for(running, || async { Ok(delivery_answers(connector).await.then_some(())) }).await
}

/// Whether a delivery daemon, whoever started it, answers now and holds the lease.
pub async fn delivery_answers(connector: &Connector) -> bool {
    DeliveryAdmin::new(connector.clone()).store_identity().await.is_ok_and(|answer| answer.holds_lease)
}

/// Waits until the auth service of this process has left its discovery file and answers `/health`.
pub async fn auth_service(running: &mut Running, state_dir: &Path) -> Result<Discovery, CliError> {
    let pid = running.pid;
    wait_for(running, || async move {
        // A file that does not read is an earlier service's: this one replaces it before it is ready.
        let discovery = Discovery::load(state_dir).ok().flatten().filter(|found| found.pid == pid);
        Ok(answering(discovery).await)
    })
    .await
}

/// An auth service that is ready right now, whoever started it.
pub async fn found_auth_service(state_dir: &Path) -> Option<Discovery> {
    let discovery = Discovery::load(state_dir).ok().flatten();
    answering(discovery.filter(|found| loopback::is_alive(state_dir, found.pid) == Some(true))).await
}

async fn answering(discovery: Option<Discovery>) -> Option<Discovery> {
    let discovery = discovery?;
    healthy(&discovery.url).await.then_some(discovery)
}

/// Whether `GET <url>/health` answers 2xx.
pub async fn healthy(url: &str) -> bool {
    let Ok(client) = http_client(ANSWER_WITHIN) else { return false };
    client.get(format!("{url}/health")).send().await.is_ok_and(|answer| answer.status().is_success())
}

/// Waits until the development IdP publishes its keys.
pub async fn dev_idp(running: &mut Running, ctx: &Context, pin: &IdpPin) -> Result<(), CliError> {
    wait_for(running, || async { Ok(publishes_keys(ctx, pin).await?.then_some(())) }).await
}

/// Whether an identity provider publishes its keys right now.
pub async fn publishes_keys(ctx: &Context, pin: &IdpPin) -> Result<bool, CliError> {
    Ok(JwksResolver::new(&pin.jwks_uri, ctx.clock.clone())?.probe().await.is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dead_process_ends_the_wait_at_once_and_a_live_one_extends_it_within_bounds() {
        let secs = Duration::from_secs;
        for (elapsed, alive, next) in [
            (secs(0), Some(false), Step::Died),
            (secs(0), Some(true), Step::Again),
            (secs(0), None, Step::Again),
            (secs(14), None, Step::Again),
            (secs(15), None, Step::TooLong),
            (secs(15), Some(true), Step::Again),
            (secs(119), Some(true), Step::Again),
            (secs(120), Some(true), Step::TooLong),
            (secs(120), Some(false), Step::Died),
        ] {
            assert_eq!(step(elapsed, alive), next, "{elapsed:?} {alive:?}");
        }
    }
}
