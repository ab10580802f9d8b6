//! What this machine remembers of a space: its mesh record (contract 08 §3).

use cotal_trust::idp::IdpPin;
use cotal_wire::{Space, UnixMillis};
use cotal_workspace::{
    broker_config::BrokerPolicy,
    material::Discovery,
    printed::at,
    registry::{MeshEndpoints, MeshEntry, MeshIdp, MeshMode, MeshRegistry, MeshUserAuth},
    root::Root,
};
use serde::Deserialize as _;
use serde_json::{Map, Value, json};

use super::idp::Development;
use crate::{context::Context, daemon, exchange_flags::ExchangeFlags, outcome::CliError};

/// The provider of every record that this program writes (contract 04 §6.5).
const PROVIDER: &str = "cotal";
const ORIGIN: &str = "up";
/// Private member of a record: that `up` runs a development IdP for the space.
const DEV_IDP: &str = "devIdp";
const AUTO_APPROVE: &str = "autoApprove";
/// Private member of a record: the flags of the public face that the auth service was last started with.
const PUBLIC_FACE: &str = "publicFace";

/// The records that bear on this run.
pub(super) struct Mesh {
    space: Space,
    registry: MeshRegistry,
    /// The record of the space, when it is of this root.
    own: Option<MeshEntry>,
    /// The records of the root's other spaces.
    siblings: Vec<MeshEntry>,
}

/// What a run leaves in the record.
pub(super) struct Run<'a> {
    /// The broker's URL.
    pub(super) server: &'a str,
    /// The identity provider.
    pub(super) pin: &'a IdpPin,
    /// The auth service.
    pub(super) discovery: &'a Discovery,
    /// What the broker was told.
    pub(super) policy: BrokerPolicy,
    /// The development IdP, when one runs.
    pub(super) development: Option<&'a Development>,
    /// What the auth service was started with.
    pub(super) exchange: &'a ExchangeFlags,
}

impl Mesh {
    /// Reads them. A space that another root of this machine serves right now refuses: there is one record a space.
    pub(super) fn read(ctx: &Context, space: &Space) -> Result<Self, CliError> {
        let registry = MeshRegistry::new(ctx.home.clone());
        let here = root_text(ctx)?;
        let (mut own, mut siblings) = (None, Vec::new());
        for entry in registry.list()? {
            match (entry.space == *space, entry.root == here) {
                (true, true) => own = Some(entry),
                (false, true) => siblings.push(entry),
                (true, false) if serves(&Root::at(&entry.root), space) => {
                    return Err(CliError::failed(format!(
                        "space {:?} of this machine is up in {}: `cotal down{}` there first, or choose another --space",
                        space.as_str(),
                        entry.root,
                        at(space)
                    )));
                }
                _ => {}
            }
        }
        Ok(Self { space: space.clone(), registry, own, siblings })
    }

    /// The policy that the root's broker was last told.
    pub(super) fn broker_policy(&self) -> BrokerPolicy {
        let mut entries = self.own.iter().chain(&self.siblings).map(MeshEntry::broker_policy);
        entries.find(|policy| *policy != BrokerPolicy::default()).unwrap_or_default()
    }

    /// Whether an earlier run started a development IdP, and whether that one approves by itself.
    pub(super) fn dev_idp(&self) -> Option<bool> {
        self.own.as_ref()?.other.get(DEV_IDP)?.get(AUTO_APPROVE)?.as_bool()
    }

    /// The identity provider of the last run that came to its end.
    pub(super) fn idp_url(&self) -> Option<&str> {
        Some(self.own.as_ref()?.user_auth.as_ref()?.idp.url.as_str())
    }

    /// The flags of the public face that the auth service was last started with.
    pub(super) fn exchange(&self) -> Result<ExchangeFlags, CliError> {
        let Some(kept) = self.own.as_ref().and_then(|entry| entry.other.get(PUBLIC_FACE)) else {
            return Ok(ExchangeFlags::default());
        };
        ExchangeFlags::deserialize(kept).map_err(|e| {
            CliError::failed(format!(
                "what this machine remembers of the public face of space {:?} does not read ({e}): pass \
                 --no-exchange-public to forget it",
                self.space.as_str()
            ))
        })
    }

    /// Writes the record of this run, and the broker's policy into the root's others.
    pub(super) fn record(self, ctx: &Context, run: &Run<'_>) -> Result<(), CliError> {
        let &Run { server, pin, discovery, policy, development, exchange } = run;
        let mut other = self.own.map(|entry| entry.other).unwrap_or_default();
        set(&mut other, DEV_IDP, development.map(|idp| json!({ AUTO_APPROVE: idp.auto_approve })));
        let face = exchange.any().then(|| serde_json::to_value(exchange)).transpose();
        set(&mut other, PUBLIC_FACE, face.map_err(|_| CliError::failed("the record cannot be encoded"))?);
        let mut entry = MeshEntry {
            space: self.space,
            server: server.to_owned(),
            root: root_text(ctx)?,
            mode: MeshMode::User,
            user_auth: Some(MeshUserAuth {
                provider: PROVIDER.to_owned(),
                idp: MeshIdp {
                    url: pin.url.clone(),
                    issuer: pin.issuer.clone(),
                    audience: pin.audience.clone(),
                },
                endpoints: discovery.public_url.clone().map(|url| MeshEndpoints { url: Some(url) }),
            }),
            origin: Some(ORIGIN.to_owned()),
            ts: iso(ctx.clock.now_millis()),
            other,
        };
        entry.set_broker_policy(policy);
        self.registry.put(&entry)?;
        for mut sibling in self.siblings {
            if sibling.broker_policy() != policy {
                sibling.set_broker_policy(policy);
                self.registry.put(&sibling)?;
            }
        }
        Ok(())
    }
}

/// Whether a root's auth service for this space is alive; a pid that cannot be read is not taken for one.
fn serves(root: &Root, space: &Space) -> bool {
    let pid = cotal_workspace::file::read_text(&root.daemon_files("auth-service", Some(space)).pid);
    let pid = pid.ok().flatten().and_then(|text| text.trim().parse().ok());
    pid.is_some_and(|pid| daemon::pid_is_alive(pid) != Some(false))
}

fn root_text(ctx: &Context) -> Result<String, CliError> {
    let path = ctx.root.path();
    path.to_str()
        .map(str::to_owned)
        .ok_or_else(|| CliError::failed(format!("{} is not UTF-8 and cannot be a root", path.display())))
}

fn set(members: &mut Map<String, Value>, name: &str, value: Option<Value>) {
    match value {
        Some(value) => members.insert(name.to_owned(), value),
        None => members.remove(name),
    };
}

/// `2026-01-01T00:00:00.000Z`
fn iso(at: UnixMillis) -> String {
    let millis = i64::try_from(at.0).unwrap_or(i64::MAX);
    jiff::Timestamp::from_millisecond(millis).map_or_else(|_| String::new(), |ts| format!("{ts:.3}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_iso_with_milliseconds() {
        assert_eq!(iso(UnixMillis(1_767_225_600_000)), "2026-01-01T00:00:00.000Z");
        assert_eq!(iso(UnixMillis(1_767_225_600_123)), "2026-01-01T00:00:00.123Z");
    }
}
