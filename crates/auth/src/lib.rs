//! The auth service of a Cotal space as a library.
//!
//! A context holds one space's service: its plane, its callout and its HTTP faces. [`start_auth_service`] starts one
//! inside a host, [`run_auth_service`] is the `cotal auth-service` process around one, or around those of
//! a manifest, a lane each. A [`CalloutReplica`] answers the
//! connects of a space beside its full service. This room does not decide who
//! may do what (rooms `ledger` and `authority` do), does not answer a connect (room `callout`), and does not speak to
//! NATS itself (room `broker` does).

mod authority;
pub mod bridge;
mod capability;
mod composition;
mod context;
mod daemon;
pub mod explain;
mod handle;
mod host;
mod hosted;
mod http;
mod lines;
pub mod managers;
mod openapi;
mod platform;
mod public_face;
mod replica;
mod served;
pub mod sessions;

#[cfg(fuzzing)]
pub use http::exchange::fuzzing;

pub use authority::ConnectCredentials;
pub use capability::Capability;
pub use composition::{CompositionError, InteractiveManagerSelection, STANDING_RENEWABLE_TTL};
pub use context::{CalloutLog, StartError};
pub use daemon::{
    AuthServiceArgs, AuthServiceRuntimeOptions, DaemonError, SECRET_STORE, STARTUP_HOLD, run_auth_service,
    run_auth_service_until, stdout_line,
};
pub use handle::{AuthService, CloseError, End, Readiness};
pub use host::manifest::{AuthHostEntry, ManifestError, parse_auth_host_manifest};
pub use hosted::{AuthServiceInputs, HostedContext, start_auth_service};
pub use http::{doors::LifecycleDoor, mesh::AUTH_PROVIDER_NAME};
pub use lines::{StderrLine, stderr_line};
pub use openapi::openapi_document;
pub use platform::{
    AssignmentState, HOST_FENCE_POLL, HostDoor, HostIncarnation, ObserveAssignment, PlatformAssignment,
    PlatformControl, PlatformControlDoor, PlatformHost,
};
pub use public_face::{PublicFace, PublicFaceError, PublicFaceRequest};
pub use replica::{CalloutReplica, CalloutReplicaInputs, ReplicaEnd, admits_service_endpoints};
