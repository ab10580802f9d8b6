//! One server's pages made into one list, while clients come and go between them: pure, and sound by covering.
//!
//! A page is a slice of the server's connections as they stood when it answered, in ascending order of numbers. So it
//! shows every connection, of those that stood then, whose number lies between its first and its last; a page at
//! offset 0 shows all below its last too, and one that reaches the end all above its first. A connection that is there
//! for the whole sweep is in each of those moments' lists. It is therefore found as soon as the pages together cover
//! every number, whatever else left, came, or came late: a number is given when the socket is accepted and its row
//! appears when the client has authenticated, so that a row may also appear in the middle.
//!
//! Pages overlap, so that departures below a page do not make a hole before the next. Where more left than the overlap
//! has rows, the next page begins behind what is covered; it proves nothing, and an earlier offset is asked.

use std::collections::BTreeMap;

use super::page::{Page, Row, Server};

/// How a server's list is cut into pages.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cut {
    /// Rows of a page.
    pub(super) limit: u64,
    /// Rows of it that the next page shows again, if nobody comes or goes. Less than `limit`.
    pub(super) overlap: u64,
}

/// One server's pages so far.
#[derive(Debug)]
pub(super) struct Splice {
    server: Server,
    rows: BTreeMap<u64, Row>,
    /// Every connection with this number or a lower one is in `rows`, if it is there for the whole sweep.
    covered: Option<u64>,
    /// The offset of the page that it owes.
    next: Option<u64>,
}

impl Cut {
    const fn step(self) -> u64 {
        self.limit - self.overlap
    }
}

impl Splice {
    /// Nothing yet: the page at offset 0 is owed.
    pub(super) fn of(server: Server) -> Self {
        Self { server, rows: BTreeMap::new(), covered: None, next: Some(0) }
    }

    pub(super) fn server(&self) -> &Server {
        &self.server
    }

    /// The offset from which this server's next page is owed; `None` once every number is covered.
    pub(super) fn owes(&self) -> Option<u64> {
        self.next
    }

    /// Takes a page of this server, at the offset that it owes or at a lower one.
    pub(super) fn take(&mut self, page: Page, cut: Cut) -> Result<(), String> {
        if self.next.is_none() {
            return Ok(());
        }
        let named = |what: &str| format!("{} {what}", self.server.name);
        let numbers: Vec<u64> = page.rows.iter().filter_map(Row::cid).collect();
        if !numbers.is_sorted_by(|one, next| one < next) {
            return Err(named("lists its connections out of order"));
        }
        let covered_to = self.covered.map_or(0, |covered| covered.saturating_add(1));
        let follows = page.offset == 0 || numbers.first().is_some_and(|first| *first <= covered_to);
        if !follows {
            self.next = Some(page.offset.min(page.total).saturating_sub(cut.step()));
            return Ok(());
        }
        let end = page.offset.saturating_add(page.rows.len() as u64);
        // A server's last page covers all that follows; any other must say how far it reaches.
        self.next = (end < page.total).then(|| end.saturating_sub(cut.overlap));
        if self.next.is_some() && numbers.is_empty() {
            return Err(named("lists connections without numbers"));
        }
        self.covered = self.covered.max(numbers.last().copied());
        for row in page.rows {
            match (row.cid(), row.is_somebodys()) {
                (Some(cid), _) => drop(self.rows.insert(cid, row)),
                // It could not be closed.
                (None, true) => return Err(named("lists a connection of a principal without a number")),
                (None, false) => {}
            }
        }
        Ok(())
    }

