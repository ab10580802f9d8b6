//! `explain`: every check of one actor's exchange and then of its connect, in the contract's order, and which of them
//! refuses (contract 05 §4.2-4.7; 04 §7, §8.4; 07 §10).
//!
//! The walk asks the functions that decide: the ledger's hooks, the bridge's entitlement, the connect reader and the
//! permission builder. It stops nowhere. It mints nothing and writes nothing: what it reads in the stores it reads over
//! the connect reader's own grants, which admit no write.

mod connect;
mod exchange;
mod mend;
mod seen;
mod walk;

use std::{path::PathBuf, sync::Arc};

use cotal_wire::{Actor, Clock, DerivedOwner, Entropy, Space, View};
use cotal_workspace::secret_store::SecretStore;
use serde::Serialize;

pub use walk::explain;

/// The names of the views that an exchange mints, as they are told.
pub fn minted_views() -> String {
    let views = View::ALL.into_iter().filter(|view| *view != View::ServiceEndpoint);
    views.map(View::as_str).collect::<Vec<_>>().join(", ")
}

/// Whose exchange and connect are walked, and with what.
pub struct ExplainInputs {
    /// The space.
    pub space: Space,
    /// Whose actor.
    pub whose: Whose,
    /// The actor.
    pub actor: Actor,
    /// The view that the exchange would ask for, as it would be sent.
    pub view: Option<String>,
    /// The space's user-auth state directory; it may not exist.
    pub state_dir: PathBuf,
    /// The store of its secrets.
    pub store: Arc<dyn SecretStore>,
    /// The broker, as one or more comma-separated NATS URLs; `None` when none is known.
    pub servers: Option<String>,
    /// Clock.
    pub clock: Arc<dyn Clock>,
    /// Randomness, for the keys of the walk's own connections.
    pub entropy: Arc<dyn Entropy>,
}

/// Whose actor it is.
#[derive(Debug, Clone)]
pub enum Whose {
    /// This owner's.
    Owner(DerivedOwner),
    /// The person's whose IdP subject this is; the owner is derived as an exchange derives it.
    Subject(String),
}

/// The walk: what was asked, and what each check said.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// The space.
    pub space: Space,
    /// The owner; `None` when it could not be derived.
    pub owner: Option<DerivedOwner>,
    /// The actor.
    pub actor: Actor,
    /// The view.
    pub view: Option<String>,
    /// Whether nothing refuses.
    pub ok: bool,
    /// The first check that refuses.
    pub refuses: Option<CheckName>,
    /// Every check, in order.
    pub checks: Vec<Check>,
}

/// One check of the walk.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Check {
    /// Where it stands.
    pub boundary: Boundary,
    /// Which it is.
    pub check: CheckName,
    /// Where the contract has it.
    pub contract: &'static str,
    /// What it came to.
    pub verdict: Verdict,
    /// One sentence.
    pub says: String,
    /// The command that mends a refusal, when one does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mend: Option<String>,
}

/// What a check came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It passes.
    Ok,
    /// It refuses.
    Refused,
    /// What it looks at is not there, because an earlier check refuses.
    NotReached,
    /// What decides it is not on this machine's disk or in the stores: the sentence says what does.
    Remark,
}

/// Which of the two is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Boundary {
    /// The exchange of a proof for a bearer.
    Exchange,
    /// The connect with that bearer.
    Connect,
}

/// The checks, in the order in which a person's walk tells them; an agent's proof comes after its row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CheckName {
    /// The auth service answers.
    Service,
    /// The broker answers and takes the callout user.
    Broker,
    /// The space is pinned to an identity provider.
    IdpPin,
    /// The provider publishes its keys.
    IdpKeys,
    /// What the caller must show: a person's IdP token, or an agent's secret.
    Proof,
    /// The owner.
    Owner,
    /// The actor's row, read fresh and failing closed.
    LedgerRow,
    /// A managed row holds no more than its parents.
    DelegationEnvelope,
    /// The connect limits, as the exchange asks them.
    ExchangeLimits,
    /// The view is one of those minted, and the grant covers it.
    View,
    /// A Manager for `manager-caller`.
    ManagerSelection,
    /// A session for `session-caller`.
    Session,
    /// The authority stores are what they must be.
    Stores,
    /// The alias head.
    LifecycleHead,
    /// The issuance gate.
    IssuanceGate,
    /// The incarnation's root credential.
    RootCredential,
    /// The bearer keys.
    IssuerKeys,
    /// The bearer validates.
    Bearer,
    /// The connect limits.
    ConnectLimits,
    /// The row still grants what the bearer says.
    ConnectRow,
    /// Deny-new.
    ConnectCredential,
    /// The connection's name is an inbox nonce.
    InboxNonce,
    /// Permissions can be built.
    Permissions,
    /// The session or the manager that the view is narrowed to.
    ViewAuthority,
    /// The pair that a manager's caller is issued.
    IssuedPair,
    /// The issuance row.
    IssuanceRow,
}

