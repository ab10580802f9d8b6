//! What one credential may do at a broker: all of it listed, and each of it tried, beside what it must not.

use cotal_wire::{Permissions, subject_matches};
use serde_json::Value;

use crate::raw::RawClient;

/// How many things are tried that a credential must not.
const DENIALS: usize = 10;

/// What one credential may do, and what it must not: a subject in a line. A queue stands behind what is heard in it, as in a
/// user JWT.
#[derive(Debug, Default)]
pub struct Privilege {
    /// Whose it is.
    pub name: &'static str,
    /// A subject for everything that it may publish.
    pub publishes: String,
    /// A subscription for everything that it may hear.
    pub hears: String,
    /// What it must not publish.
    pub never_publishes: String,
    /// What it must not hear.
    pub never_hears: String,
}

impl Privilege {
    /// Tries all of it over a connection with that credential, which was signed these permissions: none of them is left
    /// without a line.
    pub async fn hold(&self, client: &mut RawClient, signed: &Permissions) {
        let name = self.name;
        for pattern in &signed.publish.allow {
            let listed = rows(&self.publishes).any(|subject| subject_matches(pattern, subject));
            assert!(listed, "{name} may publish {pattern}, and no line says so");
        }
        for row in &signed.subscribe.allow {
            let (pattern, queue) = heard(row);
            let is_it = |row| heard(row).1 == queue && subject_matches(pattern, heard(row).0);
            assert!(rows(&self.hears).any(is_it), "{name} may hear {row}, and no line says so");
        }
        for subject in rows(&self.publishes) {
            let published = client.try_publish(subject, b"").await;
            assert!(published.is_ok(), "{name} publishes {subject}: {published:?}");
        }
        for (subject, queue) in rows(&self.hears).map(heard) {
            let heard = client.try_subscribe(subject, queue).await;
            assert!(heard.is_ok(), "{name} hears {subject}: {heard:?}");
        }
        let denials = rows(&self.never_publishes).chain(rows(&self.never_hears)).count();
        assert!(denials >= DENIALS, "{name}: only {denials} things that it must not");
        for subject in rows(&self.never_publishes) {
            assert!(client.try_publish(subject, b"").await.is_err(), "{name} published {subject}");
        }
        for (subject, queue) in rows(&self.never_hears).map(heard) {
            assert!(client.try_subscribe(subject, queue).await.is_err(), "{name} hears {subject}");
        }
    }
}

fn rows(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(str::trim).filter(|row| !row.is_empty())
}

fn heard(row: &str) -> (&str, Option<&str>) {
    row.split_once(' ').map_or((row, None), |(subject, queue)| (subject, Some(queue)))
}

/// The permissions that the claims of a user JWT say.
pub fn permissions_of(claims: &Value) -> Permissions {
    let list = |way: &str, of: &str| {
        let rows = claims["nats"][way][of].as_array().into_iter().flatten();
        rows.filter_map(Value::as_str).map(str::to_owned).collect::<Vec<_>>()
    };
    let mut permissions = Permissions::default();
    (permissions.publish.allow, permissions.publish.deny) = (list("pub", "allow"), list("pub", "deny"));
    (permissions.subscribe.allow, permissions.subscribe.deny) = (list("sub", "allow"), list("sub", "deny"));
    permissions
}
