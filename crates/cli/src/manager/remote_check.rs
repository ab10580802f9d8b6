//! `cotal manager remote-check`: a remote manager's whole life, once, against a real space.

use std::{fmt::Display, future::Future, sync::Arc, time::Instant};

use cotal_ledger::WIDEN_WITH;
use cotal_manager::remote::{
    Active, ManagerHost, Participant, RefusalKind, RemoteError, Setup, contract::ManagerContract,
    identity::Origin, participant::Wanted, serving::ManagerEndpoint, standing::Told,
};
use cotal_wire::{Actor, ChannelPattern, DerivedOwner, InstanceId, Space, manager_authority::Incarnation};
use cotal_workspace::printed::at;
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use super::target::{CachedLogin, Named, Target};
use crate::{
    cli::Output,
    context::{Context, DEFAULT_SPACE, space_flag},
    given_url::GivenUrl,
    outcome::CliError,
    progress::Progress,
};

/// The lists that a remote manager's grant needs.
const GRANT: &str = "--scope supervise --allow-subscribe general --allow-publish general";
/// What a host says of whom nobody has granted.
const NOT_GRANTED: &str = " is not granted in this space";
/// What a host says before the command that widens a grant, with which its sentence ends; of a parent's, [`WIDEN_WITH`].
const ADD_IT_WITH: &str = "an operator can add it with: ";
/// Seconds to wait when a host counts refusals and names no time: its window.
const THROTTLED_SECS: u64 = 60;
/// The exit code of a process that a second interrupt ends at once.
const INTERRUPTED: i32 = 130;

/// `cotal manager remote-check`
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Be a remote manager once, from its first credential to its goodbye, and say how each step went.\n\n\
        This machine needs a sign-in (`cotal login`) whose actor is granted `supervise`, and nothing else: no signing key, \
        no ledger, no store. The manager registers under an identity of its own, which is kept in \
        `.cotal/remote-manager.<hex of the space's name>.json` and used again by every later run; it enrols an agent that may do nothing \
        but connect, signs it in, retires it, enrols the name once more and retires that too, and takes itself out of the \
        registry.\n\nA run that was cut off leaves nothing that the next one does not take up: it retires what was left and \
        begins anew under the same identity.",
    after_help = "\
Examples:
  cotal manager remote-check --host https://auth.example
  cotal manager remote-check --host https://auth.example --server tls://broker.example:4222 --periods 2
  cotal manager remote-check --json

The grant that it needs, on the host:
  cotal actor grant cli --sub <subject> --scope supervise --allow-subscribe general --allow-publish general"
)]
pub struct RemoteCheckArgs {
    /// The space.
    #[arg(long, default_value = DEFAULT_SPACE)]
    pub space: String,
    /// The host's public face; of this machine's registry when left out.
    #[arg(long, value_name = "URL")]
    pub host: Option<GivenUrl>,
    /// The broker; as the registry or the host names it when left out.
    #[arg(long, value_name = "URL")]
    pub server: Option<GivenUrl>,
    /// The identity provider of the sign-in; as the registry or the host names it when left out.
    #[arg(long, value_name = "URL")]
    pub idp: Option<GivenUrl>,
    /// The actor of the sign-in whose grant decides.
    #[arg(long, default_value = "cli")]
    pub actor: String,
    /// The name that is enrolled and retired.
    #[arg(long, default_value = "remotecheck", value_name = "ACTOR")]
    pub agent: String,
    /// Channels that the agent may read.
    #[arg(long, value_delimiter = ',', value_name = "CHANNELS")]
    pub allow_subscribe: Vec<String>,
    /// Channels that the agent may write.
    #[arg(long, value_delimiter = ',', value_name = "CHANNELS")]
    pub allow_publish: Vec<String>,
    /// Wait for this many renewals to come by themselves, at half of the shortest credential's life; 0 renews once, now.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub periods: u32,
    /// How to print.
    #[command(flatten)]
    pub output: Output,
}

