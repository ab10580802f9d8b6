//! What lies in a directory, and which secrets are among it.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

/// Every file below a directory, and what is in it; none where there is no directory.
pub fn files(dir: &Path) -> std::io::Result<BTreeMap<PathBuf, Vec<u8>>> {
    let (mut found, mut dirs) = (BTreeMap::new(), vec![dir.to_owned()]);
    while let Some(dir) = dirs.pop() {
        let entries = match std::fs::read_dir(&dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        for entry in entries {
            let path = entry?.path();
            if path.is_dir() {
                dirs.push(path);
            } else {
                let bytes = std::fs::read(&path)?;
                found.insert(path, bytes);
            }
        }
    }
    Ok(found)
}

/// Every nkey seed in a text: its words of 58 characters that begin with `S`.
pub fn seeds_in(bytes: &[u8]) -> BTreeSet<String> {
    let text = String::from_utf8_lossy(bytes);
    let words = text.split(|c: char| !c.is_ascii_alphanumeric());
    words.filter(|word| is_seed(word)).map(str::to_owned).collect()
}

/// Whether a word looks like an nkey seed.
pub fn is_seed(word: &str) -> bool {
    word.len() == 58 && word.starts_with('S')
}
