//! What this machine remembers of a space: its mesh record (contract 08 §3).

use std::path::Path;

use cotal_trust::idp::IdpPin;
use cotal_wire::{Space, UnixMillis};
use cotal_workspace::{
    broker_config::BrokerPolicy,
    file,
    lock_file::LockFile,
    material::Discovery,
    printed::at,
    registry::{MeshEndpoints, MeshEntry, MeshIdp, MeshMode, MeshRegistry, MeshUserAuth},
    root::{Root, space_segment},
};
use serde::Deserialize as _;
use serde_json::{Map, Value, json};

use super::idp::Development;
use crate::{
    context::Context, exchange_flags::ExchangeFlags, loopback, outcome::CliError, progress::Progress,
    space_daemons,
};

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
    /// What this root knows of the space: its record, or the copy of it where another root's stands.
    own: Option<MeshEntry>,
    /// The records of the root's other spaces.
    siblings: Vec<MeshEntry>,
    /// Two roots with a space of one name come up one after the other.
    _alone: LockFile,
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
    /// Reads them. There is one record a space: a space that another root of this machine serves right now refuses, and
    /// so does a record that was entered by hand for elsewhere. The record of a root that is down gives way, and that
    /// root keeps a copy of what it remembers.
    pub(super) fn read(ctx: &Context, space: &Space, progress: &Progress<'_>) -> Result<Self, CliError> {
        let registry = MeshRegistry::new(ctx.home.clone());
        let here = root_text(ctx)?;
        let alone = registry.lock(space)?.ok_or_else(|| {
            CliError::failed(format!(
                "another up of a space {:?} is at work on this machine: wait for it",
                space.as_str()
            ))
        })?;
        let (mut own, mut siblings) = (None, Vec::new());
        for entry in registry.list()? {
            match (entry.space == *space, entry.root == here) {
                (true, true) => own = Some(entry),
                (false, true) => siblings.push(entry),
                (true, false) => {
                    refuse_elsewhere(&entry, ctx)?;
                    progress.note(&format!(
                        "space {:?} of this machine is recorded for {}, which is down: once it is up here, it is recorded \
                         for this root, until an `up` there",
                        space.as_str(),
                        entry.root
                    ));
                    own = MeshEntry::kept_copy(&ctx.root, space)?;
                }
                (false, false) => {}
            }
        }
        Ok(Self { space: space.clone(), registry, own, siblings, _alone: alone })
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
        entry.keep_copy()?;
        for mut sibling in self.siblings {
            if sibling.broker_policy() != policy {
                sibling.set_broker_policy(policy);
                self.registry.put(&sibling)?;
                sibling.keep_copy()?;
            }
        }
        Ok(())
    }
}

/// The refusals of [`Mesh::read`], before anything is made here: an empty `.cotal` makes a directory a root.
pub(super) fn refuse_taken(ctx: &Context, space: &Space) -> Result<(), CliError> {
    let here = root_text(ctx)?;
    for entry in MeshRegistry::new(ctx.home.clone()).list()? {
        if entry.space == *space && entry.root != here {
            refuse_elsewhere(&entry, ctx)?;
        }
    }
    Ok(())
}

/// Refuses where the record of another root is not to be taken.
fn refuse_elsewhere(entry: &MeshEntry, ctx: &Context) -> Result<(), CliError> {
    let (space, root) = (&entry.space, &entry.root);
    if entry.is_manual() {
        return Err(CliError::failed(format!(
            "space {:?} of this machine was entered by hand, for {} in {root}, and one of that name here would take its \
             place: choose another --space, or take that entry away first",
            space.as_str(),
            entry.server
        )));
    }
    let mut there = ctx.clone();
    there.root = Root::at(root);
    if serves(&there, space)? {
        return Err(CliError::failed(format!(
            "space {:?} of this machine is up in {root}: `cotal down{}` there first, or choose another --space",
            space.as_str(),
            at(space)
        )));
    }
    Ok(())
}

/// Whether a root serves this space now: by daemons that its `up` started, by a service that a unit did, or by the broker
/// under a service that has crashed, whose clients are connected still. Nothing there is touched.
fn serves(there: &Context, space: &Space) -> Result<bool, CliError> {
    let service = space_daemons::auth_service(there, space, Vec::new());
    let state_dir = there.root.auth_dir().join(space_segment(space));
    let announced = Discovery::load(&state_dir).ok().flatten();
    let announced = announced.is_some_and(|it| loopback::is_alive(&state_dir, it.pid) != Some(false));
    Ok(announced
        || service.running()?.is_some()
        || space_daemons::delivery(there, space, None).running()?.is_some()
        || (file::is_regular(&service.files.pid)?
            && space_daemons::broker(there, Path::new("nats-server")).running()?.is_some()))
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