/// A run: what it has done, and whether it is to stop.
struct Check<'a> {
    ctx: &'a Context,
    progress: Progress<'a>,
    steps: Vec<Value>,
    stop: CancellationToken,
}

/// What is left to be undone when a step fails.
#[derive(Default)]
struct Undo {
    endpoint: Option<ManagerEndpoint>,
    agents: Vec<Incarnation>,
}

/// Runs it.
pub(super) async fn run(args: RemoteCheckArgs, ctx: &Context) -> Result<(), CliError> {
    let space = space_flag(&args.space)?;
    let actor = Actor::parse(&args.actor).map_err(|e| CliError::usage(format!("--actor is {e}")))?;
    let agent = Actor::parse(&args.agent).map_err(|e| CliError::usage(format!("--agent is {e}")))?;
    if agent == actor {
        return Err(CliError::usage("--agent must be another name than --actor"));
    }
    let channels = |flag: &str, named: &[String]| {
        ChannelPattern::parse_all(named).map_err(|e| CliError::usage(format!("--{flag} holds {e}")))
    };
    let wanted = Wanted {
        label: Some("cotal manager remote-check".to_owned()),
        allow_subscribe: channels("allow-subscribe", &args.allow_subscribe)?,
        allow_publish: channels("allow-publish", &args.allow_publish)?,
        ..Wanted::default()
    };
    let named = Named { host: args.host, server: args.server, idp: args.idp };
    let target = Target::find(named, &space, ctx).await?;
    let login = CachedLogin::at(&target.idp, ctx)?;
    let host = ManagerHost::new(&target.host, login).map_err(|why| CliError::usage(why.to_string()))?;
    let setup = Setup {
        root: ctx.root.clone(),
        space,
        actor,
        servers: target.server.clone(),
        host,
        contract: ManagerContract::ping()?,
        clock: Arc::clone(&ctx.clock),
        entropy: Arc::clone(&ctx.entropy),
    };
    let check = Check { ctx, progress: Progress::start(ctx), steps: Vec::new(), stop: interrupted(ctx) };
    Box::pin(check.whole(setup, &target, &agent, &wanted, args.periods)).await
}

/// Cancelled by the first interrupt; a second one ends the process where it stands.
fn interrupted(ctx: &Context) -> CancellationToken {
    let stop = CancellationToken::new();
    ctx.note("^C cleans up and ends; a second ^C ends at once");
    tokio::spawn({
        let stop = stop.clone();
        async move {
            if tokio::signal::ctrl_c().await.is_ok() {
                stop.cancel();
                if tokio::signal::ctrl_c().await.is_ok() {
                    std::process::exit(INTERRUPTED);
                }
            }
        }
    });
    stop
}

