//! A URL from the command line that nothing has checked yet.

use std::{fmt, ops::Deref};

use serde::{Deserialize, Serialize};

/// A URL as it was given. Whoever uses it refuses one that carries credentials; until then it may, so it is not printed.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GivenUrl(String);

impl fmt::Debug for GivenUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GivenUrl(..)")
    }
}

impl Deref for GivenUrl {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl From<String> for GivenUrl {
    fn from(given: String) -> Self {
        Self(given)
    }
}

impl From<GivenUrl> for String {
    fn from(given: GivenUrl) -> Self {
        given.0
    }
}
