//! Both HTTP faces of an auth service (contract 05 §2-4).
//!
//! `listener` owns sockets, `seats` bounds them, `face` is a policy and its route table, `guard` and `body` are what every route shares,
//! `budget` and `peer` are the throttle, and each route is a file.

pub(crate) mod body;
pub(crate) mod budget;
pub(crate) mod doors;
pub(crate) mod exchange;
pub(crate) mod face;
pub(crate) mod guard;
pub(crate) mod health;
pub(crate) mod jwks;
pub(crate) mod listener;
pub(crate) mod loopback;
pub(crate) mod manager_authority;
pub(crate) mod manager_instances;
pub(crate) mod mesh;
pub(crate) mod peer;
pub(crate) mod public;
pub(crate) mod reply;
pub(crate) mod seats;

#[cfg(test)]
mod tests;
