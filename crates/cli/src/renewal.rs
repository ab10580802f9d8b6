//! Renewing the delivery daemon's two credentials of the data account (contract 08 §7.4): whose it is to do, what is
//! signed, how it is proved before it replaces anything, and how the daemon takes it over.
//!
//! Two things make a process the owner: the daemon reads the very store that it would write, and it holds the space's
//! renewal lease. Without a broker there is nobody to ask; then a candidate replaces only what the same key had signed.

use std::sync::Arc;

use cotal_authority::delivery_admin::DeliveryAdmin;
use cotal_broker::{Connection, Connector, connector::Lifetime, kv::Bucket};
use cotal_trust::{
    bundle::DataAccount,
    creds,
    mint::{self, CredentialKind, MintedUser, SignedBy, StaticHolder},
    nkey::Seed,
};
use cotal_wire::{
    Account, Clock, ConnId, EpError, InfraRole, Names, Nkey, Sha256Hex, Space, User,
    delivery_admin::{self, Adoption, ExpectedCreds, Reloaded, StoreAnswer},
    grants::{ConnectPrincipal, delivery, operator},
};
use cotal_workspace::{
    daemon_creds::DaemonCred,
    file,
    printed::at,
    root::{Root, space_key},
    secret_store::{SecretStore, StoreIdentity},
};
use serde::Serialize;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::{
    context::Context,
    cred_health::{CredState, look},
    delivery::wire_identity,
    delivery_lease,
    outcome::CliError,
    renewal_lease::{NotTaken, RenewalLease},
    space_broker::{self, ONE_SHOT_SECS},
    terminal::printable,
};

/// The credentials that a renewal signs.
pub const RENEWED: [DaemonCred; 2] = [DaemonCred::Delivery, DaemonCred::MembershipRw];

/// What a renewal works on.
pub struct Renewal {
    /// The root.
    pub root: Root,
    /// The space.
    pub space: Space,
    /// Where the credentials lie.
    pub store: Arc<dyn SecretStore>,
    /// The account that signs them.
    pub data: DataAccount,
    /// The way to the broker, where one is known, and its URL.
    pub broker: Option<(Connector, String)>,
    /// Whether a broker that is not there may be done without.
    pub may_be_offline: bool,
    /// The clock.
    pub clock: Arc<dyn Clock>,
}

/// Which of them are signed anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// Those that are due.
    Due,
    /// Each: a timer that runs a quarter of their life cannot miss one.
    Every,
}

/// What a pass came to.
#[derive(Debug, Serialize)]
pub struct Pass {
    /// Whether a broker was there to ask.
    pub online: bool,
    /// Who did it.
    pub owner: String,
    /// Each credential.
    pub results: Vec<FileResult>,
    /// What the daemon took over; absent when none was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adoption: Option<Value>,
}

/// What became of one credential.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FileResult {
    /// Its name.
    pub file: &'static str,
    /// Whether it holds now.
    pub ok: bool,
    /// Why nothing was done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped: Option<&'static str>,
    /// Why it is as it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// SHA-256 of its user JWT, for the daemon alone: never written down.
    #[serde(skip)]
    pub fingerprint: Option<Sha256Hex>,
}

/// The owner of a pass, and its way to the broker.
enum Standing {
    Online { connection: Connection, lease: RenewalLease, connector: Connector, daemon: bool },
    Offline,
}

/// The key pair that signs a space's users: the account, and the key of it.
pub fn signer_of(data: &DataAccount) -> (Nkey<Account>, Nkey<Account>) {
    (data.account.clone(), data.signing.public().clone())
}

/// Signs a credential of the data account: for the nkey that it has, or a fresh one where there is none to keep.
pub fn mint(
    ctx: &Context,
    space: &Space,
    data: &DataAccount,
    cred: DaemonCred,
    current: Option<&str>,
) -> Result<MintedUser, CliError> {
    let seed = current.and_then(|text| creds::parse(text).ok()).map(|creds| creds.seed);
    let seed = seed.unwrap_or_else(|| Seed::generate(&*ctx.entropy));
    sign(space, data, cred, seed, &*ctx.clock)
}

