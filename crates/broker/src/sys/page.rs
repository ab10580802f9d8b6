//! One server's answer about its connections, read strictly.

use bytes::Bytes;
use cotal_wire::{Actor, Owner, Principal, object};
use serde::{Deserialize, Deserializer, de::IgnoredAny};
use serde_json::json;

/// The tag by which a static user names its principal.
const PRINCIPAL_TAG: &str = "principal:";

/// A connection as a sweep saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// The server that it is on.
    pub server_id: String,
    /// Its number there.
    pub cid: u64,
    /// Whose it is, where that can be told (contract 01 §1.5).
    pub principal: Option<Principal>,
    /// What the server calls its user: the nkey of a static user, the name of one that the callout placed.
    pub authorized_user: Option<String>,
}

/// Who answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Server {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) cluster: Option<String>,
}

/// A page of one server.
#[derive(Debug)]
pub(super) struct Page {
    pub(super) server: Server,
    pub(super) total: u64,
    /// Where it was asked to begin.
    pub(super) offset: u64,
    pub(super) rows: Vec<Row>,
}

/// A connection as it stands in a page.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Row {
    #[serde(default, deserialize_with = "number")]
    cid: Option<u64>,
    #[serde(default, deserialize_with = "text")]
    authorized_user: Option<String>,
    #[serde(default, deserialize_with = "texts")]
    tags: Vec<String>,
}

/// The envelope of every answer of a server.
#[derive(Deserialize)]
pub(super) struct ServerInfo {
    #[serde(default)]
    id: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    cluster: Option<String>,
}

#[derive(Deserialize)]
struct Data {
    #[serde(default)]
    server_id: String,
    num_connections: u64,
    total: u64,
    offset: u64,
    /// `null` where the server has never seen the account.
    #[serde(default)]
    connections: Option<Vec<object::Object<Row>>>,
}

#[derive(Deserialize)]
struct PageAnswer {
    #[serde(default, deserialize_with = "object::read_optional")]
    server: Option<ServerInfo>,
    #[serde(default)]
    error: Option<IgnoredAny>,
    #[serde(default, deserialize_with = "object::read_optional")]
    data: Option<Data>,
}

/// The question for one page (contract 01 §5).
pub(super) fn request(offset: u64, limit: u64) -> Bytes {
    json!({ "subscriptions": false, "auth": true, "offset": offset, "limit": limit }).to_string().into()
}

impl Server {
    /// Who answered; the error says what is wrong with the envelope.
    pub(super) fn of(info: Option<ServerInfo>, error: Option<IgnoredAny>) -> Result<Self, String> {
        if error.is_some() {
            return Err("a server answered with an error".into());
        }
        let info = info.filter(|info| !info.id.is_empty() && !info.name.is_empty());
        let ServerInfo { id, name, cluster } = info.ok_or("an answer does not say which server it is of")?;
        Ok(Self { id, name, cluster: cluster.filter(|cluster| !cluster.is_empty()) })
    }
}

impl Page {
    /// Reads one server's answer to the question for `offset` and `limit`.
    pub(super) fn parse(answer: &[u8], offset: u64, limit: u64) -> Result<Self, String> {
        let object::Object(answer): object::Object<PageAnswer> =
            serde_json::from_slice(answer).map_err(|_| "an answer about connections is garbled")?;
        let server = Server::of(answer.server, answer.error)?;
        let named = |what: &str| format!("the answer of {} {what}", server.name);
        let data = answer.data.ok_or_else(|| named("has no data"))?;
        if !data.server_id.is_empty() && data.server_id != server.id {
            return Err(named("is of another server than its envelope"));
        }
        let rows: Vec<Row> = data.connections.unwrap_or_default().into_iter().map(|row| row.0).collect();
        let count = rows.len() as u64;
        // Past its end a server may answer with whatever offset it likes, and with nothing.
        let due = data.total.saturating_sub(offset).min(limit);
        if count != due || data.num_connections != count || (due > 0 && data.offset != offset) {
            return Err(named("is not the page that was asked for"));
        }
        Ok(Self { server, total: data.total, offset, rows })
    }
}

