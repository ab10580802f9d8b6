//! Request and reply subjects of the endpoint plane (contract 02 §2.1).

use crate::{
    endpoint_token::{Command, EndpointToken, Generation, Nonce, parse_epoch},
    subject::ROOT,
    token::{Actor, InstanceId, LifecycleUid, Owner, Principal, SpaceToken, TokenError},
};

/// Longest request or reply subject, in bytes.
pub const MAX_ENDPOINT_SUBJECT: usize = 1024;
/// Longest owner or actor slot on an endpoint rail, in characters.
pub const MAX_RAIL_SLOT: usize = 64;

/// Which instances a request reaches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rail {
    /// One of the endpoint's queue group.
    One,
    /// All of them.
    All,
    /// This instance.
    Instance(InstanceId),
}

/// Which agent a request acts on, and by what right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SubjectTarget {
    /// None.
    Untargeted,
    /// The caller itself.
    SelfMode,
    /// An agent of the caller's own owner.
    Owner(Owner),
    /// An agent of any owner; operators only.
    Any(Owner),
    /// The caller's own child on a static mesh.
    Child(Owner),
    /// Whatever the authorization ledger says now.
    Ledger(Owner),
    /// The triple that a capability handle was redeemed for.
    Handle(TargetTriple),
    /// A literal triple of a privileged profile.
    Exact(TargetTriple),
}

/// One incarnation of an agent, spelled out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetTriple {
    /// Owner and actor.
    pub principal: Principal,
    /// The incarnation.
    pub lifecycle_uid: LifecycleUid,
}

/// Who asks. The generation stands on the versioned rail alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointCaller {
    /// Owner and actor.
    pub principal: Principal,
    /// The incarnation.
    pub lifecycle_uid: LifecycleUid,
    /// The issued generation, on the versioned rail.
    pub generation: Option<Generation>,
}

/// A request subject.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestSubject {
    /// The space's token.
    pub space: SpaceToken,
    /// Which instances.
    pub rail: Rail,
    /// The endpoint.
    pub endpoint: EndpointToken,
    /// The command.
    pub command: Command,
    /// Which agent.
    pub target: SubjectTarget,
    /// Who asks.
    pub caller: EndpointCaller,
    /// Where the answer goes.
    pub nonce: Nonce,
}

/// A reply subject: the caller's triple and nonce, under the responder's own coordinates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplySubject {
    /// The space's token.
    pub space: SpaceToken,
    /// The endpoint.
    pub endpoint: EndpointToken,
    /// The instance that answered.
    pub instance: InstanceId,
    /// Its process epoch.
    pub epoch: u64,
    /// Who asked.
    pub caller: EndpointCaller,
    /// The request's nonce.
    pub nonce: Nonce,
}

impl SubjectTarget {
    /// The mode word, or `None` when untargeted.
    pub const fn mode(&self) -> Option<&'static str> {
        match self {
            Self::Untargeted => None,
            Self::SelfMode => Some("self"),
            Self::Owner(_) => Some("owner"),
            Self::Any(_) => Some("any"),
            Self::Child(_) => Some("child"),
            Self::Ledger(_) => Some("ledger"),
            Self::Handle(_) => Some("handle"),
            Self::Exact(_) => Some("exact"),
        }
    }

    /// The incarnation that the subject spells out, in the modes that spell one out.
    pub const fn triple(&self) -> Option<&TargetTriple> {
        match self {
            Self::Handle(triple) | Self::Exact(triple) => Some(triple),
            Self::Untargeted
            | Self::SelfMode
            | Self::Owner(_)
            | Self::Any(_)
            | Self::Child(_)
            | Self::Ledger(_) => None,
        }
    }

    fn push(&self, out: &mut String) {
        let Some(mode) = self.mode() else { return };
        push(out, mode);
        match self {
            Self::Untargeted | Self::SelfMode => {}
            Self::Owner(owner) | Self::Any(owner) | Self::Child(owner) | Self::Ledger(owner) => {
                push(out, owner.as_str());
            }
            Self::Handle(triple) | Self::Exact(triple) => {
                push_principal(out, &triple.principal);
                push(out, triple.lifecycle_uid.as_str());
            }
        }
    }
}

