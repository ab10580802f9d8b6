//! Which servers there are, and whether all of them answered: a pure decision.

use std::collections::BTreeSet;

use cotal_wire::object;
use serde::{Deserialize, de::IgnoredAny};

use super::{
    Coverage,
    page::{Server, ServerInfo},
};

/// Servers that were seen, by cluster and name, and were no peers of the meta group: nobody else keeps count of them.
pub(super) type Memory = BTreeSet<(String, String)>;

/// How one server sees its cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ServerView {
    pub(super) server: Server,
    /// Names of the servers that it has a route to.
    pub(super) routes: BTreeSet<String>,
    /// Whether it has a gateway to another cluster.
    pub(super) has_gateways: bool,
    pub(super) meta: Option<MetaGroup>,
}

/// The JetStream meta group, as one of its peers sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MetaGroup {
    pub(super) size: usize,
    pub(super) leader: String,
    /// Every other peer, up or not; the leader alone lists them.
    pub(super) replicas: Option<BTreeSet<String>>,
}

#[derive(Deserialize)]
struct StateAnswer {
    #[serde(default, deserialize_with = "object::read_optional")]
    server: Option<ServerInfo>,
    #[serde(default)]
    error: Option<IgnoredAny>,
    #[serde(default, deserialize_with = "object::read_optional")]
    statsz: Option<Stats>,
}

#[derive(Deserialize)]
struct Stats {
    #[serde(default)]
    routes: Option<Vec<object::Object<Route>>>,
    #[serde(default)]
    gateways: Option<Vec<IgnoredAny>>,
    #[serde(default, deserialize_with = "object::read_optional")]
    jetstream: Option<JetStream>,
}

#[derive(Deserialize)]
struct Route {
    #[serde(default)]
    name: String,
}

#[derive(Deserialize)]
struct JetStream {
    #[serde(default, deserialize_with = "object::read_optional")]
    meta: Option<Meta>,
}

#[derive(Deserialize)]
struct Meta {
    #[serde(default)]
    leader: String,
    #[serde(default)]
    cluster_size: usize,
    #[serde(default)]
    replicas: Option<Vec<object::Object<Peer>>>,
}

#[derive(Deserialize)]
struct Peer {
    name: String,
}

impl ServerView {
    pub(super) fn parse(answer: &[u8]) -> Result<Self, String> {
        let object::Object(answer): object::Object<StateAnswer> =
            serde_json::from_slice(answer).map_err(|_| "a server's state is garbled")?;
        let server = Server::of(answer.server, answer.error)?;
        let statsz = answer.statsz.ok_or("a server's state is empty")?;
        let meta = statsz.jetstream.and_then(|jetstream| jetstream.meta).map(|meta| MetaGroup {
            size: meta.cluster_size,
            leader: meta.leader,
            replicas: meta.replicas.map(|peers| peers.into_iter().map(|peer| peer.0.name).collect()),
        });
        let routes = statsz.routes.unwrap_or_default().into_iter().map(|route| route.0.name);
        Ok(Self {
            server,
            // A route that is being made has no name yet; who is behind it answers for itself, or is a peer.
            routes: routes.filter(|name| !name.is_empty()).collect(),
            has_gateways: statsz.gateways.is_some_and(|gateways| !gateways.is_empty()),
            meta,
        })
    }
}

/// What the answers alone settle: everything but a cluster that all of them declare.
pub(super) fn without_views(answered: &[Server]) -> Option<Coverage> {
    let clusters: BTreeSet<Option<&str>> = answered.iter().map(|server| server.cluster.as_deref()).collect();
    match (clusters.len(), clusters.first()) {
        (0, _) => Some(Coverage::Unsound("no server answered".into())),
        (1, Some(None)) if answered.len() == 1 => Some(Coverage::Complete),
        (1, Some(None)) => Some(Coverage::Partial(format!(
            "{} servers answered and none of them declares a cluster",
            answered.len()
        ))),
        (1, Some(Some(_))) => None,
        _ => Some(Coverage::Partial("servers of more than one cluster answered".into())),
    }
}

