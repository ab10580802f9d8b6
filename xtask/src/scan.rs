//! No secret in any output: the tests' own output is kept and searched.

use std::{
    fs::OpenOptions,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Command, Stdio},
    time::Instant,
};

use anyhow::{Context, Result, bail, ensure};

/// Runs a command, shows what it prints and appends it to `log`.
pub(crate) fn tee(what: &str, command: &mut Command, log: &Path) -> Result<()> {
    eprintln!("==> {what}");
    let started = Instant::now();
    if let Some(parent) = log.parent() {
        std::fs::create_dir_all(parent)?;
    }
    let (reader, writer) = std::io::pipe()?;
    let mut child = command
        .current_dir(crate::repository::root())
        .stdin(Stdio::null())
        .stdout(writer.try_clone()?)
        .stderr(writer)
        .spawn()
        .with_context(|| format!("cannot start {}", command.get_program().display()))?;
    // The command holds the pipe's other ends; with ours gone, its end is the reader's.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut kept = OpenOptions::new().create(true).append(true).open(log)?;
    let mut reader = BufReader::new(reader);
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line)? > 0 {
        std::io::stdout().write_all(&line)?;
        kept.write_all(&line)?;
        line.clear();
    }
    let status = child.wait()?;
    ensure!(status.success(), "{what} failed ({status})");
    eprintln!("==> {what}: done in {:.1} s", started.elapsed().as_secs_f64());
    Ok(())
}

/// Refuses when the kept output holds what looks like a seed, a bearer or a creds block.
pub(crate) fn for_secrets(log: &Path) -> Result<()> {
    let text = String::from_utf8_lossy(&std::fs::read(log)?).into_owned();
    let found: Vec<_> =
        text.lines().enumerate().filter_map(|(n, line)| secret_in(line).map(|kind| (n + 1, kind))).collect();
    if let Some((line, kind)) = found.first() {
        bail!(
            "{} line(s) of the tests' output look like a secret; the first is line {line} of {}: {kind}",
            found.len(),
            log.display()
        );
    }
    eprintln!("==> no secret in {} lines of output", text.lines().count());
    Ok(())
}

/// What kind of secret this line holds, if any.
fn secret_in(line: &str) -> Option<&'static str> {
    for word in line.split(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))) {
        let base32 = |s: &str| s.bytes().all(|b| b.is_ascii_uppercase() || matches!(b, b'2'..=b'7'));
        if word.len() == 58
            && base32(word)
            && ["SU", "SA", "SO", "SN", "SX"].iter().any(|p| word.starts_with(p))
        {
            return Some("an nkey seed");
        }
        let mut parts = word.split('.');
        if let (Some(header), Some(payload), Some(signature), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
            && header.starts_with("eyJ")
            && payload.starts_with("eyJ")
            && signature.len() >= 80
        {
            return Some("a signed token");
        }
    }
    line.contains("BEGIN USER NKEY SEED").then_some("a creds block")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_tokens_and_creds_blocks_are_seen() {
        let seed = format!("SU{}", "A".repeat(56));
        assert_eq!(secret_in(&format!("seed={seed},")), Some("an nkey seed"));
        assert_eq!(secret_in(&format!("eyJh.eyJz.{}", "x".repeat(86))), Some("a signed token"));
        assert_eq!(secret_in("-----BEGIN USER NKEY SEED-----"), Some("a creds block"));
        assert_eq!(secret_in(&format!("U{}", "A".repeat(55))), None);
        assert_eq!(secret_in("test eyJ.ok"), None);
    }
}
