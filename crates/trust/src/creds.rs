//! Creds files (contract 01 §8).

use cotal_wire::User;
use zeroize::Zeroizing;

use crate::{jwt, nkey::Seed};

/// Creds text that cannot be used; never echoes content.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CredsError(pub &'static str);

/// A user JWT and its seed.
#[derive(Clone)]
pub struct Creds {
    /// The user JWT.
    pub jwt: String,
    /// The user's seed; its public key is the JWT's `sub`.
    pub seed: Seed<User>,
}

impl std::fmt::Debug for Creds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Creds(of {})", self.seed.public())
    }
}

const JWT_BEGIN: &str = "BEGIN NATS USER JWT-----";
const JWT_END: &str = "------END NATS USER JWT";
const SEED_BEGIN: &str = "BEGIN USER NKEY SEED-----";
const SEED_END: &str = "------END USER NKEY SEED";

/// The standard decorated creds text.
pub fn format(creds: &Creds) -> Zeroizing<String> {
    Zeroizing::new(format!(
        "-----{JWT_BEGIN}\n{}\n{JWT_END}------\n\n\
         ************************* IMPORTANT *************************\n\
         The seed below is a secret: whoever holds it is this user.\n\n\
         -----{SEED_BEGIN}\n{}\n{SEED_END}------\n\n\
         *************************************************************\n",
        creds.jwt,
        *creds.seed.expose(),
    ))
}

/// Reads creds text; a JWT `sub` other than the seed's public key refuses.
pub fn parse(text: &str) -> Result<Creds, CredsError> {
    let seed =
        block(text, SEED_BEGIN, SEED_END).ok_or(CredsError("the creds text has no user nkey seed block"))?;
    let jwt = block(text, JWT_BEGIN, JWT_END).ok_or(CredsError("the creds text has no user JWT block"))?;
    let seed =
        Seed::<User>::parse(seed).map_err(|_| CredsError("the creds text holds no usable user nkey seed"))?;
    let claims =
        jwt::decode_verified(jwt).map_err(|_| CredsError("the creds text holds no valid user JWT"))?;
    if claims.get("sub").and_then(serde_json::Value::as_str) != Some(seed.public().as_str()) {
        return Err(CredsError("the creds text's JWT is for another user than its seed"));
    }
    Ok(Creds { jwt: jwt.to_owned(), seed })
}

fn block<'a>(text: &'a str, begin: &str, end: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(begin)?;
    let (body, _) = rest.split_once(end)?;
    // Not the dashes: a signature may end in one.
    Some(body.trim())
}

#[cfg(test)]
mod tests {
    use cotal_wire::{Account, Permissions, UnixSecs};
    use proptest::prelude::*;

    use super::*;
    use crate::{jwt::UserClaims, system::SystemEntropy};

    fn creds() -> Creds {
        let (account, seed) =
            (Seed::<Account>::generate(&SystemEntropy), Seed::<User>::generate(&SystemEntropy));
        let claims = UserClaims {
            name: "agent".to_owned(),
            subject: seed.public().clone(),
            issuer_account: account.public().clone(),
            permissions: Permissions::default(),
            tags: Vec::new(),
            exp: None,
        };
        Creds { jwt: jwt::encode_user(&claims, &account, UnixSecs(1)), seed }
    }

    #[test]
    fn creds_print_and_parse_to_themselves() {
        let creds = creds();
        let back = parse(&format(&creds)).unwrap();
        assert_eq!(back.jwt, creds.jwt);
        assert_eq!(back.seed.public(), creds.seed.public());
        let windows = format(&creds).replace('\n', "\r\n");
        assert_eq!(parse(&windows).unwrap().jwt, creds.jwt);
    }

    #[test]
    fn a_jwt_of_another_user_is_refused() {
        let (one, two) = (creds(), creds());
        let mixed = format(&Creds { jwt: one.jwt, seed: two.seed });
        assert_eq!(parse(&mixed).unwrap_err().0, "the creds text's JWT is for another user than its seed");
    }

    #[test]
    fn a_missing_block_or_a_broken_seed_is_refused_without_an_echo() {
        let text = format(&creds());
        for (cut, why) in [
            (text.replace(SEED_BEGIN, ""), "the creds text has no user nkey seed block"),
            (text.replace(JWT_END, ""), "the creds text has no user JWT block"),
            (text.replace("\nSU", "\nSUA"), "the creds text holds no usable user nkey seed"),
            (text.replace("\ney", "\neyA"), "the creds text holds no valid user JWT"),
        ] {
            assert_eq!(parse(&cut).unwrap_err().0, why);
        }
    }

    #[test]
    fn debug_of_creds_shows_the_public_key_alone() {
        let creds = creds();
        assert_eq!(format!("{creds:?}"), format!("Creds(of {})", creds.seed.public()));
    }

    proptest! {
        #[test]
        fn arbitrary_text_never_panics(text in ".{0,400}") {
            let _ = parse(&text);
            let _ = parse(&format!("-----{JWT_BEGIN}{text}{JWT_END}-----{SEED_BEGIN}{text}{SEED_END}"));
        }
    }
}