impl EndpointCaller {
    fn push(&self, out: &mut String) {
        push_principal(out, &self.principal);
        push(out, self.lifecycle_uid.as_str());
        if let Some(generation) = &self.generation {
            push(out, generation.as_str());
        }
    }

    fn rail_words(&self) -> &'static str {
        if self.generation.is_some() { "ep.v1" } else { "ep" }
    }
}

impl RequestSubject {
    /// Reads a request subject. `None` means that it names no sender and must not be handled: the token after the
    /// command decides the form, and then the arity must be exact.
    pub fn parse(subject: &str) -> Option<Self> {
        let mut tokens = Tokens::open(subject)?;
        let route = tokens.next()?;
        if !matches!(route, "one" | "all" | "inst") {
            return None;
        }
        let endpoint = EndpointToken::parse(tokens.next()?).ok()?;
        let rail = match route {
            "one" => Rail::One,
            "all" => Rail::All,
            _ => Rail::Instance(InstanceId::parse(tokens.next()?).ok()?),
        };
        let command = Command::parse(tokens.next()?).ok()?;
        let after = tokens.next()?;
        let (target, first) = match after {
            "self" => (SubjectTarget::SelfMode, None),
            "owner" => (SubjectTarget::Owner(tokens.owner()?), None),
            "any" => (SubjectTarget::Any(tokens.owner()?), None),
            "child" => (SubjectTarget::Child(tokens.owner()?), None),
            "ledger" => (SubjectTarget::Ledger(tokens.owner()?), None),
            "handle" => (SubjectTarget::Handle(tokens.triple()?), None),
            "exact" => (SubjectTarget::Exact(tokens.triple()?), None),
            owner => (SubjectTarget::Untargeted, Some(owner)),
        };
        let caller = tokens.caller(first)?;
        let nonce = tokens.last_nonce()?;
        Some(Self { space: tokens.space, rail, endpoint, command, target, caller, nonce })
    }

    /// The subject, or a refusal when it is longer than an endpoint subject may be.
    pub fn build(&self) -> Result<String, TokenError> {
        let mut out = format!("{ROOT}.{}.{}", self.space, self.caller.rail_words());
        match &self.rail {
            Rail::One => push(&mut out, "one"),
            Rail::All => push(&mut out, "all"),
            Rail::Instance(_) => push(&mut out, "inst"),
        }
        push(&mut out, self.endpoint.as_str());
        if let Rail::Instance(instance) = &self.rail {
            push(&mut out, instance.as_str());
        }
        push(&mut out, self.command.as_str());
        self.target.push(&mut out);
        self.caller.push(&mut out);
        push(&mut out, self.nonce.as_str());
        bounded(out)
    }

    /// Where this request is answered: the caller's block and nonce under the responder's own coordinates, on the
    /// rail that the request came in on. A transport reply-to is never used.
    pub fn reply(&self, instance: &InstanceId, epoch: u64) -> ReplySubject {
        ReplySubject {
            space: self.space.clone(),
            endpoint: self.endpoint.clone(),
            instance: instance.clone(),
            epoch,
            caller: self.caller.clone(),
            nonce: self.nonce.clone(),
        }
    }
}

impl ReplySubject {
    /// Reads a reply subject.
    pub fn parse(subject: &str) -> Option<Self> {
        let mut tokens = Tokens::open(subject)?;
        if tokens.next()? != "reply" {
            return None;
        }
        let endpoint = EndpointToken::parse(tokens.next()?).ok()?;
        let instance = InstanceId::parse(tokens.next()?).ok()?;
        let epoch = parse_epoch(tokens.next()?)?;
        let caller = tokens.caller(None)?;
        let nonce = tokens.last_nonce()?;
        Some(Self { space: tokens.space, endpoint, instance, epoch, caller, nonce })
    }

