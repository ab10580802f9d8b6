//! `cotal auth-service`: the auth service of a space in the foreground (contract 05 §14).

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use cotal_auth::AuthServiceRuntimeOptions;
use cotal_trust::mint::STANDING_RENEWABLE_TTL_SECS;
use cotal_wire::Space;
use cotal_workspace::{file, trust_files};
use tokio::time::Instant;

use crate::{
    context::{Context, space_flag},
    doctor,
    exchange_flags::ExchangeFlags,
    given_url::GivenUrl,
    outcome::CliError,
    renewal::{Pass, Which},
};

/// How often the delivery daemon's credentials are signed anew: a quarter of their life (contract 08 §7.3).
const RENEW_EVERY: Duration = Duration::from_secs(STANDING_RENEWABLE_TTL_SECS / 4);
/// When a pass that was refused is tried again.
const RETRY_AFTER: Duration = Duration::from_secs(600);
/// The first pass leaves a start alone.
const FIRST_AFTER: Duration = Duration::from_secs(60);

/// `cotal auth-service`
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  cotal auth-service --space main --server nats://127.0.0.1:4222
  cotal auth-service --callout-only --space main --server nats://127.0.0.1:4222
  cotal auth-service --callout-only --space main --server nats://127.0.0.1:4222 --auth-timeout 5
  cotal auth-service --spaces spaces.json --server nats://127.0.0.1:4222
  cotal auth-service --callout-only --spaces replicas.json --server nats://127.0.0.1:4222

A callout replica (--callout-only) needs the --auth-timeout that the broker was configured with.

