//! A participant that is killed, at every place where that leaves something else behind, and the run that follows it: it ends
//! whole, under the same identity, and the name is free.
//!
//! | killed | by |
//! |---|---|
//! | as a step begins | this test, which reads what the run says |
//! | after each durable write of its own: files, and rows that it writes with the executor's credential | its own failpoint |
//! | after each durable write of the host in a step | the host's failpoint, before the host goes on |

use std::{
    path::PathBuf,
    sync::{Mutex, Once, PoisonError},
};

use cotal_authority::failpoint::{KILL_FILE, on_landed};
use cotal_wire::InstanceId;
use rustix::process::{Pid, Signal, kill_process};

use crate::{
    EVERY_STEP,
    house::{AGENT, Host, Machine, Run},
};

/// More lives than a first registration has writes, and a second one.
const LIVES: usize = 14;

/// A host, and a machine whose participant is killed.
pub(crate) struct House {
    pub(crate) host: Host,
    pub(crate) machine: Machine,
    instance: Option<InstanceId>,
}

impl House {
    pub(crate) async fn start() -> Self {
        let host = Host::start().await;
        let machine = Machine::signed_in(&host).await;
        Self { host, machine, instance: None }
    }

    fn run(&self) -> Run {
        self.machine.check(&self.host, &[])
    }

    /// A run that is killed after as many durable writes of its own.
    pub(crate) fn dying_after(&self, writes: usize) -> Run {
        let arming = self.arming();
        std::fs::write(&arming, writes.to_string()).unwrap();
        Run::start(self.machine.command(&self.host, &[]).env(KILL_FILE, arming))
    }

    fn arming(&self) -> PathBuf {
        self.machine.stage.root().with_file_name("failpoint")
    }

    /// What was written by the runs that were to die.
    fn written(&self) -> Vec<String> {
        let journal = std::fs::read_to_string(self.machine.stage.root().with_file_name("failpoint.journal"));
        journal.unwrap_or_default().lines().map(str::to_owned).collect()
    }

    /// Kills a run as this step begins.
    fn kill_at(&self, step: &str) {
        let periods: &[&str] = if step.starts_with("renew-") { &["--periods", "2"] } else { &[] };
        let mut run = self.machine.check(&self.host, periods);
        run.until(step);
        run.kill();
    }

    /// Kills a run after the nth durable write of the host from this step on; whether there were as many until that one begins.
    fn kill_between(&mut self, from: &str, to: &str, nth: usize) -> bool {
        let mut run = self.run();
        run.until(from);
        let victim = Pid::from_child(&run.child);
        cuts().push(Cut { victim, writes: nth });
        let killed = run.is_killed_before(to);
        cuts().retain(|cut| cut.victim != victim);
        if !killed {
            self.is_whole(run);
        }
        killed
    }

    pub(crate) fn ends_whole(&mut self) {
        self.is_whole(self.run());
    }

    /// The run succeeds as the same manager, and leaves nothing of its agent.
    fn is_whole(&mut self, run: Run) {
        let report = run.report();
        let kept = self.machine.identity().expect("it is kept").instance().clone();
        assert_eq!(report["instanceId"], kept.as_str());
        assert_eq!(*self.instance.get_or_insert_with(|| kept.clone()), kept, "one identity for good");
        assert_eq!(self.host.agents(), Vec::<PathBuf>::new(), "no row of the agent is left");
        let left = |path: &PathBuf| {
            path.to_string_lossy().contains(AGENT) || path.extension().is_some_and(|e| e == "tmp")
        };
        assert_eq!(self.machine.files().into_keys().find(left), None);
    }
}

// === as a step begins =========================================================================================

