//! The three credentials that speak for a manager's registration: serve, goal writer, session ledger (contract 06 §4.3).
//!
//! Each is ledgered in the family of the manager's instance before its bytes leave: staged, then released by a touch of the
//! gate at the revision that was looked at. A registration in between fences all three, and a later one revokes what an
//! earlier one was granted. A mint that fails half way takes back what it had already released: nothing of it has left.

use std::collections::BTreeSet;

use cotal_authority::{
    AuthorityStores,
    registration::{
        EndpointInstance, OwnName, Registry, ServeGrant, authorize_serve_grant,
        gate::{self, GateAt},
        issue_sibling, mint_serve_credential,
        serve::{ReleasedEndpointCredential, ServeCredential, ServeRequest, credential_id_of, withdraw},
    },
};
use cotal_trust::mint::CredentialKind;
use cotal_wire::{
    ConnId, EndpointName, EpCode, EpError, Owner, Permissions, Principal, SpaceToken, UnixSecs,
    canonical::contract_digest,
    contract::ClusterDocument,
    es_value::EsValue,
    grants::{endpoint_serve::endpoint_serve, manager},
    manager_authority::{CredentialName, Envelope, IssuedJwt, MANAGER_CLUSTER, StandingRole},
    rows::{CredentialRow, SourceMember},
};
use serde_json::Value;

use super::Issued;
use crate::manager::{Parts, issuing::manager_instance, mint::Minting};

/// What a sibling's credential may do.
type Template = fn(&SpaceToken, &Owner, &ConnId) -> Permissions;

/// A credential that won its fence.
type Released = (IssuedJwt, ReleasedEndpointCredential);

/// How often a credential of the same second is told apart by an earlier end.
const SAME_SECOND: u64 = 3;

/// The duties of one manager, at the gate that was decided on.
pub(super) struct Duties<'a> {
    pub(super) parts: &'a Parts,
    pub(super) minting: &'a Minting<'a>,
    pub(super) owner: &'a Owner,
    pub(super) envelope: &'a Envelope,
    pub(super) seen: GateAt,
}

impl Duties<'_> {
    /// Grants all three, in the contract's order. `artifacts` are those of an activation, whose cluster must be the
    /// registered one; a renewal goes by the registered one alone.
    pub(super) async fn issue(self, artifacts: Option<&[EsValue]>) -> Result<Issued, EpError> {
        let registry = self.parts.issuing().await?.registry();
        let at = manager_instance(&self.envelope.instance_id);
        let grant = self.serve_grant(registry, &at).await?;
        if let Some(artifacts) = artifacts {
            check_registered(&grant, artifacts)?;
        }
        // Two requests of one second are granted the same credentials: what one takes back, the other must not hold.
        let _turn = registry.stores().serve_turn(&at.instance).await;
        let mut released = Vec::new();
        match self.release(registry, &at, &grant, &mut released).await {
            Ok(issued) => Ok(issued),
            Err(refusal) => Err(withdraw(registry.stores(), &released, refusal).await),
        }
    }

    /// What the registered contract lets the instance serve, at the epoch that was decided on.
    async fn serve_grant(&self, registry: &Registry, at: &EndpointInstance) -> Result<ServeGrant, EpError> {
        let names = OwnName { name: EndpointName::manager(), owner: self.owner.clone() };
        let request = ServeRequest {
            at,
            owner: self.owner,
            epoch: self.seen.gate.coordinate().process_epoch,
            pools: &BTreeSet::new(),
            names: &names,
        };
        let grant = authorize_serve_grant(registry, &request).await?.of_cluster(MANAGER_CLUSTER);
        let grant = grant.ok_or_else(|| {
            EpError::failed_precondition(format!(
                "the instance has not registered the cluster {MANAGER_CLUSTER}; register it, then ask again"
            ))
        })?;
        let journaled = grant.commands().find(|(_, served)| served.declared.is_journaled());
        if let Some((command, _)) = journaled {
            return Err(invalid(format!(
                "the command {command} of {MANAGER_CLUSTER} must be ephemeral, as all of a manager's are"
            )));
        }
        Ok(grant)
    }

    async fn release(
        &self,
        registry: &Registry,
        at: &EndpointInstance,
        grant: &ServeGrant,
        released: &mut Vec<ReleasedEndpointCredential>,
    ) -> Result<Issued, EpError> {
        let stores = registry.stores();
        let (serve, row) = self.serve(stores, grant).await?;
        released.push(row);
        let mut issued = vec![(CredentialName::Serve, serve)];

        // The touch above moved the gate's revision; everything else of it must be what was decided on.
        let now = gate::observe(stores, at).await?.filter(|now| now.gate == self.seen.gate);
        let now = now.ok_or_else(|| {
            EpError::new(EpCode::Expired, "the manager registered again while its credentials were minted")
        })?;
        let siblings: [(_, _, Template); 2] = [
            (StandingRole::GoalWriter, CredentialKind::GoalWriter, |space, owner, conn| {
                manager::goal_writer(space, &EndpointName::manager().token(), owner, conn)
            }),
            (StandingRole::SessionLedger, CredentialKind::SessionLedger, |space, _, conn| {
                manager::session_ledger(space, conn)
            }),
        ];
        for (role, kind, template) in siblings {
            let (jwt, row) = self.sibling(stores, at, &now, role, kind, template).await?;
            released.push(row);
            issued.push((CredentialName::of_role(role), jwt));
        }
        Ok(issued)
    }

    async fn serve(&self, stores: &AuthorityStores, grant: &ServeGrant) -> Result<Released, EpError> {
        let mut minted = Err(untried());
        for exp in self.expiries() {
            let (principal, jwt) =
                self.mint(StandingRole::Serve, CredentialKind::EndpointServe, exp, |space, conn| {
                    endpoint_serve(space, conn, &grant.surface())
                })?;
            let (id, source_chain) = (credential_id_of(&jwt.jwt)?, vec![SourceMember::Root]);
            let credential = ServeCredential { id, source_chain, exp };
            minted = mint_serve_credential(stores, grant, &principal, credential).await.map(|row| (jwt, row));
            if !is_taken(&minted) {
                break;
            }
        }
        minted
    }

    async fn sibling(
        &self,
        stores: &AuthorityStores,
        at: &EndpointInstance,
        now: &GateAt,
        role: StandingRole,
        kind: CredentialKind,
        template: Template,
    ) -> Result<Released, EpError> {
        let mut minted = Err(untried());
        for exp in self.expiries() {
            let (principal, jwt) =
                self.mint(role, kind, exp, |space, conn| template(space, self.owner, conn))?;
            let (name, id) = (EndpointName::manager(), credential_id_of(&jwt.jwt)?);
            let row = CredentialRow::endpoint(&name, &at.instance, &id, &principal, exp)?;
            minted = issue_sibling(stores, at, now, row).await.map(|row| (jwt, row));
            if !is_taken(&minted) {
                break;
            }
        }
        minted
    }

    /// When a credential ends: as usual, and a little sooner each time that its row is taken. A JWT says whole seconds alone, so
    /// that the one of a second may be the very one that a registration of the same second has revoked.
    fn expiries(&self) -> impl Iterator<Item = UnixSecs> + use<> {
        let exp = self.minting.standing_expiry();
        (0..=SAME_SECOND).map(move |sooner| UnixSecs(exp.0.saturating_sub(sooner)))
    }

    fn mint(
        &self,
        role: StandingRole,
        kind: CredentialKind,
        exp: UnixSecs,
        template: impl FnOnce(&SpaceToken, &ConnId) -> Permissions,
    ) -> Result<(Principal, IssuedJwt), EpError> {
        let principal = Principal::new(self.owner.clone(), role.actor(&self.envelope.instance_id));
        let key = self.envelope.identities.of(role);
        let grant = template(self.minting.space(), &key.conn_id());
        let jwt = self.minting.mint(kind, key, &principal, grant, exp)?;
        Ok((principal, jwt))
    }
}

