//! Permission templates: what each profile may publish and subscribe to (contract 01 §6).
//!
//! A template is a list of exact rows, in the contract's order, and names all that its holder may do: the broker
//! denies everything else. Profiles of people and agents are built by [`permissions`] from a [`Profile`] that carries
//! its pins; connections that the service opens for itself are built by [`infra`].

pub mod accounts;
mod agent;
pub mod barriers;
pub mod delivery;
pub mod drain;
mod endpoint_rows;
pub mod endpoint_serve;
pub mod infra;
pub mod issued;
mod maintenance;
pub mod manager;
mod narrow;
pub mod operator;
mod profile;
pub mod rail;
mod read_views;
mod rows;
pub mod runs;

pub use endpoint_rows::{Capabilities, InstrumentTier, Issued, platform_supervisor_token};
pub use profile::{AgentGrants, ConnectPrincipal, GrantError, Profile, permissions};

/// Longest JWT of a user, in bytes (contract 02 §9).
pub const MAX_USER_JWT: usize = 16 * 1024;
/// How many bytes of rows one credential may name: the JWT of a connection then stays under the 16 KiB that the contract
/// lets one have (contract 02 §9).
pub const ROWS_BYTES: usize = 9_000;

/// The allow and deny lists of one direction. An empty list is left out of the JWT: the broker reads an empty
/// `allow` as unrestricted (contract 01 §3.2), so [`Permissions`] that name nothing must say so with a deny.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules {
    /// Subjects that are allowed; everything else is denied when this is not empty.
    pub allow: Vec<String>,
    /// Subjects that are denied; a deny beats an allow.
    pub deny: Vec<String>,
}

/// What one connection may do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Permissions {
    /// The publish direction.
    pub publish: Rules,
    /// The subscribe direction.
    pub subscribe: Rules,
}

impl Permissions {
    /// Allow lists alone.
    fn allowing(publish: Vec<String>, subscribe: Vec<String>) -> Self {
        Self {
            publish: Rules { allow: publish, deny: Vec::new() },
            subscribe: Rules { allow: subscribe, deny: Vec::new() },
        }
    }
}
