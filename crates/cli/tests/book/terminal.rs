//! The terminal in which a page's commands are typed: a directory, a home and a `cotal` of its own.

use std::{
    fmt::Write as _,
    fs,
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use cotal_ledger::shell_quote;
use cotal_testkit::broker::nats_server_binary;
use cotal_workspace::{root::Root, trust_files};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::page::{Page, Typed, pieces};

const COTAL: &str = env!("CARGO_BIN_EXE_cotal");
/// Longer than a page takes on a busy machine.
const WITHIN: Duration = Duration::from_secs(300);
/// How often the shell is looked at.
const POLL: Duration = Duration::from_millis(20);
/// What a reader has who comes from the first pages.
const SPACE_IS_UP: &str = r#"mkdir -p book-space/.cotal && cd book-space &&
cotal up --user-auth --dev-idp --auto-approve &&
cotal login --idp "$(sed -n 's/.*"url": *"\([^"]*\)".*/\1/p' .cotal/auth/space.6d61696e/idp.json)""#;
/// What pages use beside `cotal`, and a machine may be without.
const TOOLS: [&str; 3] = ["jq", "curl", "flock"];

/// A terminal; what was started in it is stopped when it goes.
pub(crate) struct Terminal {
    dir: tempfile::TempDir,
}

impl Terminal {
    /// A terminal in an empty directory.
    pub(crate) fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("cotal-book-").tempdir().unwrap();
        for name in ["home", "bin", "said"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        // Pages run side by side, and a reader has the default port to themselves.
        let wrapper = format!(
            "#!/bin/sh\ncase \" $* \" in\n*' --port '*|*' --help '*) ;;\n' up '*) shift; set -- up --port 0 \"$@\" ;;\nesac\nexec \
             '{COTAL}' \"$@\"\n"
        );
        let cotal = dir.path().join("bin/cotal");
        fs::write(&cotal, wrapper).unwrap();
        fs::set_permissions(&cotal, fs::Permissions::from_mode(0o755)).unwrap();
        Self { dir }
    }

    fn home(&self) -> PathBuf {
        self.dir.path().join("home")
    }

    fn said(&self, n: usize, what: &str) -> PathBuf {
        self.dir.path().join("said").join(format!("{n}.{what}"))
    }

    fn environment<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let dirs = std::iter::once(self.dir.path().join("bin")).chain(std::env::split_paths(&path));
        command
            .current_dir(self.home())
            .env("HOME", self.home())
            .env("PATH", std::env::join_paths(dirs).unwrap())
            .env("COTAL_NATS_SERVER", nats_server_binary())
            .env_remove("COTAL_HOME")
            .env_remove("COTAL_LOG")
            .stdin(Stdio::null())
    }

    /// A program that the page uses and this machine does not have.
    pub(crate) fn lacks(page: &Page) -> Option<&'static str> {
        let uses = |tool: &str| page.commands.iter().any(|typed| typed.command.contains(&format!("{tool} ")));
        let has = |tool: &str| {
            let mut look = Command::new("sh");
            let look = look.args(["-c", "command -v \"$0\"", tool]).stdout(Stdio::null());
            look.status().is_ok_and(|status| status.success())
        };
        TOOLS.into_iter().find(|tool| uses(tool) && !has(tool))
    }

    /// Types what the page says, in order, and stops at the first command that does not do what the page says.
    pub(crate) fn type_all(&self, page: &Page) -> Result<(), String> {
        let given = page.space_is_up.then(|| Typed {
            line: 1,
            command: SPACE_IS_UP.to_owned(),
            exit: 0,
            stays: false,
            prints: Vec::new(),
        });
        let commands: Vec<&Typed> = given.iter().chain(&page.commands).collect();
        let mut script = "stay=\ntrap '[ -z \"$stay\" ] || kill $stay; wait' EXIT\n".to_owned();
        let mut ends = Vec::new();
        for (n, typed) in commands.iter().enumerate() {
            let (out, code) = (self.said(n, "out"), self.said(n, "code"));
            let (out, code, command) = (out.display(), code.display(), &typed.command);
            let _ = if typed.stays {
                ends.push(format!("kill $stay_{n}; wait $stay_{n}; echo $? >{code}\n"));
                let ready = is_ready(typed, &out.to_string());
                writeln!(
                    script,
                    "{{ exec {command}\n}} >{out} 2>&1 &\nstay_{n}=$! stay=\"$stay $!\"\n\
                     until {ready}; do kill -0 $stay_{n} || exit 1; sleep 0.1; done"
                )
            } else {
                let exit = typed.exit;
                writeln!(
                    script,
                    "{{ {command}\n}} >{out} 2>&1\ncode=$?\necho $code >{code}\n[ $code = {exit} ] || exit 1"
                )
            };
        }
        script.extend(ends.into_iter().rev());
        let script_path = self.dir.path().join("script");
        fs::write(&script_path, script).unwrap();
        let mut shell = self
            .environment(Command::new("sh").arg(&script_path))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .unwrap();
        let began = Instant::now();
        while shell.try_wait().unwrap().is_none() {
            if began.elapsed() > WITHIN {
                // With what stays, and with what hangs.
                kill_process_group(Pid::from_child(&shell), Signal::KILL).unwrap();
                shell.wait().unwrap();
                break;
            }
            std::thread::sleep(POLL);
        }
        commands.iter().enumerate().try_for_each(|(n, typed)| self.check(n, typed))
    }

    fn check(&self, n: usize, typed: &Typed) -> Result<(), String> {
        let output = fs::read(self.said(n, "out")).unwrap_or_default();
        let output = String::from_utf8_lossy(&output);
        let told = |what: &str| {
            Err(format!("line {}: `{}` {what}; it printed:\n{output}", typed.line, typed.command))
        };
        let code = fs::read_to_string(self.said(n, "code")).unwrap_or_default();
        match code.trim().parse::<i32>() {
            Err(_) => return told("did not end"),
            Ok(code) if code != typed.exit => {
                return told(&format!("ended with {code}, not with {}", typed.exit));
            }
            Ok(_) => {}
        }
        typed.missing(&output).map_or(Ok(()), |missing| told(&format!("did not print `{missing}`")))
    }

    /// Every workspace that the commands have made.
    fn roots(dir: &Path, depth: usize, found: &mut Vec<PathBuf>) {
        if dir.join(".cotal/auth").is_dir() {
            found.push(dir.to_owned());
        }
        let inner = fs::read_dir(dir).ok().filter(|_| depth > 0).into_iter().flatten().flatten();
        for entry in inner.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
            Self::roots(&entry.path(), depth - 1, found);
        }
    }
}

/// The shell's question whether a command has printed what it is said to. In which order is looked at afterwards.
fn is_ready(typed: &Typed, out: &str) -> String {
    let pieces = typed.prints.iter().flat_map(|wanted| pieces(wanted)).filter(|piece| !piece.is_empty());
    let found: Vec<_> = pieces.map(|piece| format!("grep -qF -- {} {out}", shell_quote(piece))).collect();
    found.join(" && ")
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let mut roots = Vec::new();
        Self::roots(&self.home(), 3, &mut roots);
        for root in roots {
            for space in trust_files::inventory(&Root::at(&root)).unwrap_or_default() {
                let mut down = Command::new(COTAL);
                down.args(["down", "--space", space.as_str()]);
                let down = self.environment(&mut down).current_dir(&root);
                let _ = down.stdout(Stdio::null()).stderr(Stdio::null()).status();
            }
        }
    }
}
