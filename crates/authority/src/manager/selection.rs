//! Which of an owner's managers an unpinned `manager-caller` is bound to (contract 05 §5).

use std::fmt;

use cotal_wire::{Actor, DerivedOwner, InstanceId, Owner, Principal, manager_authority::serve_principal};

use crate::{LocalManager, ManagerVerdict};

/// Whose manager an instance is, seen from one owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ManagerSide {
    /// The owner's own, on some machine.
    Remote,
    /// The host's.
    Local,
}

/// Whose a gate of this principal is, if the owner may be bound to it at all.
pub(crate) fn side_of(
    owner: &DerivedOwner,
    instance: &InstanceId,
    local: Option<&LocalManager>,
    principal: &Principal,
) -> Option<ManagerSide> {
    if *principal == serve_principal(&owner.into(), instance) {
        return Some(ManagerSide::Remote);
    }
    let local = local.filter(|local| local.instance == *instance)?;
    let serve = Principal::new(Owner::local(), Actor::parse(local.serve.as_str()).ok()?);
    (*principal == serve).then_some(ManagerSide::Local)
}

/// One of the instances that an owner might be bound to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SurveyedManager {
    /// The instance.
    pub instance: InstanceId,
    /// Whose it is.
    pub side: ManagerSide,
    /// How it is.
    pub verdict: ManagerVerdict,
}

impl SurveyedManager {
    /// Whether it may be selected.
    pub const fn is_live(&self) -> bool {
        matches!(self.verdict, ManagerVerdict::Candidate { .. })
    }
}

/// What an owner might be bound to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Survey {
    /// In the order of their ids.
    pub managers: Vec<SurveyedManager>,
    /// Whether these are all. They are not when the owner has more than are looked at.
    pub whole: bool,
}

impl Survey {
    /// Selects when nothing was named: exactly one live instance of the owner's own. Only an owner who has none at all, live or
    /// not, is bound to the host's. Of more than were looked at none is selected.
    pub fn select(&self, owner: &DerivedOwner) -> Result<InstanceId, NoManager> {
        if self.whole {
            return select_manager(owner, &self.managers);
        }
        Err(NoManager::TooMany { owner: owner.clone() })
    }
}

/// Why none of the surveyed instances was selected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoManager {
    /// More than one of the owner's own is live.
    Ambiguous {
        /// The owner.
        owner: DerivedOwner,
        /// How many.
        live: usize,
    },
    /// The owner has managers of their own, and none is live: the host's does not take their place.
    NoneLive {
        /// The owner.
        owner: DerivedOwner,
        /// How many.
        gates: usize,
    },
    /// The owner has more that are not retired than are looked at.
    TooMany {
        /// The owner.
        owner: DerivedOwner,
    },
    /// There is nothing to select from.
    NoCandidate {
        /// The owner.
        owner: DerivedOwner,
    },
}

impl fmt::Display for NoManager {
    /// The first two sentences are the contract's (10 §10).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ambiguous { owner, live } => write!(
                f,
                "manager-caller selection found {live} live remote manager candidates for owner {owner}; exactly one is \
                 required or name --manager-instance"
            ),
            Self::NoneLive { owner, gates } => {
                let plural = if *gates == 1 { "" } else { "s" };
                write!(
                    f,
                    "the remote manager for owner {owner} is unavailable ({gates} gate{plural}, none live); pass \
                     managerInstanceId to select an instance explicitly rather than falling through to the local manager"
                )
            }
            Self::TooMany { owner } => write!(
                f,
                "owner {owner} has more manager instances than a selection looks at; name one with --manager-instance"
            ),
            Self::NoCandidate { owner } => write!(
                f,
                "manager-caller selection found no manager candidate for owner {owner}; start one with `cotal manager \
                 start`"
            ),
        }
    }
}

impl std::error::Error for NoManager {}

