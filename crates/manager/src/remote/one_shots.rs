//! Credentials for one thing each: the serving side of a session, and the reader of one transcript (contract 06 §4.3, §4.7).
//! Each is of a key that is made for it, whose seed stays here.

use cotal_trust::{creds::Creds, nkey::Seed};
use cotal_wire::{
    SessionId, UnixSecs, User,
    manager_authority::{CredentialName, ServedSession},
};

use super::{error::RemoteError, participant::Active, results::Material};

impl Active {
    /// The serving side of one session's rail, at the epoch of this incarnation, no longer than the session. The session's row
    /// is written with the standing credential of the session ledger.
    pub async fn session_serving(&self, session: &SessionId, exp: UnixSecs) -> Result<Creds, RemoteError> {
        let seed = Seed::generate(self.authority().entropy());
        let current = self.current();
        let asked = ServedSession {
            id: seed.public().clone(),
            session_id: session.to_string(),
            epoch: current.epoch,
            exp,
        };
        let material = self.authority().session_serving(current, asked).await?;
        of(&material, CredentialName::SessionServing, &seed)
    }

    /// The reader of this instance's transfer store, for one transcript: it makes the store, reads it and clears it.
    pub async fn transfer_reader(&self) -> Result<Creds, RemoteError> {
        let seed = Seed::generate(self.authority().entropy());
        let material = self.authority().transfer_reader(self.current(), seed.public()).await?;
        of(&material, CredentialName::TransferReader, &seed)
    }
}

/// The credential of an answer that was granted to this key.
pub(super) fn of(material: &Material, name: CredentialName, seed: &Seed<User>) -> Result<Creds, RemoteError> {
    let granted = material.creds(name, seed).map(|(creds, _)| creds);
    granted.ok_or_else(|| RemoteError::State(format!("no credential {} came", name.as_str())))
}
