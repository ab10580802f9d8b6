//! Keys and everything signed or sealed in a Cotal space.
//!
//! NATS keys and JWTs, creds files and their mint, the xkey seal, the trust bundle of a broker and its spaces, user
//! bearers, the issuer key set, IdP verification and owner derivation. This room keeps no files and opens no broker connection;
//! the one thing it fetches is a pinned JWKS document.

pub mod bearer;
pub mod bundle;
pub mod callout_account;
pub mod creds;
mod document;
pub mod fingerprint;
mod https;
pub mod idp;
pub mod issuer;
mod jwks;
mod jws;
pub mod jwt;
pub mod mint;
pub mod nkey;
pub mod owner;
pub mod registration_proof;
pub mod system;
pub mod xkey;

pub use zeroize::Zeroizing;
