//! The optional state file: the signing key and the sessions, so that a restart signs nobody out.

use std::{io, path::PathBuf};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use cotal_wire::{Entropy, Object};
use cotal_workspace::file;
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, Zeroizing};

use crate::{sessions::Sessions, signer::Signer};

/// The version that the file opens with.
const VERSION: u8 = 1;

/// Where the state is kept, if anywhere.
#[derive(Debug)]
pub(crate) struct StateFile(Option<PathBuf>);

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Document {
    ver: u8,
    kid: String,
    seed: String,
    sessions: Sessions,
}

impl Drop for Document {
    fn drop(&mut self) {
        self.seed.zeroize();
    }
}

impl StateFile {
    pub(crate) fn in_memory(entropy: &dyn Entropy) -> (Signer, Sessions, Self) {
        (Signer::generate(entropy), Sessions::default(), Self(None))
    }

    /// Reads the file, or writes the first one.
    pub(crate) fn open(path: PathBuf, entropy: &dyn Entropy) -> io::Result<(Signer, Sessions, Self)> {
        if let Some(bytes) = file::read_regular(&path)? {
            let (signer, sessions) = parse(&bytes).ok_or_else(|| {
                let what =
                    "is not a state file of this development identity provider; remove it to start afresh";
                io::Error::new(io::ErrorKind::InvalidData, format!("{} {what}", path.display()))
            })?;
            return Ok((signer, sessions, Self(Some(path))));
        }
        let (signer, sessions, _) = Self::in_memory(entropy);
        let state = Self(Some(path));
        state.save(&signer, &sessions)?;
        Ok((signer, sessions, state))
    }

    pub(crate) fn save(&self, signer: &Signer, sessions: &Sessions) -> io::Result<()> {
        let Some(path) = &self.0 else { return Ok(()) };
        let document = Document {
            ver: VERSION,
            kid: signer.kid().to_owned(),
            seed: URL_SAFE_NO_PAD.encode(signer.seed().as_slice()),
            sessions: sessions.clone(),
        };
        let bytes = Zeroizing::new(serde_json::to_vec_pretty(&document).map_err(io::Error::other)?);
        file::write_atomic(path, &bytes)
    }
}

fn parse(bytes: &[u8]) -> Option<(Signer, Sessions)> {
    let Object(document): Object<Document> = serde_json::from_slice(bytes).ok()?;
    if document.ver != VERSION || document.kid.is_empty() {
        return None;
    }
    let seed = Zeroizing::new(URL_SAFE_NO_PAD.decode(document.seed.as_bytes()).ok()?);
    let seed: &[u8; 32] = seed.as_slice().try_into().ok()?;
    Some((Signer::of(document.kid.clone(), seed), document.sessions.clone()))
}