/// Whether every server that the cluster is known to have is among those that answered, and the meta group keeps count of
/// all of them. Remembers whom it does not.
pub(super) fn judge(answered: &[Server], views: &[ServerView], memory: &mut Memory) -> Coverage {
    if let Some(settled) = without_views(answered) {
        return settled;
    }
    let Some(cluster) = answered.first().and_then(|server| server.cluster.clone()) else {
        return Coverage::Unsound("no server answered".into());
    };
    let names: BTreeSet<&str> = answered.iter().map(|server| server.name.as_str()).collect();
    if names.len() != answered.len() {
        return Coverage::Partial(
            "two servers of one name answered; one has just restarted, ask again".into(),
        );
    }
    if views.iter().any(|view| view.server.cluster.as_ref() != Some(&cluster) || view.has_gateways) {
        return Coverage::Partial("the cluster is joined to another one; that is not supported".into());
    }
    let peers = match meta_peers(views) {
        Ok(peers) => peers,
        Err(why) => return Coverage::Partial(why),
    };
    let seen: BTreeSet<&str> = views
        .iter()
        .flat_map(|view| view.routes.iter().chain([&view.server.name]))
        .map(String::as_str)
        .chain(names.iter().copied())
        .collect();
    memory.retain(|(of, name)| *of != cluster || !peers.contains(name));
    let outside = seen.into_iter().filter(|name| !peers.contains(*name));
    memory.extend(outside.map(|name| (cluster.clone(), name.to_owned())));
    let outside: Vec<&str> =
        memory.iter().filter(|(of, _)| *of == cluster).map(|(_, name)| name.as_str()).collect();
    if !outside.is_empty() {
        return Coverage::Partial(format!(
            "{} of the cluster is no peer of its JetStream meta group: once such a server is cut off, nobody knows of \
             it; give it JetStream, or end it and restart the delivery daemon",
            outside.join(", ")
        ));
    }
    let missing: Vec<&str> = peers.iter().map(String::as_str).filter(|peer| !names.contains(peer)).collect();
    if missing.is_empty() {
        return Coverage::Complete;
    }
    Coverage::Partial(format!(
        "{} of the cluster did not answer; it counts until it is back, or until it is removed for good (nats server \
         cluster peer-remove)",
        missing.join(", ")
    ))
}

/// What is complete by what the servers say of each other is so only when exactly those that an operator named answered.
pub(super) fn hold_to_named(answered: &[Server], named: &BTreeSet<String>) -> Coverage {
    if named.is_empty() {
        return Coverage::Complete;
    }
    let names: BTreeSet<String> = answered.iter().map(|server| server.name.clone()).collect();
    let list = |names: Vec<&String>| names.into_iter().map(String::as_str).collect::<Vec<_>>().join(", ");
    let missing: Vec<&String> = named.difference(&names).collect();
    if !missing.is_empty() {
        return Coverage::Partial(format!(
            "{}, named with --cluster-server, did not answer; it counts until it is back, or until the delivery daemon is \
             started without it",
            list(missing)
        ));
    }
    let strangers: Vec<&String> = names.difference(named).collect();
    if strangers.is_empty() {
        return Coverage::Complete;
    }
    Coverage::Partial(format!(
        "{} answered and is not among the servers named with --cluster-server; start the delivery daemon with it",
        list(strangers)
    ))
}

