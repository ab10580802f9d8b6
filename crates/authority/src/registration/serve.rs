//! Serving: what a registered instance may serve, and what is minted for it (contract 02 §3.6, §7.4; 07 §11.7, §11.8).
//!
//! Nothing of a credential may leave the process before its row is staged and the gate touched at the revision that was
//! looked at. A mint that loses revokes the row that it wrote.
//!
//! Mints of one credential in one second are one row. The one that found it standing leaves it as it is whatever becomes of
//! it; so that the one that wrote it does not take it back from the other, whoever mints for an instance and may fail half way
//! takes its turn ([`AuthorityStores::serve_turn`]) for all of it.
//!
//! A grant never leaves the process that authorized it, so the rebuild of one that came from elsewhere (contract 07 §11.7
//! "trusted rebuild") is not here.

use std::collections::{BTreeMap, BTreeSet};

use cotal_wire::{
    Command, CredentialId, DigestRef, EndpointName, EpError, Owner, Principal, Revision, Space, UnixSecs,
    canonical::raw_digest,
    contract::{ClusterCommand, Descriptor},
    grants::endpoint_serve::ServeSurface,
    rows::{CredentialFamily, CredentialRow, CredentialState, GateCoordinate, SourceMember},
    time::MAX_SAFE_INTEGER,
};

use super::{
    EndpointInstance, NameAuthority, Registry,
    gate::{self, GateAt},
    register::not_authorized,
    spec::{self, SpecSeen},
    surface::Surface,
};
use crate::{
    credential::{Created, create_same, revoke},
    stores::AuthorityStores,
};

/// How often a sibling's issuance re-pins before it gives up.
const SIBLING_ATTEMPTS: usize = 64;
/// Longest credential id of a serve credential.
const MAX_SERVE_CREDENTIAL_ID: usize = 128;

/// Who asks to serve what.
pub struct ServeRequest<'a> {
    /// The instance.
    pub at: &'a EndpointInstance,
    /// The owner on whose behalf.
    pub owner: &'a Owner,
    /// The epoch that its registration committed.
    pub epoch: u64,
    /// The work pools that it owns.
    pub pools: &'a BTreeSet<Command>,
    /// Who may register which name.
    pub names: &'a dyn NameAuthority,
}

/// One command of a grant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServedCommand {
    /// The closure that declares it.
    pub cluster: DigestRef,
    /// As it is declared.
    pub declared: ClusterCommand,
}

/// What an instance may serve, at one coordinate. Only [`authorize_serve_grant`] and the ceremony build one.
#[derive(Debug, Clone, PartialEq)]
pub struct ServeGrant {
    space: Space,
    at: EndpointInstance,
    epoch: u64,
    owner: Owner,
    registration_revision: Revision,
    name_authority_revision: u64,
    surface: BTreeMap<Command, ServedCommand>,
    pools: BTreeSet<Command>,
    descriptor: Descriptor,
}

/// A credential to mint for a serve grant.
#[derive(Debug, Clone)]
pub struct ServeCredential {
    /// The digest of its JWT: see [`credential_id_of`].
    pub id: CredentialId,
    /// Where its authority comes from; `[root]` of a serving host.
    pub source_chain: Vec<SourceMember>,
    /// When its JWT ends.
    pub exp: UnixSecs,
}

/// A credential of an instance's family that won its fence: its bytes may leave the process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReleasedEndpointCredential {
    row: CredentialRow,
    created: Created,
}

/// The credential id of an issued JWT: `sha256-<hex>` of its text. Each renewal is another one.
pub fn credential_id_of(jwt: &str) -> Result<CredentialId, EpError> {
    CredentialId::parse(&format!("sha256-{}", raw_digest(jwt.as_bytes()).hex()))
        .map_err(|_| EpError::internal("a digest is a credential id"))
}

// === deciding =================================================================================================

/// Whether the gate admits a mint for a grant of this coordinate, in the contract's order (07 §11.7 "Mint").
pub(crate) fn admit(
    seen: Option<GateAt>,
    grant: GateCoordinate,
    minting: &Principal,
) -> Result<GateAt, EpError> {
    let expired = |why: &str| Err(EpError::new(cotal_wire::EpCode::Expired, format!("serve mint: {why}")));
    let Some(seen) = seen else { return expired("the instance has no issuance gate") };
    if !seen.gate.is_open() {
        return expired("the instance's issuance gate is not open");
    }
    let now = seen.gate.coordinate();
    if now.process_epoch != grant.process_epoch {
        return expired("a later start has taken over");
    }
    if now.registration_revision != grant.registration_revision {
        return expired("the instance has registered anew");
    }
    if now.name_authority_revision != grant.name_authority_revision {
        return expired("the name authority has moved");
    }
    if seen.gate.principal() != minting {
        return Err(EpError::permission_denied("serve mint: the gate is of another serving principal"));
    }
    Ok(seen)
}

