//! The callout's queue, deadline and one-pass request handling.
use crate::limits::Limiter;
use cotal_authority::{ConnectReader, IssuanceLog};
use cotal_broker::Connection;
use cotal_ledger::Ledger;
use cotal_trust::{bundle::DataAccount, callout_account::CalloutAuth, issuer::IssuerKeySet};
use cotal_wire::{Clock, Entropy, EpError, Space};
use std::{sync::Arc, time::Duration};

/// Admission and deadlines (contract 04 §8.7).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CalloutLimits {
    /// Must equal the broker's `authorization { timeout }`; default 2000 ms.
    pub auth_timeout: Duration,
    /// Requests in progress; default 32.
    pub max_in_flight: usize,
    /// A line logs at warn above this total; default 500 ms.
    pub slow: Duration,
}

impl Default for CalloutLimits {
    fn default() -> Self {
        Self { auth_timeout: Duration::from_secs(2), max_in_flight: 32, slow: Duration::from_millis(500) }
    }
}

/// What a callout answers from.
pub struct CalloutParts {
    /// The space.
    pub space: Space,
    /// AUTH account material.
    pub callout: Arc<CalloutAuth>,
    /// The account users are placed in.
    pub data_account: DataAccount,
    /// Bearer keys.
    pub issuer: Arc<IssuerKeySet>,
    /// The actor ledger.
    pub ledger: Ledger,
    /// Deny-new.
    pub reader: Arc<ConnectReader>,
    /// Issuance rows.
    pub issuance: Arc<IssuanceLog>,
    /// Connect limits, shared with the exchange.
    pub limiter: Arc<Limiter>,
    /// Admission and deadlines.
    pub limits: CalloutLimits,
    /// Only these servers are answered, when given.
    pub expected_server_ids: Option<Vec<String>>,
    /// Clock.
    pub clock: Arc<dyn Clock>,
    /// Entropy.
    pub entropy: Arc<dyn Entropy>,
    /// Where the one line per answered request goes (stderr in the service).
    pub log: Arc<dyn Fn(&str) + Send + Sync>,
}

/// A serving callout.
pub struct Callout {
    _private: (),
}

impl Callout {
    /// Checks the material, subscribes `$SYS.REQ.USER.AUTH` in queue `cotal-auth-callout`, flushes, serves.
    pub async fn start(_connection: Connection, _parts: CalloutParts) -> Result<Self, EpError> {
        todo!()
    }
    /// Stops intake, lets what is in progress end, and returns.
    pub async fn stop(&self) {
        todo!()
    }
}
