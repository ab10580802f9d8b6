//! What must hold of every input: printing is the inverse of parsing, refusals are total, and covering means what
//! matching says.

#![allow(clippy::unwrap_used, reason = "a test's own values")]

use cotal_wire::rows::{
    AcceptedRow, ConcreteSubject, IssuedAttempt, IssuedAuthorityRef, IssuedEvidence, IssuedIndex,
    IssuedPermissions, SourceRef, SubjectPattern,
};
use cotal_wire::rows::{
    Commit, CommitValue, Decision, EffectFact, FactWork, GoalResult, ItemRef, Lease, Obligation,
    ObligationKey, Owed, Rejection, WorkTerminal,
};
use cotal_wire::{Acceptance, Caller, FactSubject, FactTopic, WorkSubject};
use cotal_wire::{
    Actor, Channel, ChannelPattern, ConnId, CredentialId, EndpointName, EndpointToken, EpCode, Generation,
    InstanceId, LifecycleUid, Names, Nonce, OpId, Principal, Role, SpaceToken, UnixMillis, UnixSecs,
    canonical::{canonical_json, canonicalize, is_canonical},
    channel::{collapse_overlaps, subject_matches},
    endpoint_subject::{EndpointCaller, Rail, ReplySubject, RequestSubject, SubjectTarget, TargetTriple},
    envelope::{EndpointReply, EndpointRequest},
    pattern_covers,
    rows::{
        AgentGate, BySource, CredentialKey, CredentialRow, FrontierRecord, GateOp, GateState, HeadStep,
        Intent, LifecycleHead, NatkeyRow, OpKind, SessionRow, SourceGate, SourceMember, UidReservation,
    },
    subject::{MessageSubject, Subjects, channel_path},
    token::Owner,
};
use proptest::{collection::vec, prelude::*, sample::select};
use serde_json::Value;

fn owner() -> impl Strategy<Value = Owner> {
    "(u_[a-z2-7]{26}|p_[a-z2-7]{26}|local)".prop_map(|s| Owner::parse(&s).unwrap())
}

fn principal() -> impl Strategy<Value = Principal> {
    (owner(), "[A-Za-z0-9_]{1,64}").prop_map(|(o, a)| Principal::new(o, Actor::parse(&a).unwrap()))
}

fn uid() -> impl Strategy<Value = LifecycleUid> {
    "[a-z0-9]{26,32}".prop_map(|s| LifecycleUid::parse(&s).unwrap())
}

fn op_id() -> impl Strategy<Value = OpId> {
    select(vec!['a', 'b']).prop_map(|c| OpId::parse(&c.to_string().repeat(26)).unwrap())
}

fn pattern() -> impl Strategy<Value = String> {
    (vec(select(vec!["a", "b", "*"]), 0..4), any::<bool>()).prop_map(|(mut segments, rest)| {
        if rest || segments.is_empty() {
            segments.push(">");
        }
        segments.join(".")
    })
}

/// Every channel of up to five segments over an alphabet with one letter that no pattern names.
fn channels() -> Vec<String> {
    let mut all = vec![];
    let mut last = vec![String::new()];
    for _ in 0..5 {
        last = last
            .iter()
            .flat_map(|prefix| {
                ["a", "b", "c"]
                    .map(|s| if prefix.is_empty() { s.to_owned() } else { format!("{prefix}.{s}") })
            })
            .collect();
        all.extend(last.clone());
    }
    all
}

fn json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 6, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..6).prop_map(Value::from),
            proptest::collection::btree_map(any::<String>(), inner, 0..6)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

fn caller() -> impl Strategy<Value = EndpointCaller> {
    (principal(), uid(), proptest::option::of("[0-9a-f]{32}")).prop_map(
        |(principal, lifecycle_uid, generation)| EndpointCaller {
            principal,
            lifecycle_uid,
            generation: generation.map(|g| Generation::parse(&g).unwrap()),
        },
    )
}

