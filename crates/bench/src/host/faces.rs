//! Exchanges on the loopback face of a lane, over kept-alive connections of raw HTTP/1.1: a client library would be the
//! bottleneck.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use cotal_ledger::{GrantInput, Ledger, mint_agent_secret};
use cotal_trust::system::{SystemClock, SystemEntropy};
use cotal_wire::{Actor, LifecycleUid};
use cotal_workspace::material::Discovery;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::{ground::HostGround, report::Exchanges};
use crate::{figures::percentile, population::Ground};

/// Different principals that exchange in turn.
const PRINCIPALS: usize = 100;
/// How long the tokens of the IdP live: longer than the run.
const TOKEN_SECS: u64 = 900;

/// Which half of the route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arm {
    Agent,
    Human,
}

impl Arm {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Agent => "agents",
            Self::Human => "people",
        }
    }
}

/// The loopback face of one lane.
pub(super) struct Faces {
    lane: Ground,
    discovery: Discovery,
    addr: SocketAddr,
}

impl Faces {
    pub(super) fn of(ground: &HostGround, lane: usize) -> Result<Self> {
        let discovery = ground.discovery(lane)?.context("the lane does not serve")?;
        let addr = discovery.url.strip_prefix("http://").context("not a loopback URL")?.parse()?;
        Ok(Self { lane: ground.lanes[lane].clone(), discovery, addr })
    }

    /// Grants principals of this arm; the whole request of each.
    pub(super) fn bodies(&self, ground: &HostGround, arm: Arm) -> Result<Arc<Vec<Vec<u8>>>> {
        let ledger = Ledger::at(&self.lane.state_dir);
        let mut requests = Vec::with_capacity(PRINCIPALS);
        for n in 0..PRINCIPALS {
            let body = match arm {
                Arm::Agent => self.agent(&ledger, n)?,
                Arm::Human => self.person(ground, &ledger, n)?,
            };
            requests.push(self.request(&body.to_string()));
        }
        Ok(Arc::new(requests))
    }

    fn agent(&self, ledger: &Ledger, n: usize) -> Result<serde_json::Value> {
        let (secret, hash) = mint_agent_secret(&SystemEntropy);
        let input = self.grant(&format!("owner{n}"), &format!("worker{n}"))?;
        ledger.grant_managed(&input, &hash, &SystemClock)?;
        Ok(serde_json::json!({ "owner": input.owner, "actor": input.actor, "actorToken": *secret }))
    }

    fn person(&self, ground: &HostGround, ledger: &Ledger, n: usize) -> Result<serde_json::Value> {
        let who = format!("person{n}");
        let input = self.grant(&who, "desk")?;
        ledger.grant_interactive(&input, &SystemClock, &SystemEntropy)?;
        let token = ground.idp.mint_token(&who, TOKEN_SECS);
        Ok(serde_json::json!({ "idpToken": token, "actor": input.actor }))
    }

    fn grant(&self, who: &str, actor: &str) -> Result<GrantInput> {
        let material = &self.lane.material;
        Ok(GrantInput::new(material.owner_secret.derive(&material.idp.issuer, who)?, Actor::parse(actor)?)
            .scope(["spawn"])
            .allow_subscribe(["general", "team.>"])
            .allow_publish(["general"])
            .lifecycle_uid(LifecycleUid::mint(&SystemEntropy)))
    }

    fn request(&self, body: &str) -> Vec<u8> {
        format!(
            "POST /exchange HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n{body}",
            self.addr,
            self.discovery.cap.as_str(),
            body.len()
        )
        .into_bytes()
    }

    /// Exchanges for this long, with `width` in flight.
    pub(super) async fn load(
        &self,
        requests: &Arc<Vec<Vec<u8>>>,
        width: usize,
        lasting: Duration,
    ) -> Result<Exchanges> {
        let next = Arc::new(AtomicUsize::new(0));
        let began = Instant::now();
        let workers: Vec<_> = (0..width)
            .map(|_| {
                let (addr, requests, next) = (self.addr, requests.clone(), next.clone());
                tokio::spawn(async move {
                    let mut caller = Caller::new(addr).await?;
                    let (mut millis, mut refused) = (Vec::new(), 0);
                    while began.elapsed() < lasting {
                        let turn = next.fetch_add(1, Ordering::Relaxed);
                        let asked = Instant::now();
                        if caller.ask(&requests[turn % requests.len()]).await? {
                            millis.push(asked.elapsed().as_secs_f64() * 1000.0);
                        } else {
                            refused += 1;
                        }
                    }
                    anyhow::Ok((millis, refused))
                })
            })
            .collect();
        let (mut millis, mut refused) = (Vec::new(), 0);
        for worker in workers {
            let (answered, not) = worker.await??;
            millis.extend(answered);
            refused += not;
        }
        let elapsed = began.elapsed();
        millis.sort_by(f64::total_cmp);
        #[allow(clippy::cast_precision_loss, reason = "counts far below 2^52")]
        let per_s = millis.len() as f64 / elapsed.as_secs_f64();
        Ok(Exchanges {
            total: millis.len() + refused,
            per_s,
            p50_ms: percentile(&millis, 50),
            p99_ms: percentile(&millis, 99),
            refused,
            service_cpu_pct: 0.0,
            broker_cpu_pct: 0.0,
        })
    }
}

/// One kept-alive connection.
struct Caller {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Caller {
    async fn new(addr: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(addr).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: Vec::with_capacity(4096) })
    }

    /// Whether it was answered with a bearer.
    async fn ask(&mut self, request: &[u8]) -> Result<bool> {
        self.stream.write_all(request).await?;
        self.buffer.clear();
        loop {
            if let Some((good, whole)) = head(&self.buffer)?
                && self.buffer.len() >= whole
            {
                ensure!(self.buffer.len() == whole, "more than one answer");
                return Ok(good);
            }
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                bail!("the face closed the connection");
            }
        }
    }
}

/// Whether the answer is good and how long it is as a whole, once its head is there.
fn head(answer: &[u8]) -> Result<Option<(bool, usize)>> {
    let Some(end) = answer.windows(4).position(|four| four == b"\r\n\r\n") else { return Ok(None) };
    let head = std::str::from_utf8(&answer[..end])?;
    let length = head
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .context("an answer without its length")?;
    let length: usize = length.1.trim().parse()?;
    Ok(Some((head.starts_with("HTTP/1.1 200"), end + 4 + length)))
}
