//! The auth service that runs on this machine, as a command finds it: its address, its capability, and proof that its
//! process is alive (contract 04 §6.4, §13.2).

use std::path::Path;

use cotal_workspace::{material::Discovery, printed::at_state_dir};
use url::{Host, Url};
use zeroize::Zeroizing;

use crate::{daemon::pid_is_alive, outcome::CliError};

/// A running auth service of this machine.
pub struct LoopbackService {
    /// Its loopback base URL.
    pub base: Url,
    /// The capability of this start.
    pub capability: Zeroizing<String>,
}

impl LoopbackService {
    /// The service that serves a state directory; its process must be provably alive.
    pub fn of(state_dir: &Path) -> Result<Self, CliError> {
        let not_running = || {
            CliError::failed(format!(
                "no auth service runs for {}; start it with `cotal up --user-auth{}`",
                state_dir.display(),
                at_state_dir(state_dir)
            ))
        };
        let discovery = Discovery::load(state_dir)?.ok_or_else(not_running)?;
        match is_alive(state_dir, discovery.pid) {
            Some(true) => {}
            Some(false) => return Err(not_running()),
            None => {
                return Err(CliError::failed(format!(
                    "whether the auth service of {} runs (pid {}) cannot be told; check the process and restart it",
                    state_dir.display(),
                    discovery.pid
                )));
            }
        }
        let base = Url::parse(&discovery.url).ok().filter(is_http_loopback).ok_or_else(|| {
            CliError::failed(format!(
                "the auth service record in {} names no loopback address; restart the auth service",
                state_dir.display()
            ))
        })?;
        Ok(Self { base, capability: discovery.cap })
    }
}

/// Whether the service that announced itself in a state directory is provably alive: its process, and the lock that it holds
/// as long as it lives. Of one that was killed the process id and the port may both be somebody else's by now, and an agent's
/// secret goes there.
pub fn is_alive(state_dir: &Path, pid: u32) -> Option<bool> {
    match cotal_auth::is_served(state_dir) {
        Ok(Some(false)) => Some(false),
        Ok(Some(true) | None) => pid_is_alive(pid),
        Err(_) => None,
    }
}

/// The capability goes to this machine and nowhere else, whatever a record says.
fn is_http_loopback(url: &Url) -> bool {
    url.scheme() == "http"
        && match url.host() {
            Some(Host::Ipv4(ip)) => ip.is_loopback(),
            Some(Host::Ipv6(ip)) => ip.is_loopback(),
            _ => false,
        }
}

#[cfg(test)]
mod tests {
    use cotal_wire::Space;
    use cotal_workspace::{lock_file::LockFile, root::space_segment};

    use super::*;

    #[test]
    fn a_service_that_does_not_run_is_told_with_the_command_of_its_space() {
        let tmp = tempfile::tempdir().unwrap();
        for (name, up) in [("main", "cotal up --user-auth"), ("q", "cotal up --user-auth --space 'q'")] {
            let dir = tmp.path().join(space_segment(&Space::parse(name).unwrap()));
            std::fs::create_dir(&dir).unwrap();
            let told = LoopbackService::of(&dir).err().unwrap().to_string();
            assert!(told.ends_with(&format!("start it with `{up}`")), "{told}");
        }
    }

    /// What a service left that was killed, whose process id has come to somebody else, as its port may have.
    #[test]
    fn a_record_whose_lock_nobody_holds_is_no_services() {
        let tmp = tempfile::tempdir().unwrap();
        let dir = tmp.path();
        let discovery = Discovery {
            url: "http://127.0.0.1:4000".to_owned(),
            pid: std::process::id(),
            cap: Zeroizing::new("cap".to_owned()),
            public_url: None,
        };
        discovery.write(dir).unwrap();
        assert!(LoopbackService::of(dir).is_ok(), "a service without the lock is taken by its pid");
        let held = LockFile::take(&dir.join("auth-service.lock")).unwrap().unwrap();
        assert!(LoopbackService::of(dir).is_ok());
        drop(held);
        let told = LoopbackService::of(dir).err().unwrap().to_string();
        assert!(told.contains("no auth service runs for"), "{told}");
    }

    #[test]
    fn the_capability_goes_to_loopback_only() {
        for (url, ok) in [
            ("http://127.0.0.1:4000", true),
            ("http://[::1]:4000", true),
            ("http://localhost:4000", false),
            ("http://10.0.0.1", false),
            ("https://127.0.0.1", false),
        ] {
            assert_eq!(is_http_loopback(&Url::parse(url).unwrap()), ok, "{url}");
        }
    }
}
