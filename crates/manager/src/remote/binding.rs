//! How an answer is held against its request (contract 08 §8.3): the host is not trusted.
//!
//! The members of an answer are exactly the closed set, every coordinate equals what was asked, and a credential is what
//! was asked for: a user JWT of the same space account, for the key that was named, under the principal that follows from
//! the manager, ending when its entry says. Whatever else an answer is, nothing of it is used.

use std::str::FromStr;

use cotal_trust::jwt;
use cotal_wire::{
    Account, Nkey, Principal, UnixSecs, User,
    es_value::{EsObject, EsValue},
    manager_authority::{Envelope, Kind, StandingActors, VERSION},
    token::TokenError,
};
use serde::Serialize;
use serde_json::Value;

/// Longest JWT of a credential: the contract lets a connection have one of 16 KiB (contract 02 §9).
const MAX_JWT: usize = 16 * 1024;

/// An answer that is not bound to its request. Names what did not agree, never a value of the answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the host's answer to {kind} is not bound to what was asked ({what}), so nothing of it is used; check that the URL is \
     this space's auth service and that both sides are of one version"
)]
pub struct Unbound {
    kind: &'static str,
    what: String,
}

/// An object of an answer, and where it stands in it.
#[derive(Clone, Copy)]
pub struct Bound<'a> {
    kind: &'static str,
    path: &'static str,
    object: &'a EsObject,
}

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
pub struct Expected<'a> {
    /// The key that the request named.
    pub key: &'a Nkey<User>,
    /// Under which principal it connects.
    pub principal: Principal,
    /// The account of earlier answers; `None` for the first.
    pub account: Option<&'a Nkey<Account>>,
}

impl<'a> Bound<'a> {
    /// The answer itself.
    pub fn answer(kind: Kind, answer: &'a EsValue) -> Result<Self, Unbound> {
        let kind = kind.as_str();
        let object = answer.as_object().ok_or_else(|| Unbound { kind, what: "it is no object".into() })?;
        Ok(Self { kind, path: "answer", object })
    }

    /// A refusal about a member.
    pub fn unbound(&self, member: &str, why: &str) -> Unbound {
        Unbound { kind: self.kind, what: format!("{}.{member} {why}", self.path) }
    }

    /// Exactly these members; of `optional` any.
    pub fn closed(self, members: &[&str], optional: &[&str]) -> Result<Self, Unbound> {
        if self.object.first_unknown(|key| members.contains(&key) || optional.contains(&key)).is_some() {
            return Err(Unbound {
                kind: self.kind,
                what: format!("{} has a member of no meaning here", self.path),
            });
        }
        match members.iter().find(|member| self.object.get(member).is_none()) {
            None => Ok(self),
            Some(missing) => Err(self.unbound(missing, "is missing")),
        }
    }

    /// Whether a member is there.
    pub fn has(&self, member: &str) -> bool {
        self.object.get(member).is_some()
    }

