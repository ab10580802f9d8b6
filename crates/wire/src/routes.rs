//! The HTTP routes that the clients of this project ask an auth service on (contract 05 §3, §4, §7). The one of remote managers
//! is [`crate::manager_authority::ROUTE`].

/// An IdP login, or an agent's secret, for a bearer (contract 05 §4).
pub const EXCHANGE: &str = "/exchange";
/// What a remote client bootstraps from (contract 05 §3.4).
pub const MESH_BUNDLE: &str = "/.well-known/cotal-mesh";
/// An interactive incarnation's end, on the loopback face (contract 05 §7.1).
pub const RETIRE_INTERACTIVE: &str = "/interactive-lifecycle/retire";
/// A managed incarnation's end, on the loopback face (contract 05 §7.2).
pub const RETIRE_MANAGED: &str = "/managed-lifecycle/retire";
