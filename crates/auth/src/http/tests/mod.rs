//! Both faces over real sockets: what a client sees, byte for byte, in the contract's order.

mod budgets;
mod call;
mod doors;
mod exchanges;
mod instances;
mod limits;
mod manager_authority;
mod order;
mod people;
mod rig;
mod stand_ins;
mod verify_enrollment;