A manifest (--spaces) names the spaces and what the public-face flags say of each:
  {\"version\": 2, \"spaces\": [{\"space\": \"acme\"}, {\"space\": \"zoo\", \"exchangePublicPort\": 7451}]}
For replicas it may list names alone: {\"version\": 1, \"spaces\": [\"acme\", \"zoo\"]}
Write a changed one beside it and rename it into place. <manifest>.applied has the same bytes once it holds.")]
pub struct AuthServiceArgs {
    /// The space; required unless --spaces is given.
    #[arg(long)]
    pub space: Option<String>,
    /// The broker's URL.
    #[arg(long, value_name = "URL")]
    pub server: Option<GivenUrl>,
    /// Loopback HTTP port; 0, the default, takes a free one.
    #[arg(long, value_name = "PORT")]
    pub port: Option<u16>,
    /// The public face.
    #[command(flatten)]
    pub exchange: ExchangeFlags,
    /// The broker's `authorization { timeout }` in seconds, when it has one.
    #[arg(long, value_name = "SECONDS")]
    pub auth_timeout: Option<u64>,
    /// A callout replica: one more member of the space's callout queue group, without HTTP. Ends non-zero when it loses
    /// the broker or a store.
    #[arg(long)]
    pub callout_only: bool,
    /// Serve every space of this manifest, a lane each, and follow it while running.
    #[arg(long, value_name = "MANIFEST")]
    pub spaces: Option<PathBuf>,
    /// Host service endpoints. This version has none and refuses it.
    #[arg(long)]
    pub service_endpoints: bool,
}

/// Runs until SIGINT, SIGTERM or its own end.
pub async fn run(args: AuthServiceArgs, ctx: &Context) -> Result<(), CliError> {
    let options = AuthServiceRuntimeOptions {
        root: ctx.root.clone(),
        startup_hold_ms: ctx.env(cotal_auth::STARTUP_HOLD),
        secret_store: ctx.env(cotal_auth::SECRET_STORE),
        announce: cotal_auth::stdout_line(),
        interactive_manager_selection: None,
    };
    let served = Spaces { named: args.space.clone(), manifest: args.spaces.clone() };
    let callout_only = args.callout_only;
    let args = service_args(args)?;
    let serving = cotal_auth::run_auth_service(&args, None, &options);
    tokio::select! {
        ended = serving => ended.map_err(|error| CliError::failed(error.to_string())),
        // Dropped with the service: a lease that it held lapses by itself.
        () = renewing(&served, ctx), if !callout_only => Ok(()),
    }
}

/// When each space's credentials are to be signed anew. One that has to be tried again brings none of the others forward.
#[derive(Debug, Default)]
struct Due(BTreeMap<Space, Instant>);

impl Due {
    /// These are served now. One that is new is due at once, one that has left never again.
    fn keep(&mut self, served: Vec<Space>, now: Instant) {
        let known = std::mem::take(&mut self.0);
        self.0 =
            served.into_iter().map(|space| (space.clone(), *known.get(&space).unwrap_or(&now))).collect();
    }

    fn at(&self, now: Instant) -> Vec<Space> {
        self.0.iter().filter(|(_, due)| **due <= now).map(|(space, _)| space.clone()).collect()
    }

    fn again(&mut self, space: Space, due: Instant) {
        self.0.insert(space, due);
    }

    fn soonest(&self) -> Option<Instant> {
        self.0.values().min().copied()
    }
}

/// The spaces that this process serves.
#[derive(Clone)]
struct Spaces {
    named: Option<String>,
    manifest: Option<PathBuf>,
}

impl Spaces {
    /// As the manifest says now.
    async fn now(&self) -> Result<Vec<Space>, CliError> {
        let served = self.clone();
        file::blocking(move || served.read()).await?
    }

    fn read(&self) -> Result<Vec<Space>, CliError> {
        let Some(path) = &self.manifest else {
            return Ok(vec![space_flag(self.named.as_deref().unwrap_or_default())?]);
        };
        let text = file::read_text(path)?
            .ok_or_else(|| CliError::failed(format!("{} does not exist", path.display())))?;
        let entries = cotal_auth::parse_auth_host_manifest(&text)
            .map_err(|error| CliError::failed(format!("{}: {error}", path.display())))?;
        Ok(entries.into_iter().map(|entry| entry.space).collect())
    }
}

/// Renews the delivery daemons' credentials for as long as the service runs. A space has no manager here that would, and
/// the daemon holds no signer; where a manager holds the renewal lease, that one renews and this one keeps out.
async fn renewing(served: &Spaces, ctx: &Context) {
    let mut due = Due::default();
    let mut next = Instant::now() + FIRST_AFTER;
    loop {
        tokio::time::sleep_until(next).await;
        match served.now().await {
            Ok(spaces) => due.keep(spaces, Instant::now()),
            // The host serves on as the one before it said.
            Err(error) => tracing::warn!("renewal: {error}; the spaces of before are renewed"),
        }
        for space in due.at(Instant::now()) {
            let again = match renew(&space, ctx).await {
                Ok(Some(pass)) => told(&space, &pass),
                Ok(None) => {
                    tracing::info!(%space, "renewal: the space's account is not kept here; whoever keeps it renews");
                    RENEW_EVERY
                }
                Err(error) => {
                    tracing::warn!(%space, "renewal: {error}");
                    RETRY_AFTER
                }
            };
            due.again(space, Instant::now() + again);
        }
        // Looked at for a space that is new, whatever is due.
        let look = Instant::now() + RETRY_AFTER;
        next = due.soonest().map_or(look, |soonest| soonest.min(look));
    }
}

/// One pass; `None` where the space's account record is not.
async fn renew(space: &Space, ctx: &Context) -> Result<Option<Pass>, CliError> {
    // The service runs in the same task: a disk that hangs holds up neither its answers nor its end.
    let (of, ctx) = (space.clone(), ctx.clone());
    let renewal = file::blocking(move || match trust_files::load_account(&ctx.root, &of)? {
        Some(_) => doctor::renewal(&ctx, &of, false).map(Some),
        None => Ok(None),
    });
    match renewal.await?? {
        Some(renewal) => renewal.pass(Which::Every).await.map(Some),
        None => Ok(None),
    }
}

/// Logs a pass and answers when the next one is due.
fn told(space: &Space, pass: &Pass) -> Duration {
    let mut next = RENEW_EVERY;
    for result in &pass.results {
        match (&result.error, result.skipped) {
            (Some(error), _) => {
                next = RETRY_AFTER;
                tracing::warn!(%space, file = result.file, "renewal: not renewed: {error}");
            }
            (None, Some(why)) => tracing::info!(%space, file = result.file, "renewal: left as it is ({why})"),
            (None, None) => tracing::info!(%space, file = result.file, "renewal: renewed"),
        }
    }
    if let Some(error) = pass.adoption.as_ref().and_then(|adoption| adoption["error"].as_str()) {
        tracing::warn!(%space, "renewal: the delivery daemon did not take it over now: {error}");
    }
    next
}

fn service_args(args: AuthServiceArgs) -> Result<cotal_auth::AuthServiceArgs, CliError> {
    let spaces = args.spaces.map(|path| {
        path.into_os_string().into_string().map_err(|path| {
            let shown = path.to_string_lossy();
            CliError::usage(format!(
                "--spaces {} is not UTF-8: give the manifest a name that is",
                shown.escape_debug()
            ))
        })
    });
    Ok(cotal_auth::AuthServiceArgs {
        space: args.space,
        server: args.server.map(String::from),
        port: args.port.map(|port| port.to_string()),
        exchange_public_port: args.exchange.exchange_public_port.map(|port| port.to_string()),
        exchange_public_url: args.exchange.exchange_public_url.map(String::from),
        exchange_trusted_proxy: args.exchange.exchange_trusted_proxy,
        advertised_server: args.exchange.advertised_server.map(String::from),
        agent_provisioning_url: args.exchange.agent_provisioning_url.map(String::from),
        auth_timeout: args.auth_timeout.map(|seconds| seconds.to_string()),
        callout_only: args.callout_only,
        spaces: spaces.transpose()?,
        service_endpoints: args.service_endpoints,
    })
}

#[cfg(test)]
mod tests {
    use std::{io::sink, pin::pin};

    use cotal_testkit::hung_disk::HungDisk;
    use cotal_workspace::root::{Home, Root};
    use futures::poll;

    use super::*;

    /// They run in the service's own task, which hears meanwhile that it is to stop.
    #[test]
    fn a_renewal_waits_for_its_disk_off_the_runtimes_threads() {
        let tmp = tempfile::tempdir().unwrap();
        let (home, root) = (Home::at(tmp.path()), Root::at(tmp.path()));
        let ctx = Context::of_parts(home, root, "cotal".into(), |_| None, sink(), sink());
        HungDisk::runtime().unwrap().block_on(async {
            let disk = HungDisk::hang();
            let served = Spaces { named: None, manifest: Some(tmp.path().join("absent.json")) };
            let space = Space::parse("a").unwrap();
            let (mut reading, mut renewing) = (pin!(served.now()), pin!(renew(&space, &ctx)));
            assert!(poll!(reading.as_mut()).is_pending() && poll!(renewing.as_mut()).is_pending());
            disk.heal().await;
            assert!(reading.await.unwrap_err().to_string().contains("does not exist"));
            assert!(renewing.await.unwrap().is_none(), "its account is not kept here");
        });
    }

    #[test]
    fn a_space_that_is_tried_again_brings_no_other_forward() {
        let [a, b, c] = ["a", "b", "c"].map(|name| Space::parse(name).unwrap());
        let start = Instant::now();
        let mut due = Due::default();
        assert_eq!(due.soonest(), None);
        due.keep(vec![a.clone(), b.clone()], start);
        assert_eq!(due.at(start), [a.clone(), b.clone()]);
        due.again(a.clone(), start + RENEW_EVERY);
        due.again(b.clone(), start + RETRY_AFTER);
        assert_eq!(due.soonest(), Some(start + RETRY_AFTER));
        assert_eq!(due.at(start + RETRY_AFTER), std::slice::from_ref(&b));
        due.keep(vec![a.clone(), c.clone()], start + RETRY_AFTER);
        assert_eq!(due.at(start + RETRY_AFTER), [c], "one that has left is renewed no more");
        assert_eq!(due.at(start + RENEW_EVERY).first(), Some(&a));
    }
}