/// After a lost touch: whether the gate merely moved past this mint, and at which revision to try again. `None` when it
/// is not the gate that was first looked at.
pub(crate) fn repin(first: &GateAt, now: Option<&GateAt>) -> Option<Revision> {
    now.filter(|now| now.gate == first.gate && now.gate.is_open()).map(|now| now.revision)
}

// === driving ==================================================================================================

/// Authorizes what an instance may serve, in the order of contract 07 §11.7.
///
/// Refusals: `internal` for an epoch that is no integer of the wire, a garbled contract, a command that stands twice;
/// `failed-precondition` when nothing is registered, an artifact is missing, or pools are named without a journal
/// command; `permission-denied` for another owner or name; `unavailable` when the contract cannot be read; `expired` for
/// an epoch that is not current.
pub async fn authorize_serve_grant(
    registry: &Registry,
    request: &ServeRequest<'_>,
) -> Result<ServeGrant, EpError> {
    authorize(registry, request, None).await
}

/// As [`authorize_serve_grant`], at a gate that was observed already when there is one.
pub(crate) async fn authorize(
    registry: &Registry,
    request: &ServeRequest<'_>,
    observed: Option<GateAt>,
) -> Result<ServeGrant, EpError> {
    let (stores, at) = (registry.stores(), request.at);
    if request.epoch > MAX_SAFE_INTEGER {
        return Err(EpError::internal("serve grant: the epoch is no integer of the wire"));
    }
    let SpecSeen::Registered(spec, registration_revision) = spec::read(stores, at).await? else {
        return Err(EpError::failed_precondition("serve grant: the instance is not registered"));
    };
    if request.owner != spec.owner() {
        return Err(EpError::permission_denied("serve grant: the instance is registered by another owner"));
    }
    let verdict = request.names.authorize(spec.endpoint(), spec.owner()).await?;
    if !verdict.authorized {
        return Err(not_authorized(spec.endpoint()));
    }
    let surface = Surface::read(registry.contracts(), &spec).await;
    let surface = surface.map_err(|unserved| unserved.to_server())?;
    let commands: BTreeMap<_, _> = surface
        .commands()
        .map(|(cluster, declared)| {
            (declared.name.clone(), ServedCommand { cluster: cluster.clone(), declared: declared.clone() })
        })
        .collect();
    if !request.pools.is_empty() && !commands.values().any(|served| served.declared.is_journaled()) {
        return Err(EpError::failed_precondition("serve grant: pools belong to journal commands"));
    }
    let observed = match observed {
        Some(observed) => Some(observed),
        None => gate::observe(stores, at).await?,
    };
    if observed.is_none_or(|seen| seen.gate.coordinate().process_epoch != request.epoch) {
        return Err(EpError::new(
            cotal_wire::EpCode::Expired,
            "serve grant: the epoch is not the instance's current one",
        ));
    }
    Ok(ServeGrant {
        space: stores.space().clone(),
        at: at.clone(),
        epoch: request.epoch,
        owner: request.owner.clone(),
        registration_revision,
        name_authority_revision: verdict.revision,
        surface: commands,
        pools: request.pools.clone(),
        descriptor: surface.descriptor(&spec),
    })
}

/// Mints the serving credential of a grant, for `holder` (contract 07 §11.7 "Mint", in its order).
///
/// Refusals: `permission-denied` for another space, owner or serving principal; `internal` for a credential id longer
/// than 128 characters; `expired` for a gate that is absent, closed or moved; `unavailable` when the touch cannot be
/// proved. A mint that is refused after it wrote its row has revoked it, or says that it could not.
pub async fn mint_serve_credential(
    stores: &AuthorityStores,
    grant: &ServeGrant,
    holder: &Principal,
    credential: ServeCredential,
) -> Result<ReleasedEndpointCredential, EpError> {
    if *stores.space() != grant.space {
        return Err(EpError::permission_denied("serve mint: the grant is of another space"));
    }
    if holder.owner != grant.owner {
        return Err(EpError::permission_denied("serve mint: the grant is of another owner"));
    }
    if credential.id.as_str().len() > MAX_SERVE_CREDENTIAL_ID {
        return Err(EpError::internal("serve mint: a credential id has at most 128 characters"));
    }
    if credential.source_chain.is_empty() || credential.exp.0 > MAX_SAFE_INTEGER {
        return Err(EpError::internal("serve mint: the credential has no source, or no expiry of the wire"));
    }
    let seen = admit(gate::observe(stores, &grant.at).await?, grant.coordinate(), holder)?;
    let row = CredentialRow::served(
        grant.endpoint(),
        &grant.at.instance,
        &credential.id,
        seen.gate.principal(),
        credential.source_chain,
        credential.exp,
    )?;
    let staged = stage(stores, row).await?;
    match gate::touch(stores, &grant.at, seen.revision).await {
        Ok(true) => Ok(staged),
        Ok(false) => {
            Err(lose(stores, &staged, expired("the gate moved while the credential was minted")).await)
        }
        Err(why) => Err(lose(stores, &staged, EpError::unavailable(why.message)).await),
    }
}

