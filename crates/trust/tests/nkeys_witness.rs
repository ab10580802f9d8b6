//! The `nkeys` crate as an independent witness of seeds, signatures and seals, in both directions.

#![allow(clippy::unwrap_used, reason = "a fixture that cannot be built fails its test")]

use cotal_trust::{nkey::Seed, nkey::SigningRole, system::SystemEntropy, xkey};
use cotal_wire::{Account, Curve, Nkey, Operator, Server, User};
use nkeys::{KeyPair, KeyPairType, XKey};

fn witness<R: SigningRole>(kind: KeyPairType) {
    // ours, read by theirs
    let ours = Seed::<R>::generate(&SystemEntropy);
    let theirs = KeyPair::from_seed(&ours.expose()).unwrap();
    assert_eq!(theirs.public_key(), ours.public().as_str());
    assert_eq!(theirs.sign(b"message").unwrap(), ours.sign(b"message"));
    theirs.verify(b"message", &ours.sign(b"message")).unwrap();

    // theirs, read by ours
    let theirs = KeyPair::new(kind);
    let ours = Seed::<R>::parse(&theirs.seed().unwrap()).unwrap();
    assert_eq!(ours.public().as_str(), theirs.public_key());
    let signature = theirs.sign(b"message").unwrap();
    assert_eq!(cotal_trust::nkey::verify(ours.public(), b"message", &signature), Ok(()));
}

#[test]
fn every_signing_role_agrees_with_the_witness() {
    witness::<Operator>(KeyPairType::Operator);
    witness::<Account>(KeyPairType::Account);
    witness::<User>(KeyPairType::User);
    witness::<Server>(KeyPairType::Server);
}

#[test]
fn seals_open_on_the_other_side_in_both_directions() {
    let ours = Seed::<Curve>::generate(&SystemEntropy);
    let mirror = XKey::from_seed(&ours.expose()).unwrap();
    assert_eq!(mirror.public_key(), ours.public().as_str());

    let theirs = XKey::new();
    let their_public = Nkey::<Curve>::parse(&theirs.public_key()).unwrap();
    let ours_for_them = XKey::from_public_key(ours.public().as_str()).unwrap();
    for plain in [b"".as_slice(), b"a", b"a longer question with some length to it", &[7; 5000]] {
        let sealed = theirs.seal(plain, &ours_for_them).unwrap();
        assert_eq!(&**xkey::open(&ours, &their_public, &sealed).unwrap(), plain);

        let sealed = xkey::seal(&ours, &their_public, plain, &SystemEntropy).unwrap();
        assert_eq!(theirs.open(&sealed, &ours_for_them).unwrap(), plain);
    }
}
