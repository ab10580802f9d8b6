//! Connections of the obligation drain and of the pool cleaner (contract 07 §7.1, §12.5). None may create a consumer;
//! a repair may publish one subject and read nothing.

use std::collections::BTreeSet;

use super::{
    Permissions, ROWS_BYTES,
    rows::{JS_INFO, bind, inbox, message_get, stream_info},
};
use crate::{
    commit_key::CommitKey,
    endpoint_token::{Command, EndpointToken},
    error::EpError,
    names::{Names, pool_consumer},
    plane_subject::{FactSubject, WorkSubject},
    token::{ConnId, SpaceToken},
};

/// Pools of one endpoint, at least one: a grant over none would be a grant over nothing in particular.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pools {
    endpoint: EndpointToken,
    pools: BTreeSet<Command>,
}

impl Pools {
    /// These pools; `failed-precondition` for none.
    pub fn new(endpoint: &EndpointToken, pools: &BTreeSet<Command>) -> Result<Self, EpError> {
        if pools.is_empty() {
            return Err(EpError::failed_precondition(format!(
                "{endpoint}: a cleaner or settlement grant names at least one pool"
            )));
        }
        Ok(Self { endpoint: endpoint.clone(), pools: pools.clone() })
    }

    /// The endpoint.
    pub fn endpoint(&self) -> &EndpointToken {
        &self.endpoint
    }

    /// The pools, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Command> {
        self.pools.iter()
    }

    /// The same pools in parts whose rows one credential each can name, the cleaner's and the executor's alike.
    pub fn by_credential(&self, space: &SpaceToken) -> Vec<Self> {
        let mut parts: Vec<Self> = Vec::new();
        let mut bytes = 0;
        for pool in &self.pools {
            let one = Self { endpoint: self.endpoint.clone(), pools: [pool.clone()].into() };
            // Each row is quoted, and has a comma behind it.
            let size = |rows: Vec<String>| rows.iter().map(|row| row.len() + 3).sum::<usize>();
            let rows = size(cleaner_rows(space, &one)).max(size(settlement(space, &one)));
            match parts.last_mut() {
                Some(part) if bytes + rows <= ROWS_BYTES => {
                    part.pools.insert(pool.clone());
                    bytes += rows;
                }
                _ => {
                    parts.push(one);
                    bytes = rows;
                }
            }
        }
        parts
    }

    /// Whether this is one of them.
    pub fn contains(&self, pool: &Command) -> bool {
        self.pools.contains(pool)
    }
}

/// The admission mediator of one endpoint, `cotal:ep-drain:<space>:<endpoint>`: its obligations and its decisions.
pub fn mediator(space: &SpaceToken, endpoint: &EndpointToken, conn: &ConnId) -> Permissions {
    let names = Names::new(space);
    let records = names.records_stream();
    let publish = vec![
        Names::kv_subject(&names.records_bucket(), &format!("oblig.*.{endpoint}.>")),
        format!("{}.epf.{endpoint}.dec.>", names.subject_prefix()),
        message_get(&records),
        message_get(&names.epf_stream()),
        message_get(&names.epw_stream()),
        stream_info(&records),
        JS_INFO.to_owned(),
    ];
    Permissions::allowing(publish, vec![inbox(conn)])
}

/// The retirement cleaner, `cotal:ep-cleaner:<space>:<op>`: takes and acknowledges items of these pools, writes nothing.
pub fn cleaner(space: &SpaceToken, pools: &Pools, conn: &ConnId) -> Permissions {
    let mut publish = cleaner_rows(space, pools);
    publish.extend([message_get(&Names::new(space).epf_stream()), JS_INFO.to_owned()]);
    Permissions::allowing(publish, vec![inbox(conn)])
}

fn cleaner_rows(space: &SpaceToken, pools: &Pools) -> Vec<String> {
    let (epw, endpoint) = (Names::new(space).epw_stream(), &pools.endpoint);
    pools.iter().flat_map(|pool| bind(&epw, &pool_consumer(endpoint, pool))).collect()
}

/// What settling items of these pools takes: their terminals, their leases, and the facts.
pub fn settlement(space: &SpaceToken, pools: &Pools) -> Vec<String> {
    let names = Names::new(space);
    let (prefix, endpoint) = (names.subject_prefix(), &pools.endpoint);
    let mut rows: Vec<String> = pools
        .iter()
        .flat_map(|pool| {
            [
                format!("{prefix}.epf.{endpoint}.wrk.{pool}.>"),
                Names::kv_subject(&names.records_bucket(), &format!("lease.{endpoint}.{pool}.>")),
            ]
        })
        .collect();
    rows.push(message_get(&names.epf_stream()));
    rows
}

/// The retirement executor, `cotal:ep-executor:<space>:<op>`: settles items of these pools.
pub fn executor(space: &SpaceToken, pools: &Pools, conn: &ConnId) -> Permissions {
    let records = Names::new(space).records_stream();
    let mut publish = vec![JS_INFO.to_owned(), stream_info(&records), message_get(&records)];
    publish.extend(settlement(space, pools));
    Permissions::allowing(publish, vec![inbox(conn)])
}

/// The drain's commit applier, `cotal:ep-apply:<space>:<commit key>`: one record, once.
pub fn applier(space: &SpaceToken, key: &CommitKey, conn: &ConnId) -> Permissions {
    let records = Names::new(space).records_bucket();
    Permissions::allowing(vec![Names::kv_subject(&records, key.as_str())], vec![inbox(conn)])
}

/// The drain's pool reconciler, `cotal:ep-reenqueue:<space>`: one item, once.
pub fn reconciler(item: &WorkSubject, conn: &ConnId) -> Permissions {
    Permissions::allowing(vec![item.to_string()], vec![inbox(conn)])
}

/// The drain's effects canceller, `cotal:ep-cancel:<space>`: one completion, once.
pub fn canceller(completion: &FactSubject, conn: &ConnId) -> Permissions {
    Permissions::allowing(vec![completion.to_string()], vec![inbox(conn)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::EpCode;

    #[test]
    fn a_grant_over_no_pool_is_refused() {
        let endpoint = EndpointToken::parse("com_x").unwrap();
        let refused = Pools::new(&endpoint, &BTreeSet::new()).unwrap_err();
        assert_eq!(refused.code, EpCode::FailedPrecondition);
    }

    #[test]
    fn many_pools_are_split_so_that_every_grant_fits_one_credential() {
        let (space, conn) = (SpaceToken::parse("main").unwrap(), ConnId::parse("ibx0123456789").unwrap());
        let endpoint = EndpointToken::parse(&format!("com_{}", "x".repeat(50))).unwrap();
        let pool = |n: usize| Command::parse(&format!("p{n:03}{}", "y".repeat(28))).unwrap();
        let pools = Pools::new(&endpoint, &(0..200).map(pool).collect()).unwrap();
        let parts = pools.by_credential(&space);
        assert!(parts.len() > 1 && parts.len() < 50, "{} parts", parts.len());
        for part in &parts {
            for grant in [cleaner(&space, part, &conn), executor(&space, part, &conn)] {
                let rows: usize = grant.publish.allow.iter().map(|row| row.len() + 3).sum();
                assert!(rows <= ROWS_BYTES + 512, "{rows} bytes");
            }
        }
        let again: Vec<_> = parts.iter().flat_map(Pools::iter).cloned().collect();
        assert_eq!(again, pools.iter().cloned().collect::<Vec<_>>(), "each pool once, in order");
        let few = Pools::new(&endpoint, &(0..3).map(pool).collect()).unwrap();
        assert_eq!(few.by_credential(&space), std::slice::from_ref(&few));
    }
}
