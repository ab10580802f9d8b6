//! The walk: what was said so far, and the order in which everything is asked.

use cotal_wire::DerivedOwner;

use super::{Check, CheckName, ExplainInputs, Explanation, Verdict, mend::Mend, seen::Keys};

/// Walks every check of the exchange, then of the connect. Stops nowhere, mints nothing, writes nothing.
pub async fn explain(inputs: &ExplainInputs) -> Explanation {
    let mut walk = Walk { inputs, mend: Mend::of(&inputs.space), checks: Vec::new() };
    let keys = Keys::load(inputs).await;
    let owner = walk.all(&keys).await;
    let checks = walk.checks;
    let refuses = checks.iter().find(|check| check.verdict == Verdict::Refused).map(|check| check.check);
    Explanation {
        space: inputs.space.clone(),
        owner,
        actor: inputs.actor.clone(),
        view: inputs.view.clone(),
        ok: refuses.is_none(),
        refuses,
        checks,
    }
}

/// What is to be said of a check in its place.
pub(super) enum Told {
    Ok(String),
    Refused(String, Option<String>),
    NotReached(&'static str),
}

pub(super) struct Walk<'a> {
    pub(super) inputs: &'a ExplainInputs,
    pub(super) mend: Mend<'a>,
    checks: Vec<Check>,
}

// === saying ===================================================================================================

impl Walk<'_> {
    fn say(&mut self, check: CheckName, verdict: Verdict, says: String, mend: Option<String>) {
        let (boundary, contract) = (check.boundary(), check.contract());
        self.checks.push(Check { boundary, check, contract, verdict, says, mend });
    }

    pub(super) fn tell(&mut self, check: CheckName, told: Told) {
        match told {
            Told::Ok(says) => self.ok(check, says),
            Told::Refused(says, mend) => self.refused(check, says, mend),
            Told::NotReached(why) => self.not_reached(check, why),
        }
    }

    pub(super) fn ok(&mut self, check: CheckName, says: impl Into<String>) {
        self.say(check, Verdict::Ok, says.into(), None);
    }

    pub(super) fn refused(&mut self, check: CheckName, says: impl Into<String>, mend: Option<String>) {
        self.say(check, Verdict::Refused, says.into(), mend);
    }

    pub(super) fn not_reached(&mut self, check: CheckName, why: &str) {
        self.say(check, Verdict::NotReached, why.to_owned(), None);
    }

    pub(super) fn remark(&mut self, check: CheckName, says: impl Into<String>) {
        self.say(check, Verdict::Remark, says.into(), None);
    }
}

// === walking ==================================================================================================

impl Walk<'_> {
    /// Every check, in order; the owner, when it is known.
    async fn all(&mut self, keys: &Keys) -> Option<DerivedOwner> {
        self.service().await;
        let connector = self.broker(keys).await;
        self.idp(keys).await;
        let (owner, told) = self.owner(keys);
        let granted = self.row(keys, owner.as_ref(), told).await;
        self.exchange_limits();
        let view = self.view(granted.as_ref());
        let selects = self.manager(owner.as_ref());
        self.session();
        let reader = self.stores(connector.as_ref()).await;
        let root = self.root(reader.as_deref(), granted.as_ref()).await;
        let signs = self.issuer(keys);
        self.connect(granted, view, root, selects, signs, reader.as_deref()).await;
        if let Some(reader) = reader
            && let Err(error) = reader.close().await
        {
            tracing::debug!(%error, "explain: the reader's connection did not close");
        }
        owner
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use cotal_trust::system::{SystemClock, SystemEntropy};
    use cotal_wire::Actor;
    use cotal_workspace::{root::Root, secret_store::FsSecretStore};

    use super::*;
    use crate::explain::Whose;

    /// Where nothing was ever set up, every check is told all the same: once each, in order, and the first refusal has
    /// the command that begins.
    #[tokio::test]
    async fn a_walk_tells_every_check_once_and_in_order_whatever_refuses() {
        let dir = tempfile::tempdir().unwrap();
        let owner = DerivedOwner::parse("u_aaaaaaaaaaaaaaaaaaaaaaaaaa").unwrap();
        for (whose, view) in [
            (Whose::Subject("ada".to_owned()), None),
            (Whose::Owner(owner), Some("channel-writer".to_owned())),
        ] {
            let inputs = ExplainInputs {
                space: cotal_wire::Space::parse("main").unwrap(),
                whose,
                actor: Actor::parse("cli").unwrap(),
                view,
                state_dir: dir.path().join("state"),
                store: Arc::new(FsSecretStore::open(&Root::at(dir.path())).unwrap()),
                servers: None,
                clock: Arc::new(SystemClock),
                entropy: Arc::new(SystemEntropy),
            };
            let explanation = explain(&inputs).await;
            let told: Vec<_> = explanation.checks.iter().map(|check| check.check).collect();
            assert_eq!(told, CheckName::ALL);
            assert!(!explanation.ok);
            assert_eq!(explanation.refuses, Some(CheckName::Service));
            let refusal = explanation.refusal().unwrap();
            assert_eq!(refusal.mend.as_deref(), Some("cotal up --user-auth --space main"));
            assert!(
                explanation
                    .checks
                    .iter()
                    .all(|check| check.mend.is_none() || check.verdict == Verdict::Refused)
            );
        }
        assert!(std::fs::read_dir(dir.path()).unwrap().next().is_none(), "a walk makes nothing");
    }
}
