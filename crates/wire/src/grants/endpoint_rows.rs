//! What a caller may ask of endpoints (contract 01 §6.2, 02 §2).

use sha2::{Digest, Sha256};

use super::rows::{Space, direct_get};
use crate::{
    endpoint_subject::TargetTriple,
    endpoint_token::{self, DESCRIBE, EndpointName, Generation, MANAGER_ENDPOINT as MANAGER},
    manager_authority::StandingRole,
    names::{Names, accepted_key},
    token::{ConnId, InstanceId, LifecycleUid, Owner, Principal},
    view::{SCOPE_ADMIN, SCOPE_RUN, SCOPE_SPAWN},
};

const DELIVERY: &str = "delivery";

/// The endpoint capabilities of a scope. Other scope strings add no rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// `spawn`: create agents and look after one's own.
    pub spawn: bool,
    /// `run`: the run commands, and the spawn set with them.
    pub run: bool,
    /// `admin`: the whole operator instrument.
    pub admin: bool,
}

impl Capabilities {
    /// The capabilities that a scope list names.
    pub fn of_scope<S: AsRef<str>>(scope: &[S]) -> Self {
        let has = |name: &str| scope.iter().any(|s| s.as_ref() == name);
        Self { spawn: has(SCOPE_SPAWN), run: has(SCOPE_RUN), admin: has(SCOPE_ADMIN) }
    }

    /// The manager commands of these capabilities, set after set. Sets overlap; the row lists drop the repeats.
    pub(super) fn commands(self) -> impl Iterator<Item = &'static Command> {
        let when = |held: bool, set: &'static [Command]| if held { set } else { &[] };
        when(self.spawn, SPAWN)
            .iter()
            .chain(when(self.run, RUN))
            .chain(when(self.run, SPAWN))
            .chain(when(self.admin, PRIVILEGED))
            .chain(when(self.admin, ADMIN))
    }
}

/// How much of the manager an operator instrument reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InstrumentTier {
    /// Reads, `spawn` and `define-persona`.
    Privileged,
    /// The privileged tier and everything across agents.
    Admin,
}

impl InstrumentTier {
    pub(super) fn commands(self) -> impl Iterator<Item = &'static Command> {
        let admin: &[Command] = match self {
            Self::Privileged => &[],
            Self::Admin => ADMIN,
        };
        PRIVILEGED.iter().chain(admin)
    }
}

/// The issued pair of a caller on the versioned rail: its generation, and the token of its accepted row
/// (contract 03 §H).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Issued {
    /// Stands in every request, after the lifecycle uid.
    pub generation: Generation,
    /// Names the one accepted row that the caller may read.
    pub accepted: Generation,
}

impl Issued {
    /// The pair of a user connection: the accepted token is derived from the inbox nonce (contract 03 §H.6).
    pub fn for_connection(generation: Generation, conn_id: &ConnId) -> Self {
        Self { generation, accepted: accepted_token(conn_id.as_str()) }
    }
}

/// The accepted token of what a platform supervisor's manager holds for one of its duties (contract 05 §6.2): no nonce is
/// spelled like it.
pub fn platform_supervisor_token(
    owner: &Owner,
    instance: &InstanceId,
    lifecycle_uid: &LifecycleUid,
    duty: StandingRole,
) -> Generation {
    accepted_token(&format!("platform-supervisor:{owner}:{instance}:{lifecycle_uid}:{}", duty.as_str()))
}

/// The first 32 hex characters of SHA-256 over `cotal.accepted.v1`, a NUL byte and what the token is derived from.
fn accepted_token(of: &str) -> Generation {
    let digest = Sha256::new().chain_update(b"cotal.accepted.v1\0").chain_update(of).finalize();
    Generation::of_digest(&digest.into())
}

#[derive(Debug, Clone, Copy)]
enum Target {
    /// The command acts on no agent.
    None,
    /// The caller itself.
    SelfMode,
    /// An agent of the caller's own owner.
    Owner,
    /// An agent of any owner: operators only.
    AnyOwner,
}

/// One command of an endpoint, as a capability grants it.
pub(super) struct Command {
    name: &'static str,
    target: Target,
    /// Whether it may also be asked of every instance at once.
    scatter: bool,
}

impl Command {
    const fn untargeted(name: &'static str) -> Self {
        Self { name, target: Target::None, scatter: false }
    }

    const fn on(name: &'static str, target: Target) -> Self {
        Self { name, target, scatter: false }
    }

    const fn scattered(name: &'static str) -> Self {
        Self { name, target: Target::None, scatter: true }
    }

    /// Whether asking it starts a goal, whose progress the caller may then follow.
    fn bears_goal(&self) -> bool {
        matches!(self.name, "spawn" | "launch")
    }
}

const DELIVERY_BASELINE: &[Command] =
    &[Command::untargeted("join"), Command::untargeted("leave"), Command::untargeted("list")];
const MANAGER_BASELINE: &[Command] =
    &[Command::on("stop", Target::SelfMode), Command::on("run-answer", Target::SelfMode)];