fn target() -> impl Strategy<Value = SubjectTarget> {
    let triple = || {
        (principal(), uid()).prop_map(|(principal, lifecycle_uid)| TargetTriple { principal, lifecycle_uid })
    };
    prop_oneof![
        Just(SubjectTarget::Untargeted),
        Just(SubjectTarget::SelfMode),
        owner().prop_map(SubjectTarget::Owner),
        owner().prop_map(SubjectTarget::Any),
        owner().prop_map(SubjectTarget::Child),
        owner().prop_map(SubjectTarget::Ledger),
        triple().prop_map(SubjectTarget::Handle),
        triple().prop_map(SubjectTarget::Exact),
    ]
}

fn request_subject() -> impl Strategy<Value = RequestSubject> {
    let rail = prop_oneof![
        Just(Rail::One),
        Just(Rail::All),
        "[a-z0-9]{26,32}".prop_map(|s| Rail::Instance(InstanceId::parse(&s).unwrap())),
    ];
    (
        "[A-Za-z0-9_-]{1,20}",
        rail,
        "[a-z0-9]{1,8}(_[a-z0-9]{1,8}){0,3}",
        "[a-z0-9-]{1,32}",
        target(),
        caller(),
        "[A-Za-z0-9_-]{22,64}",
    )
        .prop_map(|(space, rail, endpoint, command, target, caller, nonce)| RequestSubject {
            space: SpaceToken::parse(&space).unwrap(),
            rail,
            endpoint: EndpointToken::parse(&endpoint).unwrap(),
            command: command.parse().unwrap(),
            target,
            caller,
            nonce: Nonce::parse(&nonce).unwrap(),
        })
}

fn source() -> impl Strategy<Value = SourceMember> {
    "(root|handle\\.[A-Za-z0-9_-]{1,8}\\.[A-Za-z0-9_-]{1,8}|session\\.[A-Za-z0-9_-]{1,30})"
        .prop_map(|s| SourceMember::parse(&s).unwrap())
}

