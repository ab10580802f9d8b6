//! What lies on this disk, and how everything else is asked.

use std::{future::Future, path::Path, time::Duration};

use cotal_ledger::{ActorRow, AuthorizedGrant, Ledger, LedgerError};
use cotal_trust::{
    bundle::DataAccount,
    callout_account::CalloutAuth,
    idp::{IdpPin, Unread, http_client, read_body},
    issuer::IssuerKeySet,
    owner::OwnerSecret,
};
use cotal_wire::{Actor, DerivedOwner, EpError};
use cotal_workspace::{
    file,
    material::{self, Discovery, MaterialError},
};

use super::ExplainInputs;

/// How long the service may take to say that it is well.
const HEALTH_WITHIN: Duration = Duration::from_secs(5);
/// The most that is read of an answer to `/health`.
const HEALTH_MAX: usize = 4096;
/// How long the broker may take for each of the walk's two connections.
const BROKER_WITHIN: Duration = Duration::from_secs(15);

type Loaded<T> = Result<Option<T>, MaterialError>;

/// The space's material, each piece by itself: one that is missing hides no other.
pub(super) struct Keys {
    pub(super) pin: Loaded<IdpPin>,
    pub(super) owner_secret: Loaded<OwnerSecret>,
    pub(super) service: Loaded<DataAccount>,
    pub(super) callout: Loaded<CalloutAuth>,
    pub(super) issuer: Loaded<IssuerKeySet>,
}

impl Keys {
    pub(super) async fn load(ExplainInputs { space, state_dir, store, .. }: &ExplainInputs) -> Self {
        let store = &**store;
        Self {
            pin: material::load_idp_pin(state_dir),
            owner_secret: material::load_owner_secret(store, space).await,
            service: material::load_data_account(store, space).await,
            callout: material::load_callout(store, space).await,
            issuer: material::load_issuer(store, space).await,
        }
    }
}

/// Which arm of the exchange the actor takes: its row's kind says so, a person's where there is none.
pub(super) enum Row {
    Person { row: Option<ActorRow>, grant: Result<AuthorizedGrant, LedgerError> },
    Agent { row: ActorRow, envelope: Result<(), LedgerError>, grant: Result<AuthorizedGrant, LedgerError> },
    UnreadableAgent(LedgerError),
}

impl Row {
    pub(super) fn read(ledger: &Ledger, owner: &DerivedOwner, actor: &Actor) -> Self {
        let interactive = ledger.read_interactive(owner, actor);
        match (interactive, ledger.read_managed(owner, actor)) {
            (Ok(None), Ok(Some(row))) => Self::Agent {
                envelope: ledger.assert_within_spawner_grant(&row, cotal_ledger::Boundary::Exchange),
                grant: ledger.agent_grant(row.clone()),
                row,
            },
            (Ok(None), Err(error)) => Self::UnreadableAgent(error),
            (row, _) => Self::Person { grant: ledger.authorize_grant(owner, actor), row: row.ok().flatten() },
        }
    }
}

/// An exchange would refuse before it signs.
pub(super) struct NoBearer;

/// A grant that an exchange would sign, and what it was read from.
pub(super) struct Granted {
    pub(super) grant: AuthorizedGrant,
    pub(super) row: ActorRow,
    pub(super) agent: bool,
}

// === asking ===================================================================================================

/// A row, as the walk tells it.
pub(super) fn granted(row: &ActorRow) -> String {
    let list = |words: &[String]| words.join(",");
    format!(
        "scope [{}], read [{}], post [{}]",
        list(&row.scope),
        list(&row.allow_subscribe),
        list(&row.allow_publish)
    )
}

/// The URL of the auth service that a state directory names and that answers for this issuer.
pub(super) async fn well(state_dir: &Path, issuer: &str) -> Result<String, String> {
    let discovery = Discovery::load(state_dir).map_err(|error| error.to_string())?;
    let Some(Discovery { url, .. }) = discovery else {
        return Err("no auth service of the space runs here".to_owned());
    };
    match health(&url).await {
        Ok(answer) if answer["ok"] == true && answer["issuer"] == issuer => Ok(url),
        Ok(_) => Err(format!("what answers at {url} is not the auth service of this space")),
        Err(why) => Err(format!("the auth service at {url} does not answer: {why}")),
    }
}

async fn health(url: &str) -> Result<serde_json::Value, String> {
    let client = http_client(HEALTH_WITHIN).map_err(|refusal| refusal.0)?;
    let unreachable = |error: &dyn std::error::Error| {
        // The deepest cause is the one that says what happened; the error itself only repeats the URL.
        let mut cause = error;
        while let Some(deeper) = cause.source() {
            cause = deeper;
        }
        cause.to_string()
    };
    let answer = client.get(format!("{url}/health")).send().await.map_err(|error| unreachable(&error))?;
    if !answer.status().is_success() {
        return Err(format!("it answers {}", answer.status().as_u16()));
    }
    let body = read_body(answer, HEALTH_MAX).await.map_err(|unread| match unread {
        Unread::TooLong => "its answer is too long".to_owned(),
        Unread::Broken(error) => unreachable(&error),
    })?;
    serde_json::from_slice(&body).map_err(|_| "its answer is no JSON".to_owned())
}

/// What a broker that hangs is told as.
pub(super) async fn within<T>(asked: impl Future<Output = Result<T, EpError>>) -> Result<T, EpError> {
    tokio::time::timeout(BROKER_WITHIN, asked).await.unwrap_or_else(|_| {
        Err(EpError::unavailable(format!("no answer within {} s", BROKER_WITHIN.as_secs())))
    })
}

/// Ledger rows are files: each read leaves the async threads.
pub(super) async fn blocking<T: Send + 'static>(
    read: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    file::blocking(read).await.map_err(|error| format!("a ledger read did not end: {error}"))
}