fn sign(
    space: &Space,
    data: &DataAccount,
    cred: DaemonCred,
    seed: Seed<User>,
    clock: &dyn Clock,
) -> Result<MintedUser, CliError> {
    let token = space.token();
    let kind = match cred {
        DaemonCred::Delivery => CredentialKind::Delivery,
        DaemonCred::MembershipRw => CredentialKind::MembershipRw,
        DaemonCred::MembershipObserver | DaemonCred::ConnectionEvictor => {
            return Err(CliError::failed(format!("{cred} is renewed by rotating the system account alone")));
        }
    };
    let grants = |who: &ConnectPrincipal| {
        Ok::<_, String>(match kind {
            CredentialKind::Delivery => delivery::delivery(&token, &who.conn_id),
            _ => delivery::membership_rw(&token, &who.conn_id),
        })
    };
    let holder = StaticHolder::default();
    Ok(mint::remint_static_user(data, kind, seed, &holder, mint::Lifetime::OfKind, grants, clock.now_secs())?)
}

impl Renewal {
    /// One pass. It refuses when it is not this process's to do; what fails of one credential is told with it.
    pub async fn pass(&self, which: Which) -> Result<Pass, CliError> {
        let standing = self.stand().await?;
        let owner = match &standing {
            Standing::Online { connection, .. } => format!("local.{}", connection.user_nkey()),
            Standing::Offline => "offline".to_owned(),
        };
        let mut results = Vec::new();
        for cred in RENEWED {
            results.push(self.renew(cred, which, &standing).await);
        }
        let adoption = match &standing {
            Standing::Online { connector, daemon: true, .. } => adopt(connector, &results).await,
            _ => None,
        };
        let pass = Pass { online: matches!(standing, Standing::Online { .. }), owner, results, adoption };
        let written = self.write_audit(&pass).await;
        if let Standing::Online { connection, lease, .. } = standing {
            lease.release().await;
            // The lease is gone and everything is written: how this connection ends changes nothing.
            let _ = connection.close().await;
        }
        written?;
        Ok(pass)
    }

    /// Decides whose it is (contract 08 §7.4 items 1-3). Whatever cannot be read refuses.
    async fn stand(&self) -> Result<Standing, CliError> {
        let Some((connector, server)) = self.broker.clone() else {
            return self.offline("no broker is known here");
        };
        let token = self.space.token();
        let bucket = Names::new(&token).delivery_bucket();
        let grants = move |conn: &ConnId| operator::renewal_owner(&token, conn);
        let lifetime = Lifetime::OneShot { ttl_secs: ONE_SHOT_SECS, principal: None };
        let label = InfraRole::OPERATOR_RENEWAL.label(&self.space);
        let connection = match connector.open(label, &grants, lifetime).await {
            Ok(connection) => connection,
            // One that is there and refuses is no broker that is away.
            Err(refusal) if space_broker::listens(&server).await => {
                return Err(unestablished(&refusal.message));
            }
            Err(refusal) => return self.offline(&refusal.message),
        };
        let taken = async {
            let daemon = self.challenge(&connector, &Bucket::new(&connection, &bucket)).await?;
            let root = self.root.path().display().to_string();
            let lease = RenewalLease::take(&connection, &self.space, &root, &self.clock).await;
            Ok((daemon, lease.map_err(not_taken)?))
        }
        .await;
        match taken {
            Ok((daemon, lease)) => Ok(Standing::Online { connection, lease, connector, daemon }),
            Err(refusal) => {
                let _ = connection.close().await;
                Err(refusal)
            }
        }
    }

    fn offline(&self, why: &str) -> Result<Standing, CliError> {
        if self.may_be_offline { Ok(Standing::Offline) } else { Err(unestablished(why)) }
    }

    /// Whether a daemon serves, and reads this very store.
    async fn challenge(&self, connector: &Connector, delivery: &Bucket) -> Result<bool, CliError> {
        let row =
            delivery_lease::read_over(delivery).await.map_err(|refusal| unestablished(&refusal.message))?;
        let answer = DeliveryAdmin::new(connector.clone()).challenge().await;
        let store = Arc::clone(&self.store);
        let mine = file::blocking(move || store.identity()).await?;
        let mine = mine.ok_or_else(|| unestablished("this store has no readable identity"))?;
        decide(row.map(|row| row.holder).as_deref(), answer, mine)
    }

    async fn renew(&self, cred: DaemonCred, which: Which, standing: &Standing) -> FileResult {
        let result =
            FileResult { file: cred.file_name(), ok: false, skipped: None, error: None, fingerprint: None };
        match self.renewed(cred, which, standing).await {
            Ok(Done::Skipped { ok, why }) => FileResult { ok, skipped: Some(why), ..result },
            Ok(Done::Signed(fingerprint)) => {
                FileResult { ok: true, fingerprint: Some(fingerprint), ..result }
            }
            Err(error) => FileResult { error: Some(error.to_string()), ..result },
        }
    }

