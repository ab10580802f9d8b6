//! The xkey seal (contract 04 §8.3): `xkv1`, a 24-byte nonce, then an X25519 and XSalsa20-Poly1305 box with its tag
//! in front.

use std::{fmt, sync::Arc};

use cotal_wire::{Curve, Entropy, Nkey};
use crypto_box::{Nonce, PublicKey, SalsaBox, Tag, aead::AeadInPlace};
use parking_lot::RwLock;
use zeroize::Zeroizing;

use crate::nkey::{Seed, public_bytes};

/// A blob that does not open, without a word on why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("sealed payload does not open")]
pub struct XkeyError;

const PREFIX: &[u8; 4] = b"xkv1";
const NONCE_LEN: usize = 24;
const TAG_LEN: usize = 16;
const NONCE_END: usize = PREFIX.len() + NONCE_LEN;
const TAG_END: usize = NONCE_END + TAG_LEN;

/// Opens what `sender` sealed to us.
pub fn open(
    ours: &Seed<Curve>,
    sender: &Nkey<Curve>,
    sealed: &[u8],
) -> Result<Zeroizing<Vec<u8>>, XkeyError> {
    open_with(&shared(ours, sender)?, sealed)
}

/// Seals `plain` to `recipient`.
pub fn seal(
    ours: &Seed<Curve>,
    recipient: &Nkey<Curve>,
    plain: &[u8],
    entropy: &dyn Entropy,
) -> Result<Vec<u8>, XkeyError> {
    seal_with(&shared(ours, recipient)?, plain, entropy)
}

/// How many peers a [`Sealer`] remembers. A peer is a nats-server, so a cluster fits.
const REMEMBERED_PEERS: usize = 64;

/// Our curve key together with the shared secrets of the peers that proved theirs.
///
/// The callout opens and seals every request with the same few server keys; this saves it two X25519 products each.
pub struct Sealer {
    ours: Seed<Curve>,
    /// Oldest first. Only a peer whose blob opened gets in, so that a flood of made-up keys evicts nobody.
    peers: RwLock<Vec<(Nkey<Curve>, Arc<SalsaBox>)>>,
}

impl Sealer {
    /// A sealer of this key that knows no peer yet.
    pub fn new(ours: Seed<Curve>) -> Self {
        Self { ours, peers: RwLock::new(Vec::new()) }
    }

    /// Our public key.
    pub fn public(&self) -> &Nkey<Curve> {
        self.ours.public()
    }

    /// Opens what `sender` sealed to us.
    pub fn open(&self, sender: &Nkey<Curve>, sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>, XkeyError> {
        if let Some(known) = self.known(sender) {
            return open_with(&known, sealed);
        }
        let fresh = Arc::new(shared(&self.ours, sender)?);
        let plain = open_with(&fresh, sealed)?;
        self.remember(sender, fresh);
        Ok(plain)
    }

    /// Seals `plain` to `recipient`.
    pub fn seal(
        &self,
        recipient: &Nkey<Curve>,
        plain: &[u8],
        entropy: &dyn Entropy,
    ) -> Result<Vec<u8>, XkeyError> {
        match self.known(recipient) {
            Some(known) => seal_with(&known, plain, entropy),
            None => seal(&self.ours, recipient, plain, entropy),
        }
    }

    fn known(&self, peer: &Nkey<Curve>) -> Option<Arc<SalsaBox>> {
        self.peers.read().iter().find(|(key, _)| key == peer).map(|(_, shared)| Arc::clone(shared))
    }

    fn remember(&self, peer: &Nkey<Curve>, shared: Arc<SalsaBox>) {
        let mut peers = self.peers.write();
        if peers.iter().any(|(key, _)| key == peer) {
            return;
        }
        if peers.len() >= REMEMBERED_PEERS {
            peers.remove(0);
        }
        peers.push((peer.clone(), shared));
    }
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealer").field("ours", &self.ours).finish_non_exhaustive()
    }
}

fn shared(ours: &Seed<Curve>, peer: &Nkey<Curve>) -> Result<SalsaBox, XkeyError> {
    let peer = PublicKey::from_bytes(public_bytes(peer).map_err(|_| XkeyError)?);
    Ok(SalsaBox::new(&peer, &ours.secret_key()))
}

