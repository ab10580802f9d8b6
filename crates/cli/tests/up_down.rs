//! `up`, `status` and `down` as an operator runs them: the real binary, a real broker, a real auth service.

#![allow(clippy::unwrap_used, reason = "a test that cannot set its stage must fail")]

use std::{
    io::{Read, Write},
    net::TcpListener,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

use cotal_testkit::broker::nats_server_binary;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Longer than any of these commands takes on a busy machine.
const WITHIN: Duration = Duration::from_secs(60);

/// A root and a machine home in a directory of their own; what still runs there at the end is killed.
struct Machine {
    dir: tempfile::TempDir,
    home: PathBuf,
    idp: String,
}

impl Machine {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().join("home");
        Self::of(dir, home, idp_with_keys())
    }

    /// Another root of the same machine.
    fn another_root(&self) -> Self {
        Self::of(tempfile::tempdir().unwrap(), self.home.clone(), self.idp.clone())
    }

    fn of(dir: tempfile::TempDir, home: PathBuf, idp: String) -> Self {
        std::fs::create_dir_all(dir.path().join("root/.cotal")).unwrap();
        Self { dir, home, idp }
    }

    fn root(&self) -> PathBuf {
        self.dir.path().join("root")
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cotal"));
        command
            .args(arguments)
            .current_dir(self.root())
            .env("COTAL_HOME", &self.home)
            .env("COTAL_NATS_SERVER", nats_server_binary())
            .env_remove("COTAL_LOG")
            .stdin(Stdio::null());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let output = self.run(&[arguments, &["--json"]].concat());
        assert!(output.status.success(), "{arguments:?}: {}{}", text(&output.stdout), text(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn refused(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {}", text(&output.stdout));
        text(&output.stderr)
    }

    fn up(&self, more: &[&str]) -> Value {
        self.json(&[&["up", "--user-auth"], more].concat())
    }

    fn first_up(&self, more: &[&str]) -> Value {
        self.up(&[&["--idp", &self.idp, "--port", "0"], more].concat())
    }

    fn pid(&self, file: &str) -> Option<Pid> {
        let text = std::fs::read_to_string(self.root().join(".cotal").join(file)).ok()?;
        Pid::from_raw(text.trim().parse().ok()?)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        for name in [SERVICE, OTHER_SERVICE, DELIVERY, OTHER_DELIVERY, BROKER, DEV_IDP] {
            if let Some(pid) = self.pid(name) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }
}

const BROKER: &str = "nats-server.pid";
const SERVICE: &str = "auth-service.6d61696e.pid";
const OTHER_SERVICE: &str = "auth-service.6f74686572.pid";
const DELIVERY: &str = "delivery.6d61696e.pid";
const OTHER_DELIVERY: &str = "delivery.6f74686572.pid";
const DEV_IDP: &str = "dev-idp.6d61696e.pid";

/// An identity provider that publishes an empty key set: enough to be pinned.
fn idp_with_keys() -> String {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let url = format!("http://{}/api/auth", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 11\r\nconnection: close\r\n\r\n{\"keys\":[]}",
            );
        }
    });
    url
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn is_alive(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(started.elapsed() < WITHIN, "waited too long until {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn mode(path: &Path) -> u32 {
    use std::os::unix::fs::PermissionsExt;
    std::fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777
}

fn everything_below(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        found.push(entry.path());
        if entry.file_type().unwrap().is_dir() && entry.file_name() != "jetstream" {
            everything_below(&entry.path(), found);
        }
    }
}

#[test]
fn a_space_comes_up_is_healed_and_goes_down() {
    let machine = Machine::new();
    let up = machine.first_up(&[]);
    let started = ["nats-server", "delivery of space \"main\"", "auth-service of space \"main\""];
    assert_eq!(up["started"], serde_json::json!(started));
    assert_eq!(up["idp"]["url"], machine.idp.as_str());

    let mut files = Vec::new();
    everything_below(&machine.root().join(".cotal"), &mut files);
    everything_below(&machine.dir.path().join("home"), &mut files);
    for path in &files {
        let is_dir = path.is_dir();
        assert_eq!(mode(path), if is_dir { 0o700 } else { 0o600 }, "{}", path.display());
    }

    let status = machine.json(&["status"]);
    assert_eq!(
        (&status["broker"]["answers"], &status["authService"]["answers"]),
        (&true.into(), &true.into())
    );
    let delivery = &status["delivery"];
    assert_eq!((&delivery["running"], &delivery["ready"]), (&true.into(), &true.into()));
    assert!(delivery["lease"]["holder"].as_str().unwrap().starts_with("local.U"), "{delivery}");
    assert_eq!(status["loginHint"], format!("cotal login --idp {}", machine.idp));

    let again = machine.up(&[]);
    assert_eq!(again["started"], serde_json::json!([]));
    assert_eq!(again["server"], up["server"]);

    let service = machine.pid(SERVICE).unwrap();
    kill_process(service, Signal::KILL).unwrap();
    wait_until("the auth service is gone", || !is_alive(service));
    let healed = machine.up(&[]);
    assert_eq!(healed["started"], serde_json::json!(["auth-service of space \"main\""]));

    let broker = machine.pid(BROKER).unwrap();
    kill_process(broker, Signal::KILL).unwrap();
    wait_until("the broker is gone", || !is_alive(broker));
    let healed = machine.up(&[]);
    assert_eq!(healed["started"], serde_json::json!(started));
    assert_eq!(healed["server"], up["server"]);

    let pids = [BROKER, DELIVERY, SERVICE].map(|file| machine.pid(file).unwrap());
    let down = machine.json(&["down"]);
    let names: Vec<_> =
        down["stopped"].as_array().unwrap().iter().map(|stopped| &stopped["daemon"]).collect();
    assert_eq!(names[..3], [started[2], started[1], started[0]]);
    assert!(down["stopped"].as_array().unwrap()[..3].iter().all(|stopped| stopped["outcome"] == "ended"));
    assert!(pids.into_iter().all(|pid| !is_alive(pid)));
    assert!(!machine.root().join(".cotal/auth/space.6d61696e/auth-service.json").exists());
    let again = machine.json(&["down"]);
    assert!(again["stopped"].as_array().unwrap().iter().all(|stopped| stopped["outcome"] == "not-running"));
    assert_eq!(machine.json(&["status"])["broker"]["running"], false);
}

/// One record a space on a machine, whichever root it is of.
#[test]
fn two_roots_with_a_space_of_one_name_come_up_in_turns_and_each_remembers_its_own() {
    let here = Machine::new();
    let there = here.another_root();
    let flags = ["--exchange-public-port", "0"];
    here.first_up(&[&flags[..], &["--auth-timeout", "5"]].concat());
    let up_there = ["up", "--user-auth", "--idp", &here.idp, "--port", "0"];
    let is_up_in = |machine: &Machine| format!("is up in {}", machine.root().display());
    assert!(there.refused(&up_there).contains(&is_up_in(&here)));
    // One whose service has crashed is not down: clients may be connected to its broker still.
    let (service, broker) = (here.pid(SERVICE).unwrap(), here.pid(BROKER).unwrap());
    kill_process(service, Signal::KILL).unwrap();
    wait_until("the auth service is gone", || !is_alive(service));
    assert!(there.refused(&up_there).contains(&is_up_in(&here)));
    assert!(is_alive(broker) && !there.root().join(".cotal/auth").exists());
    here.json(&["down"]);

    let up = there.run(&up_there);
    assert!(up.status.success(), "{}", text(&up.stderr));
    let told = format!("is recorded for {}, which is down", here.root().display());
    assert!(text(&up.stderr).contains(&told), "{}", text(&up.stderr));
    // What is asked for here neither sees nor ends what runs there.
    assert!(here.refused(&["up", "--user-auth"]).contains(&is_up_in(&there)));
    here.json(&["down"]);
    let status = here.json(&["status"]);
    assert_eq!(
        (&status["broker"]["running"], &status["authService"]["running"]),
        (&false.into(), &false.into())
    );
    assert!(
        status["problems"][0].as_str().unwrap().contains(&there.root().display().to_string()),
        "{status}"
    );
    assert!([BROKER, SERVICE, DELIVERY].into_iter().all(|daemon| is_alive(there.pid(daemon).unwrap())));
    there.json(&["down"]);

    // What this root was told it still knows.
    assert_eq!(here.up(&[])["remembered"], serde_json::json!(flags));
    let config = std::fs::read_to_string(here.root().join(".cotal/nats-server.conf")).unwrap();
    assert!(config.contains("authorization {\n  timeout: 5\n}"), "{config}");
    here.json(&["down"]);
}

#[test]
fn a_mesh_that_was_entered_by_hand_for_elsewhere_is_not_taken() {
    let machine = Machine::new();
    let record = serde_json::json!({
        "space": "main", "server": "tls://mesh.example:4222", "root": "/elsewhere", "mode": "open",
        "origin": "manual", "ts": "2026-01-01T00:00:00.000Z",
    });
    let path = machine.home.join("meshes/space.6d61696e.json");
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, record.to_string()).unwrap();
    std::fs::remove_dir(machine.root().join(".cotal")).unwrap();
    let told = machine.refused(&["up", "--user-auth", "--idp", &machine.idp, "--port", "0"]);
    assert!(told.contains("was entered by hand, for tls://mesh.example:4222"), "{told}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), record.to_string());
    assert!(!machine.root().join(".cotal").exists(), "a directory that holds one is a root from then on");
}

#[test]
fn a_down_beside_a_dead_broker_says_what_it_waits_for_and_how_long_at_most() {
    let machine = Machine::new();
    machine.first_up(&[]);
    let broker = machine.pid(BROKER).unwrap();
    kill_process(broker, Signal::KILL).unwrap();
    wait_until("the broker is gone", || !is_alive(broker));
    let down = machine.run(&["down"]);
    let told = text(&down.stderr);
    assert!(down.status.success(), "{told}");
    assert!(told.contains("the broker is down") && told.contains("(25 s at most)"), "{told}");
}

#[test]
fn a_development_idp_comes_back_on_its_port_without_being_named_again() {
    let machine = Machine::new();
    let up = machine.up(&["--dev-idp", "--auto-approve", "--port", "0"]);
    assert_eq!((up["started"].as_array().unwrap().len(), &up["idp"]["development"]), (4, &true.into()));
    assert_eq!(machine.json(&["status"])["devIdp"]["answers"], true);
    let pid = machine.pid(DEV_IDP).unwrap();
    machine.json(&["down"]);
    assert!(!is_alive(pid));
    let again = machine.up(&[]);
    assert_eq!((again["started"].as_array().unwrap().len(), &again["idp"]), (4, &up["idp"]));
    // It says how it approves, goes on so while it runs, and is told otherwise by its next start.
    assert_eq!(again["idp"]["autoApprove"], true);
    assert_eq!(machine.up(&["--dev-idp"])["idp"]["autoApprove"], true);
    machine.json(&["down"]);
    assert_eq!(machine.up(&["--dev-idp"])["idp"]["autoApprove"], false);
    assert_eq!(machine.up(&["--dev-idp", "--auto-approve"])["idp"]["autoApprove"], false);
}

#[test]
fn a_development_idp_that_a_killed_up_left_before_its_pin_is_ended_by_the_next_one() {
    let machine = Machine::new();
    let mut left = machine
        .command(&["dev-idp", "--port", "0", "--auto-approve"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    std::fs::write(machine.root().join(".cotal").join(DEV_IDP), left.id().to_string()).unwrap();
    let half_written = machine.root().join(".cotal/auth/delivery.creds.4194305.1700000000000.tmp");
    std::fs::create_dir(half_written.parent().unwrap()).unwrap();
    std::fs::write(&half_written, "").unwrap();
    let idp = machine.up(&["--dev-idp", "--port", "0"])["idp"].clone();
    assert_eq!((&idp["development"], &idp["autoApprove"]), (&true.into(), &false.into()));
    assert!(!is_alive(Pid::from_child(&left)));
    left.wait().unwrap();
    assert_ne!(machine.pid(DEV_IDP), Some(Pid::from_child(&left)));
    assert!(!half_written.exists());
    machine.json(&["down"]);
}

#[test]
fn an_auth_service_that_somebody_else_started_is_adopted() {
    let machine = Machine::new();
    let server = machine.first_up(&[])["server"].as_str().unwrap().to_owned();
    let first = machine.pid(SERVICE).unwrap();
    kill_process(first, Signal::TERM).unwrap();
    wait_until("the first service is gone", || !is_alive(first));
    std::fs::remove_file(machine.root().join(".cotal").join(SERVICE)).unwrap();
    let mut unit = machine
        .command(&["auth-service", "--space", "main", "--server", &server])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_until("the unit's service is ready", || machine.json(&["status"])["authService"]["answers"] == true);
    let up = machine.up(&[]);
    assert_eq!(up["started"], serde_json::json!([]));
    assert!(machine.pid(SERVICE).is_none());

    // Its log is not the one that `up` kept.
    std::fs::remove_file(machine.root().join(".cotal").join(SERVICE).with_extension("log")).unwrap();
    let told = machine.refused(&["auth", "watch"]);
    assert!(told.contains(&format!("is served by pid {}, which a host or a unit", unit.id())), "{told}");
    assert!(told.contains("--file <log> --space 'main'"), "{told}");

    // What `up` did not start, `down` neither stops nor hides, and the broker under it stays.
    let (broker, delivery) = (machine.pid(BROKER).unwrap(), machine.pid(DELIVERY).unwrap());
    let told = machine.refused(&["down"]);
    assert!(told.contains(&format!("is served by pid {} (a host or a unit)", unit.id())), "{told}");
    assert!(is_alive(broker) && is_alive(delivery));
    assert_eq!(machine.json(&["status"])["authService"]["answers"], true);
    unit.kill().unwrap();
    unit.wait().unwrap();
    machine.json(&["down"]);
    assert!(!is_alive(broker) && !is_alive(delivery));
}

#[test]
fn what_a_running_broker_cannot_change_is_refused_and_left_running() {
    let machine = Machine::new();
    machine.first_up(&["--auth-timeout", "5"]);
    let pid = machine.pid(BROKER).unwrap();
    assert!(machine.refused(&["up", "--user-auth", "--port", "1"]).contains("cotal down"));
    assert!(machine.refused(&["up", "--user-auth", "--auth-timeout", "6"]).contains("cotal down"));
    assert!(machine.refused(&["up", "--user-auth", "--idp", "http://127.0.0.1:1/other"]).contains("pinned"));
    assert_eq!(machine.up(&[])["started"], serde_json::json!([]));
    assert_eq!(machine.pid(BROKER), Some(pid));
}

#[test]
fn the_authorization_timeout_is_remembered_by_the_next_up() {
    let machine = Machine::new();
    machine.first_up(&["--auth-timeout", "5"]);
    machine.json(&["down"]);
    machine.up(&[]);
    let config = std::fs::read_to_string(machine.root().join(".cotal/nats-server.conf")).unwrap();
    assert!(config.contains("authorization {\n  timeout: 5\n}"));
}

#[test]
fn the_public_face_is_remembered_replaced_flag_by_flag_and_turned_off() {
    let machine = Machine::new();
    let public = |up: &Value| up["authService"]["publicUrl"].as_str().map(str::to_owned);
    let flags = ["--exchange-public-port", "0", "--exchange-public-url", "https://one.example"];
    let first = machine.first_up(&flags);
    assert_eq!(public(&first).as_deref(), Some("https://one.example"));
    assert_eq!(first["remembered"], serde_json::json!(flags));

    // A service that runs keeps its listeners, and what is remembered stays what it was started with.
    let adopted = machine.up(&["--no-exchange-public"]);
    assert_eq!((public(&adopted), &adopted["remembered"]), (public(&first), &first["remembered"]));

    machine.json(&["down"]);
    assert_eq!(public(&machine.up(&[])), public(&first));
    machine.json(&["down"]);
    let replaced = machine.up(&["--exchange-public-url", "https://two.example"]);
    assert_eq!(public(&replaced).as_deref(), Some("https://two.example"));
    machine.json(&["down"]);
    let off = machine.up(&["--no-exchange-public"]);
    assert_eq!((public(&off), &off["remembered"]), (None, &serde_json::json!([])));
    machine.json(&["down"]);
    assert_eq!(public(&machine.up(&[])), None);
    assert!(
        machine
            .refused(&["up", "--user-auth", "--exchange-trusted-proxy"])
            .contains("--exchange-public-port")
    );
}

/// Whoever mistypes a space hears so from every command, and none makes or shows anything of it.
fn a_space_that_is_not_there_is_told_with_those_that_are(machine: &Machine) {
    let told = machine.refused(&["up", "--user-auth", "--space", "third"]);
    assert!(told.contains("`cotal up --user-auth --space 'third' --idp <auth base URL>`"), "{told}");
    let server = "nats://127.0.0.1:1";
    for words in [
        &["down"][..],
        &["actor", "list"],
        &["doctor", "auth"],
        &["auth", "watch"],
        &["auth", "explain", "--sub", "ada", "--actor", "cli"],
        &["auth-service", "--server", server],
        &["delivery", "--server", server],
        &["reconcile-gate", "--endpoint", "manager", "--instance", "0123456789abcdefghijklmnop"],
    ] {
        let told = machine.refused(&[words, &["--space", "third"]].concat());
        assert!(told.contains("there is no space \"third\""), "{words:?}: {told}");
        assert!(told.contains(r#"it has "main", "other""#), "{words:?}: {told}");
    }
    let status = machine.json(&["status", "--space", "third"]);
    assert_eq!((&status["exists"], &status["space"]), (&false.into(), &"third".into()));
    let shown = text(&machine.run(&["status", "--space", "third"]).stdout);
    assert!(shown.starts_with("there is no space \"third\""), "{shown}");
    assert!(shown.contains("also here") && !shown.contains("auth service"), "{shown}");
    assert!(!machine.root().join(".cotal/auth/space.7468697264").exists());

    let told = machine.refused(&["auth", "watch", "--file", "nofile.log"]);
    assert!(told.contains("there is no log nofile.log"), "{told}");
}

#[test]
fn a_root_with_two_spaces_keeps_its_broker_until_the_last_one_goes_down() {
    let machine = Machine::new();
    machine.first_up(&[]);
    machine.json(&["down"]);
    machine.up(&["--space", "other", "--idp", &machine.idp]);
    machine.up(&[]);
    assert!(machine.refused(&["down"]).contains("main, other"));
    a_space_that_is_not_there_is_told_with_those_that_are(&machine);
    let broker = machine.pid(BROKER).unwrap();
    machine.json(&["down", "--space", "other"]);
    assert!(is_alive(broker));
    machine.json(&["down", "--space", "main"]);
    assert!(!is_alive(broker));

    // One that has crashed is not down: its clients may be connected still.
    machine.up(&["--space", "other"]);
    machine.up(&[]);
    let (broker, crashed) = (machine.pid(BROKER).unwrap(), machine.pid(OTHER_SERVICE).unwrap());
    kill_process(crashed, Signal::KILL).unwrap();
    wait_until("the other service is gone", || !is_alive(crashed));
    let down = machine.run(&["down", "--space", "main"]);
    let told = text(&down.stderr);
    assert!(told.contains("space \"other\"") && told.contains("--space 'other'"), "{told}");
    assert!(is_alive(broker));
    machine.json(&["down", "--space", "other"]);
    assert!(!is_alive(broker));
}

#[test]
fn a_value_that_the_auth_service_would_refuse_is_refused_before_anything_is_made() {
    let machine = Machine::new();
    let idp = ["up", "--user-auth", "--idp", &machine.idp, "--port", "0", "--exchange-public-port", "0"];
    for flag in ["--exchange-public-url", "--advertised-server", "--agent-provisioning-url"] {
        let error = machine.refused(&[&idp[..], &[flag, "http://not-taken.example"]].concat());
        assert!(error.starts_with(flag), "{error}");
    }
    let error = machine.refused(&["up", "--user-auth", "--idp", "http://id.example", "--port", "0"]);
    assert!(error.starts_with("--idp: idp url must be https"), "{error}");
    assert_eq!(std::fs::read_dir(machine.root().join(".cotal")).unwrap().count(), 0);
}

#[test]
fn an_auth_service_that_dies_fails_the_up_with_its_last_words_and_nothing_stays() {
    let machine = Machine::new();
    let taken = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let face = ["--exchange-public-port", &taken.local_addr().unwrap().port().to_string()];
    let error =
        machine.refused(&[&["up", "--user-auth", "--idp", &machine.idp, "--port", "0"][..], &face].concat());
    assert!(error.contains("auth-service of space \"main\" ended (") && error.contains(".log"), "{error}");
    assert!(machine.pid(BROKER).is_none() && machine.pid(SERVICE).is_none());
    assert_eq!(machine.json(&["status"])["broker"]["running"], false);
}

#[test]
fn a_broker_whose_pid_file_is_lost_is_told_by_down_and_never_joined_by_a_second_one() {
    let machine = Machine::new();
    machine.first_up(&[]);
    let broker = machine.pid("nats-server.pid").unwrap();
    let pid_file = machine.root().join(".cotal/nats-server.pid");
    assert_eq!(mode(&pid_file), 0o600);
    let mut foreign = Command::new("sleep").arg("600").spawn().unwrap();
    std::fs::write(&pid_file, foreign.id().to_string()).unwrap();
    let told = format!("a broker of this root still runs as process {}", broker.as_raw_nonzero());
    assert!(machine.refused(&["down"]).contains(&told));
    assert!(machine.refused(&["up", "--user-auth", "--port", "0"]).contains(&told));
    assert!(is_alive(broker) && foreign.try_wait().unwrap().is_none());
    foreign.kill().unwrap();
    foreign.wait().unwrap();
    kill_process(broker, Signal::TERM).unwrap();
    wait_until("the broker's end", || !is_alive(broker));
    machine.up(&["--port", "0"]);
    assert!(machine.run(&["down"]).status.success());
}

#[test]
fn a_broker_that_somebody_else_started_is_told_by_up_and_never_joined_by_a_second_one() {
    let machine = Machine::new();
    machine.first_up(&[]);
    machine.json(&["down"]);
    let config = machine.root().join(".cotal/nats-server.conf");
    let mut theirs = Command::new(nats_server_binary())
        .arg("-c")
        .arg(config)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_until("their broker", || machine.json(&["status"])["broker"]["answers"] == true);
    for port in [&[][..], &["--port", "0"]] {
        let told = machine.refused(&[&["up", "--user-auth"], port].concat());
        assert!(told.contains("a broker of this root, which `up` did not start"), "{told}");
        assert!(!told.contains("async_nats") && !told.contains("--port <n>"), "{told}");
    }
    theirs.kill().unwrap();
    theirs.wait().unwrap();
    machine.up(&["--port", "0"]);
    assert!(machine.run(&["down"]).status.success());
}

#[test]
fn a_store_that_was_lost_is_not_replaced_by_an_empty_one() {
    let machine = Machine::new();
    machine.first_up(&[]);
    let granted = ["actor", "grant", "cli", "--sub", "somebody", "--full"];
    assert!(machine.run(&granted).status.success());
    assert!(machine.run(&["down"]).status.success());
    let mut accounts = std::fs::read_dir(machine.root().join(".cotal/jetstream/jetstream")).unwrap();
    let store = accounts
        .find_map(|account| {
            Some(account.unwrap().path().join("streams/KV_cotal_auth_main")).filter(|dir| dir.exists())
        })
        .unwrap();
    let aside = machine.dir.path().join("aside");
    std::fs::rename(&store, &aside).unwrap();
    let told = machine.refused(&["up", "--user-auth", "--port", "0"]);
    assert!(told.contains("has lost the auth store") && told.contains("backup"), "{told}");
    assert!(machine.pid("nats-server.pid").is_none() && !store.exists());
    std::fs::rename(&aside, &store).unwrap();
    machine.up(&["--port", "0"]);
}

/// The state directory of the space.
const STATE: &str = ".cotal/auth/space.6d61696e";

impl Machine {
    /// A run that must not go on without this file: it names it with the way out, makes no other one, starts nothing.
    fn refused_without(&self, file: &str, arguments: &[&str]) -> String {
        let told = self.refused(&[&["up", "--user-auth", "--port", "0"], arguments].concat());
        let name = file.rsplit('/').next().unwrap();
        for part in [name, "existed before", "from a backup", "start a new space"] {
            assert!(told.contains(part), "{part}: {told}");
        }
        assert!(!told.contains("jetstream"), "{told}");
        assert!(!self.root().join(file).exists() && self.pid(BROKER).is_none(), "{told}");
        told
    }

    /// Takes a file out of the root and answers what puts it back.
    fn lose(&self, file: &str) -> impl FnOnce() {
        let (path, aside) = (self.root().join(file), self.dir.path().join("lost"));
        std::fs::rename(&path, &aside).unwrap();
        move || std::fs::rename(aside, path).unwrap()
    }
}

#[test]
fn an_owner_secret_or_an_account_record_that_was_lost_is_not_made_again() {
    let machine = Machine::new();
    machine.first_up(&[]);
    machine.json(&["down"]);
    for file in [&format!("{STATE}/owner-secret.json"), ".cotal/auth/account.6d61696e.json"] {
        let put_back = machine.lose(file);
        machine.refused_without(file, &[]);
        machine.refused_without(file, &["--idp", &machine.idp]);
        put_back();
    }
    // What can be made again is.
    for file in ["issuer.json", "callout.json", "service-keys.json"] {
        std::fs::remove_file(machine.root().join(STATE).join(file)).unwrap();
    }
    machine.up(&["--port", "0"]);
    machine.json(&["down"]);
}

#[test]
fn a_root_that_has_lost_all_of_its_secrets_is_not_begun_anew_over_the_store_of_its_broker() {
    let machine = Machine::new();
    machine.first_up(&[]);
    machine.json(&["down"]);
    let auth = ".cotal/auth";
    let put_back = machine.lose(auth);
    let told = machine.refused_without(auth, &["--idp", &machine.idp]);
    for part in ["auth/broker.json", "owner-secret.json", "new space, in another directory"] {
        assert!(told.contains(part), "{part}: {told}");
    }
    machine.refused_without(auth, &["--idp", &machine.idp, "--space", "other"]);
    put_back();
    machine.up(&["--port", "0"]);
    machine.json(&["down"]);
}

#[test]
fn a_development_provider_that_a_run_pinned_before_it_failed_is_started_by_the_next_one() {
    let machine = Machine::new();
    let taken = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    machine.refused(&["up", "--user-auth", "--dev-idp", "--port", &port]);
    assert!(machine.root().join(STATE).join("idp.json").exists());
    machine.up(&["--port", "0"]);
    let status = machine.json(&["status"]);
    assert_eq!(status["devIdp"]["running"], true, "{status}");
    machine.json(&["down"]);
}

#[test]
fn a_pin_that_was_lost_is_made_again_only_for_the_provider_that_it_named() {
    let machine = Machine::new();
    let idp = machine.up(&["--dev-idp", "--port", "0"])["idp"].clone();
    machine.json(&["down"]);
    let file = format!("{STATE}/idp.json");
    drop(machine.lose(&file));
    assert!(machine.refused_without(&file, &[]).contains("with --dev-idp"));
    machine.refused_without(&file, &["--idp", &machine.idp]);
    assert_eq!(machine.up(&["--dev-idp", "--port", "0"])["idp"], idp);
    machine.json(&["down"]);

    let machine = Machine::new();
    machine.first_up(&[]);
    machine.json(&["down"]);
    drop(machine.lose(&file));
    assert!(machine.refused_without(&file, &[]).contains(&format!("--idp '{}'", machine.idp)));
    machine.refused_without(&file, &["--idp", "http://127.0.0.1:1/api/auth"]);
    assert_eq!(machine.first_up(&[])["idp"]["url"], machine.idp.as_str());
    machine.json(&["down"]);
}

#[test]
fn a_first_run_that_ended_after_any_of_its_files_is_finished_by_the_next_one() {
    let machine = Machine::new();
    let first = ["up", "--user-auth", "--idp", &machine.idp, "--port", "0"];
    let state = machine.root().join(STATE);
    for (made, next) in [
        ("idp.json", "owner-secret.json"),
        ("owner-secret.json", "issuer.json"),
        ("issuer.json", "callout.json"),
        ("callout.json", "service-keys.json"),
    ] {
        // Where a file is to be made, something is in its way.
        let in_the_way = state.join(next);
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&in_the_way).unwrap();
        let told = machine.refused(&first);
        assert!(told.contains(next) && !told.contains("existed before"), "{told}");
        assert!(state.join(made).is_file());
        std::fs::remove_dir(in_the_way).unwrap();
    }
    let secret = std::fs::read(state.join("owner-secret.json")).unwrap();
    machine.first_up(&[]);
    assert_eq!(std::fs::read(state.join("owner-secret.json")).unwrap(), secret);
    machine.json(&["down"]);

    for file in ["auth/broker.json", "auth/account.6d61696e.json", "auth/space.6d61696e/owner-secret.json"] {
        let machine = Machine::new();
        let first = ["up", "--user-auth", "--idp", &machine.idp, "--port", "0"];
        let mut up = machine.command(&first).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let made = machine.root().join(".cotal").join(file);
        wait_until(file, || made.exists());
        up.kill().unwrap();
        up.wait().unwrap();
        machine.first_up(&[]);
        machine.json(&["down"]);
    }
}

#[test]
fn an_interrupted_up_stops_what_it_started() {
    let machine = Machine::new();
    let mut up = machine
        .command(&["up", "--user-auth", "--idp", &machine.idp, "--port", "0"])
        .env("COTAL_SMOKE_AUTH_STARTUP_HOLD_MS", "600000")
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until("the auth service is started", || machine.pid(SERVICE).is_some());
    let pids = [machine.pid(BROKER).unwrap(), machine.pid(SERVICE).unwrap()];
    kill_process(Pid::from_child(&up), Signal::INT).unwrap();
    let status = up.wait().unwrap();
    let mut told = String::new();
    up.stderr.take().unwrap().read_to_string(&mut told).unwrap();
    assert_eq!(status.code(), Some(1));
    assert!(told.trim_end().ends_with("interrupted: what this run had started is stopped again"), "{told}");
    assert!(pids.into_iter().all(|pid| !is_alive(pid)));
    assert!(machine.pid(BROKER).is_none() && machine.pid(SERVICE).is_none());
}

#[test]
fn an_identity_provider_that_does_not_answer_is_not_pinned_and_nothing_starts() {
    let machine = Machine::new();
    let error =
        machine.refused(&["up", "--user-auth", "--idp", "http://127.0.0.1:1/api/auth", "--port", "0"]);
    assert!(error.contains("cannot be pinned") && error.contains("cannot be reached"), "{error}");
    assert!(!machine.root().join(".cotal/auth/account.6d61696e.json").exists());
    assert!(!machine.root().join(".cotal/auth/space.6d61696e").exists() && machine.pid(BROKER).is_none());
}

#[test]
fn usage_errors_and_failures_are_exit_code_one_and_one_json_document() {
    let machine = Machine::new();
    let output = machine.run(&["up", "--user-auth", "--space", "a", "--space", "b", "--json"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(text(&output.stderr), "Option '--space' cannot be repeated\n");
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["error"]["code"], "USAGE");
    let output = machine.run(&["down", "--space", "none", "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["error"]["message"], text(&output.stderr).trim_end());
}

#[test]
fn a_usage_error_of_agent_bearer_leaves_stdout_empty_whatever_it_was_asked() {
    let output = Machine::new().run(&["agent-bearer", "--json"]);
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(1), ""));
    assert!(!output.stderr.is_empty());
}
