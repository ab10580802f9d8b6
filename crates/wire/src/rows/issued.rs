//! Issued authority: who was issued what, from which sources, and how far the issuance came (contract 03 §H).
//!
//! Evidence, index and accepted rows never change; only the attempt row moves. Every row is canonical JSON, and a row
//! that is not its own canonical form is garbled: its digest would be another one.

use std::fmt;

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::{closed::Closed, issued_permissions::IssuedPermissions};
use crate::{
    canonical,
    endpoint_token::{DigestRef, Generation},
    error::EpError,
    names,
    time::UnixSecs,
    token::{Actor, LifecycleUid, Owner, Principal, Sha256Hex, SpaceToken, TokenError, is_segment},
};

const VERSION: u64 = 1;
/// Longest bucket name of a source.
const MAX_SOURCE_BUCKET: usize = 128;
/// Longest key of a source.
const MAX_SOURCE_KEY: usize = 1024;

/// Names one issued authority: a caller, and the generation that was chosen for this issuance and never again.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct IssuedAuthorityRef {
    /// The space, which must be its own token.
    pub space: SpaceToken,
    /// Owner and actor.
    pub principal: Principal,
    /// The incarnation.
    pub uid: LifecycleUid,
    /// The issuance.
    pub generation: Generation,
}

/// What an issued authority rests on: a coordinate that must still be live.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceRef {
    space: SpaceToken,
    bucket: Box<str>,
    key: Box<str>,
}

/// A source that somebody can attest (contract 03 §H.4).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KnownSource {
    /// The issuance gate of a static incarnation, which any issuer session attests.
    StaticIncarnation(LifecycleUid),
    /// A row of the actor ledger, which the auth service alone attests.
    ActorLedger {
        /// Owner and actor.
        principal: Principal,
        /// The incarnation that the row must name.
        uid: LifecycleUid,
    },
}

/// What was issued.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IssuedEvidence {
    authority: IssuedAuthorityRef,
    sources: Vec<SourceRef>,
    permissions: IssuedPermissions,
    expires_at: Option<UnixSecs>,
}

/// How far an issuance came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AttemptState {
    /// Written, and nothing handed out.
    Prepared,
    /// Handed out.
    Active,
    /// Ended before it was handed out.
    Aborted,
    /// Ended after it was handed out.
    Revoked,
}

/// The one row of an issuance that moves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IssuedAttempt {
    /// How far it came.
    pub state: AttemptState,
    /// Which evidence it is about.
    pub digest: DigestRef,
}

/// An index row: this source led to that issuance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IssuedIndex {
    /// The source.
    pub source: SourceRef,
    /// The issuance.
    pub authority: IssuedAuthorityRef,
}

/// An accepted row: the connection of this token holds that issuance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcceptedRow {
    /// The issuance.
    pub authority: IssuedAuthorityRef,
}

// === impl IssuedAuthorityRef ===

impl IssuedAuthorityRef {
    /// Whether it is another generation of the same caller.
    pub fn is_of(&self, space: &SpaceToken, principal: &Principal, uid: &LifecycleUid) -> bool {
        self.space == *space && self.principal == *principal && self.uid == *uid
    }

    /// The evidence key.
    pub fn evidence_key(&self) -> String {
        names::issued_key(&self.principal, &self.uid, &self.generation)
    }

    /// The attempt key.
    pub fn attempt_key(&self) -> String {
        names::issued_attempt_key(&self.principal, &self.uid, &self.generation)
    }

    /// The key of the index row that leads from this source to the issuance.
    pub fn index_key(&self, source: &SourceRef) -> String {
        names::issued_source_key(&source.digest(), &self.principal, &self.uid, &self.generation)
    }

    pub(super) fn to_value(&self) -> Value {
        json!({
            "space": self.space,
            "owner": self.principal.owner,
            "actor": self.principal.actor,
            "uid": self.uid,
            "generation": self.generation,
        })
    }

    pub(super) fn parse(value: Option<&Value>) -> Result<Self, EpError> {
        let row = Closed::of(
            "issued authority reference",
            value.cloned().unwrap_or_default(),
            &["space", "owner", "actor", "uid", "generation"],
        )?;
        Ok(Self {
            space: row.token("space")?,
            principal: Principal::new(row.token::<Owner>("owner")?, row.token::<Actor>("actor")?),
            uid: row.token("uid")?,
            generation: row.token("generation")?,
        })
    }
}

