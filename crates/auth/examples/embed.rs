//! Hosts the auth service of two spaces in one process, with secrets in the host's own store and both public faces behind
//! the host's own router.
//!
//! ```text
//! cargo run -p cotal-auth --example embed
//! ```
//!
//! The first half is what a host writes. [`main`] is a rehearsal: it stands up what a host has anyway (two brokers, an
//! identity provider, one person), logs that person in through the router, and shuts down.

use std::{collections::BTreeMap, error::Error, net::SocketAddr, path::PathBuf, sync::Arc};

use async_trait::async_trait;
use axum::{
    Json, Router,
    body::Bytes,
    extract::{ConnectInfo, Path, State},
    http::{HeaderMap, Method, StatusCode, Uri, header},
    response::{IntoResponse, Response},
    routing::{any, get},
};
use cotal_auth::{
    AuthService, AuthServiceInputs, CalloutLimits, HostedContext, HostedSpace, PublicFaceRequest, Readiness,
    SecretStore, Space, SpaceAt, StartError, StoreError, StoreIdentity, start_auth_service,
};
use tokio::{net::TcpListener, sync::Mutex};
use zeroize::Zeroizing;

// === the host's own secret store ==============================================================================

/// Whole secrets under opaque keys. A host puts its vault here; whatever it is, `create` must be one atomic step, and the
/// coordinate must name the same store in every process that uses it.
struct Vault {
    coordinate: String,
    secrets: Mutex<BTreeMap<String, Zeroizing<String>>>,
}

impl Vault {
    fn new(coordinate: &str) -> Self {
        Self { coordinate: coordinate.to_owned(), secrets: Mutex::default() }
    }
}

#[async_trait]
impl SecretStore for Vault {
    async fn get(&self, key: &str) -> Result<Option<Zeroizing<String>>, StoreError> {
        Ok(self.secrets.lock().await.get(key).cloned())
    }

    async fn put(&self, key: &str, value: &str) -> Result<(), StoreError> {
        self.secrets.lock().await.insert(key.to_owned(), Zeroizing::new(value.to_owned()));
        Ok(())
    }

    async fn delete(&self, key: &str) -> Result<(), StoreError> {
        self.secrets.lock().await.remove(key);
        Ok(())
    }

    async fn create(&self, key: &str, value: &str) -> Result<bool, StoreError> {
        let mut secrets = self.secrets.lock().await;
        let is_new = !secrets.contains_key(key);
        if is_new {
            secrets.insert(key.to_owned(), Zeroizing::new(value.to_owned()));
        }
        Ok(is_new)
    }

    fn identity(&self) -> Option<StoreIdentity> {
        StoreIdentity::injected(&self.coordinate).ok()
    }
}

// === one tenant ===============================================================================================

/// What the host knows of a space that it was assigned.
struct Tenant {
    space: Space,
    context: HostedContext,
    /// NATS URLs, comma-separated.
    servers: String,
    vault: Arc<Vault>,
    /// The IdP pin and the actor ledger: plain files, without a secret in them.
    state_dir: PathBuf,
}

impl Tenant {
    /// Starts its service: ready when this resolves, and nothing is left open when it refuses.
    async fn start(&self) -> Result<AuthService, StartError> {
        let at = SpaceAt::new(self.space.clone(), &self.servers);
        let vault = Arc::clone(&self.vault) as _;
        let hosted =
            HostedSpace::new(self.context.clone(), at, vault, &self.vault.coordinate, &self.state_dir)
                .callout_limits(CalloutLimits { max_in_flight: 64, ..CalloutLimits::default() });
        // On loopback, behind the router below: it is the proxy whose X-Forwarded-For is believed.
        let face = PublicFaceRequest::on_port(0).behind_trusted_proxy(true);
        let inputs = AuthServiceInputs::new(hosted).public_face(face);
        start_auth_service(inputs).await
    }
}

// === the host's own router ====================================================================================

/// Every space that is served, by name.
struct Host {
    services: BTreeMap<String, AuthService>,
    http: reqwest::Client,
}

/// `/health` is the host's; `/t/<space>/…` is the public face of that space.
fn router(host: Arc<Host>) -> Router {
    Router::new().route("/health", get(health)).route("/t/{space}/{*route}", any(forward)).with_state(host)
}

