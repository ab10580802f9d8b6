//! What the failpoint tells: which durable writes landed, in order, and who is to die after which.

use std::{
    collections::BTreeMap,
    ops::RangeInclusive,
    path::{Path, PathBuf},
};

use anyhow::{Result, ensure};

/// The file that arms the failpoint, and the journal that the armed processes keep beside it.
pub(crate) struct Journal {
    arming: PathBuf,
    written: PathBuf,
}

/// How often an operation may write to each key, whatever was killed: prefixes of keys, the first that fits counts.
pub(crate) type Allowed<'a> = &'a [(&'a str, RangeInclusive<usize>)];

impl Journal {
    pub(crate) fn beside(root: &Path) -> Self {
        let arming = root.join("failpoint");
        let written = root.join("failpoint.journal");
        Self { arming, written }
    }

    pub(crate) fn arming_file(&self) -> &Path {
        &self.arming
    }

    /// Every process that obeys is killed after this many of its writes; `0` lets it live.
    pub(crate) fn arm(&self, nth: usize) -> Result<()> {
        // By a rename: a process reads it at each write.
        let next = self.arming.with_extension("next");
        std::fs::write(&next, nth.to_string())?;
        Ok(std::fs::rename(next, &self.arming)?)
    }

    /// Everything that landed since the journal was first armed.
    pub(crate) fn keys(&self) -> Result<Vec<String>> {
        match std::fs::read_to_string(&self.written) {
            Ok(text) => Ok(text.lines().map(str::to_owned).collect()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error.into()),
        }
    }

    pub(crate) fn len(&self) -> Result<usize> {
        Ok(self.keys()?.len())
    }

    /// Notes where an operation begins, behind what its process wrote to be able to run it.
    pub(crate) fn set_mark(&self) -> Result<()> {
        Ok(std::fs::write(self.written.with_extension("mark"), self.len()?.to_string())?)
    }

    /// Where the last operation began.
    pub(crate) fn mark(&self) -> Result<usize> {
        Ok(std::fs::read_to_string(self.written.with_extension("mark"))?.parse()?)
    }

    /// What landed after this many writes.
    pub(crate) fn since(&self, mark: usize) -> Result<Vec<String>> {
        Ok(self.keys()?.split_off(mark))
    }
}

/// Holds the writes of one operation, over all its runs, to what the contract allows.
pub(crate) fn hold_to(written: &[String], allowed: Allowed<'_>) -> Result<()> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for key in written {
        *counts.entry(key).or_default() += 1;
    }
    for (key, count) in &counts {
        let rule = allowed.iter().find(|(prefix, _)| key.starts_with(prefix));
        ensure!(
            rule.is_some_and(|(_, range)| range.contains(count)),
            "{key}: written {count} times: {written:#?}"
        );
    }
    for (prefix, range) in allowed {
        let met = *range.start() == 0 || counts.keys().any(|key| key.starts_with(prefix));
        ensure!(met, "nothing was written to {prefix}: {written:#?}");
    }
    Ok(())
}
