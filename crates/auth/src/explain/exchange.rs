//! The exchange, check by check (contract 05 §4.2-4.7).

use std::sync::Arc;

use cotal_authority::{
    ConnectReader,
    foresight::{Foresight, GateForeseen, HeadForeseen, RootForeseen},
};
use cotal_broker::{Connector, Custody, Servers};
use cotal_ledger::{ActorRow, AuthorizedGrant, Ledger, LedgerError, WIDEN_WITH};
use cotal_trust::{idp::JwksResolver, issuer::issuer_urn};
use cotal_wire::{DerivedOwner, Principal, View};

use super::{
    CheckName, Whose,
    mend::Mend,
    minted_views,
    seen::{Granted, Keys, NoBearer, Row, blocking, granted, well, within},
    walk::{Told, Walk},
};
use crate::{
    bridge::{PinnedIdp, entitled_view},
    context::prove_reachable,
    http::exchange::AGENT_VIEW,
};

/// What every expiry is told in.
const MILLIS_A_DAY: u64 = 24 * 60 * 60 * 1000;

/// What the exchange's own refusals put before the command that mends them. It names no space, for a caller knows of one
/// only: whoever walks a root is shown the command of this space instead.
const BEFORE_A_COMMAND: [&str; 2] = [": ask its operator to run", "; an operator can add it with:"];

const NO_OWNER: &str = "the owner is not known";
const NO_ROW: &str = "no row grants the actor";
const NO_BROKER: &str = "the broker was not reached";
pub(super) const NO_STORES: &str = "the authority stores were not read";
const NO_PIN: &str = "the space has no identity provider";

/// A refusal up to the command that it offers.
fn without_command(mut says: String) -> String {
    if let Some(at) = BEFORE_A_COMMAND.iter().find_map(|before| says.find(before)) {
        says.truncate(at);
    }
    says
}

