//! Each grammar at its edges.

use super::*;

struct Fixed(u8);

impl Entropy for Fixed {
    fn fill(&self, bytes: &mut [u8]) {
        bytes.fill(self.0);
    }
}

const A: &str = "u_aaaaaaaaaaaaaaaaaaaaaaaaaa";

#[test]
fn a_lifecycle_has_one_retirement_of_each_kind() {
    let (a, b) = ("aaaaaaaaaaaaaaaaaaaaaaaaaa", "0123456789abcdefghijklmnop");
    for (of, op) in [
        (
            OpId::managed_retirement as fn(&LifecycleUid) -> OpId,
            [(a, "b5beb5e4f583874a2f0947bbbd"), (b, "d3f3c8ed3afd05990f61fed5f6")],
        ),
        (
            OpId::interactive_retirement,
            [(a, "3db697133b35dc8a7e289dc92c"), (b, "c536aae2013db0f572652f0cd6")],
        ),
    ] {
        for (uid, want) in op {
            assert_eq!(of(&LifecycleUid::parse(uid).unwrap()).as_str(), want);
        }
    }
}

#[test]
fn sanitising_replaces_per_character_and_never_collapses() {
    for (raw, token) in [
        ("main", "main"),
        (" main ", "main"),
        ("a.b", "a_b"),
        ("a  b", "a__b"),
        ("", "_"),
        ("   ", "_"),
        ("über", "_ber"),
        ("a😀", "a__"),
        ("a-b_c", "a-b_c"),
    ] {
        assert_eq!(sanitize(raw), token, "{raw:?}");
    }
}

#[test]
fn owner_grammars_are_disjoint() {
    let nkey = format!("U{}", "A".repeat(55));
    for (raw, kind) in [
        (A, Some(OwnerKind::Derived)),
        ("p_aaaaaaaaaaaaaaaaaaaaaaaaa7", Some(OwnerKind::Platform)),
        ("local", Some(OwnerKind::Local)),
        ("u_aaaaaaaaaaaaaaaaaaaaaaaaa", None),
        ("u_aaaaaaaaaaaaaaaaaaaaaaaaaaa", None),
        ("u_aaaaaaaaaaaaaaaaaaaaaaaaa1", None),
        ("u_aaaaaaaaaaaaaaaaaaaaaaaaaA", None),
        (nkey.as_str(), None),
        ("", None),
    ] {
        assert_eq!(Owner::parse(raw).ok().map(|o| o.kind()), kind, "{raw:?}");
    }
    assert!(OwnerToken::parse(&nkey).is_ok(), "an nkey passes the structural check");
    assert!(OwnerToken::parse("a-b").is_err() && OwnerToken::parse("*").is_err());
}

#[test]
fn principals_parse_at_the_first_separator() {
    assert_eq!(Principal::parse_key(&format!("{A}.alice")).unwrap().key(), format!("{A}.alice"));
    assert_eq!(Principal::parse_name(&format!("{A}-alice")).unwrap().name(), format!("{A}-alice"));
    for bad in ["", ".", "a.", ".b", "local.a.b", "local.", "local.a-b", "x.alice"] {
        assert!(Principal::parse_key(bad).is_err(), "{bad:?}");
    }
    for bad in ["", "-", "local-", "local-a-b", "p_aaaaaaaaaaaaaaaaaaaaaaaaaa-x", "x-alice"] {
        assert!(Principal::parse_name(bad).is_err(), "{bad:?}");
    }
}

#[test]
fn lifecycle_tokens_are_bounded_and_minted_in_bounds() {
    for (raw, ok) in [
        ("a".repeat(25), false),
        ("a".repeat(26), true),
        ("0".repeat(32), true),
        ("a".repeat(33), false),
        ("A".repeat(26), false),
        ("a-".repeat(13), false),
    ] {
        assert_eq!(LifecycleUid::parse(&raw).is_ok(), ok, "{raw:?}");
    }
    assert_eq!(LifecycleUid::mint(&Fixed(0)).as_str(), "0".repeat(26));
    let max = LifecycleUid::mint(&Fixed(0xff));
    assert_eq!(max.as_str(), "twj4yidkw7a8pn4g709kzmfoaol3x8f");
    assert!(LifecycleUid::parse(max.as_str()).is_ok());
}

#[test]
fn bounds_of_the_other_tokens_hold() {
    assert!(ConnId::parse(&"a".repeat(7)).is_err() && ConnId::parse(&"a".repeat(8)).is_ok());
    assert!(ConnId::parse(&"a".repeat(120)).is_ok() && ConnId::parse(&"a".repeat(121)).is_err());
    assert!(CredentialId::parse("a.b-c_d").is_ok());
    for bad in ["", ".", "a..b", "a.", "a b"] {
        assert!(CredentialId::parse(bad).is_err(), "{bad:?}");
    }
    assert!(CredentialId::parse(&"a".repeat(256)).is_ok() && CredentialId::parse(&"a".repeat(257)).is_err());
    assert!(SessionId::parse(&"a".repeat(22)).is_ok() && SessionId::parse(&"a".repeat(21)).is_err());
    assert!(SessionEndpoint::parse(&"a".repeat(65)).is_err() && SessionEndpoint::parse("").is_err());
    assert!(ScopeEntry::parse("role:default").is_ok() && ScopeEntry::parse("a,b").is_err());
    assert!(Nkey::<User>::parse(&format!("U{}", "A".repeat(55))).is_ok());
    assert!(Nkey::<User>::parse(&format!("A{}", "A".repeat(55))).is_err());
    assert!(Nkey::<User>::parse(&format!("U{}", "1".repeat(55))).is_err());
}

#[test]
fn json_refuses_what_parse_refuses() {
    assert!(serde_json::from_str::<Actor>("\"alice\"").is_ok());
    assert!(serde_json::from_str::<Actor>("\"a.b\"").is_err());
    assert!(serde_json::from_str::<Actor>("7").is_err());
}
