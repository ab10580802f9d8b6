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

/// Words after which a value is a secret by its place: a capability or an opaque token after `Bearer`, an agent secret,
/// the capability of a discovery file, an owner secret. The values alone look like any digest or key of ours.
const PLACES: [&str; 4] = ["bearer ", "actortoken", "\"cap", "secretb64"];

/// Refuses when the kept output holds what looks like a seed, a bearer, a creds block, a capability or a secret.
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
    if line.contains("BEGIN USER NKEY SEED") {
        return Some("a creds block");
    }
    PLACES.iter().find_map(|place| secret_after(line, place))
}

/// What kind of secret follows this word, if any: between the two may stand whatever quotes and separates members.
fn secret_after(line: &str, place: &str) -> Option<&'static str> {
    // As long as the line itself, so that one's offsets are the other's.
    let lower = line.to_ascii_lowercase();
    lower.match_indices(place).find_map(|(at, _)| {
        let rest = line[at + place.len()..].trim_start_matches(['"', '\'', '\\', ':', '=', ' ', '(']);
        let ours = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '+' | '/' | '=');
        let value = rest.split(|c| !ours(c)).next().unwrap_or_default();
        let lower_hex = value.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'a'..=b'f'));
        // 32 random bytes have capitals among their 43 characters; a test's name has none.
        let base64url = value.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
            && value.bytes().any(|b| b.is_ascii_uppercase());
        match value.len() {
            64 if lower_hex => Some("a capability"),
            43 if base64url => Some("an agent secret or an opaque token"),
            44 if value.ends_with('=') => Some("an owner secret"),
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capability_and_a_secret_are_seen_where_they_are_presented_and_nowhere_else() {
        let (hex, opaque) = ("0a".repeat(32), "Ab-_9".repeat(8) + "xyz");
        for line in [
            format!("authorization: Bearer {hex}"),
            format!("bearer {hex},"),
            format!("{{\"cap\": \"{hex}\"}}"),
            format!("{{\\\"cap\\\":\\\"{hex}\\\"}}"),
        ] {
            assert_eq!(secret_in(&line), Some("a capability"), "{line}");
        }
        for line in [
            format!("Bearer {opaque}"),
            format!("\"actorToken\":\"{opaque}\""),
            format!("actorToken={opaque}"),
        ] {
            assert_eq!(secret_in(&line), Some("an agent secret or an opaque token"), "{line}");
        }
        assert_eq!(secret_in(&format!("\"secretB64\": \"{opaque}=\"")), Some("an owner secret"));
        for line in [
            format!("sha256 {hex}"),
            format!("\"tokenHash\": \"{hex}\""),
            format!("kid {opaque}"),
            format!("Bearer {hex}00"),
            "Bearer <capability>, ünd ein Bearer \u{212a}".to_owned(),
            "missing/invalid exchange capability".to_owned(),
            "PASS cotal-trust::bearer of_two_broken_rules_the_earlier_one_refuses".to_owned(),
        ] {
            assert_eq!(secret_in(&line), None, "{line}");
        }
    }

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
