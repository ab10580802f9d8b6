//! Independent witnesses: NATS and JOSE libraries not written in Rust, fetched under `.tools/` with the machine's own
//! pip and npm. What is absent is named, and the tests that need it say that they did not run.

use std::{path::PathBuf, process::Command};

use anyhow::Result;

use crate::{repository, step};

/// Python packages of the witnesses.
const PYTHON: [&str; 3] = ["nats-py==2.16.0", "nkeys==0.2.1", "PyJWT[crypto]==2.15.1"];

/// What tries the OpenAPI document on both faces.
const SCHEMATHESIS: &str = "schemathesis==4.32.5";

/// Where the witnesses lie.
pub(crate) struct Witnesses {
    python: Option<PathBuf>,
    schemathesis: Option<PathBuf>,
    node: Option<PathBuf>,
}

/// Fetches what is not there yet.
pub(crate) fn ensure() -> Result<Witnesses> {
    Ok(Witnesses { python: python()?, schemathesis: schemathesis()?, node: node()? })
}

impl Witnesses {
    /// Tells the tests where the witnesses lie.
    pub(crate) fn describe_to(&self, command: &mut Command) {
        if let Some(path) = &self.python {
            command.env("COTAL_WITNESS_PYTHONPATH", path);
        }
        if let Some(path) = &self.schemathesis {
            command.env("COTAL_WITNESS_SCHEMATHESIS", path);
        }
        if let Some(path) = &self.node {
            command.env("COTAL_WITNESS_NODE", path);
        }
    }
}

fn python() -> Result<Option<PathBuf>> {
    if !step::is_available("python3", &["-m", "pip", "--version"]) {
        eprintln!("==> no python3 with pip: the Python witnesses do not run");
        return Ok(None);
    }
    let target = repository::root().join(".tools").join("witness-python");
    if !target.join(".complete").is_file() {
        let mut command = Command::new("python3");
        command.args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--upgrade",
            "--target",
        ]);
        command.arg(&target).args(PYTHON);
        step::run("Python witnesses (nats-py, PyJWT)", &mut command)?;
        std::fs::write(target.join(".complete"), PYTHON.join("\n"))?;
    }
    Ok(Some(target))
}

/// In a virtual environment, because it brings its own versions of much; made without pip of its own, which some systems
/// leave out of Python.
fn schemathesis() -> Result<Option<PathBuf>> {
    if !step::is_available("python3", &["-m", "pip", "--version"]) {
        eprintln!("==> no python3 with pip: the OpenAPI document is not tried on the faces");
        return Ok(None);
    }
    let target = repository::root().join(".tools").join("witness-schemathesis");
    let program = target.join("bin").join("schemathesis");
    if std::fs::read_to_string(target.join(".complete")).ok().as_deref() != Some(SCHEMATHESIS) {
        let mut command = Command::new("python3");
        command.args(["-m", "venv", "--clear", "--without-pip"]).arg(&target);
        step::run("virtual environment of schemathesis", &mut command)?;
        let mut command = Command::new("python3");
        command.args(["-m", "pip", "--python"]).arg(target.join("bin").join("python"));
        command.args(["install", "--quiet", "--disable-pip-version-check", SCHEMATHESIS]);
        step::run("schemathesis", &mut command)?;
        std::fs::write(target.join(".complete"), SCHEMATHESIS)?;
    }
    Ok(Some(program))
}

fn node() -> Result<Option<PathBuf>> {
    let source = repository::root().join("crates").join("cli").join("tests").join("node");
    if !source.join("package-lock.json").is_file() {
        return Ok(None);
    }
    if !step::is_available("node", &["--version"]) || !step::is_available("npm", &["--version"]) {
        eprintln!("==> no Node.js with npm: the Better Auth and nats.js tests do not run");
        return Ok(None);
    }
    let target = repository::root().join(".tools").join("witness-node");
    std::fs::create_dir_all(&target)?;
    let lock = std::fs::read(source.join("package-lock.json"))?;
    if std::fs::read(target.join(".complete")).ok().as_deref() != Some(&lock) {
        for file in ["package.json", "package-lock.json"] {
            std::fs::copy(source.join(file), target.join(file))?;
        }
        let mut command = Command::new("npm");
        command.args(["ci", "--silent", "--no-audit", "--no-fund", "--prefix"]).arg(&target);
        step::run("Node witnesses (better-auth, nats.js, jose)", &mut command)?;
        std::fs::write(target.join(".complete"), lock)?;
    }
    Ok(Some(target))
}
