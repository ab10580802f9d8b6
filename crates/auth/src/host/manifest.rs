//! The manifest of a host: which spaces one process serves, and with what faces (contract 08 §5, 10 §6.4, 12 D9).
//!
//! The first path that is wrong refuses the whole manifest. A refusal names it and says the rule; of the manifest's own
//! text it repeats at most the key in question, because a value may be a secret that was pasted into the wrong place.

use std::{collections::HashMap, fmt};

use cotal_wire::Space;

use super::json::Json;
use crate::public_face::{ADVERTISED_SERVER_FLAG, PUBLIC_URL_FLAG, PublicFace, PublicFaceError};

/// The version that lists names, for hosts of callout replicas.
const NAMES_VERSION: u64 = 1;
/// The version that has an object for each space.
const ENTRIES_VERSION: u64 = 2;
/// A longer key is cut where a refusal repeats it.
const KEY_SHOWN_MAX: usize = 40;

const VERSION: &str = "version";
const SPACES: &str = "spaces";
const SPACE: &str = "space";
const PUBLIC_PORT: &str = "exchangePublicPort";
const PUBLIC_URL: &str = "exchangePublicUrl";
const TRUSTED_PROXY: &str = "exchangeTrustedProxy";
const ADVERTISED_SERVER: &str = "advertisedServer";
const PROVISIONING_URL: &str = "agentProvisioningUrl";
const SERVICE_ENDPOINTS: &str = "serviceEndpoints";

const TOP_FIELDS: [&str; 2] = [VERSION, SPACES];
const ENTRY_FIELDS: [&str; 7] =
    [SPACE, PUBLIC_PORT, PUBLIC_URL, TRUSTED_PROXY, ADVERTISED_SERVER, PROVISIONING_URL, SERVICE_ENDPOINTS];

/// One space of a manifest. Its lane is closed and opened again when the entry changes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct AuthHostEntry {
    /// The space.
    pub space: Space,
    /// Its public face, when the entry names a port for one.
    pub public_face: Option<PublicFace>,
    /// Whether the lane hosts service endpoints.
    pub service_endpoints: bool,
}

/// One space of a callout host's manifest: what of an entry counts there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CalloutHostEntry {
    /// The space.
    pub(crate) space: Space,
    /// Whether its full service hosts service endpoints, which no replica can answer for (contract 09 §9).
    pub(crate) service_endpoints: bool,
}

/// Why a manifest is refused as a whole.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{at} {rule}")]
pub struct ManifestError {
    at: Path,
    rule: String,
}

impl ManifestError {
    /// What is wrong: `spaces[3].exchangePublicPort`, or `the manifest`.
    pub fn path(&self) -> String {
        self.at.to_string()
    }
}

/// A place in a manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Path {
    Whole,
    Field(&'static str),
    Entry(usize),
    EntryField(usize, &'static str),
}

impl Path {
    fn refuses(self, rule: impl Into<String>) -> ManifestError {
        ManifestError { at: self, rule: rule.into() }
    }

    /// Where a member of what lies here lies.
    fn member(self, field: &'static str) -> Self {
        match self {
            Self::Entry(index) => Self::EntryField(index, field),
            _ => Self::Field(field),
        }
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole => f.write_str("the manifest"),
            Self::Field(field) => f.write_str(field),
            Self::Entry(index) => write!(f, "{SPACES}[{index}]"),
            Self::EntryField(index, field) => write!(f, "{SPACES}[{index}].{field}"),
        }
    }
}

/// Reads the manifest of a full host, version 2 (contract 08 §5): the host itself adopts what this accepts, and reports
/// what this says. Check a manifest with it before you rename it into place.
///
/// ```
/// let entries = cotal_auth::parse_auth_host_manifest(
///     r#"{"version": 2, "spaces": [{"space": "acme", "exchangePublicPort": 7451}, {"space": "zoo"}]}"#,
/// )?;
/// assert_eq!(entries[0].space.as_str(), "acme");
///
/// let refused = cotal_auth::parse_auth_host_manifest(r#"{"version": 2, "spaces": [{"space": "acme", "port": 1}]}"#);
/// assert_eq!(
///     refused.unwrap_err().to_string(),
///     "spaces[0] has no field \"port\"; it takes space, exchangePublicPort, exchangePublicUrl, \
///      exchangeTrustedProxy, advertisedServer, agentProvisioningUrl, serviceEndpoints"
/// );
/// # Ok::<(), cotal_auth::ManifestError>(())
/// ```
pub fn parse_auth_host_manifest(text: &str) -> Result<Vec<AuthHostEntry>, ManifestError> {
    match open(text)? {
        (NAMES_VERSION, _) => Err(Path::Field(VERSION).refuses(format!(
            "is {NAMES_VERSION}, the form of a callout host; a full host needs version {ENTRIES_VERSION}, whose spaces are \
             objects: {{\"space\": \"<name>\"}}"
        ))),
        (_, spaces) => read_entries(spaces),
    }
}