fn untried() -> EpError {
    EpError::internal("a credential is minted at least once")
}

/// Whether other bytes stand where the credential's row would: the same credential, and revoked.
fn is_taken(minted: &Result<Released, EpError>) -> bool {
    minted.as_ref().is_err_and(|refusal| refusal.code == EpCode::Conflict)
}

/// An activation serves the contract that was registered. The published host serves the request's own; holding the two
/// together is the stricter reading.
fn check_registered(grant: &ServeGrant, artifacts: &[EsValue]) -> Result<(), EpError> {
    let asked = manager_cluster(artifacts)?;
    let digest = |document: &Value| {
        contract_digest(document).map_err(|why| invalid(format!("cluster {MANAGER_CLUSTER}: {why}")))
    };
    let asked = digest(asked.document())?;
    for registered in &grant.descriptor().clusters {
        if digest(&registered.document)? == asked {
            return Ok(());
        }
    }
    Err(EpError::failed_precondition(format!(
        "the cluster {MANAGER_CLUSTER} of contractArtifacts is not the one that is registered; register it, then activate"
    )))
}

/// The manager's cluster among the artifacts of an activation (contract 06 §4.3).
fn manager_cluster(artifacts: &[EsValue]) -> Result<ClusterDocument, EpError> {
    let named = |artifact: &&EsValue| {
        let urn = artifact.as_object().and_then(|object| object.get("urn"));
        urn.and_then(EsValue::as_text) == Some(MANAGER_CLUSTER)
    };
    let found = artifacts.iter().find(named);
    let found = found.ok_or_else(|| {
        invalid(format!("contractArtifacts: one of them must be the cluster {MANAGER_CLUSTER}"))
    })?;
    let document = serde_json::from_str(&found.stringify())
        .map_err(|_| invalid(format!("cluster {MANAGER_CLUSTER}: it is nested too deep")))?;
    let cluster = ClusterDocument::parse(document)?;
    match cluster.commands().iter().find(|command| command.is_journaled()) {
        None => Ok(cluster),
        Some(command) => {
            Err(invalid(format!("cluster {MANAGER_CLUSTER}: the command {} must be ephemeral", command.name)))
        }
    }
}

fn invalid(message: String) -> EpError {
    EpError::new(EpCode::ContractInvalid, message)
}