/// The peers of the meta group, as its one leader lists them and everyone counts them.
fn meta_peers(views: &[ServerView]) -> Result<BTreeSet<String>, String> {
    let leading = |view: &&ServerView| {
        view.meta.as_ref().is_some_and(|meta| meta.leader == view.server.name && !meta.leader.is_empty())
    };
    let leaders: Vec<&ServerView> = views.iter().filter(leading).collect();
    let [leader] = leaders.as_slice() else {
        return Err(
            "the meta group of the cluster has no leader that can be seen; ask again once it has".into()
        );
    };
    let Some(MetaGroup { size, leader, replicas }) = &leader.meta else {
        return Err("the meta group of the cluster cannot be seen".into());
    };
    let mut peers = replicas.clone().unwrap_or_default();
    peers.insert(leader.clone());
    let agree = |view: &ServerView| {
        view.meta.as_ref().is_none_or(|meta| meta.size == *size && meta.leader == *leader)
    };
    if peers.len() != *size || !views.iter().all(agree) {
        return Err("the servers disagree about the meta group of the cluster; ask again".into());
    }
    Ok(peers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(name: &str, cluster: Option<&str>) -> Server {
        Server { id: format!("N{name}"), name: name.into(), cluster: cluster.map(str::to_owned) }
    }

    fn servers(names: &[&str]) -> Vec<Server> {
        names.iter().map(|name| server(name, Some("c"))).collect()
    }

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    /// The views of these servers, of a meta group of `peers` that the first of them leads.
    fn views(up: &[&str], peers: &[&str]) -> Vec<ServerView> {
        let view = |name: &&str| ServerView {
            server: server(name, Some("c")),
            routes: set(up).into_iter().filter(|other| other != name).collect(),
            has_gateways: false,
            meta: peers.contains(name).then(|| MetaGroup {
                size: peers.len(),
                leader: up[0].to_owned(),
                replicas: (*name == up[0])
                    .then(|| set(peers).into_iter().filter(|peer| peer != name).collect()),
            }),
        };
        up.iter().map(view).collect()
    }

    #[test]
    fn servers_that_an_operator_named_must_all_answer_and_no_other_one() {
        let held = |up: &[&str], named: &[&str]| hold_to_named(&servers(up), &set(named));
        assert_eq!(held(&["a", "b"], &[]), Coverage::Complete);
        assert_eq!(held(&["a", "b"], &["b", "a"]), Coverage::Complete);
        for (up, named, who) in
            [(&["a", "b"][..], &["a", "b", "c"][..], "c, named"), (&["a", "b"], &["a"], "b answered")]
        {
            let Coverage::Partial(why) = held(up, named) else { panic!("{up:?} {named:?}") };
            assert!(why.starts_with(who), "{why}");
        }
    }

    fn judged(up: &[&str], peers: &[&str], memory: &mut Memory) -> Coverage {
        judge(&servers(up), &views(up, peers), memory)
    }

    fn is_partial(coverage: &Coverage, why: &str) -> bool {
        matches!(coverage, Coverage::Partial(text) if text.contains(why))
    }

    #[test]
    fn one_server_without_a_cluster_is_complete_and_two_are_not() {
        assert_eq!(without_views(&[server("a", None)]), Some(Coverage::Complete));
        assert!(is_partial(&without_views(&[server("a", None), server("b", None)]).unwrap(), "2 servers"));
        assert!(matches!(without_views(&[]), Some(Coverage::Unsound(_))));
        let mixed = [server("a", None), server("b", Some("c"))];
        assert!(is_partial(&without_views(&mixed).unwrap(), "more than one"));
        let two = [server("a", Some("d")), server("b", Some("c"))];
        assert!(is_partial(&without_views(&two).unwrap(), "more than one"));
        assert_eq!(without_views(&servers(&["a"])), None);
    }

    #[test]
    fn a_peer_that_is_down_leaves_the_sweep_incomplete_until_it_is_back_or_removed() {
        let mut memory = Memory::new();
        assert_eq!(judged(&["a", "b", "d"], &["a", "b", "d"], &mut memory), Coverage::Complete);
        assert!(is_partial(&judged(&["a", "b"], &["a", "b", "d"], &mut memory), "d of the cluster"));
        assert_eq!(judged(&["b", "a", "d"], &["a", "b", "d"], &mut memory), Coverage::Complete);
        assert!(is_partial(&judged(&["a", "b"], &["a", "b", "d"], &mut memory), "peer-remove"));
        assert_eq!(judged(&["a", "b"], &["a", "b"], &mut memory), Coverage::Complete);
    }

    #[test]
    fn a_peer_that_was_never_seen_up_is_known_too() {
        assert!(is_partial(&judged(&["a", "b"], &["a", "b", "d"], &mut Memory::new()), "d of"));
    }

    #[test]
    fn a_server_outside_the_meta_group_leaves_the_sweep_incomplete_there_or_not_until_it_is_a_peer() {
        let mut memory = Memory::new();
        assert!(is_partial(&judged(&["a", "x"], &["a"], &mut memory), "x of the cluster is no peer"));
        assert!(is_partial(&judged(&["a"], &["a"], &mut memory), "x of the cluster is no peer"));
        assert!(is_partial(&judged(&["a", "x"], &["a", "x", "y"], &mut memory), "y of the cluster did not"));
        assert_eq!(judged(&["a", "x"], &["a", "x"], &mut memory), Coverage::Complete);
        // Its limit: one that was cut off before this process began was never seen by it.
        assert_eq!(judged(&["a"], &["a"], &mut Memory::new()), Coverage::Complete);
    }

    #[test]
    fn a_server_that_answered_for_itself_alone_must_have_answered_the_sweep() {
        let sweep = servers(&["a", "b"]);
        assert!(is_partial(
            &judge(&sweep, &views(&["a", "b", "x"], &["a", "b"]), &mut Memory::new()),
            "x of"
        ));
        let mut routed = views(&["a", "b"], &["a", "b"]);
        routed[1].routes.insert("y".into());
        assert!(is_partial(&judge(&sweep, &routed, &mut Memory::new()), "y of"));
    }

    #[test]
    fn a_meta_group_that_cannot_be_read_leaves_the_sweep_incomplete() {
        let sweep = servers(&["a", "b"]);
        let good = views(&["a", "b"], &["a", "b"]);
        let judge = |change: &dyn Fn(&mut Vec<ServerView>)| {
            let mut bad = good.clone();
            change(&mut bad);
            judge(&sweep, &bad, &mut Memory::new())
        };
        assert_eq!(judge(&|_| {}), Coverage::Complete);
        assert!(is_partial(&judge(&|v| v.clear()), "no leader"));
        assert!(is_partial(&judge(&|v| drop(v.remove(0))), "no leader"));
        assert!(is_partial(&judge(&|v| v[0].meta = None), "no leader"));
        assert!(is_partial(&judge(&|v| v[0].meta.as_mut().unwrap().leader.clear()), "no leader"));
        assert!(is_partial(&judge(&|v| v[0].meta.as_mut().unwrap().replicas = None), "disagree"));
        assert!(is_partial(&judge(&|v| v[1].meta.as_mut().unwrap().size = 3), "disagree"));
        assert!(is_partial(&judge(&|v| v[1].meta.as_mut().unwrap().leader = "b".into()), "no leader"));
        assert!(is_partial(&judge(&|v| v[0].has_gateways = true), "another one"));
        assert!(is_partial(&judge(&|v| v[0].server.cluster = None), "another one"));
    }

    #[test]
    fn two_servers_of_one_name_leave_the_sweep_incomplete() {
        let mut sweep = servers(&["a", "b"]);
        sweep.push(Server { id: "Nb2".into(), ..sweep[1].clone() });
        let coverage = judge(&sweep, &views(&["a", "b"], &["a", "b"]), &mut Memory::new());
        assert!(is_partial(&coverage, "of one name"));
    }

    #[test]
    fn a_servers_state_is_read_as_it_answers_it() {
        let leader = br#"{"server":{"name":"n2","id":"NX","cluster":"c1"},"statsz":{"active_servers":3,
            "routes":[{"rid":1,"name":"n1"},{"rid":2}],"jetstream":{"meta":{"name":"c1","leader":"n2","replicas":
            [{"name":"n1","current":true},{"name":"n3","current":false,"offline":true}],"cluster_size":3}}}}"#;
        let view = ServerView::parse(leader).unwrap();
        assert_eq!(view.routes, set(&["n1"]));
        assert_eq!(view.meta.unwrap().replicas.unwrap(), set(&["n1", "n3"]));
        let plain = br#"{"server":{"name":"n0","id":"NX"},"statsz":{"jetstream":{}}}"#;
        assert_eq!(ServerView::parse(plain).unwrap().meta, None);
        for bad in [&b"{}"[..], b"[]", br#"{"server":{"name":"n0","id":"NX"}}"#, br#"{"statsz":{}}"#] {
            assert!(ServerView::parse(bad).is_err());
        }
    }
}