impl Check<'_> {
    async fn whole(
        mut self,
        setup: Setup,
        target: &Target,
        agent: &Actor,
        wanted: &Wanted,
        periods: u32,
    ) -> Result<(), CliError> {
        let space = setup.space.clone();
        let (active, instance) = Box::pin(self.begin(setup)).await?;
        let mut undo = Undo::default();
        let outcome = self.life(&active, &mut undo, agent, wanted, periods).await;
        let cleaned = self.end(active, undo).await;
        outcome?;
        cleaned?;
        let document = json!({
            "ok": true, "space": space, "host": target.host, "instanceId": instance, "steps": self.steps,
        });
        let count = self.steps.len();
        drop(self.progress);
        self.ctx.report(&document, || {
            format!("All {count} steps done: a manager without any signing key, from its first credential to its goodbye.")
        })
    }

    /// From the identity to the serving credentials.
    async fn begin(&mut self, setup: Setup) -> Result<(Active, InstanceId), CliError> {
        let (space, actor) = (setup.space.clone(), setup.actor.clone());
        let participant = self
            .step("identity", async { Participant::open(setup) }, |participant| {
                let identity = participant.identity();
                let origin = if participant.origin() == Origin::Made { "made" } else { "kept" };
                vec![("instance", identity.instance().to_string()), ("identity", origin.into())]
            })
            .await?;
        let instance = participant.identity().instance().clone();
        let prepare = async {
            participant.prepare().await.map_err(|why| StepError(cli(&for_operator(why, &actor, &space))))
        };
        let prepared = self
            .step("prepare", prepare, |prepared| {
                let credentials: Vec<_> = prepared
                    .material()
                    .credentials()
                    .map(|(_, issued)| issued.exp.since(issued.iat))
                    .collect();
                vec![
                    ("owner", prepared.owner().to_string()),
                    ("account", prepared.material().account.to_string()),
                    ("seconds", credentials.iter().map(u64::to_string).collect::<Vec<_>>().join(" and ")),
                ]
            })
            .await?;
        let registered = self
            .step("register", prepared.register(), |registered| {
                vec![
                    ("epoch", registered.epoch().to_string()),
                    ("revision", registered.revision().to_string()),
                ]
            })
            .await?;
        let active = self
            .step("activate", registered.activate(), |active| {
                vec![("proof", active.current().proof.to_string())]
            })
            .await?;
        Ok((active, instance))
    }

    /// Everything that a manager does while it serves.
    async fn life(
        &mut self,
        active: &Active,
        undo: &mut Undo,
        agent: &Actor,
        wanted: &Wanted,
        periods: u32,
    ) -> Result<(), CliError> {
        undo.endpoint = Some(self.step("serve", active.serve(), |_| vec![]).await?);
        let left = active.left(agent).map_err(|why| cli(&why))?;
        if !left.is_empty() {
            let many = left.len();
            let retire = async {
                for agent in &left {
                    active.retire(agent).await?;
                }
                Ok::<(), RemoteError>(())
            };
            self.step("retire-left", retire, |()| vec![("agents", many.to_string())]).await?;
        }
        if periods == 0 {
            self.step("renew", active.standing().renew_early(), |until| vec![("until", until.0.to_string())])
                .await?;
        } else {
            self.periods(active, periods).await?;
        }
        let myself = Incarnation {
            owner: active.current().owner.clone(),
            actor: agent.clone(),
            lifecycle_uid: active.identity().lifecycle().clone(),
        };
        let authority = active.authority();
        self.step("admin", authority.is_admin(active.current(), &myself), |admin| {
            vec![("authorized", admin.to_string())]
        })
        .await?;
        self.step("goals", authority.goal_index(active.current()), |goals| {
            vec![("entries", goals.len().to_string())]
        })
        .await?;
        let first = self.agent(active, undo, agent, wanted, "").await?;
        let second = self.agent(active, undo, agent, wanted, "-again").await?;
        if first.lifecycle_uid == second.lifecycle_uid {
            return Err(CliError::failed(
                "the host gave the name out again at the lifecycle that was retired",
            ));
        }
        Ok(())
    }

    /// One agent, from its enrollment to its end.
    async fn agent(
        &mut self,
        active: &Active,
        undo: &mut Undo,
        agent: &Actor,
        wanted: &Wanted,
        suffix: &str,
    ) -> Result<Incarnation, CliError> {
        let name = |step: &str| format!("{step}{suffix}");
        let enrolled = self
            .step(&name("enroll"), active.enroll(agent, wanted), |enrolled| {
                vec![
                    ("lifecycle", enrolled.agent.lifecycle_uid.to_string()),
                    ("exchange", enrolled.exchange.to_string()),
                ]
            })
            .await?;
        undo.agents.push(enrolled.agent.clone());
        self.step(&name("validate"), active.validate(&enrolled), |authority| {
            let parent = authority.parent.as_ref().map(ToString::to_string);
            vec![("parent", parent.unwrap_or_default())]
        })
        .await?;
        let bearer = self.step(&name("exchange"), active.exchange(&enrolled), |_| vec![]).await?;
        let connection = self.step(&name("connect"), active.connect(&enrolled, bearer), |_| vec![]).await?;
        let described = self
            .step(&name("describe"), active.describe_as(&enrolled, &connection), |described| {
                vec![("by", described.by.instance.to_string()), ("epoch", described.by.epoch.to_string())]
            })
            .await;
        let closed = connection.close().await;
        described?;
        closed?;
        let target = enrolled.agent.clone();
        self.step(&name("prepare-retirement"), active.prepare_retirement(&target), |()| vec![]).await?;
        self.step(&name("retire"), active.finish_retirement(&target), |()| vec![]).await?;
        undo.agents.retain(|left| *left != target);
        Ok(target)
    }

    /// Waits for renewals that come by themselves.
    async fn periods(&mut self, active: &Active, periods: u32) -> Result<(), CliError> {
        let standing = Arc::clone(active.standing());
        let (told, mut heard) = tokio::sync::mpsc::unbounded_channel();
        let ended = self.stop.child_token();
        let renewing = tokio::spawn({
            let ended = ended.clone();
            async move {
                let tell = |what: Told<'_>| {
                    let _ = told.send(match what {
                        Told::Adopted(until) => Ok(until),
                        Told::Owing(debt) => Err((false, debt.reason.clone())),
                        Told::Superseded(debt) => Err((true, debt.reason.clone())),
                    });
                };
                standing.run(&ended, tell).await;
            }
        });
        let mut outcome = Ok(());
        for period in 1..=periods {
            let name = format!("renew-{period}");
            let wait = async {
                let mut owed = 0u32;
                loop {
                    match heard.recv().await {
                        Some(Ok(until)) => return Ok::<_, RemoteError>((until, owed)),
                        Some(Err((false, _))) => owed += 1,
                        Some(Err((true, reason))) => return Err(RemoteError::State(reason)),
                        None => return Err(RemoteError::State("the renewal ended".into())),
                    }
                }
            };
            let stepped = self.step(&name, wait, |(until, owed)| {
                vec![("until", until.0.to_string()), ("owedBefore", owed.to_string())]
            });
            if let Err(why) = stepped.await {
                outcome = Err(why);
                break;
            }
        }
        ended.cancel();
        let _ = renewing.await;
        outcome
    }

    /// Retires what a failed run leaves, and says goodbye, whichever of it fails.
    async fn end(&mut self, active: Active, undo: Undo) -> Result<(), CliError> {
        // What was interrupted is cleaned up all the same.
        self.stop = CancellationToken::new();
        let mut first = Ok(());
        for agent in &undo.agents {
            let retired =
                self.step("clean-up", active.retire(agent), |()| vec![("agent", agent.actor.to_string())]);
            first = first.and(retired.await.map(drop));
        }
        let goodbye = self
            .step("goodbye", active.goodbye(undo.endpoint), |removed| vec![("removed", removed.to_string())])
            .await;
        first.and(goodbye.map(drop))
    }

    /// One step: said when it begins, told when it has ended. An interrupt lets the step that runs come to its end.
    async fn step<T, E: Into<StepError>>(
        &mut self,
        name: &str,
        work: impl Future<Output = Result<T, E>>,
        tell: impl FnOnce(&T) -> Vec<(&'static str, String)>,
    ) -> Result<T, CliError> {
        if self.stop.is_cancelled() {
            return Err(CliError::failed(format!(
                "interrupted before {name}; a later run begins where this one ended"
            )));
        }
        self.progress.step(&format!("{name} ..."));
        let began = Instant::now();
        match work.await {
            Ok(done) => {
                let millis = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
                let told = tell(&done);
                let mut step =
                    Map::from_iter([("step".to_owned(), json!(name)), ("ms".to_owned(), json!(millis))]);
                step.extend(told.iter().map(|(member, value)| ((*member).to_owned(), json!(value))));
                self.steps.push(Value::Object(step));
                if !self.ctx.json {
                    let told = told
                        .iter()
                        .fold(String::new(), |line, (member, value)| format!("{line}  {member} {value}"));
                    self.ctx.say(format!("{name:<20} {millis:>6} ms{told}"))?;
                }
                Ok(done)
            }
            Err(why) => Err(why.into().at(name)),
        }
    }
}