/// Issues a credential into the family of an instance, beside its serve credential (contract 02 §3.6, 07 §11.8).
///
/// `observed` is the caller's own look at the gate, and the authority for the row: any change but a touch since then is
/// `expired`. Touches of other mints are waited out, 64 times.
pub async fn issue_sibling(
    stores: &AuthorityStores,
    at: &EndpointInstance,
    observed: &GateAt,
    row: CredentialRow,
) -> Result<ReleasedEndpointCredential, EpError> {
    if !observed.gate.is_open() {
        return Err(expired("the gate was not open when it was looked at"));
    }
    let family = CredentialFamily::Endpoint { endpoint: at.endpoint.name(), instance: at.instance.clone() };
    if row.key().family != family || row.state() != CredentialState::Active {
        return Err(EpError::failed_precondition(
            "sibling issuance: the row is of another family, or not active",
        ));
    }
    let staged = stage(stores, row).await?;
    let mut pin = observed.revision;
    for _ in 0..SIBLING_ATTEMPTS {
        match gate::touch(stores, at, pin).await {
            Ok(true) => return Ok(staged),
            Ok(false) => {}
            Err(why) => return Err(lose(stores, &staged, EpError::unavailable(why.message)).await),
        }
        let now = match gate::observe(stores, at).await {
            Ok(now) => now,
            Err(why) => return Err(lose(stores, &staged, why).await),
        };
        let Some(revision) = repin(observed, now.as_ref()) else {
            return Err(
                lose(stores, &staged, expired("the gate is no longer the one that was looked at")).await
            );
        };
        pin = revision;
    }
    Err(lose(stores, &staged, EpError::unavailable("sibling issuance: the gate kept moving; retry")).await)
}

/// Takes back credentials that were released and whose bytes have not left, because what they were minted for failed. One
/// whose row stood before is another request's, too, and stays. A failed revoke is said in the same refusal.
pub async fn withdraw(
    stores: &AuthorityStores,
    released: &[ReleasedEndpointCredential],
    refusal: EpError,
) -> EpError {
    let mut refusal = refusal;
    for credential in released.iter().rev() {
        refusal = lose(stores, credential, refusal).await;
    }
    refusal
}

/// Stages a row of the family: byte-idempotent, foreign bytes are `conflict`.
async fn stage(stores: &AuthorityStores, row: CredentialRow) -> Result<ReleasedEndpointCredential, EpError> {
    let (key, what) = (row.key().to_string(), "serve mint: credential row");
    let created = create_same(stores.auth_store(), &key, row.to_bytes(), what).await?;
    Ok(ReleasedEndpointCredential { row, created })
}

/// Revokes the row that a mint which lost has written. A failed revoke is said in the same refusal: nothing of the
/// credential has left, and the row stays active until the next registration.
async fn lose(stores: &AuthorityStores, staged: &ReleasedEndpointCredential, refusal: EpError) -> EpError {
    if staged.created == Created::Before {
        return refusal;
    }
    match revoke(stores, staged.row.key()).await {
        Ok(()) => refusal,
        Err(why) => EpError {
            message: format!("{}; and its row could not be revoked: {}", refusal.message, why.message),
            ..refusal
        },
    }
}

fn expired(why: &str) -> EpError {
    EpError::new(cotal_wire::EpCode::Expired, format!("serve mint: {why}"))
}

impl ServeGrant {
    /// The space.
    pub fn space(&self) -> &Space {
        &self.space
    }

    /// The instance.
    pub fn at(&self) -> &EndpointInstance {
        &self.at
    }

    /// The endpoint's dotted name.
    pub fn endpoint(&self) -> &EndpointName {
        &self.descriptor.endpoint
    }

    /// The epoch to serve at.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Who answers for it.
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// The spec's revision.
    pub fn registration_revision(&self) -> Revision {
        self.registration_revision
    }

