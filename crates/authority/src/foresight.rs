//! What an exchange would meet in the stores, asked without a write: for whoever explains a refusal.
//!
//! The rules are those of [`crate::activation`] and [`crate::root_credential`], called on what leader reads found. Each
//! store answers for itself, so that one which refuses hides no other.

use cotal_wire::{
    CredentialId, EpError, LifecycleUid, Principal, UnixMillis,
    rows::{GateState, UidReservation},
};

use crate::{
    activation::{GateSeen, HeadSeen, see_both, see_gate, see_head, see_reservation},
    credential::read_row,
    gate::{self, GateAt},
    head::{HeadAt, read_head},
    root_credential::{check_root_row, named_root},
    stores::AuthorityStores,
};

/// What `ensure_root_credential` would find for one incarnation.
#[derive(Debug)]
pub struct Foresight {
    /// The alias head (contract 07 §2.1, §3.2).
    pub head: Result<HeadForeseen, EpError>,
    /// The uid's reservation and its issuance gate (contract 07 §2.2-2.3).
    pub gate: Result<GateForeseen, EpError>,
    /// The root credential (contract 04 §10); `None` when the head or the gate refuses before it is looked at.
    pub root: Option<Result<RootForeseen, EpError>>,
}

/// What the head lets an exchange do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadForeseen {
    /// The alias was never used: the exchange activates it.
    Virgin,
    /// Its last incarnation is over: the exchange activates the next one.
    Free,
    /// Active at this incarnation.
    Active,
}

/// What the gate lets an exchange do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GateForeseen {
    /// None yet: the exchange makes it.
    Absent,
    /// Frozen by an activation that was cut off: the exchange ends that.
    Activating,
    /// Open.
    Open,
    /// Closed, by this kind of operation. The root credential stands, so an exchange does not look at the gate.
    Aside(&'static str),
}

/// Which root credential an exchange would put into the bearer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RootForeseen {
    /// The one that the head names.
    Stands {
        /// Its id.
        id: CredentialId,
        /// When it expires.
        expires_at: UnixMillis,
    },
    /// One that the exchange makes first.
    ToBeMade,
}

impl Foresight {
    /// Reads head, reservation, gate and root row, and decides on each.
    pub(crate) async fn look(
        stores: &AuthorityStores,
        principal: &Principal,
        uid: &LifecycleUid,
        now: UnixMillis,
    ) -> Self {
        let (head, reservation, gate) = tokio::join!(
            read_head(stores.records(), principal),
            gate::read_reservation(stores, uid),
            gate::read_gate(stores, uid)
        );
        let named = match &head {
            Ok(Some(at)) if at.head.is_active_at(uid) => at.head.current_credential_id(),
            _ => None,
        };
        if let Some(named) = named {
            let root = standing_root(stores, principal, uid, named, now).await;
            return Self {
                head: Ok(HeadForeseen::Active),
                gate: gate.map(|at| beside_a_root(at.as_ref())),
                root: Some(root),
            };
        }
        Self::unstamped(principal, uid, head, reservation.map(|found| found.map(|(row, _)| row)), gate)
    }

    /// An incarnation whose head names no root: the exchange would activate and mint.
    fn unstamped(
        principal: &Principal,
        uid: &LifecycleUid,
        head: Result<Option<HeadAt>, EpError>,
        reservation: Result<Option<UidReservation>, EpError>,
        gate: Result<Option<GateAt>, EpError>,
    ) -> Self {
        let head = head.and_then(|at| see_head(at.as_ref(), uid));
        let gate = gate.and_then(see_gate).and_then(|gate| {
            // Beside a head that refuses, reservation and gate are judged by themselves.
            if let Ok(head) = head {
                see_reservation(head, reservation?.as_ref(), principal)?;
                see_both(head, &gate)?;
            }
            Ok(gate)
        });
        let root = (head.is_ok() && gate.is_ok()).then_some(Ok(RootForeseen::ToBeMade));
        Self {
            head: head.map(|seen| match seen {
                HeadSeen::Virgin => HeadForeseen::Virgin,
                HeadSeen::Retired(_) => HeadForeseen::Free,
                HeadSeen::Ours => HeadForeseen::Active,
            }),
            gate: gate.map(|seen| match seen {
                GateSeen::Unread | GateSeen::Absent => GateForeseen::Absent,
                GateSeen::Activating(_) => GateForeseen::Activating,
                GateSeen::Open => GateForeseen::Open,
            }),
            root,
        }
    }
}

/// The root that the head names, once its row is proved usable.
async fn standing_root(
    stores: &AuthorityStores,
    principal: &Principal,
    uid: &LifecycleUid,
    named: &str,
    now: UnixMillis,
) -> Result<RootForeseen, EpError> {
    let id = named_root(named)?;
    let row = read_row(stores.auth(), uid, &id).await?.map(|(row, _)| row);
    check_root_row(row.as_ref(), principal, uid, now)?;
    let expires_at = row.map_or(now, |row| row.expires_at());
    Ok(RootForeseen::Stands { id, expires_at })
}

