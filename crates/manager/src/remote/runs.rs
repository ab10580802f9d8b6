//! The runs of a manager (contract 06 §12, 03 §L, §P): each turn at one has keys of its own, whose seeds stay here.
//!
//! That a run may run, and that it ends, are questions of [`super::authority::HostAuthority`]. Here is what lies in between: a
//! driver's attempt, its renewals, and an operator's turn. What a run records of itself is written by whoever executes it,
//! with the credentials of its attempt.

use cotal_broker::RenewableCreds;
use cotal_trust::{creds::Creds, nkey::Seed};
use cotal_wire::{
    UnixSecs, User,
    manager_authority::{
        Answers, Attempt, CredentialName, OperatorTurn, RenewedRun, RenewedTakeover, RunHolder, RunId,
        StandingRole, Takeover, Turn,
    },
    rows::RunStatus,
};

use super::{binding::Issued, error::RemoteError, one_shots::of, participant::Active, results::TurnMaterial};

/// A run that this manager drives: its attempt, and the two credentials of it.
pub struct Driven {
    attempt: Attempt,
    holder: RunHolder,
    driver: RenewableCreds,
    mediator: RenewableCreds,
    ends_at: UnixSecs,
}

/// What an operator's turn is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operated {
    /// The records of this endpoint's runs.
    Records,
    /// One run's journal too.
    Run(RunId),
    /// A step that waits for an answer, or whose answer is amended, as the request on this subject asks for it.
    Answer {
        /// The step.
        answers: Answers,
        /// The `run-answer` request that is served.
        served: String,
    },
}

/// An operator's turn.
pub struct Operating {
    /// Names the durable through which it replays a journal.
    pub takeover: Takeover,
    /// What it does that with.
    pub creds: Creds,
}

impl Driven {
    /// The run, and at which epoch, with which token and under which takeover it is driven.
    pub fn attempt(&self) -> &Attempt {
        &self.attempt
    }

    /// What the run's record names as its holder, and its renewals are held against.
    pub fn holder(&self) -> &RunHolder {
        &self.holder
    }

    /// Appends to the run's journal, and writes its records.
    pub fn driver(&self) -> &RenewableCreds {
        &self.driver
    }

    /// Has the run's effects.
    pub fn mediator(&self) -> &RenewableCreds {
        &self.mediator
    }

    /// When the first of the two ends.
    pub fn ends_at(&self) -> UnixSecs {
        self.ends_at
    }
}

impl Active {
    /// The next attempt at an admitted run: the first one when nothing is `recorded` of it, and otherwise exactly one epoch and
    /// one token on. `served` is the subject of the `run-resume` request that it answers; without one it goes on by itself, as
    /// after a restart.
    pub async fn drive(
        &self,
        run: &RunId,
        recorded: Option<&RunStatus>,
        served: Option<String>,
    ) -> Result<Driven, RemoteError> {
        let entropy = self.authority().entropy();
        let keys: [Seed<User>; 2] = std::array::from_fn(|_| Seed::generate(entropy));
        let (epoch, token) = recorded.map_or((0, 0), |status| (status.epoch, status.fencing_token));
        let attempt = Attempt {
            run_id: run.clone(),
            takeover_id: Takeover::mint(entropy),
            epoch: epoch.saturating_add(1),
            fencing_token: token.saturating_add(1),
            driver_id: keys[0].public().clone(),
            mediator_id: keys[1].public().clone(),
            served,
        };
        let holder = self.holder(&attempt.takeover_id)?;
        let turn = Turn::Attempt(attempt.clone());
        match self.authority().turn_at_run(self.current(), turn).await? {
            TurnMaterial::Attempt { driver, mediator } => {
                let ends_at = driver.exp.min(mediator.exp);
                let [first, second] = keys;
                let driver = RenewableCreds::new(creds(driver, first));
                let mediator = RenewableCreds::new(creds(mediator, second));
                Ok(Driven { attempt, holder, driver, mediator, ends_at })
            }
            TurnMaterial::Operator(_) => Err(other()),
        }
    }

    /// The pair of an attempt again, for the same keys, while the run's record says that this attempt holds it. Both or
    /// neither; a connection that stands is told by its `redial`.
    pub async fn renew_driver(&self, driven: &mut Driven) -> Result<(), RemoteError> {
        let Driven { attempt, holder, driver, mediator, ends_at } = driven;
        let run = RenewedRun {
            run_id: attempt.run_id.clone(),
            holder: holder.clone(),
            takeover_id: RenewedTakeover::parse(attempt.takeover_id.as_str())
                .map_err(|why| RemoteError::State(format!("the attempt's takeover is none: {why}")))?,
            epoch: attempt.epoch,
            fencing_token: attempt.fencing_token,
            driver_id: attempt.driver_id.clone(),
            mediator_id: attempt.mediator_id.clone(),
        };
        let material = self.authority().renew_run(self.current(), run).await?;
        let fresh = [
            of(&material, CredentialName::RunDriver, &driver.current().seed)?,
            of(&material, CredentialName::RunMediator, &mediator.current().seed)?,
        ];
        driver.renew(&fresh[0])?;
        mediator.renew(&fresh[1])?;
        *ends_at = material.expires_at.to_secs();
        Ok(())
    }

    /// An operator's turn of a minute.
    pub async fn operate(&self, what: Operated) -> Result<Operating, RemoteError> {
        let entropy = self.authority().entropy();
        let (seed, takeover) = (Seed::generate(entropy), Takeover::mint(entropy));
        let mut turn = OperatorTurn {
            id: seed.public().clone(),
            takeover_id: takeover.clone(),
            run_id: None,
            answers: None,
            served: None,
        };
        match what {
            Operated::Records => {}
            Operated::Run(run) => turn.run_id = Some(run),
            Operated::Answer { answers, served } => {
                (turn.answers, turn.served) = (Some(answers), Some(served));
            }
        }
        match self.authority().turn_at_run(self.current(), Turn::Operator(turn)).await? {
            TurnMaterial::Operator(issued) => Ok(Operating { takeover, creds: creds(issued, seed) }),
            TurnMaterial::Attempt { .. } => Err(other()),
        }
    }

    /// `<supervisor key>.<takeover>`, by which a record binds a run to this manager (contract 03 §K.2).
    fn holder(&self, takeover: &Takeover) -> Result<RunHolder, RemoteError> {
        let supervisor = self.identity().seed(StandingRole::Supervisor).public();
        RunHolder::parse(&format!("{supervisor}.{takeover}"))
            .map_err(|why| RemoteError::State(format!("the attempt's holder is none: {why}")))
    }
}

fn creds(issued: Issued, seed: Seed<User>) -> Creds {
    Creds { jwt: issued.jwt, seed }
}

/// What the binding of an answer excludes.
fn other() -> RemoteError {
    RemoteError::State("another turn was granted than was asked for".into())
}
