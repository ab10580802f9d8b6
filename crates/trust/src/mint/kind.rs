//! The kinds of credential, and how long each lives (contract 01 §3.4).

use std::{fmt, num::NonZeroU64};

use cotal_wire::UnixSecs;

/// Default and longest lifetime of a standing credential, in seconds.
pub const STANDING_RENEWABLE_TTL_SECS: u64 = 86_400;
/// Lifetime of a credential that is renewed by rotating the system account, in seconds: 30 days.
pub const ROTATION_RENEWED_TTL_SECS: u64 = 2_592_000;
const ONE_SHOT_TTL_SECS: u64 = 300;
const SHORT_ONE_SHOT_TTL_SECS: u64 = 60;
const SESSION_TTL_SECS: u64 = 86_400;

/// How a kind of credential lives and who renews it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CredentialClass {
    /// Static or minted at connect, as the space is set up.
    Mixed,
    /// Static, in the operator's hands.
    StaticOperatorManaged,
    /// Used for one thing and let expire.
    OneShot,
    /// Renewed before it expires by the host that holds it.
    StandingRenewable,
    /// Renewed by rotating the system account.
    RotationRenewed,
}

macro_rules! kinds {
    ($($name:ident $label:literal $class:ident $ttl:expr;)+) => {
        /// A profile that a credential is minted for: its label is the user JWT's `name`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[allow(missing_docs, reason = "the variants are the contract's profile names")]
        pub enum CredentialKind { $($name,)+ }

        impl CredentialKind {
            /// Every kind: those of contract 01 §3.4 in its order, then the transfer reader of chapter 06 §4.7, and the account
            /// publisher, which is this service's own.
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            /// The profile's label.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $label,)+ }
            }

            /// The class.
            pub const fn class(self) -> CredentialClass {
                match self { $(Self::$name => CredentialClass::$class,)+ }
            }

            /// The lifetime when none is asked for, in seconds; `None` is unbounded.
            pub const fn default_ttl(self) -> Option<u64> {
                match self { $(Self::$name => $ttl,)+ }
            }
        }
    };
}

kinds! {
    Agent "agent" Mixed None;
    Observer "observer" StaticOperatorManaged None;
    Admin "admin" StaticOperatorManaged None;
    ChannelPurger "channel-purger" Mixed None;
    Teardown "teardown" OneShot None;
    Deployer "deployer" OneShot None;
    Supervisor "supervisor" StandingRenewable Some(STANDING_RENEWABLE_TTL_SECS);
    Delivery "delivery" StandingRenewable Some(STANDING_RENEWABLE_TTL_SECS);
    MembershipRw "membership-rw" StandingRenewable Some(STANDING_RENEWABLE_TTL_SECS);
    EndpointServe "endpoint-serve" StandingRenewable Some(STANDING_RENEWABLE_TTL_SECS);
    GoalWriter "goal-writer" StandingRenewable Some(STANDING_RENEWABLE_TTL_SECS);
    SessionLedger "session-ledger" StandingRenewable Some(STANDING_RENEWABLE_TTL_SECS);
    RunDriver "run-driver" StandingRenewable Some(STANDING_RENEWABLE_TTL_SECS);
    RunMediator "run-mediator" StandingRenewable Some(STANDING_RENEWABLE_TTL_SECS);
    RemoteManager "remote-manager" StandingRenewable Some(STANDING_RENEWABLE_TTL_SECS);
    Provisioner "provisioner" OneShot Some(ONE_SHOT_TTL_SECS);
    Deprovisioner "deprovisioner" OneShot Some(ONE_SHOT_TTL_SECS);
    RetirementRequester "retirement-requester" OneShot Some(ONE_SHOT_TTL_SECS);
    LifecycleExecutor "lifecycle-executor" OneShot Some(ONE_SHOT_TTL_SECS);
    EndpointServeExecutor "endpoint-serve-executor" OneShot Some(ONE_SHOT_TTL_SECS);
    Operator "operator" OneShot Some(ONE_SHOT_TTL_SECS);
    Purger "purger" OneShot Some(ONE_SHOT_TTL_SECS);
    Backup "backup" OneShot Some(ONE_SHOT_TTL_SECS);
    Restore "restore" OneShot Some(ONE_SHOT_TTL_SECS);
    ChannelWriter "channel-writer" OneShot Some(ONE_SHOT_TTL_SECS);
    ControlCallerPrivileged "control-caller-privileged" OneShot Some(ONE_SHOT_TTL_SECS);
    ControlCallerAdmin "control-caller-admin" OneShot Some(ONE_SHOT_TTL_SECS);
    Issuer "issuer" OneShot Some(ONE_SHOT_TTL_SECS);
    TransferWriter "transfer-writer" OneShot Some(ONE_SHOT_TTL_SECS);
    SessionCaller "session-caller" OneShot Some(SESSION_TTL_SECS);
    SessionServing "session-serving" OneShot Some(SESSION_TTL_SECS);
    Probe "probe" OneShot Some(SHORT_ONE_SHOT_TTL_SECS);
    RunOperator "run-operator" OneShot Some(SHORT_ONE_SHOT_TTL_SECS);
    RunAdmitter "run-admitter" OneShot Some(SHORT_ONE_SHOT_TTL_SECS);
    EndpointEvictor "endpoint-evictor" OneShot Some(SHORT_ONE_SHOT_TTL_SECS);
    MembershipObserver "membership-observer" RotationRenewed Some(ROTATION_RENEWED_TTL_SECS);
    ConnectionEvictor "connection-evictor" RotationRenewed Some(ROTATION_RENEWED_TTL_SECS);
    TransferReader "transfer-reader" OneShot Some(ONE_SHOT_TTL_SECS);
    AccountPublisher "account-publisher" RotationRenewed Some(ROTATION_RENEWED_TTL_SECS);
}

impl fmt::Display for CredentialKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl CredentialKind {
    /// Whether it is ever minted for a key that somebody else holds.
    pub const fn is_public(self) -> bool {
        matches!(
            self,
            Self::RemoteManager
                | Self::EndpointServe
                | Self::GoalWriter
                | Self::SessionLedger
                | Self::SessionServing
                | Self::RetirementRequester
                | Self::RunDriver
                | Self::RunMediator
                | Self::RunOperator
                | Self::TransferReader
        )
    }
}

/// How long a credential is to live: one of the three, never two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Lifetime {
    /// The kind's default.
    #[default]
    OfKind,
    /// Until this instant.
    Until(UnixSecs),
    /// For this many seconds from the mint.
    For(NonZeroU64),
}

impl Lifetime {
    /// The expiry of a credential of this kind that is minted now.
    pub fn expiry(self, kind: CredentialKind, now: UnixSecs) -> Option<UnixSecs> {
        match self {
            Self::OfKind => kind.default_ttl().map(|ttl| now.plus(ttl)),
            Self::Until(at) => Some(at),
            Self::For(ttl) => Some(now.plus(ttl.get())),
        }
    }
}