/// One space that is not ready says nothing about the others.
async fn health(State(host): State<Arc<Host>>) -> Json<BTreeMap<String, bool>> {
    let is_ready = |service: &AuthService| service.readiness() == Readiness::Ready;
    Json(host.services.iter().map(|(space, service)| (space.clone(), is_ready(service))).collect())
}

/// Hands a request on as it is. What the face decides by goes with it: the query, the origin, the content type, and who
/// asked; and what a client obeys comes back: how long to wait, and what not to keep.
async fn forward(
    State(host): State<Arc<Host>>,
    Path((space, route)): Path<(String, String)>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let Some(face) = host.services.get(&space).and_then(AuthService::public_url) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    let mut request = host
        .http
        .request(method, format!("{face}/{route}{query}"))
        .header("x-forwarded-for", peer.ip().to_string())
        .body(body);
    for name in [header::CONTENT_TYPE, header::ORIGIN] {
        if let Some(value) = headers.get(&name) {
            request = request.header(name, value);
        }
    }
    let Ok(answer) = request.send().await else {
        return StatusCode::BAD_GATEWAY.into_response();
    };
    let (status, told) = (answer.status(), answer.headers().clone());
    let Ok(body) = answer.bytes().await else {
        return StatusCode::BAD_GATEWAY.into_response();
    };
    let mut response = (status, body).into_response();
    for name in [header::CONTENT_TYPE, header::CACHE_CONTROL, header::RETRY_AFTER] {
        if let Some(value) = told.get(&name) {
            response.headers_mut().insert(name, value.clone());
        }
    }
    response
}

impl Host {
    /// Starts every tenant. One that does not start is told of and left out; the others are served.
    async fn start(tenants: &[Tenant]) -> Result<Arc<Self>, Box<dyn Error>> {
        let mut services = BTreeMap::new();
        for tenant in tenants {
            match tenant.start().await {
                Ok(service) => {
                    tokio::spawn(tell_of_its_end(service.clone()));
                    services.insert(tenant.space.to_string(), service);
                }
                Err(refusal) => eprintln!("space {} is not served: {refusal}", tenant.space),
            }
        }
        let http = cotal_trust::idp::http_client(std::time::Duration::from_secs(15))?;
        Ok(Arc::new(Self { services, http }))
    }

    /// Serves until `shutdown` resolves; then the router first, and every service after it.
    async fn serve(
        self: Arc<Self>,
        listener: TcpListener,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), Box<dyn Error>> {
        let app = router(Arc::clone(&self)).into_make_service_with_connect_info::<SocketAddr>();
        axum::serve(listener, app).with_graceful_shutdown(shutdown).await?;
        let mut failures = Vec::new();
        for (space, service) in &self.services {
            // One that does not close keeps no other from closing.
            if let Err(error) = service.close().await {
                failures.push(format!("space {space} did not close: {error}"));
                continue;
            }
            // The proof that nothing was left behind: every connection that the context ever opened has ended.
            let inventory = service.closed().await;
            let opened: u64 = inventory.iter().map(|owned| owned.count).sum();
            println!("space {space} is closed, and each of its {opened} connections has ended");
        }
        if failures.is_empty() { Ok(()) } else { Err(failures.join("; ").into()) }
    }
}

/// A context that ends by itself (a fence, a broker that is gone for good) closes itself; a host starts it again.
async fn tell_of_its_end(service: AuthService) {
    let end = service.ended().await;
    println!("the service of space {} has ended: {end:?}", service.space());
}

// === the rehearsal ============================================================================================

/// Two spaces, an identity provider, and a person who is granted an actor in both.
struct Rehearsal {
    idp: cotal_dev_idp::DevIdp,
    spaces: Vec<cotal_testkit::space::TestSpace>,
}

impl Rehearsal {
    async fn start() -> Result<Self, Box<dyn Error>> {
        use cotal_auth::{SystemClock, SystemEntropy};
        let options = cotal_dev_idp::DevIdpOptions::default();
        let idp =
            cotal_dev_idp::DevIdp::start(options, Arc::new(SystemClock), Arc::new(SystemEntropy)).await?;
        let mut spaces = Vec::new();
        for name in ["blue", "green"] {
            spaces.push(cotal_testkit::space::TestSpace::start(name, &idp.base_url()).await);
        }
        Ok(Self { idp, spaces })
    }

