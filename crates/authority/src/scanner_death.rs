//! What follows when a scanner's connection ends: the whole plane stops, on purpose (contract 03 §E and §G.1, 05 §8.9).

use std::sync::Arc;

use cotal_wire::Space;
use tokio::task::JoinHandle;

use crate::{
    plane_claim::ClaimHold,
    scanner::{ScannerConnection, ScannerRole},
};

/// The end of a scanner's connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScannerDeath {
    /// Whose.
    pub role: ScannerRole,
    /// The operator's text. It is never told to an agent.
    pub copy: String,
    /// The plane was closing: this is no fault, and only what still serves must be tripped.
    pub while_closing: bool,
}

/// Watches both connections, until the first ends.
///
/// Unless `closing`, the hold is then fenced; `died` is told in either case, to make the plane refuse; and, unless
/// closing, the text is logged and the sibling closed. `closing` must be true before a closing plane closes a scanner.
pub fn watch_scanners(
    hold: Arc<ClaimHold>,
    ledger: ScannerConnection,
    records: ScannerConnection,
    closing: impl Fn() -> bool + Send + 'static,
    died: impl FnOnce(&ScannerDeath) + Send + 'static,
) -> JoinHandle<()> {
    tokio::spawn(async move {
        let (dead, sibling) = tokio::select! {
            () = ledger.gone() => (&ledger, &records),
            () = records.gone() => (&records, &ledger),
        };
        let role = dead.role();
        let death = ScannerDeath { role, copy: death_copy(hold.space(), role), while_closing: closing() };
        if !death.while_closing {
            hold.fence(&death.copy);
        }
        died(&death);
        if death.while_closing {
            return;
        }
        tracing::error!(space = %hold.space(), "auth-plane: {}", death.copy);
        if let Err(refusal) = sibling.close().await {
            tracing::warn!(space = %hold.space(), %refusal, "auth-plane: closing the scanner that was left");
        }
    })
}

fn death_copy(space: &Space, role: ScannerRole) -> String {
    format!(
        "the {} scanner connection of space {space} has ended, and with it the proof that this process owns the \
         authority plane; the auth service stops on purpose and refuses everything. Check the broker, then start the \
         auth service again (cotal up): it takes the plane over",
        role.as_str()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_names_the_scanner_the_space_and_the_way_back() {
        let space = Space::parse("demo").unwrap();
        for (role, word) in [(ScannerRole::Ledger, "auth-ledger"), (ScannerRole::Records, "records")] {
            let copy = death_copy(&space, role);
            for says in [word, "space demo", "on purpose", "start the auth service again"] {
                assert!(copy.contains(says), "{copy}");
            }
        }
    }
}
