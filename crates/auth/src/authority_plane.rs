//! `open_auth_authority_plane`: the authority plane of a space without faces and without a callout, for a host that
//! composes its own service around it (contract 05 §8, 08 §4).

use std::{
    panic::{AssertUnwindSafe, resume_unwind},
    path::{Component, Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use cotal_authority::{NoLocalManager, Plane, PlaneInputs, ReadLocalManager, plane::CLAIM_PATIENCE};
use cotal_broker::{Connector, Custody, Servers, custody::Owned};
use cotal_trust::bundle::DataAccount;
use cotal_wire::{EpError, Space};
use futures::FutureExt as _;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{
    callers::LiveCallers,
    composition::{Chosen, Composition, InteractiveManagerSelection},
    context::{StartError, close_left, rooted_identity},
    hosted::SpaceAt,
    managers::PlaneManagers,
    past_note::PastNote,
};

/// What a plane is opened from.
pub struct OpenAuthAuthorityPlaneOptions {
    at: SpaceAt,
    data_account: DataAccount,
    identity_root: PathBuf,
    composition: Composition,
    claim_patience: Duration,
    local_manager: Arc<dyn ReadLocalManager>,
}

/// An open plane and every connection that it ever opened. Clones are one handle; dropped, the last of them closes the
/// plane without waiting: call [`Self::close`] to know how that went.
#[derive(Clone)]
pub struct AuthAuthorityPlane {
    plane: Arc<Plane>,
    custody: Custody,
    composition: Chosen,
    local_manager: Arc<dyn ReadLocalManager>,
    _released: Arc<DropGuard>,
}

impl OpenAuthAuthorityPlaneOptions {
    /// The options that have no default. `data_account` signs every connection of the plane; `identity_root` is the
    /// directory that keeps who the plane's own endpoint is, never one inside `.cotal/auth`.
    pub fn new(at: SpaceAt, data_account: DataAccount, identity_root: impl AsRef<Path>) -> Self {
        Self {
            at,
            data_account,
            identity_root: identity_root.as_ref().to_owned(),
            composition: Composition::new(),
            claim_patience: CLAIM_PATIENCE,
            local_manager: Arc::new(NoLocalManager),
        }
    }

    /// What the plane is told beyond where it is.
    #[must_use]
    pub fn composition(mut self, composition: Composition) -> Self {
        self.composition = composition;
        self
    }

    /// How long an open asks again when nobody can say whether the plane before it is gone; default 45 s. The delivery
    /// daemon of the space says so, and may start a little later.
    #[must_use]
    pub fn claim_patience(mut self, patience: Duration) -> Self {
        self.claim_patience = patience;
        self
    }

    /// Who says which manager runs on this host, asked at each selection and each connect; by default none does.
    #[must_use]
    pub fn local_manager(mut self, local_manager: Arc<dyn ReadLocalManager>) -> Self {
        self.local_manager = local_manager;
        self
    }

    /// Everything that can be refused without an effect: the composition first, as the plane's open has it.
    fn check(&self) -> Result<(Chosen, Servers), StartError> {
        let refuse = |sentence: String| StartError::Input(sentence);
        let composition = self.composition.check()?;
        let servers = self.at.check_servers()?;
        if self.identity_root.as_os_str().is_empty() {
            return Err(refuse("identityRoot must name the directory of the plane's identity".into()));
        }
        if is_in_auth_dir(&self.identity_root) {
            return Err(refuse(
                "identityRoot must not lie inside .cotal/auth: what lies there goes with a reset of the space's secrets"
                    .into(),
            ));
        }
        Ok((composition, servers))
    }
}

fn is_in_auth_dir(path: &Path) -> bool {
    let names: Vec<_> = path.components().collect();
    names
        .windows(2)
        .any(|pair| pair == [Component::Normal(".cotal".as_ref()), Component::Normal("auth".as_ref())])
}

/// Opens the plane of a space: takes its claim, registers its endpoint, ends what an earlier run had begun, and answers the
/// retirement rail (contract 05 §8.2).
///
/// [`StartError::Plane`] carries a refused claim in its details: another process owns the plane. Everything that was opened
/// is closed again when a step fails, and when the future is dropped before it resolves.
pub async fn open_auth_authority_plane(
    options: OpenAuthAuthorityPlaneOptions,
) -> Result<AuthAuthorityPlane, StartError> {
    let (composition, servers) = options.check()?;
    tokio::spawn(open(options, composition, servers))
        .await
        .unwrap_or_else(|error| Err(StartError::Interrupted(error)))
}

async fn open(
    options: OpenAuthAuthorityPlaneOptions,
    composition: Chosen,
    servers: Servers,
) -> Result<AuthAuthorityPlane, StartError> {
    let OpenAuthAuthorityPlaneOptions {
        at, data_account, identity_root, claim_patience, local_manager, ..
    } = options;
    let SpaceAt { space, clock, entropy, .. } = at;
    let identity = rooted_identity(identity_root.clone(), Arc::clone(&entropy)).await?;
    let custody = Custody::new();
    let connector = Connector::new(
        servers.as_str(),
        space.clone(),
        data_account,
        custody.clone(),
        Arc::clone(&clock),
        Arc::clone(&entropy),
    );
    let past = Some(Arc::new(PastNote::in_dir(&identity_root, &space)) as _);
    let native_issuance_prune = composition.native_issuance_prune;
    let inputs =
        PlaneInputs { connector, clock, entropy, identity, native_issuance_prune, claim_patience, past };
    let opened = AssertUnwindSafe(Plane::open(inputs)).catch_unwind().await;
    if !matches!(opened, Ok(Ok(_))) {
        close_left(&custody, &space).await;
    }
    let plane = opened.unwrap_or_else(|panic| resume_unwind(panic)).map_err(StartError::Plane)?;
    let released = CancellationToken::new();
    tokio::spawn(close_when(space, released.clone(), Arc::clone(&plane), custody.clone()));
    Ok(AuthAuthorityPlane {
        plane,
        custody,
        composition,
        local_manager,
        _released: Arc::new(released.drop_guard()),
    })
}

async fn close_when(space: Space, released: CancellationToken, plane: Arc<Plane>, custody: Custody) {
    released.cancelled().await;
    if let Err(error) = close(&plane, &custody).await {
        tracing::error!(space = %space, %error, "the authority plane did not close");
    }
}

async fn close(plane: &Plane, custody: &Custody) -> Result<(), EpError> {
    plane.close().await?;
    custody.close_remaining().await?;
    custody.complete();
    Ok(())
}

impl AuthAuthorityPlane {
    /// The plane: what mints, retires, activates, takes over, and reads for connects. All of it refuses `unavailable` once
    /// the plane is fenced or closes.
    pub fn plane(&self) -> &Arc<Plane> {
        &self.plane
    }

    /// Redeems sessions over the plane's connect reader: what a bridge asks for the `session-caller` view, and a callout for
    /// that and `manager-caller`.
    pub fn callers(&self) -> LiveCallers {
        LiveCallers::of_plane(Arc::clone(&self.plane), Arc::clone(&self.local_manager))
    }

    /// Selects the manager instance that a `manager-caller` bearer is bound to, as the composition chose.
    pub fn managers(&self) -> PlaneManagers {
        PlaneManagers::new(
            Arc::clone(&self.plane),
            Arc::clone(&self.local_manager),
            self.composition.selection,
        )
    }

    /// Lifetime of the standing renewable credentials, in seconds.
    pub fn standing_renewable_ttl_seconds(&self) -> u64 {
        self.composition.standing_ttl_secs
    }

    /// Which manager an unpinned interactive caller is bound to, when the composition chose.
    pub fn interactive_manager_selection(&self) -> Option<InteractiveManagerSelection> {
        self.composition.selection
    }

    /// Resolves with the reason once the plane is fenced; never otherwise. A fenced plane answers nothing any more: close
    /// it, and open another.
    pub async fn fenced(&self) -> String {
        self.plane.fenced().await
    }

    /// Every connection that the plane ever opened: a detached snapshot.
    pub fn connections(&self) -> Vec<Owned> {
        self.custody.connections()
    }

    /// Resolves with the inventory once a close has completed and every connection has ended.
    pub async fn closed(&self) -> Vec<Owned> {
        self.custody.closed().await
    }

    /// Closes in the contract's order and gives the claim back (contract 05 §8.10). It does not stop when its caller does.
    ///
    /// One that failed may be tried again, and goes on where it failed: a claim that could not be released because the
    /// broker does not answer is still held.
    pub async fn close(&self) -> Result<(), EpError> {
        let (plane, custody) = (Arc::clone(&self.plane), self.custody.clone());
        tokio::spawn(async move { close(&plane, &custody).await })
            .await
            .unwrap_or_else(|_| Err(EpError::internal("the close did not run to its end")))
    }
}

#[cfg(test)]
mod tests {
    use cotal_trust::{nkey::Seed, system::SystemEntropy};

    use super::*;
    use crate::composition::CompositionError;

    fn options(servers: &str, identity_root: &str) -> OpenAuthAuthorityPlaneOptions {
        let signing = Seed::generate(&SystemEntropy);
        let data_account = DataAccount { account: Seed::generate(&SystemEntropy).public().clone(), signing };
        let at = SpaceAt::new(Space::parse("demo").unwrap(), servers);
        OpenAuthAuthorityPlaneOptions::new(at, data_account, identity_root)
    }

    #[test]
    fn the_composition_is_refused_before_where_it_would_be_opened() {
        let text = |options: OpenAuthAuthorityPlaneOptions| options.check().err().unwrap();
        let choices = Composition::new().standing_renewable_ttl_seconds(0);
        let refusal = text(options("", "").composition(choices));
        assert!(matches!(refusal, StartError::Composition(CompositionError::StandingTtl(0))), "{refusal}");
        assert!(text(options("", "")).to_string().contains("servers"));
        assert!(text(options("nats://h", "")).to_string().contains("identityRoot must name"));
    }

    #[test]
    fn an_identity_never_lies_among_the_secrets() {
        for bad in ["/w/.cotal/auth", "/w/.cotal/auth/space.64656d6f", ".cotal/auth/x"] {
            let refusal = options("nats://h", bad).check().err().unwrap().to_string();
            assert!(refusal.contains("must not lie inside .cotal/auth"), "{bad}: {refusal}");
        }
        assert!(options("nats://h", "/w/.cotal/space.64656d6f").check().is_ok());
    }
}
