//! The one place that prints how a command ended (contract 04 §13): an operational failure is one sentence on stderr
//! and exit code 1; a rate limit is exit code 2.

use std::{fmt, io::Write, process::ExitCode};

use cotal_wire::Space;
use cotal_workspace::printed;
use serde_json::{Value, json};

/// Exit code of a refusal or a failure, a usage error among them.
pub const EXIT_FAILED: u8 = 1;
/// Exit code of a rate limit (contract 08 §10).
pub const EXIT_RATE_LIMITED: u8 = 2;

/// Why a command did not do what it was asked.
#[derive(Debug)]
pub enum CliError {
    /// The line was not a command of this program.
    Usage(String),
    /// One sentence: what was wrong, with what, and what to do next.
    Failed(String),
    /// The same of a change that was not made, and what is known of what it had begun.
    Undone(String, Outcome),
    /// A repair that did not find what it repairs, and the contract's word for what it found.
    Condition {
        /// One sentence.
        sentence: String,
        /// The word.
        condition: &'static str,
    },
    /// The report that says what is wrong is on stdout already; this is its one sentence for stderr.
    Reported(String),
    /// The service is limiting this actor or owner.
    RateLimited {
        /// The service's own sentence, the remedy after it.
        sentence: String,
        /// Seconds until the limit has room again.
        retry_after_secs: u64,
        /// Which bucket: `actor` or `owner`; `None` when the service did not say.
        limit: Option<String>,
    },
}

/// What is known of a change that did not come to its end (contract 05 §7.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing happened.
    NotExecuted,
    /// It may have begun.
    Unknown,
}

impl Outcome {
    /// The contract's word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotExecuted => "not-executed",
            Self::Unknown => "unknown",
        }
    }
}

impl CliError {
    /// A failure of this sentence.
    pub fn failed(sentence: impl Into<String>) -> Self {
        Self::Failed(sentence.into())
    }

    /// A usage error of this sentence.
    pub fn usage(sentence: impl Into<String>) -> Self {
        Self::Usage(sentence.into())
    }

    /// The same of a command that was about this space: whatever it offers to type names it.
    #[must_use]
    pub fn naming(mut self, space: &Space) -> Self {
        let (Self::Usage(sentence)
        | Self::Failed(sentence)
        | Self::Undone(sentence, _)
        | Self::Reported(sentence)
        | Self::Condition { sentence, .. }
        | Self::RateLimited { sentence, .. }) = &mut self;
        *sentence = printed::naming(sentence, space);
        self
    }

    /// The exit code.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_)
            | Self::Failed(_)
            | Self::Undone(..)
            | Self::Condition { .. }
            | Self::Reported(_) => EXIT_FAILED,
            Self::RateLimited { .. } => EXIT_RATE_LIMITED,
        }
    }

    /// The document of `--json`: `{"error":{"code","message","cause"?,"outcome"?,"condition"?}}`.
    pub fn to_json(&self) -> Value {
        match self {
            Self::Usage(message) => json!({ "error": { "code": "USAGE", "message": message } }),
            Self::Failed(message) | Self::Reported(message) => {
                json!({ "error": { "code": "FAILED", "message": message } })
            }
            Self::Undone(message, outcome) => {
                json!({ "error": { "code": "FAILED", "message": message, "outcome": outcome.as_str() } })
            }
            Self::Condition { sentence, condition } => {
                json!({ "error": { "code": "FAILED", "message": sentence, "condition": condition } })
            }
            Self::RateLimited { sentence, retry_after_secs, limit } => {
                let mut cause = json!({ "code": "RATE_LIMITED", "retryAfterSeconds": retry_after_secs });
                if let Some(limit) = limit {
                    cause["limit"] = limit.as_str().into();
                }
                json!({ "error": { "code": "DEPENDENCY_UNAVAILABLE", "message": sentence, "cause": cause } })
            }
        }
    }
}

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(sentence)
            | Self::Failed(sentence)
            | Self::Undone(sentence, _)
            | Self::Reported(sentence)
            | Self::Condition { sentence, .. }
            | Self::RateLimited { sentence, .. } => f.write_str(sentence),
        }
    }
}

impl std::error::Error for CliError {}

/// A failure below is told in its own words.
macro_rules! fails_as {
    ($($error:ty),+ $(,)?) => {$(
        impl From<$error> for CliError {
            fn from(error: $error) -> Self {
                Self::Failed(error.to_string())
            }
        }
    )+};
}

fails_as!(
    std::io::Error,
    cotal_ledger::LedgerError,
    cotal_trust::bundle::BundleError,
    cotal_trust::idp::IdpRefusal,
    cotal_trust::mint::StaticMintError,
    cotal_trust::owner::OwnerError,
    cotal_workspace::broker_config::BrokerConfigError,
    cotal_workspace::material::MaterialError,
    cotal_workspace::secret_store::StoreError,
    cotal_workspace::trust_files::TrustFileError,
);

impl From<cotal_wire::EpError> for CliError {
    fn from(error: cotal_wire::EpError) -> Self {
        Self::Failed(error.message)
    }
}

impl From<cotal_wire::TokenError> for CliError {
    fn from(error: cotal_wire::TokenError) -> Self {
        Self::Usage(error.to_string())
    }
}

/// Ends the process: silently when the command did what it was asked.
pub fn finish(outcome: Result<(), CliError>, json: bool) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error, json),
    }
}

/// Tells an error: its sentence on stderr, with `json` its document on stdout too, so that stdout holds one JSON
/// document whatever happened.
pub fn failed(error: &CliError, json: bool) -> ExitCode {
    if json && !matches!(error, CliError::Reported(_)) {
        let _ = writeln!(std::io::stdout(), "{}", error.to_json());
    }
    let _ = writeln!(std::io::stderr(), "{error}");
    ExitCode::from(error.exit_code())
}

/// Prints text that was asked for.
pub fn shown(text: &str) -> ExitCode {
    match write!(std::io::stdout(), "{text}") {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::from(EXIT_FAILED),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_limit_is_exit_code_two_and_names_its_bucket_in_the_cause() {
        let error = CliError::RateLimited {
            sentence: "slow down".into(),
            retry_after_secs: 7,
            limit: Some("actor".into()),
        };
        assert_eq!(error.exit_code(), 2);
        assert_eq!(
            error.to_json(),
            json!({ "error": {
                "code": "DEPENDENCY_UNAVAILABLE", "message": "slow down",
                "cause": { "code": "RATE_LIMITED", "retryAfterSeconds": 7, "limit": "actor" },
            } })
        );
    }

    #[test]
    fn a_failure_and_a_usage_error_are_exit_code_one() {
        assert_eq!(CliError::failed("x").exit_code(), 1);
        assert_eq!(CliError::usage("x").exit_code(), 1);
        let unknown = CliError::Undone("x".into(), Outcome::Unknown);
        assert_eq!(
            (unknown.exit_code(), unknown.to_json()["error"]["outcome"].as_str()),
            (1, Some("unknown"))
        );
        assert_eq!(CliError::failed("x").to_json(), json!({ "error": { "code": "FAILED", "message": "x" } }));
    }
}