proptest! {
    #[test]
    fn a_pattern_covers_exactly_when_it_matches_whatever_the_other_matches(cap in pattern(), other in pattern()) {
        let model = channels().iter().all(|ch| !subject_matches(&other, ch) || subject_matches(&cap, ch));
        prop_assert_eq!(pattern_covers(&cap, &other), model, "{} {}", cap, other);
    }

    #[test]
    fn collapsing_filters_changes_no_match_and_leaves_no_overlap(filters in vec(pattern(), 0..5)) {
        let collapsed = collapse_overlaps(&filters);
        for channel in channels() {
            let any = |list: &[String]| list.iter().any(|f| subject_matches(f, &channel));
            prop_assert_eq!(any(&filters), any(&collapsed));
        }
        for (i, one) in collapsed.iter().enumerate() {
            for (j, other) in collapsed.iter().enumerate() {
                prop_assert!(i == j || !pattern_covers(one, other));
            }
        }
    }

    #[test]
    fn a_channel_that_parses_prints_itself(s in "[A-Za-z0-9_*>.-]{0,24}") {
        if let Ok(pattern) = ChannelPattern::parse(&s) {
            prop_assert_eq!(pattern.as_str(), &s);
            prop_assert!(pattern_covers(">", &s) && pattern_covers(&s, &s));
        }
        if Channel::parse(&s).is_ok() {
            prop_assert!(ChannelPattern::parse(&s).is_ok() && !s.contains(['*', '>']));
            prop_assert_eq!(channel_path(&s).unwrap(), s);
        }
    }

    #[test]
    fn no_text_is_too_strange_to_refuse(s in any::<String>()) {
        let _ = (ChannelPattern::parse(&s), ConnId::parse(&s), CredentialId::parse(&s), Principal::parse_key(&s));
        let _ = (MessageSubject::parse(&s), RequestSubject::parse(&s), ReplySubject::parse(&s), CredentialKey::parse(&s));
        let _ = (channel_path(&s), SourceMember::parse(&s), subject_matches(&s, &s), pattern_covers(&s, &s));
        prop_assert!(EndpointName::parse(&s).is_ok_and(|n| n.token().name() == n) || EndpointName::parse(&s).is_err());
    }

    #[test]
    fn a_message_subject_names_its_sender(from in principal(), to in principal(), channel in "[a-z]{1,5}(\\.[a-z]{1,5}){0,3}") {
        let subjects = Subjects::new(&SpaceToken::parse("main").unwrap());
        let role = Role::parse("default").unwrap();
        for subject in [
            subjects.chat(&from, &Channel::parse(&channel).unwrap()),
            subjects.unicast(&to, &from),
            subjects.anycast(&role, &from),
        ] {
            let parsed = MessageSubject::parse(&subject).unwrap();
            prop_assert_eq!(parsed.owner.as_str(), from.owner.as_str());
            prop_assert_eq!(&parsed.actor, &from.actor);
            let surfaced = !from.owner.as_str().starts_with("p_");
            prop_assert_eq!(parsed.sender(), surfaced.then_some(from.clone()));
        }
    }

    #[test]
    fn an_endpoint_subject_reads_back(request in request_subject(), instance in "[a-z0-9]{26,32}", epoch in 0u64..1 << 53) {
        let subject = request.build().unwrap();
        prop_assert_eq!(RequestSubject::parse(&subject), Some(request.clone()), "{}", subject);
        let reply = request.reply(&InstanceId::parse(&instance).unwrap(), epoch);
        let subject = reply.build().unwrap();
        prop_assert_eq!(ReplySubject::parse(&subject), Some(reply));
        prop_assert_eq!(RequestSubject::parse(&subject), None);
    }

    #[test]
    fn canonical_json_is_a_fixed_point_and_the_same_value(value in json()) {
        let Ok(text) = canonical_json(&value) else { return Ok(()) };
        prop_assert!(is_canonical(text.as_bytes()));
        prop_assert_eq!(canonicalize(text.as_bytes()).unwrap(), text.clone());
        let again: Value = serde_json::from_str(&text).unwrap();
        prop_assert!(same(&value, &again), "{} {}", value, again);
    }

    #[test]
    fn no_bytes_are_too_strange_for_a_row(bytes in vec(any::<u8>(), 0..64), value in json()) {
        let names = Names::new(&SpaceToken::parse("main").unwrap());
        let principal = Principal::parse_key("local.a").unwrap();
        let uid = LifecycleUid::parse(&"a".repeat(26)).unwrap();
        let key = format!("cred.{uid}.c");
        let seg = "k".parse().unwrap();
        let session = cotal_wire::SessionId::parse(&"s".repeat(22)).unwrap();
        let item = ItemRef {
            endpoint: EndpointToken::parse("com_x").unwrap(),
            pool: "builds".parse().unwrap(),
            acceptance: Acceptance::of_tokens(["local", "a", uid.as_str(), "r"]).unwrap(),
        };
        for bytes in [bytes, value.to_string().into_bytes()] {
            let refusals = [
                LifecycleHead::parse(&principal, &bytes).err(),
                AgentGate::parse(&uid, &bytes).err(),
                CredentialRow::parse(&key, &bytes).err(),
                BySource::parse("bysrc.k.h.u.c", &bytes).err(),
                SourceGate::parse(&seg, &seg, &bytes).err(),
                NatkeyRow::parse("natkey.U", &bytes).err(),
                Intent::parse(&names, &bytes).err(),
                UidReservation::parse(&bytes).err(),
                FrontierRecord::parse(&bytes).err(),
                SessionRow::parse(&session, &bytes).err(),
                Obligation::parse(&bytes).err(),
                Lease::parse(&bytes).err(),
                Decision::parse(&item.endpoint, &item.acceptance, &bytes).err(),
                EffectFact::parse(&item.acceptance, &bytes).err(),
                GoalResult::parse(&item.acceptance.id, &bytes).err(),
                WorkTerminal::parse(&item.pool, &item.acceptance, &bytes).err(),
            ];
            for refusal in refusals {
                prop_assert_eq!(refusal.unwrap().code, EpCode::Internal);
            }
            let codes = [EpCode::BadRequest, EpCode::UnsupportedVersion];
            prop_assert!(codes.contains(&EndpointRequest::parse(&bytes).unwrap_err().code));
            prop_assert!(codes.contains(&EndpointReply::parse(&bytes).unwrap_err().code));
        }
    }

    #[test]
    fn a_submission_is_named_alike_by_its_obligation_its_facts_and_its_item(
        caller in principal(), uid in uid(), id in "[A-Za-z0-9_-]{1,64}", target in proptest::option::of(self::uid()),
        endpoint in "[a-z0-9]{1,8}(_[a-z0-9]{1,8}){0,2}", pool in "[a-z0-9-]{1,32}",
    ) {
        let acceptance = Acceptance {
            caller: Caller { principal: caller, lifecycle_uid: uid },
            id: id.parse().unwrap(),
        };
        let endpoint: EndpointToken = endpoint.parse().unwrap();
        let pool: cotal_wire::Command = pool.parse().unwrap();
        let key = ObligationKey { target, endpoint: endpoint.clone(), acceptance: acceptance.clone() };
        prop_assert_eq!(&ObligationKey::parse(&key.to_string()).unwrap(), &key);
        let space = SpaceToken::parse("main").unwrap();
        let tail = acceptance.to_string();
        for topic in [
            FactTopic::Decision(acceptance.clone()),
            FactTopic::Effect(acceptance.clone()),
            FactTopic::GoalResult(acceptance.clone()),
            FactTopic::WorkTerminal(pool.clone(), acceptance.clone()),
        ] {
            let fact = FactSubject { space: space.clone(), endpoint: endpoint.clone(), topic };
            prop_assert_eq!(&FactSubject::parse(&fact.to_string()).unwrap(), &fact);
        }
        let filter = WorkSubject::filter(&space, &endpoint, &pool);
        let item = WorkSubject { space, endpoint, pool, acceptance };
        prop_assert_eq!(&WorkSubject::parse(&item.to_string()).unwrap(), &item);
        prop_assert!(item.to_string().ends_with(&tail) && subject_matches(&filter, &item.to_string()));
    }

    #[test]
    fn every_walk_of_an_obligation_stays_readable_and_moves_forward_alone(
        steps in vec(0u8..3, 0..6), seq in 0u64..1 << 53, fingerprint in "[a-z]{1,8}", pool in "[a-z0-9_-]{1,64}",
        pooled in any::<bool>(), value in json(),
    ) {
        let op = OpId::parse(&"a".repeat(26)).unwrap();
        let route = if pooled { format!("pool.{pool}") } else { "effects".to_owned() };
        let text = canonical_json(&value).unwrap();
        let commit = Commit {
            key: "cp.e.t.spec".to_owned(),
            base_revision: seq,
            value: CommitValue::Inline(text.clone().into_bytes()),
            digest: cotal_wire::canonical::raw_digest(text.as_bytes()),
        };
        let work = FactWork { fingerprint, source_seq: seq, route: route.parse().unwrap() };
        for owed in [Owed::Epf(work), Owed::SelfCommit(commit)] {
            let mut row = Obligation::provisional(&op, Some(seq), None, owed).unwrap();
            for step in &steps {
                let next = match step {
                    0 => row.clone().accept(),
                    1 => row.clone().reject(),
                    _ => row.clone().terminate(),
                };
                if let Ok(next) = next {
                    prop_assert!(row.state().is_owed() && next.state() != row.state());
                    prop_assert_eq!(next.owed(), row.owed());
                    row = next;
                }
                prop_assert_eq!(&Obligation::parse(&row.to_bytes()).unwrap(), &row);
            }
        }
    }

    #[test]
    fn a_rejection_of_any_length_fits_its_limit_and_reads_back(detail in ".{0,400}", seq in 1u64..1 << 53) {
        let uid = "u".repeat(26);
        let acceptance = Acceptance::of_tokens(["local", "a", &uid, "r"]).unwrap();
        let endpoint = EndpointToken::parse("com_x").unwrap();
        let fingerprint = cotal_wire::canonical::VOID_CLOSURE_DIGEST.to_owned();
        let work = FactWork { fingerprint, source_seq: seq, route: "effects".parse().unwrap() };
        let rejection = Rejection { acceptance: &acceptance, work: &work, detail: &detail, ts: UnixMillis(1) };
        let fact = Decision::parse(&endpoint, &acceptance, &rejection.to_bytes().unwrap()).unwrap();
        prop_assert_eq!(fact.source_seq(), seq);
    }

    #[test]
    fn a_credential_row_reads_back_under_its_own_key_alone(
        holder in principal(), uid in uid(), id in "[A-Za-z0-9_-]{1,20}(\\.[A-Za-z0-9_-]{1,20}){0,2}",
        chain in vec(source(), 1..4), exp in 0u64..1 << 53,
    ) {
        let id = CredentialId::parse(&id).unwrap();
        let row = CredentialRow::agent(&uid, &id, &holder, chain, UnixMillis(exp)).unwrap();
        let key = row.key().to_string();
        prop_assert_eq!(&CredentialRow::parse(&key, &row.to_bytes()).unwrap(), &row);
        prop_assert_eq!(&CredentialKey::parse(&key).unwrap(), row.key());
        let other = CredentialRow::parse(&format!("{key}x"), &row.to_bytes());
        prop_assert!(other.is_err());
    }

    #[test]
    fn every_walk_of_the_gate_stays_readable_and_terminal_states_stay(
        steps in vec((0u8..3, op_id(), select(OpKind::ALL.to_vec())), 0..12),
    ) {
        let uid = LifecycleUid::parse(&"u".repeat(26)).unwrap();
        let mut gate = AgentGate::born(&uid, &OpId::parse(&"a".repeat(26)).unwrap());
        for (step, op, kind) in steps {
            let before = gate.clone();
            let next = match step {
                0 => gate.clone().freeze(GateOp::new(op, kind)),
                1 => gate.clone().reopen(&op),
                _ => gate.clone().retire(&op),
            };
            if let Ok(next) = next {
                gate = next;
            }
            prop_assert_eq!(&AgentGate::parse(&uid, &gate.to_bytes()).unwrap(), &gate);
            let reopened = !before.is_open() && gate.is_open();
            prop_assert_eq!(gate.generation(), before.generation() + u64::from(reopened));
            if let GateState::Retired(_) = before.state() {
                prop_assert_eq!(&gate, &before);
            }
        }
    }

    #[test]
    fn every_walk_of_the_head_stays_readable_and_the_epoch_never_falls(
        steps in vec((0u8..4, op_id(), 1u64..4), 0..12),
    ) {
        let principal = Principal::parse_key("local.a").unwrap();
        let uid = LifecycleUid::parse(&"u".repeat(26)).unwrap();
        let mut head = LifecycleHead::activated(&principal, &uid, "m").unwrap();
        for (step, op, n) in steps {
            let epoch = head.process_epoch();
            let next = match step {
                0 => head.clone().advance_epoch(&uid, n, &op),
                1 => head.clone().stamp_root(&uid, &CredentialId::parse(&format!("c{n}")).unwrap()),
                2 => head.clone().begin_retirement(&uid, &op),
                _ => head.clone().complete_retirement(&uid, &op),
            };
            match next {
                Ok(HeadStep::Write(next)) => head = next,
                Ok(HeadStep::Done(same)) => prop_assert_eq!(&same, &head),
                Err(_) => {}
            }
            prop_assert!(head.process_epoch() == epoch || head.process_epoch() == epoch + 1);
            prop_assert_eq!(&LifecycleHead::parse(&principal, &head.to_bytes()).unwrap(), &head);
        }
    }
}