    /// The server, and every connection that was seen there, in ascending order of numbers.
    pub(super) fn finish(self) -> (Server, impl Iterator<Item = (u64, Row)>) {
        (self.server, self.rows.into_iter())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::{collection::vec, prelude::*, sample::Index};

    use super::*;

    const CUT: Cut = Cut { limit: 8, overlap: 3 };
    /// As many pages as a sweep may have.
    const MAX_PAGES: usize = 64;

    /// A server's connections, and the ways in which they change.
    #[derive(Clone)]
    struct Clients {
        there: BTreeSet<u64>,
        /// Accepted, and not authenticated: a number without a row.
        accepted: BTreeSet<u64>,
        next: u64,
    }

    #[derive(Debug, Clone)]
    enum Change {
        Leave(Index),
        LowestLeaves,
        Accept,
        Authenticate(Index),
        Arrive,
    }

    impl Clients {
        fn page(&self, offset: u64, cut: Cut) -> Page {
            let skip = usize::try_from(offset).unwrap();
            let limit = usize::try_from(cut.limit).unwrap();
            let rows = self.there.iter().skip(skip).take(limit);
            Page {
                server: server(),
                total: self.there.len() as u64,
                offset,
                rows: rows.map(|cid| Row::numbered(*cid)).collect(),
            }
        }

        fn change(&mut self, change: &Change) {
            let nth = |set: &BTreeSet<u64>, index: &Index| {
                (!set.is_empty()).then(|| *set.iter().nth(index.index(set.len())).unwrap())
            };
            match change {
                Change::Leave(index) => drop(nth(&self.there, index).map(|cid| self.there.remove(&cid))),
                Change::LowestLeaves => drop(self.there.pop_first()),
                Change::Authenticate(index) => {
                    if let Some(cid) = nth(&self.accepted, index) {
                        self.accepted.remove(&cid);
                        self.there.insert(cid);
                    }
                }
                Change::Accept => {
                    let number = self.number();
                    self.accepted.insert(number);
                }
                Change::Arrive => {
                    let number = self.number();
                    self.there.insert(number);
                }
            }
        }

        fn number(&mut self) -> u64 {
            self.next += 1;
            self.next
        }
    }

    fn server() -> Server {
        Server { id: "N".into(), name: "n".into(), cluster: None }
    }

    fn change() -> impl Strategy<Value = Change> {
        prop_oneof![
            any::<Index>().prop_map(Change::Leave),
            Just(Change::LowestLeaves),
            Just(Change::Accept),
            any::<Index>().prop_map(Change::Authenticate),
            Just(Change::Arrive),
        ]
    }

    /// Reads the pages, with `between` happening before each but the first; `None` when it takes too many.
    fn read(
        clients: &mut Clients,
        mut between: impl FnMut(usize, &mut Clients),
    ) -> Option<(BTreeSet<u64>, usize)> {
        let mut splice = Splice::of(server());
        for number in 0..MAX_PAGES {
            let Some(offset) = splice.owes() else {
                return Some((splice.finish().1.map(|(cid, _)| cid).collect(), number));
            };
            if number > 0 {
                between(number, clients);
            }
            splice.take(clients.page(offset, CUT), CUT).unwrap();
        }
        None
    }

    fn clients(count: u64, accepted: &[Index]) -> Clients {
        let mut clients = Clients { there: (1..=count).collect(), accepted: BTreeSet::new(), next: count };
        for index in accepted {
            let cid = index.index(usize::try_from(count.max(1)).unwrap()) as u64 + 1;
            if clients.there.remove(&cid) {
                clients.accepted.insert(cid);
            }
        }
        clients
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]

        #[test]
        fn whoever_stays_for_the_whole_sweep_is_found_whatever_comes_and_goes(
            count in 0u64..120,
            accepted in vec(any::<Index>(), 0..10),
            churn in vec(vec(change(), 0..20), 0..40),
        ) {
            let mut clients = clients(count, &accepted);
            let mut stayed = clients.there.clone();
            let mut ever = clients.there.clone();
            let found = read(&mut clients, |number, clients| {
                for change in churn.get(number).into_iter().flatten() {
                    clients.change(change);
                    ever.extend(&clients.there);
                    stayed.retain(|cid| clients.there.contains(cid));
                }
            });
            // Nothing at all is said when the pages did not suffice.
            if let Some((found, _)) = found {
                prop_assert!(found.is_superset(&stayed), "missed {:?}", stayed.difference(&found));
                prop_assert!(found.is_subset(&ever), "invented {:?}", found.difference(&ever));
            }
        }

        #[test]
        fn fewer_departures_than_the_overlap_between_two_pages_cost_no_page(
            count in 0u64..120,
            leave in vec(0..CUT.overlap, MAX_PAGES),
        ) {
            let mut clients = clients(count, &[]);
            let quiet = read(&mut clients.clone(), |_, _| {}).unwrap().1;
            let (_, pages) = read(&mut clients, |number, clients| {
                for _ in 0..leave[number] {
                    clients.change(&Change::LowestLeaves);
                    clients.change(&Change::Arrive);
                }
            })
            .unwrap();
            prop_assert_eq!(pages, quiet);
        }
    }

    #[test]
    fn as_many_departures_as_the_overlap_are_read_again_from_further_below() {
        let mut clients = clients(40, &[]);
        let (found, _) = read(&mut clients, |number, clients| {
            if number == 1 {
                (0..6).for_each(|_| clients.change(&Change::LowestLeaves));
            }
        })
        .unwrap();
        assert!(found.is_superset(&(7..=40).collect()), "{found:?}");
        let (found, _) = read(&mut clients, |number, clients| {
            if number == 1 {
                clients.there = BTreeSet::from([40]);
            }
        })
        .unwrap();
        assert!(found.contains(&40), "a page behind the end proves nothing");
    }

    #[test]
    fn a_page_that_does_not_say_how_far_it_reaches_is_refused() {
        let page = |rows: Vec<Row>, total| Page { server: server(), total, offset: 0, rows };
        let taken = |page: Page| Splice::of(server()).take(page, CUT);
        assert!(
            taken(page(vec![Row::numbered(2), Row::numbered(1)], 2)).unwrap_err().contains("out of order")
        );
        assert!(
            taken(page(vec![Row::numbered(2), Row::numbered(2)], 2)).unwrap_err().contains("out of order")
        );
        assert!(taken(page(vec![Row::default()], 2)).unwrap_err().contains("without numbers"));
        assert!(taken(page(vec![Row::default()], 1)).is_ok(), "nobody's");
        let somebodys = serde_json::from_str(r#"{"cid":"4","tags":["principal:local.a"]}"#).unwrap();
        assert!(taken(page(vec![somebodys], 1)).unwrap_err().contains("of a principal"));
    }
}