    /// Every command that it serves, in ascending order.
    pub fn commands(&self) -> impl Iterator<Item = (&Command, &ServedCommand)> {
        self.surface.iter()
    }

    /// What `describe` answers.
    pub fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    /// Only what the cluster of this name declares, or `None` when the instance registered no such cluster.
    #[must_use]
    pub fn of_cluster(mut self, urn: &str) -> Option<Self> {
        self.descriptor
            .clusters
            .retain(|cluster| cluster.document.get("urn").and_then(|it| it.as_str()) == Some(urn));
        let kept: BTreeSet<_> =
            self.descriptor.clusters.iter().map(|cluster| cluster.digest.clone()).collect();
        self.surface.retain(|_, served| kept.contains(&served.cluster));
        (!kept.is_empty()).then_some(self)
    }

    /// What its connection is to be granted.
    pub fn surface(&self) -> ServeSurface {
        let (journaled, answered): (Vec<_>, Vec<_>) =
            self.surface.iter().partition(|(_, served)| served.declared.is_journaled());
        ServeSurface {
            endpoint: self.at.endpoint.clone(),
            instance: self.at.instance.clone(),
            epoch: self.epoch,
            commands: answered.into_iter().map(|(name, _)| name.clone()).collect(),
            journal: !journaled.is_empty(),
            pools: self.pools.clone(),
        }
    }

    /// The coordinate that a gate must still be at. The generation takes no part.
    fn coordinate(&self) -> GateCoordinate {
        GateCoordinate {
            generation: 0,
            process_epoch: self.epoch,
            registration_revision: self.registration_revision.0,
            name_authority_revision: self.name_authority_revision,
        }
    }
}

impl ReleasedEndpointCredential {
    /// The row, as stored.
    pub fn row(&self) -> &CredentialRow {
        &self.row
    }
}

#[cfg(test)]
mod tests {
    use cotal_wire::{EpCode, OpId, rows::EndpointGate};

    use super::*;

    fn principal(actor: &str) -> Principal {
        Principal::parse_key(&format!("local.{actor}")).unwrap()
    }

    fn op() -> OpId {
        OpId::parse(&"f".repeat(26)).unwrap()
    }

    fn registered(revision: u64) -> EndpointGate {
        let frozen = EndpointGate::provisioned(&principal("a")).freeze(&op()).unwrap();
        let successor = frozen.coordinate().registered(Revision(revision), true);
        frozen.reopen(&op(), successor).unwrap()
    }

    fn at(gate: EndpointGate, revision: u64) -> GateAt {
        GateAt { gate, revision: Revision(revision) }
    }

    #[test]
    fn a_mint_is_refused_in_the_contracts_order() {
        let grant = GateCoordinate { generation: 0, ..registered(7).coordinate() };
        let code =
            |seen: Option<GateAt>, grant, who: &str| admit(seen, grant, &principal(who)).unwrap_err().code;
        assert_eq!(code(None, grant, "b"), EpCode::Expired);
        let frozen = registered(7).freeze(&op()).unwrap();
        assert_eq!(code(Some(at(frozen, 1)), grant, "b"), EpCode::Expired);
        for moved in [
            GateCoordinate { process_epoch: 1, ..grant },
            GateCoordinate { registration_revision: 8, ..grant },
            GateCoordinate { name_authority_revision: 1, ..grant },
        ] {
            assert_eq!(code(Some(at(registered(7), 1)), moved, "b"), EpCode::Expired, "before the principal");
        }
        assert_eq!(code(Some(at(registered(7), 1)), grant, "b"), EpCode::PermissionDenied);
        assert_eq!(admit(Some(at(registered(7), 1)), grant, &principal("a")).unwrap().revision, Revision(1));
    }

    #[test]
    fn a_sibling_repins_past_a_touch_and_past_nothing_else() {
        let first = at(registered(7), 10);
        assert_eq!(repin(&first, Some(&at(registered(7), 12))), Some(Revision(12)), "a touch");
        assert_eq!(repin(&first, Some(&at(registered(8), 12))), None);
        assert_eq!(repin(&first, Some(&at(registered(7).freeze(&op()).unwrap(), 12))), None);
        assert_eq!(repin(&first, None), None);
    }

    #[test]
    fn a_credential_id_is_the_digest_of_its_jwt() {
        // printf 'jwt' | sha256sum
        assert_eq!(
            credential_id_of("jwt").unwrap().as_str(),
            "sha256-fc93cb07e1ad92898527100e58a1cf1d1e7f65e9a266a6f87f3c84feb541c7b3"
        );
    }
}