impl fmt::Display for IssuedAuthorityRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.principal, self.uid, self.generation)
    }
}

// === impl SourceRef ===

impl SourceRef {
    /// A coordinate; refuses a bucket or key outside the grammar.
    pub fn new(space: &SpaceToken, bucket: &str, key: &str) -> Result<Self, TokenError> {
        if bucket.len() > MAX_SOURCE_BUCKET || !is_segment(bucket) {
            return Err(TokenError { what: "source bucket", rule: "1 to 128 of A-Z a-z 0-9 _ -" });
        }
        if key.len() > MAX_SOURCE_KEY || !key.split('.').all(is_segment) {
            return Err(TokenError {
                what: "source key",
                rule: "dot-separated segments of A-Z a-z 0-9 _ -, at most 1024 characters",
            });
        }
        Ok(Self { space: space.clone(), bucket: bucket.into(), key: key.into() })
    }

    /// The source of a user's caller: the row of the actor ledger.
    pub fn actor_ledger(space: &SpaceToken, principal: &Principal, uid: &LifecycleUid) -> Self {
        Self {
            space: space.clone(),
            bucket: names::actor_ledger_label(space).into(),
            key: names::actor_ledger_key(principal, uid).into(),
        }
    }

    /// The source of a static incarnation: its issuance gate.
    pub fn static_incarnation(space: &SpaceToken, uid: &LifecycleUid) -> Self {
        Self {
            space: space.clone(),
            bucket: names::Names::new(space).auth_bucket().into(),
            key: format!("cred.{uid}").into(),
        }
    }

    /// The space.
    pub fn space(&self) -> &SpaceToken {
        &self.space
    }

    /// The bucket, or the label that stands for one.
    pub fn bucket(&self) -> &str {
        &self.bucket
    }

    /// The key.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// What this coordinate means, or `None` for one that nobody attests.
    pub fn known(&self) -> Option<KnownSource> {
        if *self.bucket == names::actor_ledger_label(&self.space) {
            let mut tokens = self.key.strip_prefix("actor.")?.splitn(3, '.');
            let (owner, actor, uid) = (tokens.next()?, tokens.next()?, tokens.next()?);
            let principal = Principal::new(Owner::parse(owner).ok()?, Actor::parse(actor).ok()?);
            return Some(KnownSource::ActorLedger { principal, uid: LifecycleUid::parse(uid).ok()? });
        }
        if *self.bucket == names::Names::new(&self.space).auth_bucket() {
            let uid = self.key.strip_prefix("cred.")?;
            return LifecycleUid::parse(uid).ok().map(KnownSource::StaticIncarnation);
        }
        None
    }

    /// SHA-256 of the compact JSON `[1,space,bucket,key]`.
    pub fn digest(&self) -> Sha256Hex {
        let text = json!([VERSION, self.space, self.bucket, self.key]).to_string();
        Sha256Hex::of_digest(&Sha256::digest(text.as_bytes()).into())
    }

    fn to_value(&self) -> Value {
        json!({ "space": self.space, "bucket": self.bucket, "key": self.key })
    }

    fn parse(value: Option<&Value>) -> Result<Self, EpError> {
        let row =
            Closed::of("issued source", value.cloned().unwrap_or_default(), &["space", "bucket", "key"])?;
        Self::new(&row.token("space")?, row.text("bucket")?, row.text("key")?)
            .map_err(|error| row.garbled(&error.to_string()))
    }
}

impl fmt::Display for SourceRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.bucket, self.key)
    }
}

// === impl IssuedEvidence ===

impl IssuedEvidence {
    /// Evidence to stage. A source of another space, a source twice, and an issuance that neither a source nor a time
    /// bounds are `bad-request`.
    pub fn new(
        authority: IssuedAuthorityRef,
        sources: Vec<SourceRef>,
        permissions: IssuedPermissions,
        expires_at: Option<UnixSecs>,
    ) -> Result<Self, EpError> {
        let evidence = Self { authority, sources, permissions, expires_at };
        match evidence.fault() {
            Some(fault) => Err(EpError::bad_request(format!("issued authority: {fault}"))),
            None => Ok(evidence),
        }
    }