    /// Grants alice the actor `cli`, and moves the space's secrets into a vault.
    async fn tenant(&self, space: &cotal_testkit::space::TestSpace) -> Result<Tenant, Box<dyn Error>> {
        use cotal_auth::{SystemClock, SystemEntropy};
        let owner = space.material.owner_secret.derive(&self.idp.origin(), "alice")?;
        let grant = cotal_ledger::GrantInput::new(owner, cotal_auth::Actor::parse("cli")?)
            .allow_subscribe(["general"])
            .allow_publish(["general"]);
        let ledger = cotal_ledger::Ledger::at(&space.state_dir);
        ledger.grant_interactive(&grant, &SystemClock, &SystemEntropy)?;

        let vault = Arc::new(Vault::new(&format!("vault://example/{}", space.space)));
        for key in cotal_auth::reviewed_secret_keys(&cotal_auth::CotalAuthProvider, &space.space)? {
            let secret = space.store.get(&key).await?.ok_or("the space has its secrets")?;
            vault.put(&key, &secret).await?;
            space.store.delete(&key).await?;
        }
        Ok(Tenant {
            space: space.space.clone(),
            context: HostedContext {
                account_public_key: space.account.data_account().account,
                lifecycle_uid: cotal_auth::LifecycleUid::mint(&SystemEntropy),
            },
            servers: space.server.url(),
            vault,
            state_dir: space.state_dir.clone(),
        })
    }

    /// Logs alice in through the router; her bearer for this space.
    async fn log_in(&self, router: SocketAddr, space: &str) -> Result<String, Box<dyn Error>> {
        let body = serde_json::json!({ "idpToken": self.idp.mint_token("alice", 600), "actor": "cli" });
        let answer = cotal_trust::idp::http_client(std::time::Duration::from_secs(15))?
            .post(format!("http://{router}/t/{space}/exchange"))
            .header("content-type", "application/json")
            .body(body.to_string())
            .send()
            .await?;
        let answer: serde_json::Value = serde_json::from_slice(&answer.bytes().await?)?;
        Ok(answer["token"].as_str().ok_or_else(|| answer.to_string())?.to_owned())
    }
}

/// Whether the broker of a space lets a client with this bearer in.
async fn connects(space: &cotal_testkit::space::TestSpace, bearer: &str) -> bool {
    use cotal_testkit::raw::{ConnectOutcome, RawClient};
    let sentinel = &space.material.callout.sentinel_creds;
    let (_, outcome) =
        RawClient::connect(&space.server.url(), Some(sentinel), Some(bearer), Some("nonce-0123456789")).await;
    outcome == ConnectOutcome::Connected
}

#[tokio::main]
pub(crate) async fn main() -> Result<(), Box<dyn Error>> {
    let rehearsal = Rehearsal::start().await?;
    let mut tenants = Vec::new();
    for space in &rehearsal.spaces {
        tenants.push(rehearsal.tenant(space).await?);
    }

    let host = Host::start(&tenants).await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let router = listener.local_addr()?;
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let (serving, visit) = tokio::join!(
        // A real host gives it the future of its signals.
        Arc::clone(&host).serve(listener, async {
            let _ = stopped.await;
        }),
        async {
            let visited = visit(&rehearsal, router).await;
            let _ = stop.send(());
            visited
        }
    );
    visit.and(serving)
}

/// Alice connects to each space with the bearer of that space, and with no other.
async fn visit(rehearsal: &Rehearsal, router: SocketAddr) -> Result<(), Box<dyn Error>> {
    let [blue, green] = rehearsal.spaces.as_slice() else { return Err("two spaces".into()) };
    for (own, other) in [(blue, green), (green, blue)] {
        let bearer = rehearsal.log_in(router, own.space.as_str()).await?;
        if !connects(own, &bearer).await {
            return Err(format!("the bearer of {} does not connect there", own.space).into());
        }
        if connects(other, &bearer).await {
            return Err(format!("the bearer of {} connects to {}", own.space, other.space).into());
        }
        println!("alice is in {}, and her bearer of it is worth nothing in {}", own.space, other.space);
    }
    Ok(())
}