    /// The subject, or a refusal when it is longer than an endpoint subject may be.
    pub fn build(&self) -> Result<String, TokenError> {
        let mut out = format!(
            "{ROOT}.{}.{}.reply.{}.{}.{}",
            self.space,
            self.caller.rail_words(),
            self.endpoint,
            self.instance,
            self.epoch
        );
        self.caller.push(&mut out);
        push(&mut out, self.nonce.as_str());
        bounded(out)
    }
}

/// What is left of a subject of an endpoint rail, after the rail's own words.
struct Tokens<'a> {
    rest: std::str::Split<'a, char>,
    space: SpaceToken,
    versioned: bool,
}

impl<'a> Tokens<'a> {
    fn open(subject: &'a str) -> Option<Self> {
        if subject.len() > MAX_ENDPOINT_SUBJECT {
            return None;
        }
        let mut rest = subject.split('.');
        if rest.next()? != ROOT {
            return None;
        }
        let space = SpaceToken::parse(rest.next()?).ok()?;
        if rest.next()? != "ep" {
            return None;
        }
        let mut ahead = rest.clone();
        let versioned = ahead.next()? == "v1";
        Some(Self { rest: if versioned { ahead } else { rest }, space, versioned })
    }

    fn next(&mut self) -> Option<&'a str> {
        self.rest.next()
    }

    fn owner(&mut self) -> Option<Owner> {
        Owner::parse(self.next()?).ok()
    }

    fn principal(&mut self, first: Option<&'a str>) -> Option<Principal> {
        let owner = Owner::parse(first.or_else(|| self.next())?).ok()?;
        let actor = Actor::parse(self.next()?).ok().filter(|actor| actor.as_str().len() <= MAX_RAIL_SLOT)?;
        Some(Principal::new(owner, actor))
    }

    fn triple(&mut self) -> Option<TargetTriple> {
        let principal = self.principal(None)?;
        Some(TargetTriple { principal, lifecycle_uid: LifecycleUid::parse(self.next()?).ok()? })
    }

    fn caller(&mut self, first: Option<&'a str>) -> Option<EndpointCaller> {
        let principal = self.principal(first)?;
        let lifecycle_uid = LifecycleUid::parse(self.next()?).ok()?;
        let generation = if self.versioned { Some(Generation::parse(self.next()?).ok()?) } else { None };
        Some(EndpointCaller { principal, lifecycle_uid, generation })
    }

    fn last_nonce(&mut self) -> Option<Nonce> {
        let nonce = Nonce::parse(self.next()?).ok()?;
        self.next().is_none().then_some(nonce)
    }
}

fn push(out: &mut String, token: &str) {
    out.push('.');
    out.push_str(token);
}

fn push_principal(out: &mut String, principal: &Principal) {
    push(out, principal.owner.as_str());
    push(out, principal.actor.as_str());
}