/// Why a step failed.
struct StepError(CliError);

impl From<RemoteError> for StepError {
    fn from(why: RemoteError) -> Self {
        Self(cli(&why))
    }
}

impl StepError {
    /// The same, saying which step.
    fn at(self, name: &str) -> CliError {
        let said = |sentence: &dyn Display| format!("{name}: {sentence}");
        match self.0 {
            CliError::RateLimited { sentence, retry_after_secs, limit } => {
                CliError::RateLimited { sentence: said(&sentence), retry_after_secs, limit }
            }
            other => CliError::failed(said(&other)),
        }
    }
}

/// A refusal for want of a grant, with what the operator is to type: a remote manager's own lists, and the space. The
/// host's sentence is one for every caller.
fn for_operator(why: RemoteError, actor: &Actor, space: &Space) -> RemoteError {
    let RemoteError::Host(mut refusal) = why else { return why };
    if let Some((who, _)) = refusal.said.split_once(NOT_GRANTED) {
        let owner = who.strip_suffix(&format!(".{actor}")).and_then(|owner| DerivedOwner::parse(owner).ok());
        let whose = owner.map_or_else(|| "--sub <subject>".to_owned(), |owner| format!("--owner {owner}"));
        refusal.said = format!(
            "{who}{NOT_GRANTED}: ask its operator to run `cotal actor grant {actor} {whose} {GRANT}{}`, with the channels \
             that fit",
            at(space)
        );
    } else if [ADD_IT_WITH, WIDEN_WITH].iter().any(|hint| refusal.said.contains(hint)) {
        refusal.said.push_str(&at(space));
    }
    RemoteError::Host(refusal)
}