async fn killed_as_each_begins(steps: &[&str]) {
    let mut house = House::start().await;
    for step in steps {
        house.kill_at(step);
        house.ends_whole();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manager_that_is_killed_as_a_step_of_its_own_begins_is_followed_by_one_that_finishes() {
    killed_as_each_begins(&EVERY_STEP[..9]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_is_killed_as_a_step_of_its_agent_begins_is_followed_by_one_that_finishes() {
    killed_as_each_begins(&EVERY_STEP[9..16]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_is_killed_as_a_step_of_its_second_agent_begins_is_followed_by_one_that_finishes() {
    killed_as_each_begins(&EVERY_STEP[16..]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_is_killed_as_it_cleans_up_after_one_that_was_killed_is_followed_by_one_that_finishes() {
    let mut house = House::start().await;
    house.kill_at("describe");
    house.kill_at("retire-left");
    house.ends_whole();
    house.kill_at("goodbye");
    house.ends_whole();
}

// === after each of its own writes =============================================================================

#[tokio::test(flavor = "multi_thread")]
async fn a_first_registration_that_dies_after_every_single_write_is_finished_by_the_last_of_its_lives() {
    let mut house = House::start().await;
    for life in 1..=LIVES {
        assert!(house.dying_after(1).is_killed(), "life {life}: {:?}", house.written());
        assert_eq!(house.written().len(), life, "one write each: {:?}", house.written());
    }
    let (written, kept) = (house.written(), house.machine.identity().expect("it is kept"));
    assert_eq!(written[0], "manager-identity");
    let gate = format!("epgate.manager.{}", kept.instance());
    assert!(written.iter().filter(|key| **key == gate).count() >= 4, "twice around: {written:?}");
    house.ends_whole();
}

/// Every second write, from this one on.
async fn killed_after_each_write(from: usize) {
    let mut house = House::start().await;
    house.ends_whole();
    let mut nth = from;
    loop {
        let mut run = house.dying_after(nth);
        if !run.is_killed() {
            house.is_whole(run);
            break;
        }
        house.ends_whole();
        nth += 2;
    }
    let written = house.written();
    assert!(nth > 20, "registration, two agents, goodbye: {nth}");
    assert!(written.iter().any(|key| key == "agent-secret"), "{written:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_is_killed_after_any_odd_write_of_its_own_is_followed_by_one_that_finishes() {
    killed_after_each_write(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_is_killed_after_any_even_write_of_its_own_is_followed_by_one_that_finishes() {
    killed_after_each_write(2).await;
}

// === after each write of the host =============================================================================

/// Who is killed, after how many more durable writes of this process.
struct Cut {
    victim: Pid,
    writes: usize,
}

/// Those that are to be killed. The host runs in this process, and counts for them.
fn cuts() -> std::sync::MutexGuard<'static, Vec<Cut>> {
    static CUTS: Mutex<Vec<Cut>> = Mutex::new(Vec::new());
    static LISTENS: Once = Once::new();
    LISTENS.call_once(|| {
        on_landed(|_| {
            cuts().retain_mut(|cut| {
                cut.writes = cut.writes.saturating_sub(1);
                if cut.writes == 0 {
                    let _ = kill_process(cut.victim, Signal::KILL);
                }
                cut.writes > 0
            });
        });
    });
    CUTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `from` is a step in which the host writes nothing: what comes after it is counted from its first write.
async fn killed_after_each_write_of_the_host(from: &str, to: &str, least: usize) {
    let mut house = House::start().await;
    let mut nth = 1;
    while house.kill_between(from, to, nth) {
        house.ends_whole();
        nth += 1;
    }
    assert!(nth > least, "the host wrote {} times", nth - 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_is_killed_while_the_host_grants_it_its_duties_is_followed_by_one_that_finishes() {
    killed_after_each_write_of_the_host("register", "serve", 6).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_is_killed_while_the_host_renews_its_duties_is_followed_by_one_that_finishes() {
    // Within the second of the activation they are the same credentials, whose rows stand: the gate is touched for each.
    killed_after_each_write_of_the_host("serve", "admin", 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_is_killed_while_the_host_enrols_its_agent_and_lets_it_in_is_followed_by_one_that_finishes()
{
    killed_after_each_write_of_the_host("goals", "describe", 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_is_killed_while_the_host_retires_its_agent_is_followed_by_one_that_finishes() {
    killed_after_each_write_of_the_host("describe", "enroll-again", 8).await;
}
