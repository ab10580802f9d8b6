//! The manifest of a host: which spaces one process serves, and with what faces (contract 08 §5, 10 §6.4, decision D9).
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

/// Reads the manifest of a callout host (decision D9): a list of names, or the version of the full host, of which the
/// faces do not count here. What the full host would refuse is refused, so that one file serves both or neither.
pub(crate) fn parse_callout_host_manifest(text: &str) -> Result<Vec<CalloutHostEntry>, ManifestError> {
    match open(text)? {
        (NAMES_VERSION, names) => Ok(read_names(names)?
            .into_iter()
            .map(|space| CalloutHostEntry { space, service_endpoints: false })
            .collect()),
        (_, spaces) => Ok(read_entries(spaces)?
            .into_iter()
            .map(|AuthHostEntry { space, service_endpoints, .. }| CalloutHostEntry {
                space,
                service_endpoints,
            })
            .collect()),
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

fn read_entry(entry: Json, at: Path) -> Result<AuthHostEntry, ManifestError> {
    let Json::Object(members) = entry else {
        return Err(at.refuses("must be an object: {\"space\": \"<name>\"}"));
    };
    let [space, port, url, trusted_proxy, advertised_server, provisioning_url, service_endpoints] =
        fields(members, at, ENTRY_FIELDS)?;
    let space = match space {
        Some(name) => read_space(name, at.member(SPACE))?,
        None => return Err(at.member(SPACE).refuses("is missing")),
    };
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
mod tests {
    use proptest::prelude::*;
    use serde_json::{Map, Value, json};

    use super::*;

    fn refusal(manifest: &Value) -> String {
        parse_auth_host_manifest(&manifest.to_string()).unwrap_err().to_string()
    }

    fn of_entries(entries: &Value) -> Value {
        json!({"version": 2, "spaces": entries})
    }

    /// What refuses an entry that stands behind a good one.
    fn refusal_of_entry(entry: &Value) -> String {
        refusal(&of_entries(&json!([{"space": "first", "exchangePublicPort": 7451}, entry])))
    }

    #[test]
    fn an_entry_is_read_whole() {
        let text = r#"{"version": 2, "spaces": [
            {"space": "acme", "exchangePublicPort": 7451, "exchangePublicUrl": "https://acme.example",
             "exchangeTrustedProxy": true, "advertisedServer": "tls://broker.example:4222",
             "agentProvisioningUrl": "https://agents.example", "serviceEndpoints": true},
            {"space": "zoo", "serviceEndpoints": true},
            {"space": "a space of any name"}
        ]}"#;
        let [acme, zoo, any] =
            <[AuthHostEntry; 3]>::try_from(parse_auth_host_manifest(text).unwrap()).unwrap();
        let face = PublicFace::on_port(7451).behind_trusted_proxy(true).with_urls(
            Some("https://acme.example"),
            Some("tls://broker.example:4222"),
            Some("https://agents.example"),
        );
        assert_eq!(
            (acme.space.as_str(), acme.public_face, acme.service_endpoints),
            ("acme", face.ok(), true)
        );
        assert_eq!((zoo.space.as_str(), zoo.public_face, zoo.service_endpoints), ("zoo", None, true));
        assert_eq!(
            (any.space.as_str(), any.public_face, any.service_endpoints),
            ("a space of any name", None, false)
        );
    }

    #[test]
    fn a_whole_manifest_is_refused_by_the_first_path_that_is_wrong() {
        for (manifest, expected) in [
            (json!(null), "the manifest must be an object"),
            (json!([]), "the manifest must be an object"),
            (json!({}), "version is missing"),
            (
                json!({"version": 2, "spaces": [{"space": "a"}], "x": 1}),
                "the manifest has no field \"x\"; it takes version, spaces",
            ),
            (json!({"version": 3, "spaces": []}), "version must be the number 2"),
            (json!({"version": 2.0, "spaces": []}), "version must be the number 2"),
            (json!({"version": "2", "spaces": []}), "version must be the number 2"),
            (json!({"version": 1, "spaces": ["a"]}), "version is 1, the form of a callout host"),
            (json!({"version": 2}), "spaces is missing"),
            (json!({"version": 2, "spaces": {}}), "spaces must be a list"),
            (of_entries(&json!([])), "spaces names no space"),
            (of_entries(&json!(["a"])), "spaces[0] must be an object"),
            (
                of_entries(&json!([{"space": "a"}, {"space": "b"}, {"space": "a"}])),
                "spaces[2].space is the space of spaces[0] too",
            ),
        ] {
            let refused = refusal(&manifest);
            assert!(refused.starts_with(expected), "{manifest}: {refused}");
        }
    }

    #[test]
    fn an_entry_is_refused_by_name_and_field() {
        for (entry, expected) in [
            (json!({}), "spaces[1].space is missing"),
            (json!({"space": 1}), "spaces[1].space must be a string, the name of a space"),
            (json!({"space": ""}), "spaces[1].space must name a space"),
            (json!({"space": ".."}), "spaces[1].space must name a space"),
            (
                json!({"space": "a", "port": 1}),
                "spaces[1] has no field \"port\"; it takes space, exchangePublicPort",
            ),
            (
                json!({"space": "a", "exchangePublicPort": 7451}),
                "spaces[1].exchangePublicPort is the port of spaces[0] too",
            ),
            (
                json!({"space": "a", "exchangePublicPort": 65_536}),
                "spaces[1].exchangePublicPort must be an integer from 0 to 65535",
            ),
            (
                json!({"space": "a", "exchangePublicPort": -1}),
                "spaces[1].exchangePublicPort must be an integer",
            ),
            (
                json!({"space": "a", "exchangePublicPort": 1.5}),
                "spaces[1].exchangePublicPort must be an integer",
            ),
            (
                json!({"space": "a", "exchangePublicPort": "1"}),
                "spaces[1].exchangePublicPort must be an integer",
            ),
            (
                json!({"space": "a", "exchangePublicPort": null}),
                "spaces[1].exchangePublicPort must be an integer",
            ),
            (
                json!({"space": "a", "exchangePublicUrl": "https://x"}),
                "spaces[1].exchangePublicUrl needs a public face; add exchangePublicPort",
            ),
            (
                json!({"space": "a", "exchangeTrustedProxy": true}),
                "spaces[1].exchangeTrustedProxy needs a public face",
            ),
            (
                json!({"space": "a", "advertisedServer": "tls://x"}),
                "spaces[1].advertisedServer needs a public face",
            ),
            (
                json!({"space": "a", "agentProvisioningUrl": "https://x"}),
                "spaces[1].agentProvisioningUrl needs a public face",
            ),
            (
                json!({"space": "a", "exchangePublicPort": 1, "exchangePublicUrl": "http://x"}),
                "spaces[1].exchangePublicUrl must be an https:// URL",
            ),
            (
                json!({"space": "a", "exchangePublicPort": 1, "exchangePublicUrl": 1}),
                "spaces[1].exchangePublicUrl must be a string",
            ),
            (
                json!({"space": "a", "exchangePublicPort": 1, "exchangeTrustedProxy": "yes"}),
                "spaces[1].exchangeTrustedProxy must be true or false",
            ),
            (
                json!({"space": "a", "exchangePublicPort": 1, "advertisedServer": "http://x"}),
                "spaces[1].advertisedServer must be a nats://, tls://, ws:// or wss:// URL",
            ),
            (
                json!({"space": "a", "exchangePublicPort": 1, "agentProvisioningUrl": "x"}),
                "spaces[1].agentProvisioningUrl is not a URL",
            ),
            (
                json!({"space": "a", "exchangePublicPort": 1, "agentProvisioningUrl": "http://x"}),
                "spaces[1].agentProvisioningUrl must be https://",
            ),
            (
                json!({"space": "a", "serviceEndpoints": 1}),
                "spaces[1].serviceEndpoints must be true or false",
            ),
        ] {
            let refused = refusal_of_entry(&entry);
            assert!(refused.starts_with(expected), "{entry}: {refused}");
        }
    }

    #[test]
    fn the_refusal_says_where_it_is() {
        let refused = parse_auth_host_manifest(
            r#"{"version": 2, "spaces": [{"space": "a", "exchangePublicPort": 70000}]}"#,
        );
        assert_eq!(refused.unwrap_err().path(), "spaces[0].exchangePublicPort");
        let refused = parse_auth_host_manifest("{\n  \"version\": 2,\n}").unwrap_err();
        assert_eq!(
            (refused.path(), refused.to_string()),
            ("the manifest".into(), "the manifest is not JSON: line 3, column 1".into())
        );
    }

    #[test]
    fn what_stands_twice_is_refused_also_when_a_map_would_keep_one() {
        for (text, expected) in [
            (r#"{"version": 2, "version": 2, "spaces": [{"space": "a"}]}"#, "version stands there twice"),
            (
                r#"{"version": 2, "spaces": [{"space": "a", "space": "b"}]}"#,
                "spaces[0].space stands there twice",
            ),
            (
                r#"{"version": 2, "spaces": [{"space": "a"}], "spaces": [{"space": "a"}]}"#,
                "spaces stands there twice",
            ),
        ] {
            assert_eq!(parse_auth_host_manifest(text).unwrap_err().to_string(), expected);
        }
    }

    #[test]
    fn several_spaces_take_free_ports_and_a_face_without_a_proxy_needs_none() {
        let entries = of_entries(&json!([
            {"space": "a", "exchangePublicPort": 0}, {"space": "b", "exchangePublicPort": 0},
            {"space": "c", "exchangeTrustedProxy": false},
        ]));
        assert_eq!(parse_auth_host_manifest(&entries.to_string()).unwrap().len(), 3);
    }

    #[test]
    fn no_refusal_repeats_a_value_and_a_long_key_is_cut() {
        for entry in [
            json!({"space": "a", "exchangePublicPort": 1, "exchangePublicUrl": "http://s3cret"}),
            json!({"space": "a", "exchangePublicPort": 1, "exchangePublicUrl": "https://u:s3cret@x"}),
            json!({"space": "a", "exchangePublicPort": 1, "advertisedServer": "nats://s3cret@x"}),
            json!({"space": "a", "exchangePublicPort": 1, "agentProvisioningUrl": "s3cret"}),
            json!({"space": "a", "exchangePublicPort": "s3cret"}),
            json!({"space": "a", "key": "s3cret"}),
            json!("s3cret"),
        ] {
            assert!(!refusal_of_entry(&entry).contains("s3cret"), "{entry}");
        }
        let refused = refusal(&json!({"line\nbreak ".repeat(100): 1}));
        assert!(
            refused.starts_with("the manifest has no field \"line\\nbreak ") && refused.len() < 120,
            "{refused}"
        );
    }

    #[test]
    fn a_callout_host_reads_names_and_of_entries_what_no_replica_can_serve() {
        let entries =
            r#"{"version": 2, "spaces": [{"space": "a", "serviceEndpoints": true}, {"space": "b"}]}"#;
        let served: Vec<_> = parse_callout_host_manifest(entries)
            .unwrap()
            .into_iter()
            .map(|entry| entry.service_endpoints)
            .collect();
        assert_eq!(served, [true, false]);
        let names = |text: &str| {
            let spaces = parse_callout_host_manifest(text)?;
            Ok::<_, ManifestError>(
                spaces.iter().map(|entry| entry.space.as_str().to_owned()).collect::<Vec<_>>(),
            )
        };
        assert_eq!(names(r#"{"version": 1, "spaces": ["a", "b"]}"#).unwrap(), ["a", "b"]);
        let entries =
            r#"{"version": 2, "spaces": [{"space": "a", "exchangePublicPort": 1}, {"space": "b"}]}"#;
        assert_eq!(names(entries).unwrap(), ["a", "b"]);
        for (text, expected) in [
            (r#"{"version": 1, "spaces": []}"#, "spaces names no space"),
            (r#"{"version": 1, "spaces": ["a", {"space": "b"}]}"#, "spaces[1] must be a string"),
            (r#"{"version": 1, "spaces": ["a", "a"]}"#, "spaces[1] is the space of spaces[0] too"),
            (r#"{"version": 2, "spaces": ["a"]}"#, "spaces[0] must be an object"),
            (r#"{"version": 2, "spaces": [{"space": "a", "port": 1}]}"#, "spaces[0] has no field"),
        ] {
            let refused = names(text).unwrap_err().to_string();
            assert!(refused.starts_with(expected), "{text}: {refused}");
        }
    }

    /// Entries that a host takes, as an operator writes them.
    fn entries() -> impl Strategy<Value = Vec<Value>> {
        let face = prop::option::of((
            prop::option::of(prop::sample::select(vec!["https://a.example", "https://b.example/x"])),
            any::<bool>(),
            prop::option::of(prop::sample::select(vec!["nats://h:1", "wss://h"])),
            prop::option::of(prop::sample::select(vec!["", "https://p.example"])),
        ));
        let names = prop::collection::btree_set("[a-zA-Z0-9 _.\\\\\"é]{1,12}", 1..8);
        (names, prop::collection::vec((face, any::<bool>()), 8)).prop_map(|(names, faces)| {
            let named = names.into_iter().filter(|name| name != "." && name != "..");
            let with_faces = named.zip(faces).enumerate().map(|(index, (name, (face, endpoints)))| {
                let mut entry = Map::new();
                entry.insert(SPACE.into(), name.into());
                if let Some((url, proxy, server, provisioning)) = face {
                    entry.insert(PUBLIC_PORT.into(), (7000 + index).into());
                    entry.insert(TRUSTED_PROXY.into(), proxy.into());
                    for (field, value) in
                        [(PUBLIC_URL, url), (ADVERTISED_SERVER, server), (PROVISIONING_URL, provisioning)]
                    {
                        entry.extend(value.map(|value| (field.to_owned(), value.into())));
                    }
                }
                if endpoints {
                    entry.insert(SERVICE_ENDPOINTS.into(), true.into());
                }
                Value::Object(entry)
            });
            let mut entries: Vec<_> = with_faces.collect();
            if entries.is_empty() {
                entries.push(json!({"space": "a"}));
            }
            entries
        })
    }

    proptest! {
        #[test]
        fn every_good_manifest_is_read_entry_by_entry(entries in entries()) {
            let read = parse_auth_host_manifest(&of_entries(&json!(entries)).to_string()).unwrap();
            prop_assert_eq!(read.len(), entries.len());
            for (read, entry) in read.iter().zip(&entries) {
                prop_assert_eq!(read.space.as_str(), entry[SPACE].as_str().unwrap());
                let port = read.public_face.as_ref().map(|face| u64::from(face.port()));
                prop_assert_eq!(port, entry.get(PUBLIC_PORT).and_then(Value::as_u64));
                prop_assert_eq!(read.service_endpoints, entry.get(SERVICE_ENDPOINTS).is_some());
            }
        }

        #[test]
        fn one_more_field_anywhere_refuses_and_names_the_entry(
            mut entries in entries(), at in any::<prop::sample::Index>(), key in "[a-z]{1,60}", secret in "s3cret[a-z]{20}",
        ) {
            prop_assume!(!ENTRY_FIELDS.contains(&key.as_str()));
            let at = at.index(entries.len());
            entries[at][&key] = secret.clone().into();
            let refused = refusal(&of_entries(&json!(entries)));
            let expected = format!("spaces[{at}] has no field \"");
            prop_assert!(refused.starts_with(&expected), "{}", refused);
            prop_assert!(!refused.contains(&secret) && refused.len() < 300);
        }

        #[test]
        fn any_text_is_read_or_refused_on_one_short_line(text in ".*", cut in any::<prop::sample::Index>(), entries in entries()) {
            let good = of_entries(&json!(entries)).to_string();
            let cut = (0..=cut.index(good.len())).rev().find(|at| good.is_char_boundary(*at)).unwrap();
            for text in [text.as_str(), &good[..cut], &format!("{}{text}", &good[..cut])] {
                if let Err(refused) = parse_auth_host_manifest(text) {
                    let refused = refused.to_string();
                    prop_assert!(refused.len() < 600 && !refused.contains('\n'), "{}", refused);
                }
            }
        }
    }
}
