//! Views: the closed enum of elevated or narrowed bearers (contract 04 §2.1, 01 §6.11).

use std::fmt;

use serde::{Deserialize, Serialize};

/// Longest lifetime of a bearer without a narrower cap, in seconds (contract 04 §2.1).
pub const MAX_TOKEN_TTL_SECS: u64 = 900;
/// Longest lifetime of a bearer minted for an agent secret, in seconds (contract 04 §2.1).
pub const AGENT_BEARER_TTL_SECS: u64 = 300;
/// Longest lifetime of a `transfer-writer` bearer, in seconds (contract 04 §2.1).
pub const TRANSFER_WRITER_TTL_SECS: u64 = 300;

/// Longest lifetime of a `session-caller` connection, in seconds, whatever its session's row says (contract 01 §3.4).
pub const SESSION_CALLER_TTL_SECS: u64 = 86_400;

/// The capability `admin`.
pub const SCOPE_ADMIN: &str = "admin";
/// The capability `spawn`.
pub const SCOPE_SPAWN: &str = "spawn";
/// The capability `supervise`.
pub const SCOPE_SUPERVISE: &str = "supervise";
/// The capability `run`.
pub const SCOPE_RUN: &str = "run";

/// The view that a bearer carries in `act.view`. A view's name is its profile's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum View {
    /// The god view: reads every chat, unicast and anycast subject.
    Admin,
    /// Purges the space's history.
    Purger,
    /// Deletes one channel.
    ChannelPurger,
    /// Writes channel configuration.
    ChannelWriter,
    /// Deploys agents.
    Deployer,
    /// Typed manager material exchange; never a connect profile.
    ManagerService,
    /// Narrows to one live manager instance.
    ManagerCaller,
    /// One redeemed session.
    SessionCaller,
    /// Writes one transfer object.
    TransferWriter,
    /// A service endpoint's connection; never minted by `/exchange`.
    ServiceEndpoint,
}

impl View {
    /// Every view, in the enum's order (contract 04 §2.1).
    pub const ALL: [Self; 10] = [
        Self::Admin,
        Self::Purger,
        Self::ChannelPurger,
        Self::ChannelWriter,
        Self::Deployer,
        Self::ManagerService,
        Self::ManagerCaller,
        Self::SessionCaller,
        Self::TransferWriter,
        Self::ServiceEndpoint,
    ];

    /// The wire name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::Purger => "purger",
            Self::ChannelPurger => "channel-purger",
            Self::ChannelWriter => "channel-writer",
            Self::Deployer => "deployer",
            Self::ManagerService => "manager-service",
            Self::ManagerCaller => "manager-caller",
            Self::SessionCaller => "session-caller",
            Self::TransferWriter => "transfer-writer",
            Self::ServiceEndpoint => "service-endpoint",
        }
    }

    /// The view of this wire name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|view| view.as_str() == name)
    }

    /// The capability that the ledger scope and `act.scope` must hold, if any (contract 04 §2.1).
    pub const fn required_scope(self) -> Option<&'static str> {
        match self {
            Self::Admin | Self::Purger | Self::ChannelPurger | Self::ChannelWriter | Self::TransferWriter => {
                Some(SCOPE_ADMIN)
            }
            Self::Deployer => Some(SCOPE_SPAWN),
            Self::ManagerService => Some(SCOPE_SUPERVISE),
            Self::ManagerCaller | Self::SessionCaller | Self::ServiceEndpoint => None,
        }
    }

    /// Whether the public exchange face serves this view (contract 05 §4.3).
    pub const fn is_public(self) -> bool {
        matches!(
            self,
            Self::ChannelWriter
                | Self::ChannelPurger
                | Self::ManagerCaller
                | Self::SessionCaller
                | Self::TransferWriter
        )
    }

    /// Whether the capability that this view needs is in `scope`.
    pub fn is_covered_by<S: AsRef<str>>(self, scope: &[S]) -> bool {
        self.required_scope().is_none_or(|needed| scope.iter().any(|s| s.as_ref() == needed))
    }

    /// Longest lifetime of a bearer with this view (or none), in seconds (contract 04 §2.1).
    pub fn ttl_cap_secs(view: Option<Self>) -> u64 {
        if view == Some(Self::TransferWriter) { TRANSFER_WRITER_TTL_SECS } else { MAX_TOKEN_TTL_SECS }
    }
}

impl fmt::Display for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_the_public_set_is_exact() {
        for view in View::ALL {
            assert_eq!(View::from_name(view.as_str()), Some(view));
            assert_eq!(serde_json::to_string(&view).unwrap(), format!("\"{view}\""));
        }
        let public: Vec<_> = View::ALL.into_iter().filter(|v| v.is_public()).map(View::as_str).collect();
        assert_eq!(
            public,
            ["channel-purger", "channel-writer", "manager-caller", "session-caller", "transfer-writer"]
        );
        assert_eq!(View::from_name("root"), None);
    }
}