impl Row {
    pub(super) fn cid(&self) -> Option<u64> {
        self.cid
    }

    /// Whether it is a principal's.
    pub(super) fn is_somebodys(&self) -> bool {
        self.principal().is_some()
    }

    /// The connection, under the number that it has.
    pub(super) fn into_seen(self, server_id: &str, cid: u64) -> Seen {
        Seen {
            server_id: server_id.to_owned(),
            cid,
            principal: self.principal(),
            authorized_user: self.authorized_user,
        }
    }

    fn principal(&self) -> Option<Principal> {
        principal_of(&self.tags, self.authorized_user.as_deref())
    }

    #[cfg(test)]
    pub(super) fn numbered(cid: u64) -> Self {
        Self { cid: Some(cid), ..Self::default() }
    }
}

/// Whose a connection is: by its tag, else by the name of its user. A platform owner counts in both
/// (contract 01 §1.2 and §1.5). A tag that does not read falls back to the name, never to the nkey.
fn principal_of(tags: &[String], authorized_user: Option<&str>) -> Option<Principal> {
    let tagged = tags.iter().find_map(|tag| tag.strip_prefix(PRINCIPAL_TAG));
    let tagged = tagged.and_then(|key| Principal::parse_key(key).ok());
    tagged.or_else(|| {
        let (owner, actor) = authorized_user?.split_once('-')?;
        Some(Principal::new(Owner::parse(owner).ok()?, Actor::parse(actor).ok()?))
    })
}

fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    Ok(serde_json::Value::deserialize(deserializer)?.as_u64())
}

fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    Ok(serde_json::Value::deserialize(deserializer)?.as_str().map(str::to_owned))
}