fn cli(why: &RemoteError) -> CliError {
    match why {
        RemoteError::Host(refusal) if refusal.kind == RefusalKind::Throttled => CliError::RateLimited {
            sentence: why.to_string(),
            retry_after_secs: refusal.retry_after_secs.unwrap_or(THROTTLED_SECS),
            limit: None,
        },
        _ => CliError::failed(why.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use cotal_manager::remote::HostRefusal;

    use super::*;

    #[test]
    fn a_grant_that_is_missing_is_asked_for_with_a_managers_own_lists_and_its_space() {
        let owner = "u_aaaaaaaaaaaaaaaaaaaaaaaaaa";
        let of = |said: &str, space: &str| {
            let refusal = HostRefusal {
                kind: RefusalKind::Denied,
                status: Some(403),
                said: said.into(),
                retry_after_secs: None,
            };
            let (actor, space) = (Actor::parse("cli").unwrap(), Space::parse(space).unwrap());
            for_operator(RemoteError::Host(refusal), &actor, &space).to_string()
        };
        let none = format!(
            "{owner}.cli is not granted in this space: ask its operator to run `cotal actor grant cli --owner {owner} --scope \
             '' --allow-subscribe general --allow-publish general`, with the lists that fit"
        );
        let told = of(&none, "q");
        let command = format!("`cotal actor grant cli --owner {owner} {GRANT} --space 'q'`");
        assert!(told.contains(&command) && !told.contains("--scope ''"), "{told}");
        assert!(!of(&none, "main").contains("--space"));
        assert!(of(" is not granted in this space", "q").contains("--sub <subject>"));
        let narrow = of(
            "it needs scope \"supervise\"; an operator can add it with: cotal actor grant cli --scope 'a'",
            "q",
        );
        assert!(narrow.contains("cotal actor grant cli --scope 'a' --space 'q'"), "{narrow}");
        let parent =
            format!("refusing to spawn it: it holds more. {WIDEN_WITH}cotal actor grant cli --scope 'a'");
        assert!(of(&parent, "q").contains("cotal actor grant cli --scope 'a' --space 'q'"));
        assert!(!of(&parent, "main").contains("--space"));
        assert!(of("something else", "q").contains("something else; "));
    }
}
