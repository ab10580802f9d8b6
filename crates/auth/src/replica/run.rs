//! `cotal auth-service --callout-only`: one replica as a process, or those of a manifest, a lane each.

use std::{future::Future, path::PathBuf, sync::Arc};

use cotal_broker::Servers;
use cotal_callout::{CalloutLimits, Crowd};
use cotal_wire::Space;
use cotal_workspace::secret_store::SecretStore;

use super::{ReplicaEnd, start};
use crate::{
    daemon::{
        AuthServiceRuntimeOptions, DaemonError, choose_store, state_dir, told_while_it_starts, unless_told,
    },
    flags::{
        AuthServiceArgs, first_given, read_callout_limits, read_server, read_space, refuse_beside_spaces,
    },
    host::{
        Host, callout::ReplicaLanes, lane::Threshold, manifest::parse_callout_host_manifest, watch::Reread,
    },
    member::Member,
};

/// Flags that parsed.
#[derive(Debug)]
pub(crate) struct Flags {
    space: Space,
    servers: Servers,
    callout_limits: CalloutLimits,
}

/// Serves until `shutdown`, or until the replica loses what it answers from, which is a failure.
pub(crate) async fn run_replica(
    args: &AuthServiceArgs,
    store: Option<Arc<dyn SecretStore>>,
    options: &AuthServiceRuntimeOptions,
    shutdown: impl Future<Output = ()>,
) -> Result<(), DaemonError> {
    tokio::pin!(shutdown);
    let Flags { space, servers, callout_limits } = read_flags(args)?;
    let preparing = async {
        let state_dir = state_dir(&options.root, &space).await?;
        Ok::<_, DaemonError>((state_dir, choose_store(store, options).await?))
    };
    let Some(prepared) = unless_told(shutdown.as_mut(), preparing).await else { return Ok(()) };
    let (state_dir, store) = prepared?;
    let threshold = Threshold::default();
    let starting = start(Member {
        callout_limits,
        threshold: threshold.clone(),
        ..Member::of_root(&options.root, space, servers.clone(), store, state_dir)
    });
    tokio::pin!(starting);
    let replica = tokio::select! {
        started = starting.as_mut() => started.map_err(DaemonError::of)?,
        () = shutdown.as_mut() => {
            return match told_while_it_starts(&threshold, starting).await? {
                Ok(replica) => replica.close().await.map_err(DaemonError::of),
                Err(_) => Ok(()),
            };
        }
    };
    (options.announce)(&format!(
        "auth-service: callout replica of space {:?} on {servers}",
        replica.space().as_str()
    ));
    let end = tokio::select! {
        end = replica.ended() => end,
        () = shutdown.as_mut() => ReplicaEnd::Closed,
    };
    let closed = replica.close().await.map_err(DaemonError::of);
    match end {
        ReplicaEnd::Lost(why) => Err(DaemonError(format!("the callout replica stopped answering: {why}"))),
        ReplicaEnd::Closed => closed,
    }
}

/// Serves the spaces of a manifest until `shutdown`. A lane that cannot open, or loses what it answers from, is retried
/// while the others answer, so only a first manifest that cannot be adopted ends it by itself.
pub(crate) async fn run_replicas(
    manifest: &str,
    args: &AuthServiceArgs,
    store: Option<Arc<dyn SecretStore>>,
    options: &AuthServiceRuntimeOptions,
    reread: Reread,
    shutdown: impl Future<Output = ()>,
) -> Result<(), DaemonError> {
    refuse_what_no_replica_serves(args)?;
    refuse_beside_spaces(args)?;
    if manifest.is_empty() {
        return Err(DaemonError("--spaces must name a manifest; add --spaces <manifest>".to_owned()));
    }
    let (servers, callout_limits) = (read_server(args)?, read_callout_limits(args)?);
    let host = Host {
        manifest: PathBuf::from(manifest),
        parse: parse_callout_host_manifest,
        servers: servers.to_string(),
        announce: Arc::clone(&options.announce),
    };
    tokio::pin!(shutdown);
    let choosing = choose_store(store, options);
    let Some(store) = unless_told(shutdown.as_mut(), choosing).await else { return Ok(()) };
    let store = store?;
    let lanes = ReplicaLanes {
        root: options.root.clone(),
        store,
        servers,
        callout_limits,
        crowd: Crowd::of_this_machine(),
    };
    host.run(lanes, reread, shutdown).await
}

/// Checks every flag before anything is touched.
fn read_flags(args: &AuthServiceArgs) -> Result<Flags, DaemonError> {
    refuse_what_no_replica_serves(args)?;
    Ok(Flags {
        space: read_space(args)?,
        servers: read_server(args)?,
        callout_limits: read_callout_limits(args)?,
    })
}

/// The HTTP flags and `--service-endpoints` refuse beside `--callout-only` (contract 08 §5).
pub(crate) fn refuse_what_no_replica_serves(args: &AuthServiceArgs) -> Result<(), DaemonError> {
    if let Some(flag) = first_given(args.of_the_faces()) {
        return Err(DaemonError(format!(
            "{flag} refuses beside --callout-only: a callout replica answers connects and serves no HTTP; leave it out"
        )));
    }
    if args.service_endpoints {
        return Err(DaemonError(
            "--service-endpoints refuses beside --callout-only: a callout replica cannot issue a service-endpoint \
             connection; leave it out, and run no replica in a space that admits service endpoints"
                .to_owned(),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::flags::tests::{args as of_a_service, each_of_the_faces};

    fn args() -> AuthServiceArgs {
        AuthServiceArgs { callout_only: true, ..of_a_service() }
    }

    fn refusal(args: &AuthServiceArgs) -> String {
        read_flags(args).unwrap_err().to_string()
    }

    #[test]
    fn a_replica_refuses_the_http_flags_and_service_endpoints_before_anything_else() {
        let endpoints = ("--service-endpoints", AuthServiceArgs { service_endpoints: true, ..args() });
        for (flag, case) in each_of_the_faces(&args()).into_iter().chain([endpoints]) {
            let says = format!("auth-service: {flag} refuses beside --callout-only");
            let nameless = AuthServiceArgs { space: None, ..case };
            assert!(refusal(&nameless).starts_with(&says), "{nameless:?}");
        }
    }

    #[test]
    fn a_replica_needs_a_space_and_a_server_and_takes_the_brokers_timeout() {
        assert!(refusal(&AuthServiceArgs { space: None, ..args() }).contains("--space is required"));
        assert!(refusal(&AuthServiceArgs { server: None, ..args() }).contains("--server is required"));
        assert_eq!(read_flags(&args()).unwrap().callout_limits, CalloutLimits::default());
        let slow = AuthServiceArgs { auth_timeout: Some("10".into()), ..args() };
        assert_eq!(read_flags(&slow).unwrap().callout_limits.auth_timeout, Duration::from_secs(10));
        let bad = AuthServiceArgs { auth_timeout: Some("0".into()), ..args() };
        assert!(refusal(&bad).contains("--auth-timeout"));
    }
}
