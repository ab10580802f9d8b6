//! What a command may touch: the machine's home, the workspace root, the environment, the clock, randomness and the
//! two streams, all by argument.

use std::{
    fmt::Display,
    io::{IsTerminal, Write},
    path::PathBuf,
    sync::Arc,
};

use cotal_trust::system::{SystemClock, SystemEntropy};
use cotal_wire::{Clock, Entropy, Space};
use cotal_workspace::{
    printed,
    root::{Home, Root},
};
use parking_lot::Mutex;
use serde::Serialize;

use crate::outcome::CliError;

pub use cotal_workspace::printed::DEFAULT_SPACE;

type Variables = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;
type Stream = Arc<Mutex<Box<dyn Write + Send>>>;

/// The machine, as one command sees it. Clones are one context, and go along to where disk work is done.
#[derive(Clone)]
pub struct Context {
    /// `$COTAL_HOME`, else `~/.cotal`.
    pub home: Home,
    /// The nearest ancestor of the working directory that holds `.cotal/`, else that directory.
    pub root: Root,
    /// This program, to start daemons with.
    pub executable: PathBuf,
    /// The wall clock.
    pub clock: Arc<dyn Clock>,
    /// Randomness.
    pub entropy: Arc<dyn Entropy>,
    /// Whether `--json` was given.
    pub json: bool,
    /// Whether a person watches stderr.
    pub interactive: bool,
    variables: Variables,
    out: Stream,
    err: Stream,
}

impl Context {
    /// The context of this process.
    pub fn of_process(json: bool) -> Result<Self, CliError> {
        let variables: Variables = Arc::new(|name| std::env::var(name).ok());
        let home = Home::from_env(variables("COTAL_HOME").as_deref(), variables("HOME").as_deref())?;
        let cwd = std::env::current_dir()
            .map_err(|e| CliError::failed(format!("the working directory cannot be read: {e}")))?;
        Ok(Self {
            home,
            root: Root::discover(&cwd)?,
            executable: std::env::current_exe()
                .map_err(|e| CliError::failed(format!("this program's own file cannot be found: {e}")))?,
            clock: Arc::new(SystemClock),
            entropy: Arc::new(SystemEntropy),
            json,
            interactive: std::io::stderr().is_terminal(),
            variables,
            out: stream(std::io::stdout()),
            err: stream(std::io::stderr()),
        })
    }

    /// A context of these parts, for tests: an environment of its own and streams that can be read back.
    pub fn of_parts(
        home: Home,
        root: Root,
        executable: PathBuf,
        variables: impl Fn(&str) -> Option<String> + Send + Sync + 'static,
        out: impl Write + Send + 'static,
        err: impl Write + Send + 'static,
    ) -> Self {
        Self {
            home,
            root,
            executable,
            clock: Arc::new(SystemClock),
            entropy: Arc::new(SystemEntropy),
            json: false,
            interactive: false,
            variables: Arc::new(variables),
            out: stream(out),
            err: stream(err),
        }
    }

    /// An environment variable; empty counts as unset.
    pub fn env(&self, name: &str) -> Option<String> {
        (self.variables)(name).filter(|value| !value.is_empty())
    }

    /// One line on stdout.
    pub fn say(&self, line: impl Display) -> Result<(), CliError> {
        writeln!(self.out.lock(), "{line}")
            .map_err(|e| CliError::failed(format!("stdout cannot be written: {e}")))
    }

    /// One line on stderr: what a person wants to know and no script reads. A closed stderr stops nothing.
    pub fn note(&self, line: impl Display) {
        let _ = writeln!(self.err.lock(), "{line}");
    }

    /// The result of a reporting command: the document with `--json`, else the text.
    pub fn report(&self, document: &impl Serialize, text: impl FnOnce() -> String) -> Result<(), CliError> {
        if self.json {
            let document = serde_json::to_string(document)
                .map_err(|e| CliError::failed(format!("the result cannot be encoded: {e}")))?;
            self.say(document)
        } else {
            self.say(text().trim_end())
        }
    }
}

fn stream(to: impl Write + Send + 'static) -> Stream {
    Arc::new(Mutex::new(Box::new(to)))
}

/// Why something of a space is not here: this root has no such space, or it has, and `lacks` says what it lacks.
pub fn not_here(ctx: &Context, space: &Space, lacks: impl FnOnce() -> String) -> CliError {
    CliError::failed(if printed::has_space(&ctx.root, space) {
        lacks()
    } else {
        printed::no_such_space(&ctx.root, space)
    })
}

/// Why a space that was not made by this root's own `up` cannot be worked on here: it `lacks` something.
pub fn made_elsewhere(ctx: &Context, space: &Space, lacks: &str) -> CliError {
    not_here(ctx, space, || {
        format!(
            "space {:?} has no {lacks} here: run this on the machine and in the directory that ran `cotal up \
             --user-auth{}`",
            space.as_str(),
            printed::at(space)
        )
    })
}

/// Reads a space name from a flag.
pub fn space_flag(name: &str) -> Result<Space, CliError> {
    Space::parse(name).map_err(|e| CliError::usage(format!("--space is {e}")))
}
