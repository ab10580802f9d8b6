//! What a trusted composition chooses beyond the command line: the lifetimes of what the context signs, and which manager
//! an interactive caller is bound to (contract 05 §8.2 step 0, 08 §4).
//!
//! Everything here is checked before a start has any effect: no store is read, no broker dialled, no port bound.

use std::ops::RangeInclusive;

use cotal_authority::issued::{ISSUER_TTL_DEFAULT_SECS, ISSUER_TTL_SECS};
use cotal_trust::mint::STANDING_RENEWABLE_TTL_SECS;

/// Lifetimes that a standing renewable credential may have, in seconds (contract 01 §3.2).
pub const STANDING_RENEWABLE_TTL: RangeInclusive<u64> = 5..=STANDING_RENEWABLE_TTL_SECS;

/// The one value that the selection option takes.
const LOCAL_PRIMARY: &str = "local-primary";

/// Which manager an unpinned, human `manager-caller` exchange is bound to, when a host overrides the rule
/// (contract 05 §5).
///
/// Only a trusted composition sets it: no flag and no member of an exchange does. It routes *all* unpinned interactive
/// manager control to the local manager, even of a person who has a live remote one. A named instance still wins, and the
/// exchange of an agent's secret is not affected. It adds no scope, reads no registry and writes no row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InteractiveManagerSelection {
    /// The local manager up front; absent, unreadable or no candidate, it refuses, and no remote one takes its place.
    LocalPrimary,
}

/// A value that a composition may not choose. One sentence, in the contract's words where it has them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CompositionError {
    /// No such selection.
    #[error(
        "interactiveManagerSelection takes only \"{LOCAL_PRIMARY}\"; leave it out for the usual selection"
    )]
    Selection,
    /// Outside [`STANDING_RENEWABLE_TTL`].
    #[error(
        "standingRenewableTtlSeconds must be an integer between {} and {} seconds (got {got})",
        STANDING_RENEWABLE_TTL.start(),
        STANDING_RENEWABLE_TTL.end(),
        got = .0
    )]
    StandingTtl(u64),
    /// Outside [`ISSUER_TTL_SECS`].
    #[error(
        "issuerSessionTtlSeconds must be an integer between {} and {} seconds (got {got})",
        ISSUER_TTL_SECS.start(),
        ISSUER_TTL_SECS.end(),
        got = .0
    )]
    IssuerTtl(u64),
}

impl InteractiveManagerSelection {
    /// Reads the option as a composition writes it.
    pub fn parse(value: &str) -> Result<Self, CompositionError> {
        if value == LOCAL_PRIMARY { Ok(Self::LocalPrimary) } else { Err(CompositionError::Selection) }
    }

    /// The option's value.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::LocalPrimary => LOCAL_PRIMARY,
        }
    }
}

/// As a composition asks for it; nothing of it is checked yet.
#[derive(Debug, Clone, Default)]
pub(crate) struct CompositionRequest {
    pub(crate) selection: Option<String>,
    pub(crate) standing_ttl_secs: Option<u64>,
    pub(crate) issuer_ttl_secs: Option<u64>,
}

/// Checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Composition {
    pub(crate) selection: Option<InteractiveManagerSelection>,
    pub(crate) standing_ttl_secs: u64,
    pub(crate) issuer_ttl_secs: u64,
}

impl Default for Composition {
    fn default() -> Self {
        Self {
            selection: None,
            standing_ttl_secs: STANDING_RENEWABLE_TTL_SECS,
            issuer_ttl_secs: ISSUER_TTL_DEFAULT_SECS,
        }
    }
}

impl CompositionRequest {
    /// The selection first, as the plane's open has it, then the two lifetimes.
    pub(crate) fn check(&self) -> Result<Composition, CompositionError> {
        let usual = Composition::default();
        let selection = self.selection.as_deref().map(InteractiveManagerSelection::parse).transpose()?;
        let standing_ttl_secs = self.standing_ttl_secs.unwrap_or(usual.standing_ttl_secs);
        if !STANDING_RENEWABLE_TTL.contains(&standing_ttl_secs) {
            return Err(CompositionError::StandingTtl(standing_ttl_secs));
        }
        let issuer_ttl_secs = self.issuer_ttl_secs.unwrap_or(usual.issuer_ttl_secs);
        if !ISSUER_TTL_SECS.contains(&issuer_ttl_secs) {
            return Err(CompositionError::IssuerTtl(issuer_ttl_secs));
        }
        Ok(Composition { selection, standing_ttl_secs, issuer_ttl_secs })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(selection: Option<&str>, standing: Option<u64>, issuer: Option<u64>) -> CompositionRequest {
        CompositionRequest {
            selection: selection.map(str::to_owned),
            standing_ttl_secs: standing,
            issuer_ttl_secs: issuer,
        }
    }

    #[test]
    fn nothing_asked_for_is_what_the_contract_says() {
        let usual = asked(None, None, None).check().unwrap();
        assert_eq!(usual, Composition::default());
        assert_eq!((usual.standing_ttl_secs, usual.issuer_ttl_secs), (86_400, 300));
    }

    #[test]
    fn only_local_primary_selects() {
        let chosen = asked(Some("local-primary"), None, None).check().unwrap().selection;
        assert_eq!(chosen, Some(InteractiveManagerSelection::LocalPrimary));
        assert_eq!(chosen.unwrap().as_str(), "local-primary");
        for bad in ["", "local", "Local-Primary", "local-primary ", "remote-primary"] {
            assert_eq!(asked(Some(bad), None, None).check(), Err(CompositionError::Selection), "{bad:?}");
        }
    }

    #[test]
    fn the_lifetimes_hold_their_bounds_in_the_contracts_words() {
        for good in [5, 300, 86_400] {
            assert_eq!(asked(None, Some(good), None).check().unwrap().standing_ttl_secs, good);
        }
        for bad in [0, 4, 86_401, u64::MAX] {
            assert_eq!(
                asked(None, Some(bad), None).check().unwrap_err().to_string(),
                format!(
                    "standingRenewableTtlSeconds must be an integer between 5 and 86400 seconds (got {bad})"
                )
            );
        }
        for good in [5, 300] {
            assert_eq!(asked(None, None, Some(good)).check().unwrap().issuer_ttl_secs, good);
        }
        for bad in [4, 301] {
            assert_eq!(
                asked(None, None, Some(bad)).check().unwrap_err().to_string(),
                format!("issuerSessionTtlSeconds must be an integer between 5 and 300 seconds (got {bad})")
            );
        }
    }

    #[test]
    fn the_first_failing_choice_refuses() {
        assert_eq!(asked(Some("x"), Some(0), Some(0)).check(), Err(CompositionError::Selection));
        assert_eq!(asked(None, Some(0), Some(0)).check(), Err(CompositionError::StandingTtl(0)));
        assert_eq!(asked(None, None, Some(0)).check(), Err(CompositionError::IssuerTtl(0)));
    }
}