    fn fault(&self) -> Option<&'static str> {
        let sources = &self.sources;
        if sources.iter().any(|source| source.space != self.authority.space) {
            return Some("a source is of another space");
        }
        if sources.iter().enumerate().any(|(at, source)| sources[..at].contains(source)) {
            return Some("a source is named twice");
        }
        if self.expires_at.is_some_and(|at| at.0 == 0) {
            return Some("expiresAt is a positive number of seconds");
        }
        if sources.is_empty() && self.expires_at.is_none() {
            return Some("without a source it must have a time to expire at");
        }
        None
    }

    /// Who was issued.
    pub fn authority(&self) -> &IssuedAuthorityRef {
        &self.authority
    }

    /// What it rests on.
    pub fn sources(&self) -> &[SourceRef] {
        &self.sources
    }

    /// The ceiling.
    pub fn permissions(&self) -> &IssuedPermissions {
        &self.permissions
    }

    /// When it ends by itself, in seconds.
    pub fn expires_at(&self) -> Option<UnixSecs> {
        self.expires_at
    }

    /// Reads evidence, from whatever key; whoever reads compares [`Self::authority`] with what was asked for.
    pub fn parse(bytes: &[u8]) -> Result<Self, EpError> {
        const MEMBERS: [&str; 5] = ["version", "ref", "sources", "permissions", "expiresAt"];
        let row = versioned("issued evidence row", bytes, &MEMBERS)?;
        let sources = row.array("sources")?.iter().map(|source| SourceRef::parse(Some(source)));
        let parsed = Self {
            authority: IssuedAuthorityRef::parse(row.value("ref"))?,
            sources: sources.collect::<Result<_, _>>()?,
            permissions: IssuedPermissions::parse(row.value("permissions").unwrap_or(&Value::Null))?,
            expires_at: row.optional("expiresAt", Closed::positive)?.map(UnixSecs),
        };
        if let Some(fault) = parsed.fault() {
            return Err(row.garbled(fault));
        }
        canonical_or_garbled(&row, &parsed.to_bytes(), bytes)?;
        Ok(parsed)
    }

    /// The exact bytes of this row.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut row = Map::from_iter([
            ("version".to_owned(), VERSION.into()),
            ("ref".to_owned(), self.authority.to_value()),
            ("sources".to_owned(), self.sources.iter().map(SourceRef::to_value).collect()),
            ("permissions".to_owned(), self.permissions.to_value()),
        ]);
        if let Some(at) = self.expires_at {
            row.insert("expiresAt".to_owned(), at.0.into());
        }
        canonical_bytes(&Value::Object(row))
    }

    /// The digest that its attempt names.
    pub fn digest(&self) -> DigestRef {
        canonical::raw_digest(&self.to_bytes())
    }
}

// === impl AttemptState ===

impl AttemptState {
    /// The state's word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Prepared => "prepared",
            Self::Active => "active",
            Self::Aborted => "aborted",
            Self::Revoked => "revoked",
        }
    }

    /// Whether nothing follows it.
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Aborted | Self::Revoked)
    }

    /// What retiring makes of it; a terminal state stays as it is.
    #[must_use]
    pub const fn retired(self) -> Self {
        match self {
            Self::Prepared | Self::Aborted => Self::Aborted,
            Self::Active | Self::Revoked => Self::Revoked,
        }
    }
}

// === impl IssuedAttempt ===

impl IssuedAttempt {
    /// The attempt of freshly staged evidence.
    pub fn prepared(evidence: &IssuedEvidence) -> Self {
        Self { state: AttemptState::Prepared, digest: evidence.digest() }
    }

    /// The same attempt in another state.
    #[must_use]
    pub fn moved_to(&self, state: AttemptState) -> Self {
        Self { state, digest: self.digest.clone() }
    }

    /// Reads an attempt row.
    pub fn parse(bytes: &[u8]) -> Result<Self, EpError> {
        let row = versioned("issued attempt row", bytes, &["version", "state", "digest"])?;
        let state = match row.text("state")? {
            "prepared" => AttemptState::Prepared,
            "active" => AttemptState::Active,
            "aborted" => AttemptState::Aborted,
            "revoked" => AttemptState::Revoked,
            _ => return Err(row.garbled("its state is unknown")),
        };
        let parsed = Self { state, digest: row.token("digest")? };
        canonical_or_garbled(&row, &parsed.to_bytes(), bytes)?;
        Ok(parsed)
    }

    /// The exact bytes of this row.
    pub fn to_bytes(&self) -> Vec<u8> {
        canonical_bytes(&json!({ "version": VERSION, "state": self.state.as_str(), "digest": self.digest }))
    }
}

// === impl IssuedIndex ===