    async fn renewed(&self, cred: DaemonCred, which: Which, standing: &Standing) -> Result<Done, CliError> {
        let (key, at) = (cred.key(&self.space), at(&self.space));
        let Some(current) = self.store.get(&key).await? else {
            return Ok(Done::Skipped { ok: false, why: "missing-file" });
        };
        let signer = signer_of(&self.data);
        let seen = look(Some(&current), &signer, self.clock.now_secs());
        if which == Which::Due && !seen.state.is_due() {
            return Ok(Done::Skipped { ok: true, why: "healthy" });
        }
        let seed = creds::parse(&current).map_err(|_| {
            CliError::failed(format!(
                "it cannot be read: `cotal down{at}`, then `cotal up --user-auth{at}`, makes a new one"
            ))
        })?;
        let minted = sign(&self.space, &self.data, cred, seed.seed, &*self.clock)?;
        match standing {
            Standing::Online { connector, lease, .. } => {
                prove(connector, &self.space, cred, &minted.creds).await?;
                lease.check()?;
            }
            Standing::Offline if seen.state == CredState::Foreign => {
                return Err(CliError::failed(format!(
                    "no broker is there to prove a credential of another key: `cotal up --user-auth{at}` first"
                )));
            }
            Standing::Offline => {
                let same = SignedBy::of_creds(&current) == SignedBy::of_creds(&minted.creds);
                if !same {
                    return Err(CliError::failed(
                        "no broker is there to prove a credential of another issuer",
                    ));
                }
            }
        }
        self.store.put(&key, &minted.creds).await?;
        Ok(Done::Signed(fingerprint(&minted.user.jwt)?))
    }

    /// `renewal.<space key>.json`: what an operator reads later. No fingerprint reaches it.
    async fn write_audit(&self, pass: &Pass) -> Result<(), CliError> {
        let ts = i64::try_from(self.clock.now_millis().0)
            .ok()
            .and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok())
            .map(|at| format!("{at:.3}"));
        let mut record = json!({ "ts": ts, "owner": pass.owner, "results": pass.results });
        if let Some(adoption) = &pass.adoption {
            record["adoption"] = adoption.clone();
        }
        let path = audit_path(&self.root, &self.space);
        let text = serde_json::to_vec_pretty(&record).map_err(|error| CliError::failed(error.to_string()))?;
        Ok(file::blocking(move || file::write_atomic(&path, &text)).await??)
    }
}

