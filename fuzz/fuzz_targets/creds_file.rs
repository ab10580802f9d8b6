//! Creds text: nothing is read but a user's own JWT and seed, and no refusal repeats them.
//!
//! Marks: `$j` and `$s` one user's JWT and seed, `$k` and `$t` another's, `$a` an account's seed, `$o` an account's JWT.
#![no_main]

use std::sync::LazyLock;

use cotal_fuzz::{Counting, NOW, fill};
use cotal_trust::{
    Zeroizing, creds,
    jwt::{AccountClaims, UserClaims, decode_verified, encode_account, encode_user},
    nkey::Seed,
};
use cotal_wire::{Account, Operator, Permissions, User};
use libfuzzer_sys::fuzz_target;

struct Issued {
    users: [(Seed<User>, Zeroizing<String>, String); 2],
    account: Zeroizing<String>,
    account_jwt: String,
}

static ISSUED: LazyLock<Issued> = LazyLock::new(|| {
    let entropy = Counting::default();
    let (operator, account) = (Seed::<Operator>::generate(&entropy), Seed::<Account>::generate(&entropy));
    let users = [(); 2].map(|()| {
        let seed = Seed::<User>::generate(&entropy);
        let claims = UserClaims {
            name: "u".to_owned(),
            subject: seed.public().clone(),
            issuer_account: account.public().clone(),
            permissions: Permissions::default(),
            tags: Vec::new(),
            exp: None,
        };
        (seed.clone(), seed.expose(), encode_user(&claims, &account, NOW))
    });
    let claims = AccountClaims {
        name: "a".to_owned(),
        subject: account.public().clone(),
        signing_keys: Vec::new(),
        jetstream: false,
        authorization: None,
    };
    Issued { users, account: account.expose(), account_jwt: encode_account(&claims, &operator, NOW) }
});

fuzz_target!(|data: &[u8]| {
    let issued = &*ISSUED;
    let [(_, first_seed, first_jwt), (_, second_seed, second_jwt)] = &issued.users;
    let text = fill(data, |mark| match mark {
        b'j' => Some(first_jwt),
        b's' => Some(first_seed),
        b'k' => Some(second_jwt),
        b't' => Some(second_seed),
        b'a' => Some(&issued.account),
        b'o' => Some(&issued.account_jwt),
        _ => None,
    });
    let Ok(text) = std::str::from_utf8(&text) else { return };
    match creds::parse(text) {
        Ok(parsed) => {
            let known = issued.users.iter().find(|(seed, ..)| seed.public() == parsed.seed.public());
            let (_, seed, jwt) = known.expect("a seed that nobody was given");
            assert_eq!(parsed.jwt, *jwt, "another user's JWT");
            assert_eq!(parsed.seed.expose(), *seed);
            let claims = decode_verified(&parsed.jwt).expect("a JWT that was accepted verifies");
            assert_eq!(claims["sub"], parsed.seed.public().as_str());
            assert!(text.contains(parsed.jwt.as_str()) && text.contains(seed.as_str()));
            assert!(!format!("{parsed:?}").contains(seed.as_str()), "Debug shows a seed");

            let written = creds::format(&parsed);
            let again = creds::parse(&written).expect("what was written reads");
            assert_eq!((&again.jwt, again.seed.public()), (&parsed.jwt, parsed.seed.public()));
            assert_eq!(creds::format(&again), written);
        }
        Err(refusal) => assert!(refusal.0.starts_with("the creds text")),
    }
});
