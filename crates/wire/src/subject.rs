//! Subjects of the messaging plane, and whose message a subject says it is (contract 01 §2).

use crate::{
    channel::Channel,
    token::{Actor, Owner, OwnerKind, OwnerToken, Principal, Role, SpaceToken, TokenError, sanitize},
};

/// First token of every subject of a space.
pub const ROOT: &str = "cotal";
/// Prefixes that no application may publish on.
pub const RESERVED_PREFIXES: [&str; 5] = ["$JS.", "$KV.", "$SYS.", "$O.", "_INBOX."];

/// Between a control request's subject and the nonce of its reply.
const REPLY: &str = "reply";

/// The delivery daemon's rails: the only control subjects that are still served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ControlService {
    /// Agents ask for durable delivery.
    Delivery,
    /// The authority asks for liveness and eviction.
    DeliveryAdmin,
}

impl ControlService {
    /// The service's token.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Delivery => "delivery",
            Self::DeliveryAdmin => "delivery-admin",
        }
    }

    fn from_token(token: &str) -> Option<Self> {
        [Self::Delivery, Self::DeliveryAdmin].into_iter().find(|service| service.as_str() == token)
    }
}

/// What kind of message a subject carries, with the slots that are not the sender's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MessageKind {
    /// Multicast, to a channel.
    Chat {
        /// The channel's path, as it stands in the subject.
        channel: String,
    },
    /// Unicast, to one principal.
    Unicast {
        /// The recipient's owner slot.
        owner: OwnerToken,
        /// The recipient's actor slot.
        actor: Actor,
    },
    /// Anycast, to one holder of a role.
    Anycast {
        /// The role.
        role: String,
    },
    /// A request to the delivery daemon.
    Control(ControlService),
}

/// A subject split into its sender and the rest. Splitting proves nothing about the owner: see [`Self::sender`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageSubject {
    /// What the subject carries.
    pub kind: MessageKind,
    /// The sender's owner slot, checked for shape only.
    pub owner: OwnerToken,
    /// The sender's actor slot.
    pub actor: Actor,
}

impl MessageSubject {
    /// Splits a subject; `None` means that it names no sender and must not be handled.
    pub fn parse(subject: &str) -> Option<Self> {
        let tokens: Vec<&str> = subject.split('.').collect();
        let [ROOT, space, kind, rest @ ..] = tokens.as_slice() else { return None };
        SpaceToken::parse(space).ok()?;
        let (kind, owner, actor) = match (*kind, rest) {
            ("chat", [owner, actor, channel @ ..]) if !channel.is_empty() && !channel.contains(&"") => {
                (MessageKind::Chat { channel: channel.join(".") }, owner, actor)
            }
            ("inst", [to_owner, to_actor, owner, actor]) => {
                let (to_owner, to_actor) = (OwnerToken::parse(to_owner).ok()?, Actor::parse(to_actor).ok()?);
                (MessageKind::Unicast { owner: to_owner, actor: to_actor }, owner, actor)
            }
            ("svc", [role, owner, actor]) if !role.is_empty() => {
                (MessageKind::Anycast { role: (*role).to_owned() }, owner, actor)
            }
            ("ctl", [service, owner, actor]) => {
                (MessageKind::Control(ControlService::from_token(service)?), owner, actor)
            }
            _ => return None,
        };
        Some(Self { kind, owner: OwnerToken::parse(owner).ok()?, actor: Actor::parse(actor).ok()? })
    }

    /// The sender, where its content may be surfaced: the owner must be derived or `local`. A platform owner never
    /// sends messages, and an nkey in the owner slot is the shape of an older version.
    pub fn sender(&self) -> Option<Principal> {
        let owner =
            Owner::parse(self.owner.as_str()).ok().filter(|owner| owner.kind() != OwnerKind::Platform)?;
        Some(Principal::new(owner, self.actor.clone()))
    }
}

/// Builds the subjects of one space.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subjects {
    prefix: String,
}

impl Subjects {
    /// The subjects of this space.
    pub fn new(space: &SpaceToken) -> Self {
        Self { prefix: format!("{ROOT}.{space}") }
    }

    /// Multicast from a principal to a channel.
    pub fn chat(&self, from: &Principal, channel: &Channel) -> String {
        format!("{}.chat.{from}.{channel}", self.prefix)
    }

    /// Unicast from one principal to another.
    pub fn unicast(&self, to: &Principal, from: &Principal) -> String {
        format!("{}.inst.{to}.{from}", self.prefix)
    }

    /// What a principal is sent, whoever sent it.
    pub fn unicast_filter(&self, to: &Principal) -> String {
        format!("{}.inst.{to}.>", self.prefix)
    }

    /// Anycast to a role.
    pub fn anycast(&self, role: &Role, from: &Principal) -> String {
        format!("{}.svc.{role}.{from}", self.prefix)
    }

    /// A role's work, whoever sent it.
    pub fn anycast_filter(&self, role: &Role) -> String {
        format!("{}.svc.{role}.>", self.prefix)
    }

    /// A request to the delivery daemon.
    pub fn control(&self, service: ControlService, from: &Principal) -> String {
        format!("{}.ctl.{}.{from}", self.prefix, service.as_str())
    }

    /// Every request to one of the daemon's rails, whoever sends it.
    pub fn control_filter(&self, service: ControlService) -> String {
        format!("{}.ctl.{}.*.*", self.prefix, service.as_str())
    }

    /// Every reply of one of the daemon's rails.
    pub fn control_replies(&self, service: ControlService) -> String {
        format!("{}.{REPLY}.>", self.control_filter(service))
    }

    /// The replies to one principal: under its own request subject, so that nobody else may read them.
    pub fn control_reply_filter(&self, service: ControlService, to: &Principal) -> String {
        format!("{}.{REPLY}.>", self.control(service, to))
    }

