//! The kinds of request, and what each stands on: one table for the dispatcher, the docs and the tests
//! (contract 06 §2.1, §16).

/// A kind of request of `POST /manager-service-authority`, or of the platform doors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// A managed agent comes to be.
    Enrollment,
    /// A managed agent's grant and footprint go.
    PrepareRetirement,
    /// A hosted runtime is asked for.
    RuntimeCreate,
    /// How a hosted runtime is.
    RuntimeStatus,
    /// A user's launch or retire intent is admitted.
    DelegatedIntent,
    /// A manager executes an admitted intent.
    DelegatedIntentExecution,
    /// A retained agent is still who it was.
    RetainedAgentValidation,
    /// The goals of the manager's owner.
    GoalIndexScan,
    /// Whether a caller is an admin.
    AdminAuthorization,
    /// A run is admitted.
    RunAdmission,
    /// A keyed submission.
    RunSubmission,
    /// A run is cancelled.
    RunCancel,
    /// A run is revoked.
    RunRevoke,
    /// A run is driven.
    RunAttempt,
    /// A broken registration is repaired.
    Maintenance,
    /// The manager's own lifecycle.
    Service,
}

impl Kind {
    /// Every kind, in the order in which the dispatcher asks (contract 06 §2.1).
    pub const ALL: [Self; 16] = [
        Self::Enrollment,
        Self::PrepareRetirement,
        Self::RuntimeCreate,
        Self::RuntimeStatus,
        Self::DelegatedIntent,
        Self::DelegatedIntentExecution,
        Self::RetainedAgentValidation,
        Self::GoalIndexScan,
        Self::AdminAuthorization,
        Self::RunAdmission,
        Self::RunSubmission,
        Self::RunCancel,
        Self::RunRevoke,
        Self::RunAttempt,
        Self::Maintenance,
        Self::Service,
    ];

    /// The literal of the member `kind`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Enrollment => "manager-managed-agent-enrollment",
            Self::PrepareRetirement => "manager-managed-agent-prepare-retirement",
            Self::RuntimeCreate => "manager-managed-agent-runtime-create",
            Self::RuntimeStatus => "manager-managed-agent-runtime-status",
            Self::DelegatedIntent => "delegated-user-intent",
            Self::DelegatedIntentExecution => "manager-delegated-user-intent-execution",
            Self::RetainedAgentValidation => "manager-retained-agent-validation",
            Self::GoalIndexScan => "manager-goal-index-scan",
            Self::AdminAuthorization => "manager-admin-authorization",
            Self::RunAdmission => "manager-run-admission",
            Self::RunSubmission => "manager-run-submission",
            Self::RunCancel => "manager-run-cancel",
            Self::RunRevoke => "manager-run-revoke",
            Self::RunAttempt => "manager-run-attempt",
            Self::Maintenance => "manager-service-maintenance",
            Self::Service => "manager-service-authority",
        }
    }

    /// The kind of this literal. The dispatcher gives what names none of them to the parser of [`Self::Service`],
    /// which refuses it.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }

    /// The kinds about a managed agent: those that the verification door decides, and that no platform may ask for.
    pub const MANAGED_AGENT: [Self; 4] =
        [Self::Enrollment, Self::PrepareRetirement, Self::RuntimeCreate, Self::RuntimeStatus];

    /// Whether it is one of [`Self::MANAGED_AGENT`].
    pub fn is_of_managed_agent(self) -> bool {
        Self::MANAGED_AGENT.contains(&self)
    }

    /// What every request of this kind asks for of the actor's row.
    pub const fn scope(self) -> Scope {
        match self.rule() {
            Some(rule) => rule.scope,
            None => LIFECYCLE.0,
        }
    }

    /// What the stock service does with every request of this kind.
    pub const fn stock(self) -> Stock {
        match self.rule() {
            Some(rule) => rule.stock,
            None => LIFECYCLE.1,
        }
    }

    /// What a request of this kind stands on, apart from [`Self::Service`], whose operations differ.
    pub const fn rule(self) -> Option<Rule> {
        Some(match self {
            Self::Enrollment
            | Self::PrepareRetirement
            | Self::RetainedAgentValidation
            | Self::GoalIndexScan
            | Self::AdminAuthorization => Rule::supervised(Some(Epoch::ServeEpoch), Stock::Serves),
            Self::RuntimeCreate | Self::RuntimeStatus => {
                Rule::supervised(Some(Epoch::ServeEpoch), Stock::DecidesAtTheVerifyDoor)
            }
            Self::RunAdmission | Self::RunAttempt | Self::RunSubmission | Self::RunCancel => {
                Rule::supervised(Some(Epoch::ProcessEpoch), Stock::Serves)
            }
            Self::RunRevoke => Rule {
                scope: Scope::RunOwnerOrAdmin,
                epoch: Some(Epoch::ProcessEpoch),
                proof: Proof::CurrentRegistration,
                gate: Gate::Open,
                stock: Stock::Serves,
            },
            Self::Maintenance => Rule {
                scope: Scope::Supervise,
                epoch: None,
                proof: Proof::None,
                gate: Gate::NotRetired,
                stock: Stock::Serves,
            },
            Self::DelegatedIntent => Rule {
                scope: Scope::Spawn,
                epoch: None,
                proof: Proof::None,
                gate: Gate::OpenToLaunch,
                stock: Stock::Unimplemented,
            },
            Self::DelegatedIntentExecution => Rule {
                scope: Scope::None,
                epoch: Some(Epoch::ServeEpoch),
                proof: Proof::CurrentRegistration,
                gate: Gate::Open,
                stock: Stock::Unimplemented,
            },
            Self::Service => return None,
        })
    }
}