const SPAWN: &[Command] = &[
    Command::untargeted("spawn"),
    Command::on("despawn", Target::Owner),
    Command::on("attach", Target::Owner),
    Command::untargeted("define-persona"),
    Command::untargeted("inspect"),
];
const RUN: &[Command] = &[
    Command::untargeted("run-start"),
    Command::untargeted("run-resume"),
    Command::untargeted("run-status"),
    Command::untargeted("run-ps"),
    Command::on("run-answer", Target::SelfMode),
];
const PRIVILEGED: &[Command] = &[
    Command::untargeted("status"),
    Command::scattered("ps"),
    Command::untargeted("inspect"),
    Command::untargeted("models"),
    Command::untargeted("spawn"),
    Command::untargeted("define-persona"),
];
const ADMIN: &[Command] = &[
    Command::on("despawn", Target::AnyOwner),
    Command::on("attach", Target::AnyOwner),
    Command::untargeted("purge"),
    Command::untargeted("launch"),
    Command::untargeted("resume-preserved"),
    Command::untargeted("commit-resume"),
    Command::untargeted("finalize-resume"),
    Command::untargeted("prepare-preservation"),
    Command::untargeted("commit-preservation"),
    Command::untargeted("abort-preservation"),
    Command::untargeted("transcript-receive"),
];
const DESCRIBE_ONE: Command = Command::untargeted(DESCRIBE);
/// `launch` alone, which the deployer adds to the privileged tier.
pub(super) const LAUNCH: Command = Command::untargeted("launch");
/// What a `spawn` holder may read of the one manager that its view pins, for a launch on that manager's host.
pub(super) const SPAWN_INSTANCE_READS: &[Command] =
    &[Command::untargeted("status"), Command::untargeted("models"), Command::untargeted("resolve-cwd")];

/// What a run asks of its manager, whichever instance answers.
const OF_A_RUN: &[Command] = &[
    Command::untargeted("spawn"),
    Command::on("turn", Target::Owner),
    Command::on("despawn", Target::Owner),
];
/// What a run asks of the instance that hosts it.
const PLACED_OF_A_RUN: &[Command] =
    &[Command::untargeted("spawn"), DESCRIBE_ONE, Command::untargeted("resolve-cwd")];

/// An allow list under construction: in order, each row once.
#[derive(Default)]
pub(super) struct RowList {
    rows: Vec<String>,
    seen: std::collections::HashSet<String>,
}

impl RowList {
    pub(super) fn add(&mut self, row: String) {
        if self.seen.insert(row.clone()) {
            self.rows.push(row);
        }
    }

    pub(super) fn extend(&mut self, rows: impl IntoIterator<Item = String>) {
        for row in rows {
            self.add(row);
        }
    }

    pub(super) fn into_rows(self) -> Vec<String> {
        self.rows
    }
}

/// Both directions of what a caller may ask.
#[derive(Default)]
pub(super) struct CallerRows {
    pub(super) publish: RowList,
    pub(super) subscribe: RowList,
}

/// Builds the rows of one caller; the nonce is the only wildcard in a request row.
pub(super) struct Caller<'a> {
    space: &'a Space,
    principal: &'a Principal,
    uid: &'a LifecycleUid,
    issued: Option<&'a Issued>,
    rows: CallerRows,
}

impl<'a> Caller<'a> {
    pub(super) fn new(
        space: &'a Space,
        principal: &'a Principal,
        uid: &'a LifecycleUid,
        issued: Option<&'a Issued>,
    ) -> Self {
        Self { space, principal, uid, issued, rows: CallerRows::default() }
    }

    pub(super) fn into_rows(self) -> CallerRows {
        self.rows
    }

    /// `describe` of every endpoint: the one request with a wildcard endpoint.
    pub(super) fn describe_everywhere(&mut self) {
        let row = format!("{}.one.*.{DESCRIBE}.{}.*", self.rail(), self.block());
        self.rows.publish.add(row);
    }

    /// `describe` of one instance, on its own rail.
    pub(super) fn describe_instance(&mut self, instance: &InstanceId) {
        self.ask_instance(MANAGER, instance, &DESCRIBE_ONE);
    }

    /// Contract artifacts, which describe answers name by digest.
    pub(super) fn contract_fetch(&mut self) {
        let row = direct_get(&self.space.names.epc_stream(), &format!("{}.epc.>", self.space.prefix));
        self.rows.publish.add(row);
    }

    /// The caller's own accepted row, when its authority is issued.
    pub(super) fn accepted_read(&mut self) {
        if let Some(issued) = self.issued {
            let bucket = self.space.names.accepted_bucket();
            let subject = Names::kv_subject(&bucket, &accepted_key(&issued.accepted));
            self.rows.publish.add(direct_get(&Names::kv_stream(&bucket), &subject));
        }
    }

    /// The reply rail, once.
    pub(super) fn reply_rail(&mut self) {
        let row = format!("{}.reply.*.*.*.{}.*", self.rail(), self.block());
        self.rows.subscribe.add(row);
    }