impl Walk<'_> {
    pub(super) async fn service(&mut self) {
        match well(&self.inputs.state_dir, &issuer_urn(&self.inputs.space)).await {
            Ok(url) => self.ok(CheckName::Service, format!("the auth service answers at {url}")),
            Err(why) => self.refused(CheckName::Service, why, Some(self.mend.up())),
        }
    }

    /// A connector to a broker that takes the callout user.
    pub(super) async fn broker(&mut self, keys: &Keys) -> Option<Connector> {
        let inputs = self.inputs;
        let up = Some(self.mend.up());
        let (service, callout) = match (&keys.service, &keys.callout) {
            (Ok(Some(service)), Ok(Some(callout))) => (service, callout),
            (Err(error), _) | (_, Err(error)) => {
                self.refused(CheckName::Broker, error.to_string(), None);
                return None;
            }
            _ => {
                self.refused(
                    CheckName::Broker,
                    "the space has no service keys or no callout account here",
                    up,
                );
                return None;
            }
        };
        let Some(servers) = &inputs.servers else {
            self.refused(CheckName::Broker, "no broker of the space is known here", up);
            return None;
        };
        let servers = match Servers::parse(servers) {
            Ok(servers) => servers,
            Err(why) => {
                self.refused(CheckName::Broker, format!("the broker's address cannot be dialled: {why}"), up);
                return None;
            }
        };
        let connector = Connector::new(
            servers.as_str(),
            inputs.space.clone(),
            service.clone(),
            Custody::new(),
            Arc::clone(&inputs.clock),
            Arc::clone(&inputs.entropy),
        );
        match within(Box::pin(prove_reachable(&inputs.space, &connector, callout))).await {
            Ok(()) => {
                self.ok(
                    CheckName::Broker,
                    format!("the broker at {servers} answers and takes the callout user"),
                );
                Some(connector)
            }
            Err(error) => {
                self.refused(CheckName::Broker, format!("the broker at {servers}: {}", error.message), up);
                None
            }
        }
    }

    /// The pin, and the keys that it leads to.
    pub(super) async fn idp(&mut self, keys: &Keys) {
        let pin = match &keys.pin {
            Ok(Some(pin)) => pin,
            Ok(None) => {
                self.refused(
                    CheckName::IdpPin,
                    "the space is pinned to no identity provider",
                    Some(self.mend.pin()),
                );
                return self.not_reached(CheckName::IdpKeys, NO_PIN);
            }
            Err(error) => {
                self.refused(CheckName::IdpPin, error.to_string(), None);
                return self.not_reached(CheckName::IdpKeys, NO_PIN);
            }
        };
        match PinnedIdp::check_pin(pin) {
            Ok(()) => self.ok(CheckName::IdpPin, format!("pinned to {}", pin.url)),
            Err(error) => self.refused(CheckName::IdpPin, error.to_string(), Some(self.mend.pin())),
        }
        let probed = match JwksResolver::new(&pin.jwks_uri, Arc::clone(&self.inputs.clock)) {
            Ok(keys) => keys.probe().await,
            Err(refusal) => Err(refusal),
        };
        match probed {
            Ok(()) => self.ok(CheckName::IdpKeys, format!("{} publishes its keys", pin.jwks_uri)),
            Err(refusal) => {
                self.refused(CheckName::IdpKeys, refusal.0, Some(Mend::fetch(&pin.jwks_uri)));
            }
        }
    }

    /// The owner, and what is to be said of it in its place.
    pub(super) fn owner(&self, keys: &Keys) -> (Option<DerivedOwner>, Told) {
        let sub = match &self.inputs.whose {
            Whose::Owner(owner) => {
                return (Some(owner.clone()), Told::Ok(format!("{owner}, as it was given")));
            }
            Whose::Subject(sub) => sub,
        };
        let (pin, secret) = match (&keys.pin, &keys.owner_secret) {
            (Ok(Some(pin)), Ok(Some(secret))) => (pin, secret),
            (_, Err(error)) => return (None, Told::Refused(error.to_string(), None)),
            (_, Ok(None)) => {
                let up = Some(self.mend.up());
                return (None, Told::Refused("the space has no owner secret here".to_owned(), up));
            }
            _ => return (None, Told::NotReached(NO_PIN)),
        };
        match secret.derive(&pin.issuer, sub) {
            Ok(owner) => {
                let says = format!("{owner}, derived from the subject under {}", pin.issuer);
                (Some(owner), Told::Ok(says))
            }
            Err(error) => (None, Told::Refused(error.0.to_owned(), None)),
        }
    }

    /// Proof, owner, row and envelope, in the order of the arm that the row's kind takes: a person's proof says who the
    /// owner is, an agent's is checked against the row.
    pub(super) async fn row(
        &mut self,
        keys: &Keys,
        owner: Option<&DerivedOwner>,
        told: Told,
    ) -> Option<Granted> {
        let Some(owner) = owner else {
            self.person(keys);
            self.tell(CheckName::Owner, told);
            self.not_reached(CheckName::LedgerRow, NO_OWNER);
            self.not_reached(CheckName::DelegationEnvelope, NO_OWNER);
            return None;
        };
        let (ledger, of, actor) =
            (Ledger::at(&self.inputs.state_dir), owner.clone(), self.inputs.actor.clone());
        match blocking(move || Row::read(&ledger, &of, &actor)).await {
            Ok(Row::Person { row, grant }) => {
                self.person(keys);
                self.tell(CheckName::Owner, told);
                self.person_row(owner, row, grant)
            }
            Ok(Row::Agent { row, envelope, grant }) => {
                self.tell(CheckName::Owner, told);
                self.agent_row(row, envelope, grant)
            }
            Ok(Row::UnreadableAgent(error)) => {
                self.tell(CheckName::Owner, told);
                self.refused(CheckName::LedgerRow, error.to_string(), None);
                self.not_reached(CheckName::Proof, NO_ROW);
                self.not_reached(CheckName::DelegationEnvelope, NO_ROW);
                None
            }
            Err(error) => {
                self.not_reached(CheckName::Proof, NO_ROW);
                self.tell(CheckName::Owner, told);
                self.refused(CheckName::LedgerRow, error, None);
                self.not_reached(CheckName::DelegationEnvelope, NO_ROW);
                None
            }
        }
    }

    pub(super) fn person_row(
        &mut self,
        owner: &DerivedOwner,
        row: Option<ActorRow>,
        grant: Result<AuthorizedGrant, LedgerError>,
    ) -> Option<Granted> {
        let actor = &self.inputs.actor;
        let (says, mend) = match (grant, row) {
            (Ok(grant), Some(row)) => {
                self.ok(CheckName::LedgerRow, granted(&row));
                self.ok(CheckName::DelegationEnvelope, "not asked: a person's grant is its operator's word");
                return Some(Granted { grant, row, agent: false });
            }
            (Err(error), Some(row)) => (error.to_string(), self.mend.regrant(&row)),
            (Err(error @ LedgerError::Broken(_)), None) => {
                (error.to_string(), self.mend.replace(owner, actor))
            }
            (Err(error), None) => (without_command(error.to_string()), self.mend.grant(owner, actor)),
            // The row went between two reads.
            (Ok(_), None) => (NO_ROW.to_owned(), self.mend.grant(owner, actor)),
        };
        self.refused(CheckName::LedgerRow, says, Some(mend));
        self.not_reached(CheckName::DelegationEnvelope, NO_ROW);
        None
    }

    pub(super) fn agent_row(
        &mut self,
        row: ActorRow,
        envelope: Result<(), LedgerError>,
        grant: Result<AuthorizedGrant, LedgerError>,
    ) -> Option<Granted> {
        // The grant is the envelope's verdict first, then the row's.
        match (&envelope, &grant) {
            (Ok(()), Err(error)) => self.refused(CheckName::LedgerRow, error.to_string(), None),
            _ => self.ok(CheckName::LedgerRow, granted(&row)),
        }
        self.remark(
            CheckName::Proof,
            "the agent's own secret, whose hash the row holds; any other is answered as an unknown agent",
        );
        match envelope {
            Ok(()) => self.ok(CheckName::DelegationEnvelope, "within the grants of its parents"),
            Err(error) => self.beyond_its_parent(&error),
        }
        Some(Granted { grant: grant.ok()?, row, agent: true })
    }

    pub(super) fn person(&mut self, keys: &Keys) {
        match &keys.pin {
            Ok(Some(pin)) => self.remark(
                CheckName::Proof,
                format!(
                    "the caller's own IdP token, unexpired and for audience {}: `cotal login --idp {}` gets one",
                    pin.audience, pin.url
                ),
            ),
            _ => self.not_reached(CheckName::Proof, NO_PIN),
        }
    }

    /// The refusal names the command that widens the parent, when one does.
    pub(super) fn beyond_its_parent(&mut self, error: &LedgerError) {
        let sentence = error.to_string();
        let widen = sentence.split_once(WIDEN_WITH).map(|(_, command)| self.mend.here(command));
        self.refused(CheckName::DelegationEnvelope, sentence, widen);
    }

    pub(super) fn exchange_limits(&mut self) {
        self.remark(
            CheckName::ExchangeLimits,
            "the running service counts connects in its memory: one of an actor or owner that is over its allowance gets \
             429 and Retry-After",
        );
    }

    /// The view that the bearer would carry.
    pub(super) fn view(&mut self, granted: Option<&Granted>) -> Result<Option<View>, NoBearer> {
        let Some(name) = self.inputs.view.as_deref() else {
            self.ok(CheckName::View, "none: the bearer carries the grant itself");
            return Ok(None);
        };
        let Some(Granted { grant, agent, .. }) = granted else {
            self.not_reached(CheckName::View, NO_ROW);
            return Err(NoBearer);
        };
        if *agent && name != View::ManagerCaller.as_str() {
            self.refused(CheckName::View, AGENT_VIEW, None);
            return Err(NoBearer);
        }
        match entitled_view(name, grant) {
            Ok(view) => {
                let face = if view.is_public() { "" } else { ", on the loopback face only" };
                self.ok(
                    CheckName::View,
                    format!("{view} is covered by scope [{}]{face}", grant.scope.join(",")),
                );
                Ok(Some(view))
            }
            Err(refusal) => {
                let needed = View::from_name(name).and_then(View::required_scope);
                let none = View::from_name(name).is_none_or(|view| view == View::ServiceEndpoint);
                let says = if none {
                    format!("{name:?} is not one that this exchange mints: it mints {}", minted_views())
                } else {
                    without_command(refusal.0)
                };
                let mend = needed.map(|needed| self.mend.widen(grant, needed));
                self.refused(CheckName::View, says, mend);
                Err(NoBearer)
            }
        }
    }

    /// Whether an exchange would go on: no manager is asked for, or one answers.
    pub(super) fn manager(&mut self, owner: Option<&DerivedOwner>) -> bool {
        if self.inputs.view.as_deref() != Some(View::ManagerCaller.as_str()) {
            self.ok(CheckName::ManagerSelection, "not asked: the view is not manager-caller");
            return true;
        }
        let Some(owner) = owner else {
            self.not_reached(CheckName::ManagerSelection, NO_OWNER);
            return false;
        };
        // The running service holds the one scanner that may enumerate them.
        self.remark(
            CheckName::ManagerSelection,
            format!(
                "the running service says which instances {owner} can be bound to: POST /manager-instances"
            ),
        );
        false
    }

    pub(super) fn session(&mut self) {
        if self.inputs.view.as_deref() == Some(View::SessionCaller.as_str()) {
            self.remark(CheckName::Session, "the request's own sessionGrant decides");
        } else {
            self.ok(CheckName::Session, "not asked: the view is not session-caller");
        }
    }

    /// The connect reader, over stores that it has proved.
    pub(super) async fn stores(&mut self, connector: Option<&Connector>) -> Option<Arc<ConnectReader>> {
        let Some(connector) = connector else {
            self.not_reached(CheckName::Stores, NO_BROKER);
            return None;
        };
        match within(Box::pin(ConnectReader::open(connector, Arc::clone(&self.inputs.clock)))).await {
            Ok(reader) => {
                self.ok(CheckName::Stores, "both authority stores have their shape");
                Some(reader)
            }
            Err(error) => {
                self.refused(CheckName::Stores, error.message, Some(self.mend.up()));
                None
            }
        }
    }

    /// Head, gate and root credential; the credential that the bearer would name.
    pub(super) async fn root(
        &mut self,
        reader: Option<&ConnectReader>,
        granted: Option<&Granted>,
    ) -> Option<RootForeseen> {
        let not_reached = |walk: &mut Self, why| {
            for check in [CheckName::LifecycleHead, CheckName::IssuanceGate, CheckName::RootCredential] {
                walk.not_reached(check, why);
            }
        };
        let (Some(Granted { grant, row, agent }), Some(reader)) = (granted, reader) else {
            not_reached(self, if granted.is_none() { NO_ROW } else { NO_STORES });
            return None;
        };
        let principal = Principal::new(&grant.owner, grant.actor.clone());
        let foresight = match within(reader.foresee(&principal, &grant.lifecycle_uid)).await {
            Ok(foresight) => foresight,
            Err(error) => {
                self.refused(CheckName::LifecycleHead, error.message, Some(self.mend.up()));
                self.not_reached(CheckName::IssuanceGate, NO_STORES);
                self.not_reached(CheckName::RootCredential, NO_STORES);
                return None;
            }
        };
        // A managed row is granted by whoever spawned it, and by no command.
        let again = (!agent).then(|| self.mend.regrant(row));
        self.authority(foresight, again)
    }

    pub(super) fn authority(
        &mut self,
        Foresight { head, gate, root }: Foresight,
        again: Option<String>,
    ) -> Option<RootForeseen> {
        match head {
            Ok(HeadForeseen::Active) => self.ok(CheckName::LifecycleHead, "active at the row's incarnation"),
            Ok(HeadForeseen::Virgin) => {
                self.ok(CheckName::LifecycleHead, "never used: the first exchange activates it");
            }
            Ok(HeadForeseen::Free) => {
                self.ok(
                    CheckName::LifecycleHead,
                    "its last incarnation is over: the first exchange activates the next",
                );
            }
            Err(error) => self.refused(CheckName::LifecycleHead, error.message, again.clone()),
        }
        match gate {
            Ok(GateForeseen::Open) => self.ok(CheckName::IssuanceGate, "open"),
            Ok(GateForeseen::Absent) => {
                self.ok(CheckName::IssuanceGate, "none yet: the first exchange makes it");
            }
            Ok(GateForeseen::Activating) => {
                self.ok(
                    CheckName::IssuanceGate,
                    "frozen by an activation that was cut off: the next exchange ends that",
                );
            }
            Ok(GateForeseen::Aside(by)) => self.remark(
                CheckName::IssuanceGate,
                format!("closed by a {by}; the root credential stands, so neither boundary looks at it"),
            ),
            Err(error) => self.refused(CheckName::IssuanceGate, error.message, again.clone()),
        }
        match root {
            None => self.not_reached(
                CheckName::RootCredential,
                "the head or the gate refuses before it is looked at",
            ),
            Some(Ok(RootForeseen::ToBeMade)) => {
                self.ok(CheckName::RootCredential, "none yet: the first exchange makes it");
                return Some(RootForeseen::ToBeMade);
            }
            Some(Ok(RootForeseen::Stands { id, expires_at })) => {
                let days = expires_at.since(self.inputs.clock.now_millis()) / MILLIS_A_DAY;
                self.ok(CheckName::RootCredential, format!("{id} stands, for {days} more days"));
                return Some(RootForeseen::Stands { id, expires_at });
            }
            Some(Err(error)) => self.refused(CheckName::RootCredential, error.message, again),
        }
        None
    }

    /// Whether a bearer can be signed.
    pub(super) fn issuer(&mut self, keys: &Keys) -> bool {
        match &keys.issuer {
            Ok(Some(issuer)) if issuer.issuer() == issuer_urn(&self.inputs.space) => {
                self.ok(
                    CheckName::IssuerKeys,
                    format!("{} signs as {}", issuer.active_kid(), issuer.issuer()),
                );
                return true;
            }
            Ok(Some(issuer)) => self.refused(
                CheckName::IssuerKeys,
                format!("the stored keys are those of {}; restore the space's own", issuer.issuer()),
                None,
            ),
            Ok(None) => {
                self.refused(
                    CheckName::IssuerKeys,
                    "the space has no bearer keys here",
                    Some(self.mend.up()),
                );
            }
            Err(error) => self.refused(CheckName::IssuerKeys, error.to_string(), None),
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use cotal_wire::Actor;

    use super::*;

    #[test]
    fn a_refusal_is_told_without_its_command_which_names_no_space() {
        let tmp = tempfile::tempdir().unwrap();
        let owner = DerivedOwner::parse("u_aaaaaaaaaaaaaaaaaaaaaaaaaa").unwrap();
        let refused =
            Ledger::at(tmp.path()).authorize_grant(&owner, &Actor::parse("cli").unwrap()).unwrap_err();
        assert!(refused.to_string().contains("cotal actor grant"), "{refused}");
        let told = without_command(refused.to_string());
        assert_eq!(told, "u_aaaaaaaaaaaaaaaaaaaaaaaaaa.cli is not granted in this space");
        let view = "view \"admin\" needs scope \"admin\"; an operator can add it with: cotal actor grant cli";
        assert_eq!(without_command(view.to_owned()), "view \"admin\" needs scope \"admin\"");
        assert_eq!(without_command("as it is".to_owned()), "as it is");
    }
}