    /// A member.
    pub fn value(&self, member: &str) -> Result<&'a EsValue, Unbound> {
        self.object.get(member).ok_or_else(|| self.unbound(member, "is missing"))
    }

    /// The member's text is that of what was asked: compared as printed JSON, the order of members included.
    pub fn same(&self, member: &str, asked: &impl Serialize) -> Result<(), Unbound> {
        let asked = serde_json::to_vec(asked).ok().and_then(|bytes| EsValue::parse(&bytes).ok());
        let asked = asked.ok_or_else(|| self.unbound(member, "cannot be compared"))?;
        if self.value(member)?.stringify() == asked.stringify() {
            Ok(())
        } else {
            Err(self.unbound(member, "is not what was asked"))
        }
    }

    /// An object member.
    pub fn inner(&self, path: &'static str, member: &str) -> Result<Bound<'a>, Unbound> {
        let object = self.value(member)?.as_object().ok_or_else(|| self.unbound(member, "is no object"))?;
        Ok(Bound { kind: self.kind, path, object })
    }

    /// An array member, and how to read each object of it.
    pub fn each<T>(
        &self,
        path: &'static str,
        member: &str,
        read: impl Fn(Bound<'a>) -> Result<T, Unbound>,
    ) -> Result<Vec<T>, Unbound> {
        let kind = self.kind;
        let items = self.value(member)?.as_array().ok_or_else(|| self.unbound(member, "is no array"))?;
        let of = |item: &'a EsValue| {
            item.as_object()
                .map(|object| Bound { kind, path, object })
                .ok_or_else(|| Unbound { kind, what: format!("{path} is no object") })
        };
        items.iter().map(|item| of(item).and_then(&read)).collect()
    }

    /// A string member.
    pub fn text(&self, member: &str) -> Result<&'a str, Unbound> {
        self.value(member)?.as_text().ok_or_else(|| self.unbound(member, "is no string"))
    }

    /// A string member of a grammar.
    pub fn token<T: FromStr<Err = TokenError>>(&self, member: &str) -> Result<T, Unbound> {
        self.text(member)?.parse().map_err(|error: TokenError| {
            self.unbound(member, &format!("is not a valid {}: {}", error.what, error.rule))
        })
    }

    /// A list of strings, each of a grammar.
    pub fn tokens<T: FromStr<Err = TokenError>>(&self, member: &str) -> Result<Vec<T>, Unbound> {
        self.texts(member)?
            .into_iter()
            .map(|text| text.parse().map_err(|_| self.unbound(member, "has an entry of another grammar")))
            .collect()
    }

    /// A list of strings.
    pub fn texts(&self, member: &str) -> Result<Vec<&'a str>, Unbound> {
        let items = self.value(member)?.as_array();
        let texts = items.and_then(|items| items.iter().map(EsValue::as_text).collect::<Option<Vec<_>>>());
        texts.ok_or_else(|| self.unbound(member, "is no list of strings"))
    }

    /// An integer member from 0 to 2^53 - 1.
    pub fn integer(&self, member: &str) -> Result<u64, Unbound> {
        self.value(member)?
            .as_safe_integer()
            .ok_or_else(|| self.unbound(member, "is no integer from 0 to 2^53 - 1"))
    }

    /// A boolean member.
    pub fn boolean(&self, member: &str) -> Result<bool, Unbound> {
        match self.value(member)? {
            EsValue::Bool(flag) => Ok(*flag),
            _ => Err(self.unbound(member, "is neither true nor false")),
        }
    }

    /// The coordinates that the answers of every kind but two repeat.
    pub fn coordinates(&self, kind: Kind, envelope: &Envelope, lifecycle: &str) -> Result<(), Unbound> {
        self.same("v", &VERSION)?;
        self.same("kind", &kind.as_str())?;
        self.same("space", &envelope.space)?;
        self.same("actor", &envelope.actor)?;
        self.same("instanceId", &envelope.instance_id)?;
        self.same(lifecycle, &envelope.manager_lifecycle_uid)?;
        self.same("requestId", &envelope.request_id)
    }

    /// The actors of the five standing identities, which follow from the instance.
    pub fn actors(&self, envelope: &Envelope) -> Result<(), Unbound> {
        self.same("actors", &StandingActors::of(&envelope.instance_id))
    }

    /// A credential: exactly `{ jwt, exp }`, and the JWT is what was asked for (contract 06 §4.5, 08 §8.3).
    pub fn issued(&self, member: &'static str, expected: &Expected<'_>) -> Result<Issued, Unbound> {
        let entry = self.inner(member, member)?.closed(&["jwt", "exp"], &[])?;
        let exp = entry.integer("exp")?;
        let text = entry.text("jwt")?;
        if text.len() > MAX_JWT {
            return Err(entry.unbound("jwt", "is longer than a credential"));
        }
        let claims =
            jwt::decode_verified(text).map_err(|why| entry.unbound("jwt", &format!("is none: {why}")))?;
        let claim = |name: &str| claims.get(name).and_then(Value::as_str);
        let nats = claims.get("nats").and_then(Value::as_object);
        let of_nats = |name: &str| nats.and_then(|nats| nats.get(name));
        if of_nats("type").and_then(Value::as_str) != Some("user") {
            return Err(entry.unbound("jwt", "is not of a user"));
        }
        if claim("sub") != Some(expected.key.as_str()) {
            return Err(entry.unbound("jwt", "is for another key than the request named"));
        }
        if claims.get("exp").and_then(Value::as_u64) != Some(exp) {
            return Err(entry.unbound("exp", "is not the JWT's own"));
        }
        let iat = claims.get("iat").and_then(Value::as_u64).filter(|iat| *iat < exp);
        let iat = iat.ok_or_else(|| entry.unbound("jwt", "does not end after it was signed"))?;
        let signer = claim("iss").and_then(|iss| Nkey::<Account>::parse(iss).ok());
        let signer = signer.ok_or_else(|| entry.unbound("jwt", "is signed by no account key"))?;
        let account = match of_nats("issuer_account") {
            // The account key itself signed it.
            None => signer,
            Some(account) => account
                .as_str()
                .and_then(|account| Nkey::parse(account).ok())
                .ok_or_else(|| entry.unbound("jwt", "names no account"))?,
        };
        if expected.account.is_some_and(|wanted| *wanted != account) {
            return Err(entry.unbound("jwt", "is of another account than this space's"));
        }
        // A bearer JWT would need no seed: whoever sees it once would have it.
        if of_nats("bearer_token").is_some_and(|flag| *flag != Value::Bool(false)) {
            return Err(entry.unbound("jwt", "asks for no proof of its key"));
        }
        let principal = &expected.principal;
        let tags = [
            format!("owner:{}", principal.owner),
            format!("actor:{}", principal.actor),
            format!("principal:{principal}"),
        ];
        let tagged = of_nats("tags").and_then(Value::as_array).is_some_and(|tagged| {
            tagged.len() == tags.len() && tagged.iter().zip(&tags).all(|(tagged, tag)| tagged == tag.as_str())
        });
        if !tagged {
            return Err(entry.unbound("jwt", "is of another principal"));
        }
        Ok(Issued { jwt: text.to_owned(), exp: UnixSecs(exp), iat: UnixSecs(iat), account })
    }
}