fn open_with(shared: &SalsaBox, sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>, XkeyError> {
    if sealed.len() < TAG_END || !sealed.starts_with(PREFIX) {
        return Err(XkeyError);
    }
    let nonce = Nonce::from_slice(&sealed[PREFIX.len()..NONCE_END]);
    let tag = Tag::from_slice(&sealed[NONCE_END..TAG_END]);
    let mut plain = Zeroizing::new(sealed[TAG_END..].to_vec());
    shared.decrypt_in_place_detached(nonce, b"", &mut plain, tag).map_err(|_| XkeyError)?;
    Ok(plain)
}

fn seal_with(shared: &SalsaBox, plain: &[u8], entropy: &dyn Entropy) -> Result<Vec<u8>, XkeyError> {
    let mut sealed = Vec::with_capacity(TAG_END + plain.len());
    sealed.extend_from_slice(PREFIX);
    sealed.resize(TAG_END, 0);
    entropy.fill(&mut sealed[PREFIX.len()..NONCE_END]);
    sealed.extend_from_slice(plain);
    let (head, body) = sealed.split_at_mut(TAG_END);
    let nonce = Nonce::from_slice(&head[PREFIX.len()..NONCE_END]);
    let tag = shared.encrypt_in_place_detached(nonce, b"", body).map_err(|_| XkeyError)?;
    head[NONCE_END..].copy_from_slice(&tag);
    Ok(sealed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::SystemEntropy;

    fn pair() -> (Seed<Curve>, Seed<Curve>) {
        (Seed::generate(&SystemEntropy), Seed::generate(&SystemEntropy))
    }

    #[test]
    fn what_is_sealed_opens_and_every_changed_byte_refuses() {
        let (ours, peer) = pair();
        let sealed = seal(&ours, peer.public(), b"hello", &SystemEntropy).unwrap();
        assert_eq!(&**open(&peer, ours.public(), &sealed).unwrap(), b"hello");
        for at in 0..sealed.len() {
            let mut bad = sealed.clone();
            bad[at] ^= 1;
            assert_eq!(open(&peer, ours.public(), &bad).unwrap_err(), XkeyError, "byte {at}");
        }
        for len in 0..sealed.len() {
            assert!(open(&peer, ours.public(), &sealed[..len]).is_err(), "cut at {len}");
        }
        assert!(open(&ours, ours.public(), &sealed).is_err());
    }

    #[test]
    fn an_empty_payload_seals_and_opens() {
        let (ours, peer) = pair();
        let sealed = seal(&ours, peer.public(), b"", &SystemEntropy).unwrap();
        assert_eq!(sealed.len(), TAG_END);
        assert!(open(&peer, ours.public(), &sealed).unwrap().is_empty());
    }

    #[test]
    fn a_sealer_answers_as_the_plain_functions_do() {
        let (ours, peer) = pair();
        let sealer = Sealer::new(ours.clone());
        for round in 0..3 {
            let question = seal(&peer, ours.public(), b"question", &SystemEntropy).unwrap();
            assert_eq!(&**sealer.open(peer.public(), &question).unwrap(), b"question", "round {round}");
            let answer = sealer.seal(peer.public(), b"answer", &SystemEntropy).unwrap();
            assert_eq!(&**open(&peer, ours.public(), &answer).unwrap(), b"answer", "round {round}");
        }
        assert_eq!(sealer.peers.read().len(), 1);
    }

    #[test]
    fn a_sealer_remembers_only_peers_that_proved_their_key_and_not_without_bound() {
        let sealer = Sealer::new(Seed::generate(&SystemEntropy));
        let liar = Seed::<Curve>::generate(&SystemEntropy);
        assert!(sealer.open(liar.public(), &[b"xkv1".as_slice(), &[0; 60]].concat()).is_err());
        assert!(sealer.peers.read().is_empty());
        for _ in 0..REMEMBERED_PEERS + 3 {
            let peer = Seed::<Curve>::generate(&SystemEntropy);
            let sealed = seal(&peer, sealer.public(), b"x", &SystemEntropy).unwrap();
            sealer.open(peer.public(), &sealed).unwrap();
        }
        assert_eq!(sealer.peers.read().len(), REMEMBERED_PEERS);
    }
}