impl IssuedIndex {
    /// Reads the index row stored under `key`, which is the key of exactly this source and issuance.
    pub fn parse(key: &str, bytes: &[u8]) -> Result<Self, EpError> {
        let row = Closed::parse("issued index row", bytes, &["source", "ref"])?;
        let parsed = Self {
            source: SourceRef::parse(row.value("source"))?,
            authority: IssuedAuthorityRef::parse(row.value("ref"))?,
        };
        if parsed.key() != key || parsed.source.space != parsed.authority.space {
            return Err(row.garbled("it names another source or issuance than its key"));
        }
        canonical_or_garbled(&row, &parsed.to_bytes(), bytes)?;
        Ok(parsed)
    }

    /// The exact bytes of this row.
    pub fn to_bytes(&self) -> Vec<u8> {
        canonical_bytes(&json!({ "source": self.source.to_value(), "ref": self.authority.to_value() }))
    }

    /// The key of this row.
    pub fn key(&self) -> String {
        self.authority.index_key(&self.source)
    }
}

// === impl AcceptedRow ===

impl AcceptedRow {
    /// Reads an accepted row.
    pub fn parse(bytes: &[u8]) -> Result<Self, EpError> {
        let row = versioned("accepted row", bytes, &["version", "ref"])?;
        let parsed = Self { authority: IssuedAuthorityRef::parse(row.value("ref"))? };
        canonical_or_garbled(&row, &parsed.to_bytes(), bytes)?;
        Ok(parsed)
    }

    /// The exact bytes of this row.
    pub fn to_bytes(&self) -> Vec<u8> {
        canonical_bytes(&json!({ "version": VERSION, "ref": self.authority.to_value() }))
    }
}

pub(super) fn versioned(what: &'static str, bytes: &[u8], members: &[&str]) -> Result<Closed, EpError> {
    let row = Closed::parse(what, bytes, members)?;
    if row.uint("version")? != VERSION {
        return Err(row.garbled("its version is not 1"));
    }
    Ok(row)
}

pub(super) fn canonical_or_garbled(row: &Closed, printed: &[u8], stored: &[u8]) -> Result<(), EpError> {
    if printed == stored { Ok(()) } else { Err(row.garbled("it is not in its canonical form")) }
}