/// What all operations of [`Kind::Service`] have in common.
const LIFECYCLE: (Scope, Stock) = (Scope::Supervise, Stock::Serves);

/// An operation of [`Kind::Service`] (contract 06 §4.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Operation {
    /// First credentials, to register with.
    Prepare,
    /// Serving credentials, once registered.
    Activate,
    /// The pair of `prepare` again.
    Renew,
    /// One session's serving credential.
    Session,
    /// A managed agent's retirement requester.
    Retire,
    /// All five standing credentials again.
    RenewStandingBundle,
    /// A run's driver and mediator again.
    RenewRunDriver,
    /// One transcript's reader.
    TransferReader,
}

impl Operation {
    /// Every operation, in the contract's order.
    pub const ALL: [Self; 8] = [
        Self::Prepare,
        Self::Activate,
        Self::Renew,
        Self::Session,
        Self::Retire,
        Self::RenewStandingBundle,
        Self::RenewRunDriver,
        Self::TransferReader,
    ];

    /// The literal of the member `operation`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Prepare => "prepare",
            Self::Activate => "activate",
            Self::Renew => "renew",
            Self::Session => "session",
            Self::Retire => "retire",
            Self::RenewStandingBundle => "renewStandingBundle",
            Self::RenewRunDriver => "renewRunDriver",
            Self::TransferReader => "transferReader",
        }
    }

    /// The operation of this literal.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|operation| operation.as_str() == name)
    }

    /// Whether it hands out the credentials that write the rows of the manager's own registration as they like.
    pub const fn grants_registration(self) -> bool {
        matches!(self, Self::Prepare | Self::Renew | Self::RenewStandingBundle)
    }

    /// What a request of this operation stands on.
    pub const fn rule(self) -> Rule {
        let (epoch, proof, gate) = match self {
            Self::Prepare => (None, Proof::None, Gate::AbsentOrOwn),
            Self::Activate => (None, Proof::ArtifactsOfTheRequest, Gate::Open),
            Self::Session => (None, Proof::Artifactless, Gate::AbsentOrOwn),
            Self::TransferReader => (None, Proof::Artifactless, Gate::Open),
            Self::Renew => (None, Proof::CurrentRegistration, Gate::Open),
            Self::Retire => (Some(Epoch::RetirementServeEpoch), Proof::Artifactless, Gate::Open),
            Self::RenewStandingBundle | Self::RenewRunDriver => {
                (Some(Epoch::ProcessEpoch), Proof::CurrentRegistration, Gate::OpenAndReadAgain)
            }
        };
        Rule { scope: LIFECYCLE.0, epoch, proof, gate, stock: LIFECYCLE.1 }
    }
}

/// What a request stands on (contract 06 §16).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// What the ledger row of the asking actor must hold. Literal: no capability implies another.
    pub scope: Scope,
    /// The member that names an epoch, if one does.
    pub epoch: Option<Epoch>,
    /// Which proof it carries.
    pub proof: Proof,
    /// How the manager's gate must stand.
    pub gate: Gate,
    /// What the stock service does with it.
    pub stock: Stock,
}

impl Rule {
    /// Whether the manager's gate is read at all.
    pub const fn reads_gate(self) -> bool {
        !matches!(self.gate, Gate::NotRead)
    }

    const fn supervised(epoch: Option<Epoch>, stock: Stock) -> Self {
        Self { scope: Scope::Supervise, epoch, proof: Proof::CurrentRegistration, gate: Gate::Open, stock }
    }
}

/// The capability of the asking actor's ledger row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// None is asked for.
    None,
    /// [`SUPERVISE`].
    Supervise,
    /// [`SPAWN`]; `supervise` is never read.
    Spawn,
    /// The run's admitted owner, or [`ADMIN`].
    RunOwnerOrAdmin,
}

impl Scope {
    /// The capability that the row must hold, if any. A run's owner needs none; whoever else ends a run needs this one.
    pub const fn capability(self) -> Option<&'static str> {
        match self {
            Self::None => None,
            Self::Supervise => Some(SUPERVISE),
            Self::Spawn => Some(SPAWN),
            Self::RunOwnerOrAdmin => Some(ADMIN),
        }
    }
}

/// The capability to supervise managed agents.
pub const SUPERVISE: &str = "supervise";
/// The capability to launch agents.
pub const SPAWN: &str = "spawn";
/// The administrator's capability.
pub const ADMIN: &str = "admin";

/// The member that names an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Epoch {
    /// `serveEpoch`
    ServeEpoch,
    /// `processEpoch`
    ProcessEpoch,
    /// `retirement.serveEpoch`
    RetirementServeEpoch,
}

/// Which registration proof a request carries (contract 06 §3.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proof {
    /// None is allowed.
    None,
    /// Of contract 06 §3.1, over the request's artifacts.
    ArtifactsOfTheRequest,
    /// Of contract 06 §3.1, over no artifacts.
    Artifactless,
    /// Of contract 06 §3.2: keyed, over the current registration.
    CurrentRegistration,
}

/// How the manager's gate must stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    /// It is not read.
    NotRead,
    /// There is none yet, or it is the manager's own.
    AbsentOrOwn,
    /// It is open.
    Open,
    /// It is open, and still so, at the same epoch, before the mint.
    OpenAndReadAgain,
    /// It exists and is not retired.
    NotRetired,
    /// It is open for a launch; a retirement does not need it.
    OpenToLaunch,
}

/// What the stock service does with a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stock {
    /// Serves it.
    Serves,
    /// Refuses it on the route, decides it at the loopback verify door.
    DecidesAtTheVerifyDoor,
    /// Refuses it.
    Unimplemented,
}