/// Reads the manifest of a callout host (contract 12 D9): a list of names, or the version of the full host, of which the
/// faces are passed over, whatever they say: they are the full host's to judge. A field that neither knows is refused.
pub(crate) fn parse_callout_host_manifest(text: &str) -> Result<Vec<CalloutHostEntry>, ManifestError> {
    match open(text)? {
        (NAMES_VERSION, names) => Ok(read_names(names)?
            .into_iter()
            .map(|space| CalloutHostEntry { space, service_endpoints: false })
            .collect()),
        (_, entries) => read_callout_entries(entries),
    }
}

/// The version, and what stands under `spaces`: a list, and not an empty one.
fn open(text: &str) -> Result<(u64, Vec<Json>), ManifestError> {
    let document: Json = serde_json::from_str(text).map_err(|error| {
        Path::Whole.refuses(format!("is not JSON: line {}, column {}", error.line(), error.column()))
    })?;
    let Json::Object(members) = document else {
        return Err(Path::Whole
            .refuses(format!("must be an object: {{\"{VERSION}\": {ENTRIES_VERSION}, \"{SPACES}\": […]}}")));
    };
    let [version, spaces] = fields(members, Path::Whole, TOP_FIELDS)?;
    let version = match version.as_ref().map(Json::unsigned) {
        Some(Some(version @ (NAMES_VERSION | ENTRIES_VERSION))) => version,
        Some(_) => return Err(Path::Field(VERSION).refuses(format!("must be the number {ENTRIES_VERSION}"))),
        None => return Err(Path::Field(VERSION).refuses(format!("is missing; write {ENTRIES_VERSION}"))),
    };
    match spaces {
        Some(Json::List(spaces)) if !spaces.is_empty() => Ok((version, spaces)),
        Some(Json::List(_)) => Err(Path::Field(SPACES)
            .refuses("names no space; a host of none is a host to stop, so name one, or stop this one")),
        Some(_) => Err(Path::Field(SPACES).refuses("must be a list")),
        None => Err(Path::Field(SPACES).refuses("is missing")),
    }
}