#[expect(clippy::expect_used, reason = "strings and small integers always have a canonical form")]
pub(super) fn canonical_bytes(row: &Value) -> Vec<u8> {
    canonical::canonical_json(row).expect("a row of strings and integers").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{EpCode, grants::Permissions, grants::Rules};

    const OWNER: &str = "u_aaaaaaaaaaaaaaaaaaaaaaaaaa";

    fn space() -> SpaceToken {
        SpaceToken::parse("main").unwrap()
    }

    fn uid() -> LifecycleUid {
        LifecycleUid::parse("uuuuuuuuuuuuuuuuuuuuuuuuuu").unwrap()
    }

    fn principal() -> Principal {
        Principal::parse_key(&format!("{OWNER}.alice")).unwrap()
    }

    fn authority() -> IssuedAuthorityRef {
        IssuedAuthorityRef {
            space: space(),
            principal: principal(),
            uid: uid(),
            generation: Generation::parse("0123456789abcdef0123456789abcdef").unwrap(),
        }
    }

    fn source() -> SourceRef {
        SourceRef::actor_ledger(&space(), &principal(), &uid())
    }

    fn permissions() -> IssuedPermissions {
        let grants = Permissions {
            publish: Rules { allow: vec!["b".into(), "a.>".into()], deny: vec![] },
            subscribe: Rules { allow: vec!["_INBOX_x.>".into()], deny: vec![] },
        };
        IssuedPermissions::of_grants(&grants).unwrap()
    }

    fn evidence() -> IssuedEvidence {
        IssuedEvidence::new(authority(), vec![source()], permissions(), None).unwrap()
    }

    #[test]
    fn evidence_has_these_canonical_bytes_and_reads_back() {
        let bytes = "{\"permissions\":{\"publish\":{\"allow\":{\"mode\":\"patterns\",\"patterns\":[\"b\",\"a.>\"]},\
             \"deny\":[]},\"subscribe\":{\"allow\":{\"mode\":\"patterns\",\"patterns\":[\"_INBOX_x.>\"]},\"deny\":[]}},\
             \"ref\":{\"actor\":\"alice\",\"generation\":\"0123456789abcdef0123456789abcdef\",\
             \"owner\":\"u_aaaaaaaaaaaaaaaaaaaaaaaaaa\",\"space\":\"main\",\"uid\":\"uuuuuuuuuuuuuuuuuuuuuuuuuu\"},\
             \"sources\":[{\"bucket\":\"cotal_actors_main\",\"key\":\"actor.u_aaaaaaaaaaaaaaaaaaaaaaaaaa.alice.\
             uuuuuuuuuuuuuuuuuuuuuuuuuu\",\"space\":\"main\"}],\"version\":1}";
        assert_eq!(String::from_utf8(evidence().to_bytes()).unwrap(), bytes);
        assert_eq!(IssuedEvidence::parse(bytes.as_bytes()).unwrap(), evidence());
        assert_eq!(evidence().digest(), canonical::raw_digest(bytes.as_bytes()));

        let bounded = IssuedEvidence::new(authority(), vec![], permissions(), Some(UnixSecs(9))).unwrap();
        assert!(String::from_utf8(bounded.to_bytes()).unwrap().starts_with("{\"expiresAt\":9,"));
        assert_eq!(IssuedEvidence::parse(&bounded.to_bytes()).unwrap(), bounded);
    }

    #[test]
    fn evidence_without_a_bound_or_with_foreign_or_double_sources_is_not_staged() {
        let foreign = SourceRef::actor_ledger(&SpaceToken::parse("other").unwrap(), &principal(), &uid());
        for (sources, expires_at) in [
            (vec![], None),
            (vec![foreign], None),
            (vec![source(), source()], None),
            (vec![source()], Some(UnixSecs(0))),
        ] {
            let refusal = IssuedEvidence::new(authority(), sources, permissions(), expires_at).unwrap_err();
            assert_eq!(refusal.code, EpCode::BadRequest);
        }
    }

    #[test]
    fn garbled_evidence_is_refused() {
        let good = String::from_utf8(evidence().to_bytes()).unwrap();
        for bytes in [
            good.replace("\"version\":1", "\"version\":2"),
            good.replace("\"version\":1", "\"version\":1,\"x\":1"),
            good.replace("\"version\":1", "\"version\":1.0"),
            good.replace("\"space\":\"main\",\"uid\"", "\"space\":\"my space\",\"uid\""),
            good.replace("cotal_actors_main", "cotal actors"),
            good.replace("actor.u_", "actor..u_"),
            good.replace("0123456789abcdef0123456789abcdef", "0123456789ABCDEF0123456789abcdef"),
            good.replace("\"ref\"", "\"Ref\""),
            good.replace("{\"permissions\"", "{ \"permissions\""),
            good.replace("\"version\":1", "\"expiresAt\":0,\"version\":1"),
            format!("{good}\n"),
        ] {
            assert_eq!(
                IssuedEvidence::parse(bytes.as_bytes()).unwrap_err().code,
                EpCode::Internal,
                "{bytes}"
            );
        }
        assert_eq!(IssuedEvidence::parse(b"\xff").unwrap_err().code, EpCode::Internal, "strict UTF-8");
    }

    #[test]
    fn an_attempt_ends_once_and_stays_ended() {
        use AttemptState::{Aborted, Active, Prepared, Revoked};
        for (state, retired) in
            [(Prepared, Aborted), (Active, Revoked), (Aborted, Aborted), (Revoked, Revoked)]
        {
            assert_eq!(state.retired(), retired);
            assert!(retired.is_terminal() && retired.retired() == retired);
            assert_eq!(state.is_terminal(), state == retired);
            let row = IssuedAttempt::prepared(&evidence()).moved_to(state);
            assert_eq!(IssuedAttempt::parse(&row.to_bytes()).unwrap(), row);
        }
        let bytes = IssuedAttempt::prepared(&evidence()).to_bytes();
        assert_eq!(
            String::from_utf8(bytes).unwrap(),
            format!("{{\"digest\":\"{}\",\"state\":\"prepared\",\"version\":1}}", evidence().digest())
        );
        for bad in [
            "{}".to_owned(),
            format!("{{\"digest\":\"{}\",\"state\":\"live\",\"version\":1}}", evidence().digest()),
            "{\"digest\":\"sha256:x\",\"state\":\"active\",\"version\":1}".to_owned(),
        ] {
            assert!(IssuedAttempt::parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn keys_and_source_digests_are_the_contracts() {
        let tail = format!("{OWNER}.alice.{}.0123456789abcdef0123456789abcdef", uid());
        assert_eq!(authority().evidence_key(), format!("v1.{tail}"));
        assert_eq!(authority().attempt_key(), format!("attempt.v1.{tail}"));
        // printf '[1,"main","cotal_actors_main","actor.u_aaaaaaaaaaaaaaaaaaaaaaaaaa.alice.uuuuuuuuuuuuuuuuuuuuuuuuuu"]' | sha256sum
        let hex = "55a7bdc659d6cfdb390a1bd5339caaac793e0a929864c3f61989e9b319c6df28";
        assert_eq!(source().digest().as_str(), hex);
        assert_eq!(authority().index_key(&source()), format!("bysource.v1.{hex}.{tail}"));
        // printf '[1,"main","cotal_auth_main","cred.uuuuuuuuuuuuuuuuuuuuuuuuuu"]' | sha256sum
        let hex = "2b9917511bb621bf58b1f577510ea47c11672a28e247d970b4d6cff95891bef9";
        assert_eq!(SourceRef::static_incarnation(&space(), &uid()).digest().as_str(), hex);
    }

    #[test]
    fn an_index_row_agrees_with_its_key() {
        let row = IssuedIndex { source: source(), authority: authority() };
        assert_eq!(IssuedIndex::parse(&row.key(), &row.to_bytes()).unwrap(), row);
        let other = SourceRef::static_incarnation(&space(), &uid());
        assert!(IssuedIndex::parse(&authority().index_key(&other), &row.to_bytes()).is_err());
        assert!(IssuedIndex::parse("bysource.v1.x", &row.to_bytes()).is_err());
        let foreign = SourceRef::actor_ledger(&SpaceToken::parse("other").unwrap(), &principal(), &uid());
        let torn = IssuedIndex { source: foreign, authority: authority() };
        assert!(IssuedIndex::parse(&torn.key(), &torn.to_bytes()).is_err());
    }

    #[test]
    fn an_accepted_row_has_these_bytes_and_reads_back() {
        let row = AcceptedRow { authority: authority() };
        let bytes = String::from_utf8(row.to_bytes()).unwrap();
        assert!(
            bytes.starts_with("{\"ref\":{\"actor\":\"alice\",") && bytes.ends_with("},\"version\":1}"),
            "{bytes}"
        );
        assert_eq!(AcceptedRow::parse(bytes.as_bytes()).unwrap(), row);
        assert!(AcceptedRow::parse(bytes.replace("\"version\":1", "\"version\":2").as_bytes()).is_err());
    }

    #[test]
    fn two_coordinates_are_known_and_every_other_is_not() {
        assert_eq!(source().known(), Some(KnownSource::ActorLedger { principal: principal(), uid: uid() }));
        assert_eq!(
            SourceRef::static_incarnation(&space(), &uid()).known(),
            Some(KnownSource::StaticIncarnation(uid()))
        );
        for (bucket, key) in [
            ("cotal_actors_main", format!("actor.{OWNER}.alice")),
            ("cotal_actors_main", format!("actor.{OWNER}.alice.{}.x", uid())),
            ("cotal_actors_main", format!("actor.mallory.alice.{}", uid())),
            ("cotal_actors_main", format!("cred.{}", uid())),
            ("cotal_actors_other", format!("actor.{OWNER}.alice.{}", uid())),
            ("cotal_auth_main", format!("gate.{}", uid())),
            ("cotal_auth_main", format!("cred.{}.c1", uid())),
            ("cotal_auth_main", "cred.short".to_owned()),
            ("cotal_auth_other", format!("cred.{}", uid())),
        ] {
            assert_eq!(SourceRef::new(&space(), bucket, &key).unwrap().known(), None, "{bucket} {key}");
        }
    }

    #[test]
    fn a_source_is_bounded() {
        let new = |bucket: &str, key: &str| SourceRef::new(&space(), bucket, key).is_ok();
        assert!(new(&"b".repeat(128), &"k".repeat(1024)) && new("b", "a.b-c_D9"));
        for (bucket, key) in [
            ("", "k"),
            ("b.c", "k"),
            ("b", ""),
            ("b", "a..b"),
            ("b", "a/b"),
            ("b", "a.*"),
            (&*"b".repeat(129), "k"),
            ("b", &*"k".repeat(1025)),
        ] {
            assert!(!new(bucket, key), "{bucket:?} {key:?}");
        }
    }
}