fn bounded(subject: String) -> Result<String, TokenError> {
    if subject.len() <= MAX_ENDPOINT_SUBJECT {
        Ok(subject)
    } else {
        Err(TokenError { what: "endpoint subject", rule: "at most 1024 bytes" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "u_aaaaaaaaaaaaaaaaaaaaaaaaaa";
    const UID: &str = "uuuuuuuuuuuuuuuuuuuuuuuuuu";
    const TUID: &str = "tttttttttttttttttttttttttt";
    const IID: &str = "iiiiiiiiiiiiiiiiiiiiiiiiii";
    const NONCE: &str = "nnnnnnnnnnnnnnnnnnnnnn";
    const GEN: &str = "0123456789abcdef0123456789abcdef";

    fn request(after_command: &str) -> String {
        format!("cotal.main.ep.one.auth.retire-lifecycle{after_command}.{A}.alice.{UID}.{NONCE}")
    }

    #[test]
    fn every_form_has_its_arity_and_reads_back() {
        for (middle, mode, tokens) in [
            (String::new(), None, 10),
            (".self".to_owned(), Some("self"), 11),
            (format!(".owner.{A}"), Some("owner"), 12),
            (".any.local".to_owned(), Some("any"), 12),
            (format!(".child.{A}"), Some("child"), 12),
            (format!(".ledger.{A}"), Some("ledger"), 12),
            (format!(".handle.{A}.bob.{TUID}"), Some("handle"), 14),
            (format!(".exact.{A}.bob.{TUID}"), Some("exact"), 14),
        ] {
            let class = request(&middle);
            for (subject, more) in [
                (class.clone(), 0),
                (class.replace(".one.", ".all."), 0),
                (class.replace(".one.auth.", &format!(".inst.auth.{IID}.")), 1),
            ] {
                let parsed = RequestSubject::parse(&subject).unwrap();
                assert_eq!(subject.split('.').count(), tokens + more, "{subject}");
                assert_eq!(parsed.target.mode(), mode, "{subject}");
                assert_eq!(parsed.caller.principal.key(), format!("{A}.alice"));
                assert_eq!(parsed.build().unwrap(), subject);

                let versioned = subject.replace(".ep.", ".ep.v1.").replace(NONCE, &format!("{GEN}.{NONCE}"));
                let parsed = RequestSubject::parse(&versioned).unwrap();
                assert_eq!(parsed.caller.generation.as_ref().map(Generation::as_str), Some(GEN));
                assert_eq!(parsed.build().unwrap(), versioned);
            }
        }
    }

    #[test]
    fn an_inexact_arity_has_no_sender() {
        for subject in [
            request(".self.x"),
            request(".owner"),
            request(&format!(".owner.{A}.bob")),
            request(&format!(".handle.{A}.bob")),
            request(".other"),
            request("") + ".x",
            request("").replace(NONCE, "short"),
            request("").replace(&format!(".{NONCE}"), ""),
            request("").replace(UID, "UID"),
            request("").replace("alice", "al-ice"),
            request("").replace("alice", &"a".repeat(65)),
            request("").replace(A, "u_short"),
            request("").replace(".one.", ".two."),
            request("").replace(".ep.", ".ep.v1."),
            request("").replace(".ep.", ".ep.v2."),
            request("").replace("cotal.", "other."),
            request("").replace(".auth.", ".-auth."),
            request("").replace("retire-lifecycle", "Retire"),
            request("").replace(NONCE, &format!("{GEN}.{NONCE}")),
            String::new(),
        ] {
            assert_eq!(RequestSubject::parse(&subject), None, "{subject}");
        }
    }

    #[test]
    fn a_reply_goes_to_the_callers_nonce_on_its_own_rail() {
        let instance = InstanceId::parse(IID).unwrap();
        let legacy = RequestSubject::parse(&request("")).unwrap().reply(&instance, 7);
        let subject = format!("cotal.main.ep.reply.auth.{IID}.7.{A}.alice.{UID}.{NONCE}");
        assert_eq!(legacy.build().unwrap(), subject);
        assert_eq!(ReplySubject::parse(&subject).unwrap(), legacy);
        assert_eq!(subject.split('.').count(), 11);

        let versioned = request("").replace(".ep.", ".ep.v1.").replace(NONCE, &format!("{GEN}.{NONCE}"));
        let reply = RequestSubject::parse(&versioned).unwrap().reply(&instance, 0);
        let subject = format!("cotal.main.ep.v1.reply.auth.{IID}.0.{A}.alice.{UID}.{GEN}.{NONCE}");
        assert_eq!(reply.build().unwrap(), subject);
        assert_eq!(ReplySubject::parse(&subject).unwrap(), reply);
        for bad in ["01", "-1", "9007199254740992", "x"] {
            assert_eq!(ReplySubject::parse(&subject.replace(".0.", &format!(".{bad}."))), None, "{bad}");
        }
    }

    #[test]
    fn a_subject_over_its_bound_is_neither_built_nor_parsed() {
        let mut request = RequestSubject::parse(&request("")).unwrap();
        request.space = SpaceToken::parse(&"s".repeat(1024)).unwrap();
        assert!(request.build().is_err());
        let long = format!("cotal.{}.ep.one.auth.x.{A}.alice.{UID}.{NONCE}", "s".repeat(1024));
        assert_eq!(RequestSubject::parse(&long), None);
    }
}