impl CheckName {
    /// Every check, in order.
    pub const ALL: [Self; 26] = [
        Self::Service,
        Self::Broker,
        Self::IdpPin,
        Self::IdpKeys,
        Self::Proof,
        Self::Owner,
        Self::LedgerRow,
        Self::DelegationEnvelope,
        Self::ExchangeLimits,
        Self::View,
        Self::ManagerSelection,
        Self::Session,
        Self::Stores,
        Self::LifecycleHead,
        Self::IssuanceGate,
        Self::RootCredential,
        Self::IssuerKeys,
        Self::Bearer,
        Self::ConnectLimits,
        Self::ConnectRow,
        Self::ConnectCredential,
        Self::InboxNonce,
        Self::Permissions,
        Self::ViewAuthority,
        Self::IssuedPair,
        Self::IssuanceRow,
    ];

    /// The name as it is printed.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Service => "service",
            Self::Broker => "broker",
            Self::Stores => "stores",
            Self::IdpPin => "idp-pin",
            Self::IdpKeys => "idp-keys",
            Self::Proof => "proof",
            Self::Owner => "owner",
            Self::LedgerRow => "ledger-row",
            Self::DelegationEnvelope => "delegation-envelope",
            Self::ExchangeLimits => "exchange-limits",
            Self::View => "view",
            Self::ManagerSelection => "manager-selection",
            Self::Session => "session",
            Self::LifecycleHead => "lifecycle-head",
            Self::IssuanceGate => "issuance-gate",
            Self::RootCredential => "root-credential",
            Self::IssuerKeys => "issuer-keys",
            Self::Bearer => "bearer",
            Self::ConnectLimits => "connect-limits",
            Self::ConnectRow => "connect-row",
            Self::ConnectCredential => "connect-credential",
            Self::InboxNonce => "inbox-nonce",
            Self::Permissions => "permissions",
            Self::ViewAuthority => "view-authority",
            Self::IssuedPair => "issued-pair",
            Self::IssuanceRow => "issuance-row",
        }
    }

    /// Which boundary it belongs to.
    pub const fn boundary(self) -> Boundary {
        match self {
            Self::Bearer
            | Self::ConnectLimits
            | Self::ConnectRow
            | Self::ConnectCredential
            | Self::InboxNonce
            | Self::Permissions
            | Self::ViewAuthority
            | Self::IssuedPair
            | Self::IssuanceRow => Boundary::Connect,
            _ => Boundary::Exchange,
        }
    }

    /// Where the contract has it.
    pub const fn contract(self) -> &'static str {
        match self {
            Self::Service => "05 §3.3",
            Self::Broker => "05 §15.2",
            Self::Stores => "07 §1, §7.5",
            Self::IdpPin => "04 §6.3",
            Self::IdpKeys => "04 §4.1",
            Self::Proof => "05 §4.4-4.5",
            Self::Owner => "04 §5",
            Self::LedgerRow => "04 §7.3, §7.8",
            Self::DelegationEnvelope => "04 §7.7",
            Self::ExchangeLimits => "05 §4.7",
            Self::View => "05 §4.3",
            Self::ManagerSelection => "05 §4.6, §5",
            Self::Session => "04 §11.2",
            Self::LifecycleHead => "07 §2.1, §3.2",
            Self::IssuanceGate => "07 §2.3",
            Self::RootCredential => "04 §10",
            Self::IssuerKeys => "04 §3",
            Self::Bearer => "04 §2.4, §8.4",
            Self::ConnectLimits => "04 §8.7",
            Self::ConnectRow => "04 §7.8",
            Self::ConnectCredential => "07 §10",
            Self::InboxNonce => "04 §8.4",
            Self::Permissions => "04 §9",
            Self::ViewAuthority => "05 §5, §13",
            Self::IssuedPair => "03 §H.8",
            Self::IssuanceRow => "05 §8.4",
        }
    }
}

impl Verdict {
    /// The verdict as it is printed.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Refused => "refused",
            Self::NotReached => "not-reached",
            Self::Remark => "remark",
        }
    }
}

impl Boundary {
    /// The boundary as it is printed.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Exchange => "exchange",
            Self::Connect => "connect",
        }
    }
}

impl Explanation {
    /// The first check that refuses.
    pub fn refusal(&self) -> Option<&Check> {
        self.checks.iter().find(|check| check.verdict == Verdict::Refused)
    }
}