    /// The reply subject of one request; `nonce` is one token.
    pub fn control_reply(&self, service: ControlService, to: &Principal, nonce: &str) -> String {
        format!("{}.{REPLY}.{nonce}", self.control(service, to))
    }

    /// The whole space.
    pub fn everything(&self) -> String {
        format!("{}.>", self.prefix)
    }
}

/// A channel path as a client writes it into a subject: segments trimmed, empty ones dropped, other characters
/// replaced; a `>` that is not last refuses (contract 01 §1.1).
pub fn channel_path(raw: &str) -> Result<String, TokenError> {
    let segments: Vec<&str> = raw.split('.').map(str::trim).filter(|s| !s.is_empty()).collect();
    let inner = segments.split_last().map_or(&[][..], |(_, inner)| inner);
    if inner.contains(&">") {
        return Err(TokenError { what: "channel path", rule: "> only as the last segment" });
    }
    let path: Vec<String> = segments
        .into_iter()
        .map(|segment| if matches!(segment, "*" | ">") { segment.to_owned() } else { sanitize(segment) })
        .collect();
    Ok(if path.is_empty() { "_".to_owned() } else { path.join(".") })
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "u_aaaaaaaaaaaaaaaaaaaaaaaaaa";
    const B: &str = "u_bbbbbbbbbbbbbbbbbbbbbbbbbb";

    #[test]
    fn the_parse_vectors_of_the_contract_hold() {
        let chat = MessageSubject::parse(&format!("cotal.main.chat.{A}.alice.team.backend")).unwrap();
        assert_eq!(chat.sender().unwrap().key(), format!("{A}.alice"));
        assert_eq!(chat.kind, MessageKind::Chat { channel: "team.backend".to_owned() });

        let inst = MessageSubject::parse(&format!("cotal.main.inst.{B}.bob.{A}.alice")).unwrap();
        assert_eq!(inst.sender().unwrap().key(), format!("{A}.alice"));
        let MessageKind::Unicast { owner, actor } = inst.kind else { unreachable!("a unicast subject") };
        assert_eq!((owner.as_str(), actor.as_str()), (B, "bob"));

        let svc = MessageSubject::parse(&format!("cotal.main.svc.reviewer.{A}.alice")).unwrap();
        assert_eq!(svc.sender().unwrap().key(), format!("{A}.alice"));
        assert_eq!(svc.kind, MessageKind::Anycast { role: "reviewer".to_owned() });

        assert_eq!(MessageSubject::parse(&format!("cotal.main.chat.{A}.alice")), None);
        assert_eq!(MessageSubject::parse(&format!("cotal.main.ctl.manager.{A}.alice")), None);

        let nkey = format!("U{}", "A".repeat(55));
        let old = MessageSubject::parse(&format!("cotal.main.chat.{nkey}.team.backend")).unwrap();
        assert_eq!(old.actor.as_str(), "team");
        assert_eq!(old.kind, MessageKind::Chat { channel: "backend".to_owned() });
        assert_eq!(old.sender(), None, "dropped where content is surfaced");
    }

    #[test]
    fn a_subject_of_another_shape_names_no_sender() {
        for subject in [
            String::new(),
            "cotal".to_owned(),
            format!("other.main.chat.{A}.alice.x"),
            format!("cotal.main.what.{A}.alice.x"),
            format!("cotal.main.inst.{B}.bob.{A}"),
            format!("cotal.main.inst.{B}.bob.{A}.alice.x"),
            format!("cotal.main.svc.{A}.alice"),
            format!("cotal.main.svc.r.{A}.alice.x"),
            format!("cotal.main.ctl.delivery.{A}.alice.reply"),
            format!("cotal.main.chat.{A}.alice."),
            format!("cotal.main.chat.{A}.alice.a..b"),
            format!("cotal.main.chat.{A}.al-ice.x"),
            format!("cotal..chat.{A}.alice.x"),
            format!("cotal.main.inst.*.bob.{A}.alice"),
        ] {
            assert_eq!(MessageSubject::parse(&subject), None, "{subject}");
        }
        let platform = MessageSubject::parse("cotal.main.svc.r.p_aaaaaaaaaaaaaaaaaaaaaaaaaa.x").unwrap();
        assert_eq!(platform.sender(), None);
        assert!(MessageSubject::parse(&format!("cotal.main.ctl.delivery-admin.{A}.alice")).is_some());
    }

    #[test]
    fn what_is_built_parses_back() {
        let subjects = Subjects::new(&SpaceToken::parse("main").unwrap());
        let (a, b) =
            (Principal::parse_key("local.a").unwrap(), Principal::parse_key(&format!("{B}.b")).unwrap());
        for subject in [
            subjects.chat(&a, &Channel::parse("x.y").unwrap()),
            subjects.unicast(&b, &a),
            subjects.anycast(&Role::parse("default").unwrap(), &a),
            subjects.control(ControlService::DeliveryAdmin, &a),
        ] {
            assert_eq!(MessageSubject::parse(&subject).unwrap().sender().unwrap(), a, "{subject}");
        }
        assert_eq!(subjects.unicast_filter(&a), "cotal.main.inst.local.a.>");
    }

    #[test]
    fn a_channel_path_is_sanitised_segment_by_segment() {
        for (raw, want) in [
            ("team.backend", "team.backend"),
            (" team . back end ", "team.back_end"),
            ("..a..", "a"),
            ("", "_"),
            (" . ", "_"),
            ("a.*", "a.*"),
            ("a.>", "a.>"),
            ("a*", "a_"),
        ] {
            assert_eq!(channel_path(raw).unwrap(), want, "{raw:?}");
        }
        assert!(channel_path("a.>.b").is_err());
    }
}
