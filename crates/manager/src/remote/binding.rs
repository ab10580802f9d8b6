//! How a credential of an answer is held against its request (contract 08 §8.3): the host is not trusted.
//!
//! That an answer's members are the closed set of its kind, and that every coordinate is the request's, each result of
//! [`cotal_wire::manager_authority`] checks itself. What stands in its JWTs only its keys' holder looks into: a user JWT of
//! the space's account, for the key that was named, under the principal that follows from the manager, ending when its
//! entry says. Whatever else an answer is, nothing of it is used.

use cotal_trust::jwt::{self, principal_tags};
use cotal_wire::{
    Account, Nkey, Principal, UnixSecs, User,
    manager_authority::{IssuedJwt, Unbound},
};
use serde_json::Value;

/// A credential of an answer that is bound.
#[derive(Clone, PartialEq, Eq)]
pub struct Issued {
    /// The user JWT.
    pub jwt: String,
    /// When it ends: of its entry and of the JWT alike.
    pub exp: UnixSecs,
    /// When it was signed, as the JWT says.
    pub iat: UnixSecs,
    /// The account that it is of.
    pub account: Nkey<Account>,
}

/// The JWT is left out: with its seed it is a credential.
impl std::fmt::Debug for Issued {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Issued").field("exp", &self.exp).field("iat", &self.iat).finish_non_exhaustive()
    }
}

/// Whose credential is expected.
#[derive(Debug)]
pub struct Expected<'a> {
    /// The key that the request named.
    pub key: &'a Nkey<User>,
    /// Under which principal it connects.
    pub principal: &'a Principal,
    /// The account of earlier answers; `None` for the first.
    pub account: Option<&'a Nkey<Account>>,
}

/// Binds one credential, named by its member. The refusal repeats nothing of it.
pub fn bind_credential(member: &str, entry: &IssuedJwt, expected: &Expected<'_>) -> Result<Issued, Unbound> {
    let unbound = |why: &str| Unbound(format!("the credential {member} {why}"));
    let claims = jwt::decode_verified(&entry.jwt).map_err(|why| unbound(&format!("is no JWT: {why}")))?;
    let claim = |name: &str| claims.get(name).and_then(Value::as_str);
    let of_nats = |name: &str| claims.get("nats").and_then(|nats| nats.get(name));
    if of_nats("type").and_then(Value::as_str) != Some("user") {
        return Err(unbound("is not of a user"));
    }
    if claim("sub") != Some(expected.key.as_str()) {
        return Err(unbound("is for another key than the request named"));
    }
    if claims.get("exp").and_then(Value::as_u64) != Some(entry.exp.0) {
        return Err(unbound("ends at another time than its entry says"));
    }
    let iat = claims.get("iat").and_then(Value::as_u64).filter(|iat| *iat < entry.exp.0);
    let iat = iat.ok_or_else(|| unbound("does not end after it was signed"))?;
    let signer = claim("iss").and_then(|iss| Nkey::<Account>::parse(iss).ok());
    let signer = signer.ok_or_else(|| unbound("is signed by no account's key"))?;
    let account = match of_nats("issuer_account") {
        // The account's own key signed it.
        None => signer,
        Some(account) => account
            .as_str()
            .and_then(|account| Nkey::parse(account).ok())
            .ok_or_else(|| unbound("names no account"))?,
    };
    if expected.account.is_some_and(|wanted| *wanted != account) {
        return Err(unbound("is of another account than this space's"));
    }
    // A bearer JWT would need no seed: whoever sees it once would have it.
    if of_nats("bearer_token").is_some_and(|flag| *flag != Value::Bool(false)) {
        return Err(unbound("asks for no proof of its key"));
    }
    let wanted = principal_tags(expected.principal);
    let tagged = of_nats("tags").and_then(Value::as_array).is_some_and(|tags| {
        tags.len() == wanted.len() && tags.iter().zip(&wanted).all(|(tag, wanted)| tag == wanted.as_str())
    });
    if !tagged {
        return Err(unbound("is of another principal"));
    }
    Ok(Issued { jwt: entry.jwt.clone(), exp: entry.exp, iat: UnixSecs(iat), account })
}
