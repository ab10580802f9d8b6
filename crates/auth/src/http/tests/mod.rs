//! Both faces over real sockets: what a client sees, byte for byte, in the contract's order.

mod budgets;
mod doors;
mod exchanges;
mod instances;
mod limits;
mod manager_authority;
mod order;
mod people;
mod rig;
mod verify_enrollment;