fn texts<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let value = serde_json::Value::deserialize(deserializer)?;
    let listed = value.as_array().map(Vec::as_slice).unwrap_or_default();
    Ok(listed.iter().filter_map(|tag| tag.as_str().map(str::to_owned)).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    const OWNER: &str = "u_aaaaaaaaaaaaaaaaaaaaaaaaaa";
    const PLATFORM: &str = "p_aaaaaaaaaaaaaaaaaaaaaaaaaa";

    fn answer() -> Value {
        json!({
            "server": { "name": "n1", "id": "NA", "ver": "2.12.8" },
            "data": {
                "server_id": "NA", "num_connections": 2, "total": 2, "offset": 0, "limit": 3,
                "connections": [
                    { "cid": 4, "authorized_user": "UX", "tags": ["owner:local", "principal:local.a"] },
                    { "cid": 9, "authorized_user": format!("{OWNER}-b") },
                ],
            },
        })
    }

    fn parse(answer: &Value, offset: u64) -> Result<Page, String> {
        Page::parse(answer.to_string().as_bytes(), offset, 3)
    }

    #[test]
    fn a_page_names_its_server_and_its_connections() {
        let page = parse(&answer(), 0).unwrap();
        let server = Server { id: "NA".into(), name: "n1".into(), cluster: None };
        assert_eq!((page.server, page.total), (server, 2));
        let seen: Vec<Seen> = page
            .rows
            .into_iter()
            .map(|row| (row.cid().unwrap(), row))
            .map(|(cid, row)| row.into_seen("NA", cid))
            .collect();
        let principals: Vec<_> = seen.iter().map(|seen| seen.principal.as_ref().unwrap().key()).collect();
        assert_eq!(principals, ["local.a".to_owned(), format!("{OWNER}.b")]);
        assert_eq!((seen[0].cid, seen[1].cid), (4, 9));
    }

    #[test]
    fn an_answer_that_could_hide_a_connection_poisons_the_sweep() {
        type Change = fn(&mut Value);
        let cases: [(Change, &str); 16] = [
            (|a| a["error"] = json!({ "code": 500 }), "with an error"),
            (|a| a["server"] = Value::Null, "which server"),
            (|a| a["server"] = json!({}), "which server"),
            (|a| a["server"]["id"] = json!(""), "which server"),
            (|a| a["server"]["name"] = json!(""), "which server"),
            (|a| a["server"]["cluster"] = json!(7), "garbled"),
            (|a| a["server"]["cluster"] = json!({}), "garbled"),
            (|a| a["server"] = json!("NA"), "garbled"),
            (|a| a["data"] = Value::Null, "has no data"),
            (|a| a["data"]["server_id"] = json!("NB"), "another server"),
            (|a| a["data"]["total"] = json!(3), "not the page"),
            (|a| a["data"]["total"] = json!(1), "not the page"),
            (|a| a["data"]["num_connections"] = json!(1), "not the page"),
            (|a| a["data"]["offset"] = json!(1), "not the page"),
            (|a| a["data"]["connections"] = Value::Null, "not the page"),
            (|a| a["data"]["connections"] = json!([[4, "UX", []], { "cid": 9 }]), "garbled"),
        ];
        for (n, (change, why)) in cases.into_iter().enumerate() {
            let mut bad = answer();
            change(&mut bad);
            let refusal = parse(&bad, 0).unwrap_err();
            assert!(refusal.contains(why), "case {n}: {refusal:?} should say {why:?}");
        }
        assert!(Page::parse(b"", 0, 3).is_err() && Page::parse(b"[]", 0, 3).is_err());
    }

    #[test]
    fn a_server_that_has_nothing_of_the_account_answers_with_an_empty_page() {
        let mut none = answer();
        none["data"] =
            json!({ "server_id": "", "num_connections": 0, "total": 0, "offset": 0, "connections": null });
        assert!(parse(&none, 0).unwrap().rows.is_empty());
        let mut past = answer();
        past["data"]["connections"] = json!([]);
        past["data"]["num_connections"] = json!(0);
        assert!(parse(&past, 2).unwrap().rows.is_empty());
    }

    #[test]
    fn a_connection_is_attributed_by_tag_then_by_name_and_never_by_nkey() {
        let of = |tags: &[&str], user: Option<&str>| {
            let tags: Vec<String> = tags.iter().map(|tag| (*tag).to_owned()).collect();
            principal_of(&tags, user).map(|principal| principal.key())
        };
        let named = format!("{OWNER}-alice");
        assert_eq!(of(&["principal:local.x"], Some(&named)).as_deref(), Some("local.x"));
        assert_eq!(of(&[], Some(&named)), Some(format!("{OWNER}.alice")));
        assert_eq!(of(&["principal:nobody.x"], Some(&named)), Some(format!("{OWNER}.alice")));
        assert_eq!(of(&[&format!("principal:{PLATFORM}.x")], None), Some(format!("{PLATFORM}.x")));
        assert_eq!(of(&[], Some(&format!("{PLATFORM}-x"))), Some(format!("{PLATFORM}.x")));
        let nkey = format!("U{}", "A".repeat(55));
        assert_eq!(of(&["owner:local"], Some(&nkey)), None);
        assert_eq!(of(&[], None), None);
    }

    #[test]
    fn what_a_row_does_not_say_readably_it_does_not_say() {
        let row = |text: &str| serde_json::from_str::<Row>(text).unwrap();
        let said = |text: &str| (row(text).cid(), row(text).is_somebodys());
        assert_eq!(said(r#"{"cid":"4","tags":["principal:local.a"]}"#), (None, true));
        assert_eq!(said(r#"{"cid":-1,"tags":["principal:local.a"]}"#), (None, true));
        assert_eq!(said(r#"{"authorized_user":"x"}"#), (None, false));
        assert_eq!(said(r#"{"cid":4,"authorized_user":7,"tags":"x"}"#), (Some(4), false));
    }
}
