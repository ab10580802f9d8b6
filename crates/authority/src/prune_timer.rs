//! The timer that prunes native issuance rows, and what its failures mean (contract 05 §8.4, §8.9).

use std::{sync::Arc, time::Duration};

use cotal_broker::ConnectionState;
use cotal_wire::{EpCode, EpError};
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

use crate::{fence::Fence, issuance::IssuanceLog};

/// How long the broker may leave prunes unanswered on one connect before that is a failure.
///
/// A broker that restarts, or elects a leader, answers nothing for a while. Nothing but room is lost meanwhile, so it
/// is not worth the plane; a store that stays silent is.
const PATIENCE: Duration = Duration::from_secs(60);
/// Pause before a prune that got no answer is run again.
const PAUSE: Duration = Duration::from_secs(1);

/// The text of a failed prune, at boot and as a fence.
pub(crate) fn prune_failure(refusal: &EpError) -> String {
    format!("native-issuance cleanup failed: {}", refusal.message)
}

/// Prunes at once and then `interval` after each success, until it is stopped; the first failure fences the plane and ends it.
///
/// A stop never cuts a prune off: the flight ends first, and on a closing plane it starts nothing more.
pub(crate) async fn prune_on_timer(
    issuance: Arc<IssuanceLog>,
    mut writer: watch::Receiver<ConnectionState>,
    fence: Arc<Fence>,
    interval: Duration,
    mut stop: watch::Receiver<bool>,
) {
    let mut pause = Duration::ZERO;
    // The connect on which the broker has been silent, and since when.
    let mut silence: Option<(ConnectionState, Instant)> = None;
    loop {
        let connected = tokio::select! {
            connected = connected_after(pause, &mut writer) => connected,
            _ = stop.wait_for(|stop| *stop) => return,
        };
        let Err(refusal) = issuance.prune().await else {
            (pause, silence) = (interval, None);
            continue;
        };
        let since = match silence {
            Some((on, since)) if on == connected => since,
            _ => Instant::now(),
        };
        if may_run_again(&refusal, connected, since.elapsed()) {
            tracing::warn!(
                space = %issuance.space(), %refusal,
                "auth-plane: the native-issuance cleanup got no answer and is run again"
            );
            (pause, silence) = (PAUSE, Some((connected, since)));
            continue;
        }
        let reason = prune_failure(&refusal);
        if fence.trip(&reason) {
            tracing::error!(space = %issuance.space(), "auth-plane: {reason}");
        }
        return;
    }
}

/// Whether a failed prune was merely unanswered, and not for too long. A row that is corrupt answers.
fn may_run_again(refusal: &EpError, connected: ConnectionState, silent_for: Duration) -> bool {
    refusal.code == EpCode::Unavailable && connected != ConnectionState::Closed && silent_for < PATIENCE
}

/// The state of the writer once `pause` has passed and it is not between two connections.
async fn connected_after(pause: Duration, writer: &mut watch::Receiver<ConnectionState>) -> ConnectionState {
    sleep(pause).await;
    let state = writer.wait_for(|state| *state != ConnectionState::Disconnected).await;
    state.map_or(ConnectionState::Closed, |state| *state)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_silent_broker_is_asked_again_and_not_for_ever() {
        let (silent, corrupt) = (EpError::unavailable("no answer"), EpError::internal("garbled"));
        let up = ConnectionState::Connected(3);
        let moment = Duration::from_secs(1);
        assert!(may_run_again(&silent, up, moment));
        assert!(may_run_again(&silent, ConnectionState::Disconnected, moment));
        assert!(!may_run_again(&silent, up, PATIENCE));
        assert!(!may_run_again(&silent, ConnectionState::Closed, moment));
        assert!(!may_run_again(&corrupt, up, Duration::ZERO));
        for code in EpCode::ALL.into_iter().filter(|code| *code != EpCode::Unavailable) {
            assert!(!may_run_again(&EpError::new(code, "x"), up, Duration::ZERO), "{code}");
        }
    }

    #[test]
    fn a_failure_reads_as_the_contract_says() {
        let text = prune_failure(&EpError::internal("row x is garbled"));
        assert_eq!(text, "native-issuance cleanup failed: row x is garbled");
    }
}
