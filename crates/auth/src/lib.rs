//! The auth service of a Cotal space as a library.
//!
//! A context holds one space's service: its plane, its callout and its HTTP faces. [`start_auth_service`] starts one
//! inside a host, [`run_auth_service`] is the `cotal auth-service` process around one, or around those of a manifest, a
//! lane each. A [`CalloutReplica`] answers the connects of a space beside its full service. A host that composes its own
//! service takes parts: [`open_auth_authority_plane`], [`create_idp_bridge`], [`create_user_token_issuer`]. Every context,
//! plane and registry is a value, and two of them in one process never meet. What the process has once they share, each
//! within its part: the queue in front of standard error, which a [`CalloutLog`] replaces, the seats of the HTTP faces, the
//! threads for disk work, and the root certificates.
//!
//! This room does not decide who may do what (rooms `ledger` and `authority` do), does not answer a connect (room
//! `callout`), and does not speak to NATS itself (room `broker` does). What its interface names of other rooms it
//! re-exports, so that a host depends on this crate alone.

mod authority;
mod authority_plane;
pub mod bridge;
pub mod callers;
mod capability;
mod composition;
mod context;
mod daemon;
pub mod explain;
mod files;
mod flags;
mod handle;
mod host;
mod hosted;
mod http;
mod inputs;
mod lines;
mod manager;
pub mod managers;
mod member;
mod openapi;
mod past_note;
mod platform;
mod provider;
mod public_face;
mod replica;
mod served;
pub mod sessions;
mod user_tokens;

// The houses of the crate's outer tests also stand in a few of the inner ones, and name the crate as the outer ones do.
#[cfg(test)]
extern crate self as cotal_auth;

/// The book's chapter on embedding: its snippets are compiled with the documentation's tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/src/embedding.md")]
struct TheBookOnEmbedding;

#[cfg(fuzzing)]
pub use http::exchange::fuzzing;

pub use authority::ConnectCredentials;
pub use authority_plane::{AuthAuthorityPlane, OpenAuthAuthorityPlaneOptions, open_auth_authority_plane};
pub use bridge::{create_idp_bridge, pinned_jwks_resolver};
pub use callers::LiveCallers;
pub use capability::Capability;
pub use composition::{Composition, CompositionError, InteractiveManagerSelection, STANDING_RENEWABLE_TTL};
pub use context::StartError;
pub use daemon::{
    AuthServiceRuntimeOptions, DaemonError, SECRET_STORE, STARTUP_HOLD, run_auth_service,
    run_auth_service_until, stdout_line,
};
pub use flags::AuthServiceArgs;
pub use handle::{AuthService, CloseError, End, Readiness};
pub use host::manifest::{AuthHostEntry, ManifestError, parse_auth_host_manifest};
pub use hosted::{HostedContext, HostedSpace, SpaceAt};
pub use http::{doors::LifecycleDoor, mesh::AUTH_PROVIDER_NAME};
pub use inputs::{AuthServiceInputs, start_auth_service};
pub use lines::{StderrLine, stderr_line};
pub use member::CalloutLog;
pub use openapi::openapi_document;
pub use platform::{
    AssignmentState, HOST_FENCE_POLL, HostDoor, HostIncarnation, ObserveAssignment, PlatformAssignment,
    PlatformControl, PlatformControlDoor, PlatformError, PlatformHost, PlatformSupervision,
    PlatformSupervisorDoor, PlatformSupervisorDoors,
};
pub use provider::{
    AuthProvider, AuthProviders, CotalAuthProvider, DeprovisionError, ProviderError, reviewed_secret_keys,
};
pub use public_face::{PublicFace, PublicFaceError, PublicFaceRequest};
pub use replica::{CalloutReplica, ReplicaEnd, admits_service_endpoints};
pub use served::{is_served, withdraw_left_discovery};
pub use user_tokens::{UserTokenIssuer, create_user_token_issuer};

/// What is decided for a remote manager, as functions of a parsed request and of what was read: for a host that composes
/// the decision without the HTTP hop, or executes what the stock service refuses (contract 06).
pub mod manager_decisions {
    pub use cotal_authority::manager::*;
    pub use cotal_trust::registration_proof::RegistrationProofKey;
    pub use cotal_wire::{es_value::EsValue, manager_authority as requests};
}

pub use cotal_authority::{
    ConnectReader, LocalManager, NoLocalManager, Plane, ReadLocalManager,
    activation::ActivationFailure,
    manager::SupervisorAssignment,
    retirement::{Retirement, RetirementFailure},
};
pub use cotal_broker::custody::Owned;
pub use cotal_callout::{CalloutLimits, ConnectLimits};
pub use cotal_ledger::AuthorizedGrant;
pub use cotal_trust::{
    bearer::{BearerGrant, MintedBearer},
    bundle::DataAccount,
    idp::{IdpPin, JwksResolver},
    issuer::IssuerKeySet,
    owner::OwnerSecret,
    system::{SystemClock, SystemEntropy},
};
pub use cotal_wire::{
    Account, Actor, Clock, CredentialId, DerivedOwner, DigestRef, Entropy, EpCode, EpError, InstanceId,
    LifecycleUid, Nkey, Principal, Space, UnixSecs, contract::Artifact, rows::EndpointGate,
};
pub use cotal_workspace::{
    root::Root,
    secret_store::{SecretStore, StoreError, StoreIdentity},
};