fn beside_a_root(gate: Option<&GateAt>) -> GateForeseen {
    match gate.map(|at| at.gate.state()) {
        None => GateForeseen::Absent,
        Some(GateState::Open) => GateForeseen::Open,
        Some(GateState::Frozen(op) | GateState::Retired(op)) => GateForeseen::Aside(op.kind().as_str()),
    }
}

#[cfg(test)]
mod tests {
    use cotal_wire::{
        EpCode, OpId, Revision,
        rows::{AgentGate, GateOp, HeadStep, LifecycleHead, OpKind},
    };

    use super::*;

    const AUTHORITY: &str = "auth-service:demo";

    fn principal(actor: &str) -> Principal {
        Principal::parse_key(&format!("u_aaaaaaaaaaaaaaaaaaaaaaaaaa.{actor}")).unwrap()
    }

    fn uid(c: char) -> LifecycleUid {
        LifecycleUid::parse(&c.to_string().repeat(26)).unwrap()
    }

    fn op(c: char) -> OpId {
        OpId::parse(&c.to_string().repeat(26)).unwrap()
    }

    fn head(at: char) -> LifecycleHead {
        LifecycleHead::activated(&principal("cli"), &uid(at), AUTHORITY).unwrap()
    }

    fn retiring(at: char) -> LifecycleHead {
        match head(at).begin_retirement(&uid(at), &op('r')).unwrap() {
            HeadStep::Write(head) | HeadStep::Done(head) => head,
        }
    }

    fn open(at: char) -> AgentGate {
        AgentGate::born(&uid(at), &op('a')).reopen(&op('a')).unwrap()
    }

    fn frozen(at: char, kind: OpKind) -> AgentGate {
        open(at).freeze(GateOp::new(op('f'), kind)).unwrap()
    }

    fn foreseen(head: Option<LifecycleHead>, holder: Option<&str>, gate: Option<AgentGate>) -> Foresight {
        let revision = Revision(7);
        Foresight::unstamped(
            &principal("cli"),
            &uid('a'),
            Ok(head.map(|head| HeadAt { head, revision })),
            Ok(holder.map(|actor| UidReservation::new(&principal(actor), AUTHORITY))),
            Ok(gate.map(|gate| GateAt { gate, revision })),
        )
    }

    #[test]
    fn an_alias_that_was_never_used_is_activated_by_the_exchange() {
        let seen = foreseen(None, None, None);
        assert_eq!(seen.head, Ok(HeadForeseen::Virgin));
        assert_eq!(seen.gate, Ok(GateForeseen::Absent));
        assert_eq!(seen.root, Some(Ok(RootForeseen::ToBeMade)));
    }

    #[test]
    fn an_activation_that_was_cut_off_is_ended_by_the_exchange() {
        let born = AgentGate::born(&uid('a'), &op('a'));
        for head in [None, Some(head('a'))] {
            let seen = foreseen(head, Some("cli"), Some(born.clone()));
            assert_eq!(seen.gate, Ok(GateForeseen::Activating));
            assert_eq!(seen.root, Some(Ok(RootForeseen::ToBeMade)));
        }
    }

    #[test]
    fn a_gate_that_a_barrier_holds_refuses_beside_a_head_that_does_not() {
        for (kind, code) in
            [(OpKind::Takeover, EpCode::FailedPrecondition), (OpKind::Retirement, EpCode::FailedPrecondition)]
        {
            let seen = foreseen(Some(head('a')), Some("cli"), Some(frozen('a', kind)));
            assert_eq!(seen.head, Ok(HeadForeseen::Active));
            assert_eq!(seen.gate.unwrap_err().code, code);
            assert_eq!(seen.root, None);
        }
        let burned = frozen('a', OpKind::Retirement).retire(&op('f')).unwrap();
        assert_eq!(
            foreseen(None, Some("cli"), Some(burned)).gate.unwrap_err().code,
            EpCode::PermissionDenied
        );
    }

    #[test]
    fn a_head_that_refuses_hides_no_gate() {
        for head in [head('b'), retiring('a')] {
            let seen = foreseen(Some(head), Some("bob"), Some(open('a')));
            assert!(seen.head.is_err());
            assert_eq!((seen.gate, seen.root), (Ok(GateForeseen::Open), None));
        }
    }

    #[test]
    fn a_reservation_of_another_and_an_open_gate_without_its_alias_refuse() {
        assert_eq!(foreseen(None, Some("bob"), None).gate.unwrap_err().code, EpCode::PermissionDenied);
        assert_eq!(foreseen(Some(head('a')), None, None).gate.unwrap_err().code, EpCode::FailedPrecondition);
        let open = foreseen(None, Some("cli"), Some(open('a')));
        assert_eq!(open.gate.unwrap_err().code, EpCode::FailedPrecondition);
        assert_eq!(open.root, None);
    }
}
