//! Finding a nats-server of this machine that is new enough (contract 12 D20).

use std::{
    fmt,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::{context::Context, outcome::CliError};

/// Names a nats-server of your own.
pub const BINARY_VARIABLE: &str = "COTAL_NATS_SERVER";
/// The oldest version that is served.
pub const FLOOR: Version = Version(2, 12, 0);
const BINARY: &str = "nats-server";
/// How long `nats-server -v` may take.
const VERSION_WITHIN: Duration = Duration::from_secs(10);

/// A version of nats-server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32, pub u32, pub u32);

/// A nats-server that runs and is new enough.
#[derive(Debug, Clone)]
pub struct NatsServer {
    /// The binary.
    pub path: PathBuf,
    /// What it says it is.
    pub version: Version,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

impl Version {
    /// Reads what `nats-server -v` prints: `nats-server: v2.12.8` or the number alone, with or without a suffix.
    pub fn parse(printed: &str) -> Option<Self> {
        let text = printed.trim();
        let text = text.strip_prefix("nats-server:").unwrap_or(text).trim_start();
        let text = text.strip_prefix('v').unwrap_or(text);
        let (major, rest) = number(text)?;
        let (minor, rest) = number(rest.strip_prefix('.')?)?;
        let (patch, _) = number(rest.strip_prefix('.')?)?;
        Some(Self(major, minor, patch))
    }
}

fn number(text: &str) -> Option<(u32, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    Some((text[..end].parse().ok()?, &text[end..]))
}

/// The nats-server of `COTAL_NATS_SERVER`, else of PATH, else of `<home>/bin`. A named one that cannot be used is a
/// refusal, never a reason to take another.
pub async fn find(ctx: &Context) -> Result<NatsServer, CliError> {
    let path = locate(ctx).ok_or_else(|| {
        CliError::failed(format!(
            "no nats-server found in {BINARY_VARIABLE}, PATH or {}: {}",
            ctx.home.path().join("bin").display(),
            advice()
        ))
    })?;
    let version = version_of(&path).await?;
    if version < FLOOR {
        return Err(CliError::failed(format!(
            "{} is nats-server {version}, and {FLOOR} or later is needed: {}",
            path.display(),
            advice()
        )));
    }
    Ok(NatsServer { path, version })
}

fn locate(ctx: &Context) -> Option<PathBuf> {
    if let Some(named) = ctx.env(BINARY_VARIABLE) {
        return Some(std::path::absolute(&named).unwrap_or_else(|_| named.into()));
    }
    let path = ctx.env("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .filter(|dir| dir.is_absolute())
        .chain(std::iter::once(ctx.home.path().join("bin")))
        .map(|dir| dir.join(BINARY))
        .find(|candidate| is_executable(candidate))
}

fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

async fn version_of(path: &Path) -> Result<Version, CliError> {
    let unusable = |why: &str| CliError::failed(format!("{} {why}: {}", path.display(), advice()));
    let mut command = tokio::process::Command::new(path);
    command.arg("-v").stdin(std::process::Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(VERSION_WITHIN, command.output())
        .await
        .map_err(|_| unusable("does not say its version"))?
        .map_err(|e| unusable(&format!("cannot be run ({e})")))?;
    let printed = String::from_utf8_lossy(&output.stdout);
    Version::parse(&printed).ok_or_else(|| unusable("does not say its version as nats-server does"))
}

fn advice() -> String {
    format!("get one with `cargo xtask nats-server`, or set {BINARY_VARIABLE}=<path> to your own")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use cotal_workspace::root::{Home, Root};

    use super::*;

    fn context(dir: &Path, variables: &[(&str, String)]) -> Context {
        let variables: Vec<(String, String)> =
            variables.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect();
        Context::of_parts(
            Home::at(dir.join("home")),
            Root::at(dir),
            "cotal".into(),
            move |name| variables.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone()),
            std::io::sink(),
            std::io::sink(),
        )
    }

    fn server(path: &Path, says: &str) -> String {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, format!("#!/bin/sh\necho '{says}'\n")).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path.display().to_string()
    }

    #[test]
    fn a_version_is_three_numbers_at_the_start() {
        for (text, version) in [
            ("nats-server: v2.12.8\n", Some(Version(2, 12, 8))),
            ("2.14.6-RC.1", Some(Version(2, 14, 6))),
            ("v10.0.1", Some(Version(10, 0, 1))),
            ("2.12", None),
            ("x2.12.1", None),
            ("", None),
            ("nats-server: vlatest", None),
            ("99999999999.1.1", None),
        ] {
            assert_eq!(Version::parse(text), version, "{text:?}");
        }
    }

    #[tokio::test]
    async fn the_named_one_comes_before_path_and_path_before_the_home() {
        let tmp = tempfile::tempdir().unwrap();
        let named = server(&tmp.path().join("own"), "nats-server: v2.12.0");
        server(&tmp.path().join("bin/nats-server"), "nats-server: v2.13.0");
        server(&tmp.path().join("home/bin/nats-server"), "nats-server: v2.14.0");
        let path = ("PATH", tmp.path().join("bin").display().to_string());
        let found = |variables: Vec<(&'static str, String)>| {
            let ctx = context(tmp.path(), &variables);
            async move { find(&ctx).await.unwrap().version }
        };
        assert_eq!(found(vec![(BINARY_VARIABLE, named), path.clone()]).await, Version(2, 12, 0));
        assert_eq!(found(vec![path]).await, Version(2, 13, 0));
        assert_eq!(found(vec![]).await, Version(2, 14, 0));
    }

    #[tokio::test]
    async fn an_absent_an_old_and_a_strange_one_are_refused_with_the_way_out() {
        let tmp = tempfile::tempdir().unwrap();
        let old = server(&tmp.path().join("old"), "nats-server: v2.11.99");
        let strange = server(&tmp.path().join("strange"), "hello");
        for variables in [
            vec![],
            vec![(BINARY_VARIABLE, old)],
            vec![(BINARY_VARIABLE, strange)],
            vec![(BINARY_VARIABLE, tmp.path().join("nowhere").display().to_string())],
        ] {
            let error = find(&context(tmp.path(), &variables)).await.unwrap_err().to_string();
            assert!(
                error.contains("cargo xtask nats-server") && error.contains("COTAL_NATS_SERVER="),
                "{error}"
            );
        }
    }
}
