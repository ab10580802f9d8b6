//! A retained agent is still who it was (contract 06 §9). Nothing is written or minted.

use cotal_authority::{
    managed_agents::Alias,
    manager::{Holder, decide_retained},
};
use cotal_ledger::{AGENT_EXCHANGE_REFUSAL, AuthorizedGrant};
use cotal_trust::registration_proof::same;
use cotal_wire::{
    ChannelPattern, EpError, Role, TokenError,
    canonical::raw_digest,
    es_value::EsValue,
    manager_authority::{Kind, RetainedAgentRequest, RetainedAgentResult, RetainedAuthority},
    rows::EndpointGate,
};
use zeroize::Zeroizing;

use super::super::Parts;
use crate::manager::{Answer, observed::decided_at_gate, print};

/// The sentinel, then the token with its envelope, then the incarnation. That the bearer issuer is this space's was
/// checked when the service started, and it signs with no other.
pub(in crate::manager) async fn validate_retained(
    parts: &Parts,
    holder: &Holder,
    request: &EsValue,
) -> Result<Answer, EpError> {
    let request = RetainedAgentRequest::parse(request, holder.kind())?;
    let decide = |gate: Option<&EndpointGate>| decide_retained(parts.host(), holder, &request, gate);
    decided_at_gate(parts, Kind::RetainedAgentValidation, &request.envelope.instance_id, decide).await?;
    let held = raw_digest(request.sentinel_creds.as_bytes());
    if !same(Some(&held), &raw_digest(parts.sentinel_creds.as_bytes())) {
        return Err(EpError::permission_denied("the retained sentinel credentials are not this space's"));
    }
    let grant = authorized(parts, &request).await?;
    if grant.lifecycle_uid != request.target.lifecycle_uid {
        return Err(EpError::conflict("the retained token is of another incarnation than the target"));
    }
    print(&RetainedAgentResult::answer(&request, holder.owner(), authority(grant)?))
}

/// What the token opens. The row is of the target's owner and actor, because it was looked up by them.
async fn authorized(parts: &Parts, request: &RetainedAgentRequest) -> Result<AuthorizedGrant, EpError> {
    // The ledger has rows of people alone: anyone else's agent is as unknown as one without a row.
    let Some(owner) = request.target.owner.as_derived() else {
        return Err(EpError::permission_denied(AGENT_EXCHANGE_REFUSAL));
    };
    let alias = Alias { owner, actor: request.target.actor.clone() };
    parts.agents.authorize(&alias, Zeroizing::new(request.actor_token.clone())).await
}

fn authority(grant: AuthorizedGrant) -> Result<RetainedAuthority, EpError> {
    let garbled = |error: TokenError| {
        tracing::error!(%error, "a managed grant holds what no grant writes");
        EpError::internal("the grant of the retained agent cannot be read; ask the operator of the space")
    };
    Ok(RetainedAuthority {
        owner: grant.owner.into(),
        actor: grant.actor,
        lifecycle_uid: grant.lifecycle_uid,
        scope: grant.scope,
        allow_subscribe: ChannelPattern::parse_all(&grant.allow_subscribe).map_err(garbled)?,
        allow_publish: ChannelPattern::parse_all(&grant.allow_publish).map_err(garbled)?,
        role: grant.role.as_deref().map(Role::parse).transpose().map_err(garbled)?,
        parent: grant.parent,
    })
}
