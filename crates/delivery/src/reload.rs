//! Takes over re-signed credentials (contract 08 §7.4).

use std::{sync::Arc, time::Duration};

use cotal_broker::RenewableCreds;
use cotal_trust::{creds::Creds, mint::Health};
use cotal_wire::{
    Sha256Hex,
    delivery_admin::{Adoption, ExpectedCreds, Reloaded},
};
use tokio::sync::Mutex;

use crate::{
    credentials::{fingerprint, times},
    inputs::CredsKind,
    system::System,
};

/// Pause between two looks at a store that still holds the old generation.
const RETRY: Duration = Duration::from_secs(60);
/// The longest sleep: the wall clock may be set.
const LONGEST_SLEEP: Duration = Duration::from_secs(600);

/// The daemon's own credential, and how it is renewed.
pub(crate) struct Renewal {
    pub(crate) system: Arc<System>,
    pub(crate) own: RenewableCreds,
    /// One reload at a time.
    pub(crate) turn: Mutex<()>,
}

impl Renewal {
    /// Adopts what the store holds. Refused, and nothing changed, when it is not the generation that was expected, or
    /// the broker does not take it.
    pub(crate) async fn reload(&self, expected: &ExpectedCreds) -> Result<Reloaded, String> {
        let _turn = self.turn.lock().await;
        let delivery = self.adopt_own(expected.delivery.as_ref()).await?;
        let membership = match &expected.membership {
            None => Adoption {
                fingerprint: None,
                broker_accepted: false,
                skipped: Some("this daemon runs no membership feed".into()),
            },
            Some(expected) => {
                let (_, fingerprint) = self.candidate(CredsKind::MembershipRw, Some(expected)).await?;
                Adoption {
                    fingerprint: Some(fingerprint),
                    broker_accepted: true,
                    skipped: Some("accepted by the broker; this daemon runs no membership feed".into()),
                }
            }
        };
        Ok(Reloaded { delivery, membership })
    }

    /// Re-reads the store for as long as the daemon lives: at three quarters of the credential's life, and then every
    /// minute until a newer one is there. The renewal's own request makes this a backstop.
    pub(crate) async fn run(&self) {
        loop {
            let Some((iat, exp)) = times(&self.own.current()) else {
                // It never ends.
                return std::future::pending().await;
            };
            let now = self.system.clock.now_secs();
            let due = Health::of_times(iat, exp, now).renew_at.unwrap_or(exp);
            if now < due {
                tokio::time::sleep(Duration::from_secs(due.since(now)).min(LONGEST_SLEEP)).await;
                continue;
            }
            let before = self.own.current().jwt;
            match self.reload(&ExpectedCreds::default()).await {
                Ok(_) if self.own.current().jwt != before => {
                    tracing::info!("the delivery credential was renewed from the store");
                    continue;
                }
                Ok(_) => tracing::warn!(
                    seconds_left = exp.since(now),
                    "the delivery credential is due and the store holds no newer one; run `cotal doctor auth --fix`"
                ),
                Err(why) => tracing::warn!(why, "the delivery credential could not be renewed"),
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    async fn adopt_own(&self, expected: Option<&Sha256Hex>) -> Result<Adoption, String> {
        let stored = self.system.credentials().of_data_account(CredsKind::Delivery).await?;
        let accepted = |fingerprint, skipped| Adoption {
            fingerprint: Some(fingerprint),
            broker_accepted: true,
            skipped,
        };
        let in_use = fingerprint(&self.own.current())?;
        if in_use == fingerprint(&stored)? && expected.is_none_or(|expected| *expected == in_use) {
            return Ok(accepted(in_use, Some("already in use".into())));
        }
        if stored.seed.public() != self.own.user() {
            return Err(
                "the stored delivery.creds is of another user; restart the daemon to change it".into()
            );
        }
        let (creds, fingerprint) = self.candidate(CredsKind::Delivery, expected).await?;
        self.own.renew(&creds).map_err(|error| error.message)?;
        Ok(accepted(fingerprint, None))
    }

    /// A stored credential of the expected generation that the broker takes.
    async fn candidate(
        &self,
        which: CredsKind,
        expected: Option<&Sha256Hex>,
    ) -> Result<(Creds, Sha256Hex), String> {
        let creds = self.system.credentials().of_data_account(which).await?;
        let fingerprint = fingerprint(&creds)?;
        if expected.is_some_and(|expected| *expected != fingerprint) {
            return Err(format!("the stored {} is not of the expected generation", which.as_str()));
        }
        let label = format!("cotal:delivery-preflight:{}", self.system.space);
        let probe = self.system.connector().open_once(label, &creds, None).await;
        let probe = probe.map_err(|error| {
            format!("the broker does not take the stored {}: {}", which.as_str(), error.message)
        })?;
        let _ = probe.close().await;
        Ok((creds, fingerprint))
    }
}
