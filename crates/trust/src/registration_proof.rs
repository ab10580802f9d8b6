//! The keyed proof of a manager's current registration (contract 06 §3.2).

use std::fmt;

use cotal_wire::{
    Account, DigestRef, Owner,
    manager_authority::{Envelope, current_registration_message},
};
use hmac::{Hmac, Mac};
use sha2::Sha256;
use subtle::ConstantTimeEq;

use crate::nkey::Seed;

/// The key of the proof: the data account's signing seed, as text.
#[derive(Clone)]
pub struct RegistrationProofKey(Seed<Account>);

impl RegistrationProofKey {
    /// The key that this seed is.
    pub fn new(signing: Seed<Account>) -> Self {
        Self(signing)
    }

    /// The proof of the registration that the gate shows now. Any re-registration, and any new epoch, makes another.
    pub fn prove(
        &self,
        envelope: &Envelope,
        owner: &Owner,
        registration_revision: u64,
        process_epoch: u64,
    ) -> DigestRef {
        let message = current_registration_message(envelope, owner, registration_revision, process_epoch);
        #[allow(clippy::expect_used, reason = "HMAC takes a key of any length")]
        let mut mac = Hmac::<Sha256>::new_from_slice(self.0.expose().as_bytes()).expect("HMAC takes any key");
        mac.update(&message);
        DigestRef::of_sha256(&mac.finalize().into_bytes().into())
    }

    /// Whether the envelope carries that proof; compared in constant time.
    pub fn proves(
        &self,
        envelope: &Envelope,
        owner: &Owner,
        registration_revision: u64,
        process_epoch: u64,
    ) -> bool {
        let wanted = self.prove(envelope, owner, registration_revision, process_epoch);
        same(envelope.registration_proof.as_ref(), &wanted)
    }
}

/// Whether a proof was given and is the wanted one; compared in constant time.
pub fn same(given: Option<&DigestRef>, wanted: &DigestRef) -> bool {
    given.is_some_and(|given| given.as_str().as_bytes().ct_eq(wanted.as_str().as_bytes()).into())
}

impl fmt::Debug for RegistrationProofKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RegistrationProofKey")
    }
}
