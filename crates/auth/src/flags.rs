//! The flags of `cotal auth-service`: everything that can be refused before anything is touched.

use std::{fmt, path::PathBuf, time::Duration};

use cotal_broker::Servers;
use cotal_callout::CalloutLimits;
use cotal_wire::Space;

use crate::{
    daemon::{DaemonError, STARTUP_HOLD},
    public_face::{ADVERTISED_SERVER_FLAG, Given, PROVISIONING_URL_FLAG, PUBLIC_URL_FLAG, PublicFace},
    served::ServiceFlags,
};

/// The flags of `cotal auth-service`, as they were given. Printed for debugging, no URL is among them: one that carries
/// credentials is refused only later.
#[derive(Clone, Default)]
pub struct AuthServiceArgs {
    /// `--space`.
    pub space: Option<String>,
    /// `--server`.
    pub server: Option<String>,
    /// `--port`.
    pub port: Option<String>,
    /// `--exchange-public-port`.
    pub exchange_public_port: Option<String>,
    /// `--exchange-public-url`.
    pub exchange_public_url: Option<String>,
    /// `--exchange-trusted-proxy`.
    pub exchange_trusted_proxy: bool,
    /// `--advertised-server`.
    pub advertised_server: Option<String>,
    /// `--agent-provisioning-url`.
    pub agent_provisioning_url: Option<String>,
    /// `--auth-timeout`, in seconds.
    pub auth_timeout: Option<String>,
    /// `--callout-only`.
    pub callout_only: bool,
    /// `--spaces`.
    pub spaces: Option<String>,
    /// `--service-endpoints`.
    pub service_endpoints: bool,
}

/// Flags that parsed.
pub(crate) enum Flags {
    /// One space.
    One(ServiceFlags),
    /// Those of a manifest.
    Many(HostFlags),
}

/// The flags of a host.
pub(crate) struct HostFlags {
    pub(crate) manifest: PathBuf,
    pub(crate) servers: Servers,
    pub(crate) callout_limits: CalloutLimits,
}

impl fmt::Debug for AuthServiceArgs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            space,
            server,
            port,
            exchange_public_port,
            exchange_public_url,
            exchange_trusted_proxy,
            advertised_server,
            agent_provisioning_url,
            auth_timeout,
            callout_only,
            spaces,
            service_endpoints,
        } = self;
        f.debug_struct("AuthServiceArgs")
            .field("space", space)
            .field("server", &Given(server))
            .field("port", port)
            .field("exchange_public_port", exchange_public_port)
            .field("exchange_public_url", &Given(exchange_public_url))
            .field("exchange_trusted_proxy", exchange_trusted_proxy)
            .field("advertised_server", &Given(advertised_server))
            .field("agent_provisioning_url", &Given(agent_provisioning_url))
            .field("auth_timeout", auth_timeout)
            .field("callout_only", callout_only)
            .field("spaces", spaces)
            .field("service_endpoints", service_endpoints)
            .finish()
    }
}

impl AuthServiceArgs {
    /// Which flags of the HTTP faces were given.
    pub(crate) fn of_the_faces(&self) -> impl Iterator<Item = (&'static str, bool)> {
        let ports = [
            ("--port", self.port.is_some()),
            ("--exchange-public-port", self.exchange_public_port.is_some()),
        ];
        ports.into_iter().chain(self.of_the_public_face())
    }