enum Done {
    Skipped { ok: bool, why: &'static str },
    Signed(Sha256Hex),
}

/// `<root>/.cotal/renewal.<space key>.json`.
pub fn audit_path(root: &Root, space: &Space) -> std::path::PathBuf {
    root.cotal_dir().join(format!("renewal.{}.json", space_key(space)))
}

/// The ownership rule (contract 08 §7.4 items 1-2): the lease row, what answered, and this process's own store. A daemon
/// serves only while it holds the lease, so that no row and nobody on the rail (`Ok(None)`) is no daemon. A row without
/// its holder's answer is one that hangs, or was killed; a rail that hangs, refuses or garbles is somebody's, row or not.
fn decide(
    holder: Option<&str>,
    answer: Result<Option<StoreAnswer>, EpError>,
    mine: StoreIdentity,
) -> Result<bool, CliError> {
    let answer = match (holder, answer) {
        (_, Ok(Some(answer))) => answer,
        (None, Ok(None)) => return Ok(false),
        (None, Err(refusal)) => {
            return Err(unestablished(&format!(
                "nobody holds the delivery lease, and its rail is not known to be silent: {}",
                printable(&refusal.message)
            )));
        }
        (Some(holder), silent) => {
            let why = silent
                .err()
                .map_or_else(|| "nobody hears its rail".to_owned(), |refusal| printable(&refusal.message));
            return Err(unestablished(&format!(
                "{} holds the delivery lease, and {why}; one that was killed leaves its lease for 30 s",
                printable(holder)
            )));
        }
    };
    let answerer = printable(&answer.answerer);
    if !answer.holds_lease {
        return Err(unestablished(&format!("{answerer} answers without holding the lease")));
    }
    if holder != Some(&answer.answerer) {
        let holder = holder.map_or_else(|| "nobody".to_owned(), printable);
        return Err(unestablished(&format!("{answerer} answers, and {holder} holds the lease")));
    }
    if answer.store == wire_identity(mine) {
        return Ok(true);
    }
    Err(CliError::failed(format!(
        "divergent: the delivery daemon reads its credentials from {}, so signing them here would reach nobody: run \
         this there",
        store_words(&answer.store)
    )))
}

fn store_words(store: &delivery_admin::StoreIdentity) -> String {
    match store {
        delivery_admin::StoreIdentity::Fs { root, .. } => printable(root),
        delivery_admin::StoreIdentity::Injected { coordinate } => printable(coordinate),
    }
}

fn unestablished(why: &str) -> CliError {
    CliError::failed(format!(
        "who renews the delivery daemon's credentials cannot be established ({why}): nothing was signed; see `cotal \
         status` and run this again"
    ))
}

fn not_taken(why: NotTaken) -> CliError {
    match why {
        NotTaken::Held(row) => CliError::failed(format!(
            "the renewal lease is held by {} (process {} of {}): that one renews; nothing was signed",
            printable(&row.holder),
            row.pid,
            printable(&row.root)
        )),
        NotTaken::Unavailable(why) => unestablished(&why),
    }
}

/// The broker takes it now, or it replaces nothing.
async fn prove(connector: &Connector, space: &Space, cred: DaemonCred, creds: &str) -> Result<(), CliError> {
    let label = InfraRole::OPERATOR_PREFLIGHT.label(space);
    let connection = connector.open_creds(label, creds).await.map_err(|refusal| {
        CliError::failed(format!(
            "the broker does not take the new {cred} ({}): the old one stays",
            refusal.message
        ))
    })?;
    connection.close().await?;
    Ok(())
}

/// Asks the daemon to read what was written, naming it by its fingerprints.
async fn adopt(connector: &Connector, results: &[FileResult]) -> Option<Value> {
    let of =
        |cred: DaemonCred| results.iter().find(|result| result.file == cred.file_name())?.fingerprint.clone();
    let expected =
        ExpectedCreds { delivery: of(DaemonCred::Delivery), membership: of(DaemonCred::MembershipRw) };
    if expected == ExpectedCreds::default() {
        return None;
    }
    Some(match DeliveryAdmin::new(connector.clone()).reload_creds(&expected).await {
        Ok(Reloaded { delivery, membership }) => {
            let words = |adoption: Adoption| json!({ "brokerAccepted": adoption.broker_accepted, "skipped": adoption.skipped });
            json!({ "ok": true, "delivery": words(delivery), "membership": words(membership) })
        }
        // Its own re-read at three quarters of the old one's life is the backstop.
        Err(refusal) => json!({ "ok": false, "error": refusal.message }),
    })
}

fn fingerprint(jwt: &str) -> Result<Sha256Hex, CliError> {
    Sha256Hex::parse(&hex::encode(Sha256::digest(jwt.as_bytes())))
        .map_err(|error| CliError::failed(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(root: &str) -> StoreIdentity {
        StoreIdentity::Fs { root: root.into(), id: "i".into() }
    }

    // #1634, #1694, #773, #2580: two owners, each sure that the store was its own.
    #[test]
    fn a_renewal_is_ones_own_only_when_the_holder_answers_from_the_same_store() {
        let answer = |answerer: &str, holds_lease: bool, root: &str| {
            let store = wire_identity(store(root));
            Ok(Some(StoreAnswer { store, answerer: answerer.into(), holds_lease }))
        };
        let nobody = || Ok(None);
        let hangs = || Err(EpError::unavailable("no answer"));
        let told = |holder: Option<&str>, answer: Result<Option<StoreAnswer>, EpError>| {
            decide(holder, answer, store("/r")).map_err(|error| error.to_string())
        };
        assert_eq!(told(None, nobody()), Ok(false));
        assert_eq!(told(Some("local.A"), answer("local.A", true, "/r")), Ok(true));
        for (holder, answer, part) in [
            (None, hangs(), "no answer"),
            (Some("local.A"), hangs(), "no answer"),
            (Some("local.A"), nobody(), "nobody hears"),
            (Some("local.A"), answer("local.A", false, "/r"), "without holding"),
            (Some("local.B"), answer("local.A", true, "/r"), "local.B holds"),
            (None, answer("local.A", true, "/r"), "nobody holds"),
            (Some("local.A"), answer("local.A", true, "/other"), "divergent"),
        ] {
            let told = told(holder, answer).unwrap_err();
            assert!(told.contains(part), "{told}");
        }
    }

    // #2580: on two machines one path is two stores.
    #[test]
    fn one_path_is_two_stores_when_their_ids_differ_or_one_has_none() {
        for id in [None, Some(""), Some("j"), Some("I")] {
            let there = delivery_admin::StoreIdentity::Fs { root: "/r".into(), id: id.map(str::to_owned) };
            let answer = StoreAnswer { store: there, answerer: "local.A".into(), holds_lease: true };
            let told = decide(Some("local.A"), Ok(Some(answer)), store("/r")).unwrap_err().to_string();
            assert!(told.contains("divergent"), "{id:?}: {told}");
        }
    }
}