fn select_manager(owner: &DerivedOwner, surveyed: &[SurveyedManager]) -> Result<InstanceId, NoManager> {
    let of = |side| surveyed.iter().filter(move |one| one.side == side);
    let live = |one: &&SurveyedManager| one.is_live();
    let mut remote = of(ManagerSide::Remote).filter(live);
    match (remote.next(), remote.count(), of(ManagerSide::Remote).count()) {
        (Some(one), 0, _) => Ok(one.instance.clone()),
        (Some(_), others, _) => Err(NoManager::Ambiguous { owner: owner.clone(), live: 1 + others }),
        (None, _, 0) => of(ManagerSide::Local)
            .find(live)
            .map(|one| one.instance.clone())
            .ok_or_else(|| NoManager::NoCandidate { owner: owner.clone() }),
        (None, _, gates) => Err(NoManager::NoneLive { owner: owner.clone(), gates }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CANDIDATE: ManagerVerdict = ManagerVerdict::Candidate { process_epoch: 0 };

    fn owner(letter: char) -> DerivedOwner {
        DerivedOwner::parse(&format!("u_{}", letter.to_string().repeat(26))).unwrap()
    }

    fn instance(letter: char) -> InstanceId {
        InstanceId::parse(&letter.to_string().repeat(26)).unwrap()
    }

    #[test]
    fn an_instance_is_its_owners_or_the_hosts_or_nobodys() {
        let serve = cotal_wire::Nkey::parse(&format!("U{}", "A".repeat(55))).unwrap();
        let local = LocalManager { instance: instance('i'), serve };
        let side = |principal: &str, local: Option<&LocalManager>| {
            side_of(&owner('a'), &instance('i'), local, &Principal::parse_key(principal).unwrap())
        };
        let own = format!("{}.manager_serve_{}", owner('a'), instance('i'));
        let hosts = format!("local.{}", local.serve);
        assert_eq!(side(&own, None), Some(ManagerSide::Remote));
        assert_eq!(side(&hosts, Some(&local)), Some(ManagerSide::Local));
        assert_eq!(side(&hosts, None), None);
        let elsewhere = LocalManager { instance: instance('j'), ..local.clone() };
        assert_eq!(side(&hosts, Some(&elsewhere)), None);
        for foreign in [
            format!("{}.manager_serve_{}", owner('b'), instance('i')),
            format!("{}.manager_serve_{}", owner('a'), instance('j')),
            format!("{}.manager_{}", owner('a'), instance('i')),
            format!("local.U{}", "B".repeat(55)),
        ] {
            assert_eq!(side(&foreign, Some(&local)), None, "{foreign}");
        }
    }

    fn surveyed(letter: char, side: ManagerSide, verdict: ManagerVerdict) -> SurveyedManager {
        SurveyedManager { instance: instance(letter), side, verdict }
    }

    #[test]
    fn exactly_one_live_remote_is_selected_and_nothing_falls_through() {
        use ManagerSide::{Local, Remote};
        use ManagerVerdict::{NotOpen, NotRegistered};
        let select =
            |list: &[SurveyedManager]| select_manager(&owner('a'), list).map_err(|no| no.to_string());
        let (one, two) = (surveyed('i', Remote, CANDIDATE), surveyed('j', Remote, CANDIDATE));
        let (gone, going) = (surveyed('k', Remote, NotOpen), surveyed('l', Remote, NotRegistered));
        let (local, no_local) = (surveyed('m', Local, CANDIDATE), surveyed('m', Local, NotOpen));
        assert_eq!(select(std::slice::from_ref(&one)), Ok(instance('i')));
        assert_eq!(select(&[gone.clone(), local.clone(), one.clone(), going.clone()]), Ok(instance('i')));
        let owner = owner('a');
        assert_eq!(
            select(&[one, two.clone(), surveyed('n', Remote, CANDIDATE), local.clone()]).unwrap_err(),
            format!(
                "manager-caller selection found 3 live remote manager candidates for owner {owner}; exactly one is \
                 required or name --manager-instance"
            )
        );
        for (gates, words) in
            [(&[gone.clone()][..], "1 gate, none live"), (&[gone, going], "2 gates, none live")]
        {
            let with_local: Vec<_> = gates.iter().chain([&local]).cloned().collect();
            assert_eq!(
                select(&with_local).unwrap_err(),
                format!(
                    "the remote manager for owner {owner} is unavailable ({words}); pass managerInstanceId to select an \
                     instance explicitly rather than falling through to the local manager"
                )
            );
        }
        assert_eq!(select(&[local]), Ok(instance('m')));
        for nothing in [&[][..], &[no_local]] {
            assert!(select(nothing).unwrap_err().contains("no manager candidate"));
        }
    }

    /// Every list of up to five instances, each remote or local and each of three verdicts.
    #[test]
    fn whatever_is_surveyed_the_selected_one_is_a_candidate_and_the_only_one_of_its_kind() {
        use ManagerVerdict::{NotOpen, NotRegistered};
        let kinds: Vec<_> = [ManagerSide::Remote, ManagerSide::Local]
            .into_iter()
            .flat_map(|side| [NotOpen, NotRegistered, CANDIDATE].map(|verdict| (side, verdict)))
            .collect();
        for len in 0..=5 {
            for n in 0..kinds.len().pow(len) {
                let of = |at: u32| kinds[n / kinds.len().pow(at) % kinds.len()];
                let list: Vec<_> = ('a'..='z')
                    .zip(0..len)
                    .map(|(letter, at)| surveyed(letter, of(at).0, of(at).1))
                    .collect();
                let remote = list.iter().filter(|one| one.side == ManagerSide::Remote);
                let (remote, live) = (remote.clone().count(), remote.filter(|one| one.is_live()).count());
                match select_manager(&owner('a'), &list) {
                    Ok(selected) => {
                        let of = list.iter().find(|one| one.instance == selected).unwrap();
                        assert!(of.is_live());
                        assert!(if of.side == ManagerSide::Remote { live == 1 } else { remote == 0 });
                    }
                    Err(NoManager::Ambiguous { live: said, .. }) => assert!(said == live && live > 1),
                    Err(NoManager::NoneLive { gates, .. }) => {
                        assert!(gates == remote && live == 0 && remote > 0);
                    }
                    Err(NoManager::NoCandidate { .. }) => assert_eq!(remote, 0),
                    Err(NoManager::TooMany { .. }) => panic!("a selection has all that it is given"),
                }
            }
        }
    }
}