/// The members of an object by their fields. Another field, or one that stands twice, refuses.
fn fields<const N: usize>(
    members: Vec<(String, Json)>,
    at: Path,
    known: [&'static str; N],
) -> Result<[Option<Json>; N], ManifestError> {
    let mut found = [const { None }; N];
    for (key, value) in members {
        let Some(index) = known.iter().position(|field| *field == key) else {
            return Err(at.refuses(format!("has no field {}; it takes {}", shown(&key), known.join(", "))));
        };
        if found[index].replace(value).is_some() {
            return Err(at.member(known[index]).refuses("stands there twice"));
        }
    }
    Ok(found)
}

/// A key as a refusal repeats it: on one line, and not at any length.
fn shown(key: &str) -> String {
    let cut: String = key.chars().take(KEY_SHOWN_MAX).collect();
    let more = if cut.len() < key.len() { "…" } else { "" };
    format!("\"{}{more}\"", cut.escape_default())
}

fn read_names(names: Vec<Json>) -> Result<Vec<Space>, ManifestError> {
    let mut unique = Unique::default();
    names
        .into_iter()
        .enumerate()
        .map(|(index, name)| {
            let at = Path::Entry(index);
            let space = read_space(name, at)?;
            unique.space(&space, index, at)?;
            Ok(space)
        })
        .collect()
}

fn read_entries(entries: Vec<Json>) -> Result<Vec<AuthHostEntry>, ManifestError> {
    let mut unique = Unique::default();
    entries
        .into_iter()
        .enumerate()
        .map(|(index, entry)| {
            let entry = read_entry(entry, Path::Entry(index))?;
            unique.space(&entry.space, index, Path::EntryField(index, SPACE))?;
            if let Some(face) = &entry.public_face {
                unique.port(face.port(), index)?;
            }
            Ok(entry)
        })
        .collect()
}

fn read_callout_entries(entries: Vec<Json>) -> Result<Vec<CalloutHostEntry>, ManifestError> {
    let mut unique = Unique::default();
    entries
        .into_iter()
        .enumerate()
        .map(|(index, entry)| {
            let at = Path::Entry(index);
            let [space, .., service_endpoints] = entry_fields(entry, at)?;
            let space = read_named(space, at)?;
            unique.space(&space, index, at.member(SPACE))?;
            let service_endpoints = read_flag(service_endpoints.as_ref(), at.member(SERVICE_ENDPOINTS))?;
            Ok(CalloutHostEntry { space, service_endpoints })
        })
        .collect()
}

/// What no two entries may share, and which entry has it.
#[derive(Default)]
struct Unique {
    spaces: HashMap<Space, usize>,
    ports: HashMap<u16, usize>,
}

impl Unique {
    fn space(&mut self, space: &Space, index: usize, at: Path) -> Result<(), ManifestError> {
        match self.spaces.insert(space.clone(), index) {
            Some(first) => Err(at.refuses(format!("is the space of {} too", Path::Entry(first)))),
            None => Ok(()),
        }
    }

    /// Port 0 is a free one for each.
    fn port(&mut self, port: u16, index: usize) -> Result<(), ManifestError> {
        match self.ports.insert(port, index).filter(|_| port != 0) {
            Some(first) => Err(Path::EntryField(index, PUBLIC_PORT)
                .refuses(format!("is the port of {} too; give each space its own", Path::Entry(first)))),
            None => Ok(()),
        }
    }
}

/// The members of an entry, in the order of [`ENTRY_FIELDS`].
fn entry_fields(entry: Json, at: Path) -> Result<[Option<Json>; ENTRY_FIELDS.len()], ManifestError> {
    match entry {
        Json::Object(members) => fields(members, at, ENTRY_FIELDS),
        _ => Err(at.refuses("must be an object: {\"space\": \"<name>\"}")),
    }
}

fn read_named(space: Option<Json>, at: Path) -> Result<Space, ManifestError> {
    match space {
        Some(name) => read_space(name, at.member(SPACE)),
        None => Err(at.member(SPACE).refuses("is missing")),
    }
}

fn read_entry(entry: Json, at: Path) -> Result<AuthHostEntry, ManifestError> {
    let [space, port, url, trusted_proxy, advertised_server, provisioning_url, service_endpoints] =
        entry_fields(entry, at)?;
    let space = read_named(space, at)?;
    let port = port.map(|port| read_port(&port, at.member(PUBLIC_PORT))).transpose()?;
    let url = read_text(url, at.member(PUBLIC_URL))?;
    let trusted_proxy = read_flag(trusted_proxy.as_ref(), at.member(TRUSTED_PROXY))?;
    let advertised_server = read_text(advertised_server, at.member(ADVERTISED_SERVER))?;
    let provisioning_url = read_text(provisioning_url, at.member(PROVISIONING_URL))?;
    let service_endpoints = read_flag(service_endpoints.as_ref(), at.member(SERVICE_ENDPOINTS))?;
    let public_face = if let Some(port) = port {
        let face = PublicFace::on_port(port).behind_trusted_proxy(trusted_proxy);
        let urls = (url.as_deref(), advertised_server.as_deref(), provisioning_url.as_deref());
        Some(face.with_urls(urls.0, urls.1, urls.2).map_err(|error| refused_url(&error, at))?)
    } else {
        let of_a_face = [
            (PUBLIC_URL, url.is_some()),
            (TRUSTED_PROXY, trusted_proxy),
            (ADVERTISED_SERVER, advertised_server.is_some()),
            (PROVISIONING_URL, provisioning_url.is_some()),
        ];
        if let Some((field, _)) = of_a_face.iter().find(|(_, given)| *given) {
            return Err(at
                .member(field)
                .refuses(format!("needs a public face; add {PUBLIC_PORT}, or take it out")));
        }
        None
    };
    Ok(AuthHostEntry { space, public_face, service_endpoints })
}

/// The same rules as the flags', told of fields, and without the value.
fn refused_url(error: &PublicFaceError, at: Path) -> ManifestError {
    match error {
        PublicFaceError::Url(_) => at
            .member(PUBLIC_URL)
            .refuses("must be an https:// URL; terminate TLS in a reverse proxy and name its URL"),
        PublicFaceError::AdvertisedServer(_) => {
            at.member(ADVERTISED_SERVER).refuses("must be a nats://, tls://, ws:// or wss:// URL")
        }
        PublicFaceError::ProvisioningUrl(_) => at.member(PROVISIONING_URL).refuses("is not a URL"),
        PublicFaceError::ProvisioningScheme(_) => {
            at.member(PROVISIONING_URL).refuses("must be https:// (the login bearer rides the request)")
        }
        PublicFaceError::Credentials(flag) => {
            let field = match *flag {
                PUBLIC_URL_FLAG => PUBLIC_URL,
                ADVERTISED_SERVER_FLAG => ADVERTISED_SERVER,
                _ => PROVISIONING_URL,
            };
            at.member(field)
                .refuses("carries credentials, and every caller of the public face reads it; leave them out")
        }
    }
}

fn read_space(name: Json, at: Path) -> Result<Space, ManifestError> {
    let Json::Text(name) = name else { return Err(at.refuses("must be a string, the name of a space")) };
    Space::parse(&name).map_err(|error| at.refuses(format!("must name a space: {error}")))
}

fn read_port(port: &Json, at: Path) -> Result<u16, ManifestError> {
    port.unsigned()
        .and_then(|port| u16::try_from(port).ok())
        .ok_or_else(|| at.refuses("must be an integer from 0 to 65535"))
}

fn read_text(value: Option<Json>, at: Path) -> Result<Option<String>, ManifestError> {
    match value {
        None => Ok(None),
        Some(Json::Text(text)) => Ok(Some(text)),
        Some(_) => Err(at.refuses("must be a string")),
    }
}

fn read_flag(value: Option<&Json>, at: Path) -> Result<bool, ManifestError> {
    match value {
        None => Ok(false),
        Some(Json::Bool(flag)) => Ok(*flag),
        Some(_) => Err(at.refuses("must be true or false")),
    }
}

#[cfg(test)]
mod tests;
