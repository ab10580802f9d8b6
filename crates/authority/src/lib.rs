//! Durable authority of a space, first part: the two stores and their shape proof, lifecycle activation, the mint
//! ceremony, the root credential, the supervised connect reader, and native issuance rows.
//! (contract 07 §1-4, §7.5, §10; 04 §10; 05 §8.4)

pub mod activation;
pub mod connect_reader;
pub mod credential;
pub mod issuance;
pub mod plane;
pub mod root_credential;
pub mod stores;

pub use connect_reader::ConnectReader;
pub use issuance::{IssuanceLog, NatkeyRow};
pub use plane::{Plane, PlaneInputs};
pub use stores::AuthorityStores;