    /// `retire-lifecycle` of the auth endpoint, on one incarnation.
    pub(super) fn retire(&mut self, target: &TargetTriple) {
        let (auth, command) = (EndpointName::auth().token(), endpoint_token::Command::retire_lifecycle());
        let target = format!("{}.{}", target.principal, target.lifecycle_uid);
        let row = format!("{}.one.{auth}.{command}.handle.{target}.{}.*", self.rail(), self.block());
        self.rows.publish.add(row);
    }

    /// What every agent may ask, beyond describing.
    pub(super) fn baseline(&mut self) {
        self.reply_rail();
        for command in DELIVERY_BASELINE {
            self.ask(DELIVERY, command);
        }
        for command in MANAGER_BASELINE {
            self.ask(MANAGER, command);
        }
    }

    /// Commands of the manager endpoint, whichever instance answers.
    pub(super) fn ask_manager(&mut self, commands: impl IntoIterator<Item = &'static Command>) {
        for command in commands {
            self.reply_rail();
            self.ask(MANAGER, command);
            self.follow_goal(command);
        }
    }

    /// Commands of one manager instance.
    pub(super) fn ask_manager_instance(
        &mut self,
        instance: &InstanceId,
        commands: impl IntoIterator<Item = &'static Command>,
    ) {
        for command in commands {
            self.ask_instance(MANAGER, instance, command);
            self.follow_goal(command);
        }
    }

    /// What a run asks; it follows no goal, and places nothing on an instance but its own.
    pub(super) fn ask_as_run(&mut self, own: &InstanceId) {
        for command in OF_A_RUN {
            self.ask(MANAGER, command);
        }
        for command in PLACED_OF_A_RUN {
            self.ask_instance(MANAGER, own, command);
        }
    }

    fn follow_goal(&mut self, command: &Command) {
        if command.bears_goal() {
            // The goal's topic carries the caller triple; the generation is not part of it (contract 02 §2.3).
            let caller = format!("{}.{}", self.principal, self.uid);
            let row = format!("{}.epe.{MANAGER}.*.*.goal.{caller}.>", self.space.prefix);
            self.rows.subscribe.add(row);
        }
    }

    fn ask(&mut self, endpoint: &str, command: &Command) {
        let tail = self.tail(command);
        self.rows.publish.add(format!("{}.one.{endpoint}.{}{tail}", self.rail(), command.name));
        if command.scatter {
            self.rows.publish.add(format!("{}.all.{endpoint}.{}{tail}", self.rail(), command.name));
        }
    }

    fn ask_instance(&mut self, endpoint: &str, instance: &InstanceId, command: &Command) {
        let tail = self.tail(command);
        self.rows.publish.add(format!("{}.inst.{endpoint}.{instance}.{}{tail}", self.rail(), command.name));
    }

    /// What follows the command: target block, caller block, nonce.
    fn tail(&self, command: &Command) -> String {
        let block = self.block();
        match command.target {
            Target::None => format!(".{block}.*"),
            Target::SelfMode => format!(".self.{block}.*"),
            Target::Owner => format!(".owner.{}.{block}.*", self.principal.owner),
            Target::AnyOwner => format!(".any.*.{block}.*"),
        }
    }

    fn rail(&self) -> String {
        let version = if self.issued.is_some() { "ep.v1" } else { "ep" };
        format!("{}.{version}", self.space.prefix)
    }

    fn block(&self) -> String {
        let generation = self.issued.map(|issued| format!(".{}", issued.generation)).unwrap_or_default();
        format!("{}.{}{generation}", self.principal, self.uid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_accepted_token_is_derived_from_the_nonce_alone() {
        // printf 'cotal.accepted.v1\0inbox-nonce-1' | sha256sum
        let issued = Issued::for_connection(
            Generation::parse(&"0".repeat(32)).unwrap(),
            &ConnId::parse("inbox-nonce-1").unwrap(),
        );
        assert_eq!(issued.accepted.as_str(), "b41aa822c206e047851aae25b722f449");
    }

    #[test]
    fn a_supervised_duty_has_one_token_for_ever() {
        // printf 'cotal.accepted.v1\0platform-supervisor:<owner>:<instance>:<lifecycle>:supervisor' | sha256sum
        let owner = Owner::parse("u_aaaaaaaaaaaaaaaaaaaaaaaaaa").unwrap();
        let instance = InstanceId::parse(&"i".repeat(26)).unwrap();
        let uid = LifecycleUid::parse(&"l".repeat(26)).unwrap();
        let token = |duty| platform_supervisor_token(&owner, &instance, &uid, duty);
        assert_eq!(token(StandingRole::Supervisor).as_str(), "9a1e3d8ea3cdc9d1a764ec1b2fa04aeb");
        assert_ne!(token(StandingRole::Executor), token(StandingRole::Supervisor));
    }

    #[test]
    fn only_known_scope_strings_are_capabilities() {
        let caps = Capabilities::of_scope(&["spawn", "supervise", "role:x", "Admin"]);
        assert_eq!(caps, Capabilities { spawn: true, run: false, admin: false });
    }
}
