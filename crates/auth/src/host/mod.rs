//! Many spaces in one process, a lane each (contract 08 §5, 10 §6).

pub(crate) mod lane;