/// Equal as ECMAScript reads them: every number a double.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(k, v)| b.get(k).is_some_and(|w| same(v, w)))
        }
        (a, b) => a == b,
    }
}

/// A native fragment over a small alphabet; either direction and either list may be left out or empty.
fn native_fragment() -> impl Strategy<Value = Value> {
    let list = || proptest::option::of(vec(pattern(), 0..4));
    let direction = proptest::option::of((list(), list()).prop_map(|(allow, deny)| {
        let mut rules = serde_json::Map::new();
        rules.extend(allow.map(|allow| ("allow".to_owned(), allow.into())));
        rules.extend(deny.map(|deny| ("deny".to_owned(), deny.into())));
        Value::Object(rules)
    }));
    vec(direction, 2).prop_map(|both| {
        let named = ["pub", "sub"].into_iter().map(str::to_owned).zip(both);
        Value::Object(named.filter_map(|(name, rules)| Some((name, rules?))).collect())
    })
}

fn issued() -> impl Strategy<Value = IssuedEvidence> {
    (principal(), uid(), "[0-9a-f]{32}", native_fragment(), proptest::option::of(1..u64::from(u32::MAX)))
        .prop_map(|(principal, uid, generation, fragment, expires)| {
            let space = SpaceToken::parse("main").unwrap();
            let sources = vec![
                SourceRef::actor_ledger(&space, &principal, &uid),
                SourceRef::static_incarnation(&space, &uid),
            ];
            let generation = Generation::parse(&generation).unwrap();
            let authority = IssuedAuthorityRef { space, principal, uid, generation };
            let permissions = IssuedPermissions::of_native(&fragment).unwrap();
            IssuedEvidence::new(authority, sources, permissions, expires.map(UnixSecs)).unwrap()
        })
}

