//! What a trusted composition chooses for the plane of a space beyond the command line: the lifetime of what it signs for
//! managers, and which manager an interactive caller is bound to (contract 05 §8.2 step 0, 08 §4).
//!
//! Everything here is checked before a start has any effect: no store is read, no broker dialled, no port bound.

use std::{ops::RangeInclusive, time::Duration};

use cotal_authority::{issued::ISSUER_TTL_SECS, plane::NATIVE_ISSUANCE_PRUNE};
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
    /// A prune that would never pause.
    #[error("nativeIssuancePruneMs must be more than nothing; leave it out for 60 s")]
    Prune,
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

/// What a host chooses for the plane of a space: for the one inside a service ([`crate::AuthServiceInputs::composition`])
/// as for one that it opens itself ([`crate::OpenAuthAuthorityPlaneOptions::composition`]). Nothing of it is checked until
/// a start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Composition {
    selection: Option<String>,
    standing_ttl_secs: u64,
    native_issuance_prune: Duration,
}

/// The same, checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Chosen {
    pub(crate) selection: Option<InteractiveManagerSelection>,
    pub(crate) standing_ttl_secs: u64,
    pub(crate) native_issuance_prune: Duration,
}

impl Default for Composition {
    fn default() -> Self {
        Self {
            selection: None,
            standing_ttl_secs: STANDING_RENEWABLE_TTL_SECS,
            native_issuance_prune: NATIVE_ISSUANCE_PRUNE,
        }
    }
}

impl Composition {
    /// The usual selection and lifetimes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Which manager an unpinned interactive caller is bound to. It takes `local-primary` alone, see
    /// [`InteractiveManagerSelection`].
    #[must_use]
    pub fn interactive_manager_selection(mut self, selection: impl Into<String>) -> Self {
        self.selection = Some(selection.into());
        self
    }

    /// Lifetime of the standing renewable credentials that are signed here, in seconds: 5 to 86 400, which is also the
    /// default.
    #[must_use]
    pub fn standing_renewable_ttl_seconds(mut self, seconds: u64) -> Self {
        self.standing_ttl_secs = seconds;
        self
    }

    /// How long after a prune of issuance rows the next one starts: more than nothing, default 60 s.
    #[must_use]
    pub fn native_issuance_prune(mut self, interval: Duration) -> Self {
        self.native_issuance_prune = interval;
        self
    }

    /// In the order of the plane's open: the selection, then the lifetime, then what the contract gives no place.
    pub(crate) fn check(&self) -> Result<Chosen, CompositionError> {
        let selection = self.selection.as_deref().map(InteractiveManagerSelection::parse).transpose()?;
        let Self { standing_ttl_secs, native_issuance_prune, .. } = *self;
        if !STANDING_RENEWABLE_TTL.contains(&standing_ttl_secs) {
            return Err(CompositionError::StandingTtl(standing_ttl_secs));
        }
        if native_issuance_prune.is_zero() {
            return Err(CompositionError::Prune);
        }
        Ok(Chosen { selection, standing_ttl_secs, native_issuance_prune })
    }
}

/// The lifetime of the issuer session's credential.
pub(crate) fn check_issuer_ttl(seconds: u64) -> Result<(), CompositionError> {
    if ISSUER_TTL_SECS.contains(&seconds) { Ok(()) } else { Err(CompositionError::IssuerTtl(seconds)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_asked_for_is_what_the_contract_says() {
        let Chosen { selection, standing_ttl_secs, native_issuance_prune } =
            Composition::new().check().unwrap();
        assert_eq!(
            (selection, standing_ttl_secs, native_issuance_prune),
            (None, 86_400, Duration::from_secs(60))
        );
    }

    #[test]
    fn only_local_primary_selects() {
        let select = |value: &str| Composition::new().interactive_manager_selection(value).check();
        let chosen = select("local-primary").unwrap().selection;
        assert_eq!(chosen, Some(InteractiveManagerSelection::LocalPrimary));
        assert_eq!(chosen.unwrap().as_str(), "local-primary");
        for bad in ["", "local", "Local-Primary", "local-primary ", "remote-primary"] {
            assert_eq!(select(bad), Err(CompositionError::Selection), "{bad:?}");
        }
    }

    #[test]
    fn the_lifetimes_hold_their_bounds_in_the_contracts_words() {
        let standing = |seconds| Composition::new().standing_renewable_ttl_seconds(seconds).check();
        for good in [5, 300, 86_400] {
            assert_eq!(standing(good).unwrap().standing_ttl_secs, good);
        }
        for bad in [0, 4, 86_401, u64::MAX] {
            assert_eq!(
                standing(bad).unwrap_err().to_string(),
                format!(
                    "standingRenewableTtlSeconds must be an integer between 5 and 86400 seconds (got {bad})"
                )
            );
        }
        for good in [5, 300] {
            assert_eq!(check_issuer_ttl(good), Ok(()));
        }
        for bad in [4, 301] {
            assert_eq!(
                check_issuer_ttl(bad).unwrap_err().to_string(),
                format!("issuerSessionTtlSeconds must be an integer between 5 and 300 seconds (got {bad})")
            );
        }
    }

    #[test]
    fn the_first_failing_choice_refuses() {
        let asked = |selection: &str, standing| {
            Composition::new()
                .interactive_manager_selection(selection)
                .standing_renewable_ttl_seconds(standing)
                .native_issuance_prune(Duration::ZERO)
                .check()
        };
        assert_eq!(asked("x", 0), Err(CompositionError::Selection));
        assert_eq!(asked("local-primary", 0), Err(CompositionError::StandingTtl(0)));
        assert_eq!(asked("local-primary", 5), Err(CompositionError::Prune));
    }
}