    /// Those that say nothing without a public face.
    fn of_the_public_face(&self) -> [(&'static str, bool); 4] {
        [
            (PUBLIC_URL_FLAG, self.exchange_public_url.is_some()),
            ("--exchange-trusted-proxy", self.exchange_trusted_proxy),
            (ADVERTISED_SERVER_FLAG, self.advertised_server.is_some()),
            (PROVISIONING_URL_FLAG, self.agent_provisioning_url.is_some()),
        ]
    }
}

/// Checks every flag before anything is touched (contract 05 §14 step 1).
pub(crate) fn read_flags(args: &AuthServiceArgs) -> Result<Flags, DaemonError> {
    if args.spaces.is_some() {
        refuse_beside_spaces(args)?;
    }
    if args.service_endpoints {
        return Err(DaemonError(
            "unimplemented: --service-endpoints is not served by this version; leave it out".to_owned(),
        ));
    }
    if let Some(manifest) = &args.spaces {
        if manifest.is_empty() {
            return Err(DaemonError("--spaces must name a manifest; add --spaces <manifest>".to_owned()));
        }
        return Ok(Flags::Many(HostFlags {
            manifest: PathBuf::from(manifest),
            servers: read_server(args)?,
            callout_limits: read_callout_limits(args)?,
        }));
    }
    Ok(Flags::One(ServiceFlags {
        space: read_space(args)?,
        servers: read_server(args)?,
        port: read_port("--port", args.port.as_deref())?.unwrap_or(0),
        public_face: read_public_face(args)?,
        callout_limits: read_callout_limits(args)?,
        crowd: None,
        callout_log: None,
    }))
}

/// What a manifest says for each space, no flag says for all of them (contract 08 §5).
pub(crate) fn refuse_beside_spaces(args: &AuthServiceArgs) -> Result<(), DaemonError> {
    let space = [("--space", args.space.is_some())];
    let endpoints = [("--service-endpoints", args.service_endpoints)];
    let Some(flag) = first_given(space.into_iter().chain(args.of_the_faces()).chain(endpoints)) else {
        return Ok(());
    };
    let why = match flag {
        "--space" => "the manifest names the spaces",
        "--port" => "each space has a port of its own, recorded in its auth-service.json",
        _ => "the manifest's entry says it",
    };
    Err(DaemonError(format!("{flag} is not taken beside --spaces: {why}")))
}

pub(crate) fn first_given(flags: impl IntoIterator<Item = (&'static str, bool)>) -> Option<&'static str> {
    flags.into_iter().find_map(|(flag, given)| given.then_some(flag))
}

fn required<'v>(flag: &str, value: Option<&'v str>) -> Result<&'v str, DaemonError> {
    value
        .filter(|value| !value.is_empty())
        .ok_or_else(|| DaemonError(format!("{flag} is required; add {flag} <value>")))
}

pub(crate) fn read_space(args: &AuthServiceArgs) -> Result<Space, DaemonError> {
    Space::parse(required("--space", args.space.as_deref())?).map_err(DaemonError::of)
}

pub(crate) fn read_server(args: &AuthServiceArgs) -> Result<Servers, DaemonError> {
    Servers::parse(required("--server", args.server.as_deref())?)
        .map_err(|why| DaemonError(format!("--server: {why}")))
}

pub(crate) fn read_callout_limits(args: &AuthServiceArgs) -> Result<CalloutLimits, DaemonError> {
    let mut limits = CalloutLimits::default();
    if let Some(raw) = &args.auth_timeout {
        limits.auth_timeout = read_auth_timeout(raw)?;
    }
    Ok(limits)
}

fn read_public_face(args: &AuthServiceArgs) -> Result<Option<PublicFace>, DaemonError> {
    let Some(port) = read_port("--exchange-public-port", args.exchange_public_port.as_deref())? else {
        if let Some(flag) = first_given(args.of_the_public_face()) {
            let sentence = format!("{flag} needs a public face; add --exchange-public-port <port>");
            return Err(DaemonError(sentence));
        }
        return Ok(None);
    };
    PublicFace::on_port(port)
        .behind_trusted_proxy(args.exchange_trusted_proxy)
        .with_urls(
            args.exchange_public_url.as_deref(),
            args.advertised_server.as_deref(),
            args.agent_provisioning_url.as_deref(),
        )
        .map(Some)
        .map_err(DaemonError::of)
}

fn read_port(flag: &str, raw: Option<&str>) -> Result<Option<u16>, DaemonError> {
    raw.map(|raw| {
        digits(raw)
            .and_then(|raw| raw.parse().ok())
            .ok_or_else(|| DaemonError(format!("{flag} must be an integer from 0 to 65535, got \"{raw}\"")))
    })
    .transpose()
}

fn read_auth_timeout(raw: &str) -> Result<Duration, DaemonError> {
    digits(raw)
        .and_then(|raw| raw.parse::<u32>().ok())
        .filter(|seconds| *seconds > 0)
        .map(|seconds| Duration::from_secs(u64::from(seconds)))
        .ok_or_else(|| {
            DaemonError(format!(
                "--auth-timeout must be a positive whole number of seconds, the broker's own, got \"{raw}\""
            ))
        })
}

pub(crate) fn read_hold(raw: Option<&str>) -> Result<Option<Duration>, DaemonError> {
    raw.map(|raw| {
        digits(raw).and_then(|raw| raw.parse().ok()).map(Duration::from_millis).ok_or_else(|| {
            DaemonError(format!("{STARTUP_HOLD} must be a non-negative integer, got \"{raw}\""))
        })
    })
    .transpose()
}

/// A run of decimal digits: no sign, no space.
fn digits(raw: &str) -> Option<&str> {
    (!raw.is_empty() && raw.bytes().all(|b| b.is_ascii_digit())).then_some(raw)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn args() -> AuthServiceArgs {
        AuthServiceArgs {
            space: Some("demo".into()),
            server: Some("nats://127.0.0.1:4222".into()),
            ..AuthServiceArgs::default()
        }
    }

    /// Each flag of the HTTP faces beside these.
    pub(crate) fn each_of_the_faces(args: &AuthServiceArgs) -> [(&'static str, AuthServiceArgs); 6] {
        let (args, some) = (|| args.clone(), |text: &str| Some(text.to_owned()));
        [
            ("--port", AuthServiceArgs { port: some("0"), ..args() }),
            ("--exchange-public-port", AuthServiceArgs { exchange_public_port: some("1"), ..args() }),
            ("--exchange-public-url", AuthServiceArgs { exchange_public_url: some("https://x"), ..args() }),
            ("--exchange-trusted-proxy", AuthServiceArgs { exchange_trusted_proxy: true, ..args() }),
            ("--advertised-server", AuthServiceArgs { advertised_server: some("nats://x"), ..args() }),
            (
                "--agent-provisioning-url",
                AuthServiceArgs { agent_provisioning_url: some("https://x"), ..args() },
            ),
        ]
    }

    fn refusal(args: &AuthServiceArgs) -> String {
        read_flags(args).err().expect("it is refused").to_string()
    }

    fn one(args: &AuthServiceArgs) -> ServiceFlags {
        match read_flags(args) {
            Ok(Flags::One(flags)) => flags,
            Ok(Flags::Many(_)) => panic!("they name one space"),
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn what_an_entry_says_is_refused_beside_a_manifest() {
        let host = || AuthServiceArgs { space: None, spaces: Some("m".into()), ..args() };
        let Ok(Flags::Many(flags)) =
            read_flags(&AuthServiceArgs { auth_timeout: Some("7".into()), ..host() })
        else {
            panic!("--server and --auth-timeout are every lane's");
        };
        assert_eq!((flags.manifest, flags.callout_limits.auth_timeout), ("m".into(), Duration::from_secs(7)));
        let others = [
            ("--space", AuthServiceArgs { space: Some("demo".into()), ..host() }),
            ("--service-endpoints", AuthServiceArgs { service_endpoints: true, ..host() }),
        ];
        for (flag, case) in others.into_iter().chain(each_of_the_faces(&host())) {
            let refused = refusal(&case);
            let expected = format!("auth-service: {flag} is not taken beside --spaces: ");
            assert!(refused.starts_with(&expected), "{refused}");
        }
        assert!(refusal(&AuthServiceArgs { server: None, ..host() }).contains("--server is required"));
    }

    #[test]
    fn space_and_server_are_required() {
        assert!(refusal(&AuthServiceArgs { space: None, ..args() }).contains("--space is required"));
        assert!(
            refusal(&AuthServiceArgs { server: Some(String::new()), ..args() })
                .contains("--server is required")
        );
        assert!(read_flags(&args()).is_ok());
    }

    #[test]
    fn credentials_in_the_server_are_an_input_error_that_does_not_print_them() {
        for bad in
            ["nats://u:s3cret@h:4222", "nats://h:4222,nats://s3cret@h", "http://u:s3cret@h", "s3cret@h y"]
        {
            let text = refusal(&AuthServiceArgs { server: Some(bad.into()), ..args() });
            assert!(text.starts_with("auth-service: --server: ") && !text.contains("s3cret"), "{text}");
        }
    }

    #[test]
    fn flags_that_are_printed_show_no_url_that_was_given() {
        let secret = || Some("https://u:s3cret@h".to_owned());
        let given = AuthServiceArgs {
            server: secret(),
            exchange_public_url: secret(),
            advertised_server: secret(),
            agent_provisioning_url: secret(),
            ..args()
        };
        let printed = format!("{given:?}");
        assert!(printed.contains("demo") && !printed.contains("s3cret"), "{printed}");
    }

    #[test]
    fn a_port_is_an_integer_from_0_to_65535() {
        for bad in ["65536", "-1", "+1", " 1", "1.0", "0x10", ""] {
            let text = refusal(&AuthServiceArgs { port: Some(bad.into()), ..args() });
            assert!(text.contains("--port must be an integer from 0 to 65535"), "{text}");
        }
        assert_eq!(one(&AuthServiceArgs { port: Some("65535".into()), ..args() }).port, 65_535);
    }

    #[test]
    fn public_flags_without_the_public_port_are_errors() {
        let listens = |flag: &str| ["--port", "--exchange-public-port"].contains(&flag);
        for (flag, case) in each_of_the_faces(&args()).into_iter().filter(|(flag, _)| !listens(flag)) {
            assert!(refusal(&case).contains("add --exchange-public-port"), "{flag}");
        }
    }

    #[test]
    fn service_endpoints_refuse_as_unimplemented() {
        let case = AuthServiceArgs { service_endpoints: true, ..args() };
        assert!(refusal(&case).starts_with("auth-service: unimplemented: --service-endpoints"));
    }

    #[test]
    fn the_auth_timeout_is_in_whole_positive_seconds() {
        let flags = one(&AuthServiceArgs { auth_timeout: Some("10".into()), ..args() });
        assert_eq!(flags.callout_limits.auth_timeout, Duration::from_secs(10));
        for bad in ["0", "1.5", "x"] {
            assert!(
                refusal(&AuthServiceArgs { auth_timeout: Some(bad.into()), ..args() })
                    .contains("--auth-timeout")
            );
        }
    }
}