proptest! {
    #[test]
    fn issued_rows_read_back_byte_for_byte(evidence in issued()) {
        let bytes = evidence.to_bytes();
        prop_assert!(is_canonical(&bytes));
        prop_assert_eq!(&IssuedEvidence::parse(&bytes).unwrap(), &evidence);
        let attempt = IssuedAttempt::prepared(&evidence);
        prop_assert_eq!(IssuedAttempt::parse(&attempt.to_bytes()).unwrap(), attempt);
        for source in evidence.sources() {
            let row = IssuedIndex { source: source.clone(), authority: evidence.authority().clone() };
            prop_assert!(is_canonical(&row.to_bytes()));
            prop_assert_eq!(IssuedIndex::parse(&row.key(), &row.to_bytes()).unwrap(), row);
            prop_assert!(source.known().is_some());
        }
        let row = AcceptedRow { authority: evidence.authority().clone() };
        prop_assert_eq!(AcceptedRow::parse(&row.to_bytes()).unwrap(), row);
    }

    #[test]
    fn what_a_pattern_covers_it_overlaps_and_matches(cap in pattern(), filter in pattern()) {
        let (cap, filter) = (SubjectPattern::parse(&cap).unwrap(), SubjectPattern::parse(&filter).unwrap());
        prop_assert!(cap.covers(&cap) && cap.overlaps(&cap));
        prop_assert_eq!(cap.overlaps(&filter), filter.overlaps(&cap));
        prop_assert!(!cap.covers(&filter) || cap.overlaps(&filter));
        for subject in channels() {
            let subject = ConcreteSubject::parse(&subject).unwrap();
            if filter.matches(&subject) {
                prop_assert!(!cap.covers(&filter) || cap.matches(&subject));
                prop_assert!(!cap.matches(&subject) || cap.overlaps(&filter));
            }
        }
    }

    #[test]
    fn one_more_deny_never_permits_more(fragment in native_fragment(), deny in pattern(), filter in pattern()) {
        let before = IssuedPermissions::of_native(&fragment).unwrap();
        let mut narrowed = fragment;
        let publish = narrowed.as_object_mut().unwrap().entry("pub").or_insert_with(|| serde_json::json!({}));
        let denies = publish.as_object_mut().unwrap().entry("deny").or_insert_with(|| serde_json::json!([]));
        denies.as_array_mut().unwrap().push(deny.into());
        let after = IssuedPermissions::of_native(&narrowed).unwrap();
        let filter = SubjectPattern::parse(&filter).unwrap();
        prop_assert!(before.publish.permits_filter(&filter) || !after.publish.permits_filter(&filter));
        for subject in channels() {
            let subject = ConcreteSubject::parse(&subject).unwrap();
            prop_assert!(before.publish.permits_subject(&subject) || !after.publish.permits_subject(&subject));
            // A filter is within the ceiling only if each subject that it may match is.
            if after.publish.permits_filter(&filter) && filter.matches(&subject) {
                prop_assert!(after.publish.permits_subject(&subject));
            }
        }
    }

    #[test]
    fn no_bytes_of_any_shape_are_taken_for_an_issued_row(bytes in vec(any::<u8>(), 0..200)) {
        prop_assert!(IssuedEvidence::parse(&bytes).is_err());
        prop_assert!(IssuedAttempt::parse(&bytes).is_err());
        prop_assert!(IssuedIndex::parse("bysource.v1.x", &bytes).is_err());
        prop_assert!(AcceptedRow::parse(&bytes).is_err());
    }
}
