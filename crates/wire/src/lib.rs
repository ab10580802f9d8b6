//! The Cotal wire contract, pure.
//!
//! This room holds what a Cotal space says on the wire and in its stores: token grammars, subjects, channel
//! patterns, canonical JSON and digests, the endpoint envelope and its error codes, the schema of every stored row,
//! and the permission template of every profile. It performs no I/O, reads no clock, draws no randomness and awaits
//! nothing, so that each rule here is a function from what was observed to a verdict.
//!
//! A string that has meaning becomes a type at the door. Past it, no function takes a `&str` that means one of the
//! types in [`token`], [`endpoint_token`] or [`channel`].
//!
//! | module | what it holds |
//! |---|---|
//! | [`token`], [`endpoint_token`], [`time`], [`view`] | the vocabulary: tokens, units, views |
//! | [`channel`], [`subject`], [`endpoint_subject`] | channels and subjects, and who a subject says is speaking |
//! | [`acceptance`], [`plane_subject`] | submissions, and the subjects of the facts and pool items that settle them |
//! | [`commit_key`], [`op_principal`] | what an accepted commit may write, and who a retirement acts as |
//! | [`names`] | every stream, bucket, consumer and key of a space |
//! | [`rows`] | stored rows: closed schemas, exact bytes, pure transitions |
//! | [`grants`] | permission templates |
//! | [`delivery_admin`] | what the delivery daemon is asked, and what it answers |
//! | [`manager_authority`], [`es_value`] | what a remote manager asks a host, and JSON as the reference prints it |
//! | [`routes`] | the HTTP routes that a service answers and its clients ask on |
//! | [`claims`], [`envelope`], [`canonical`], [`error`] | what a bearer says, endpoint calls, canonical JSON, refusals |
//! | [`contract`] | contract artifacts: closures, cluster documents, the schema profile |
//! | [`object`] | how a derived reader is kept to JSON objects |

pub mod acceptance;
pub mod canonical;
pub mod channel;
pub mod claims;
pub mod commit_key;
pub mod contract;
pub mod delivery_admin;
pub mod endpoint_subject;
pub mod endpoint_token;
pub mod envelope;
pub mod error;
pub mod es_value;
pub mod grants;
pub mod manager_authority;
pub mod names;
pub mod object;
pub mod op_principal;
pub mod plane_subject;
pub mod routes;
pub mod rows;
pub mod subject;
pub mod time;
pub mod token;
pub mod view;

pub use acceptance::{Acceptance, Caller};
pub use channel::{
    Channel, ChannelPattern, channel_in_allow, pattern_covers, pattern_in_allow, subject_matches,
};
pub use claims::{Act, BearerClaims, SessionClaim, TransferWriterClaim};
pub use commit_key::CommitKey;
pub use endpoint_token::{
    Command, DigestRef, EndpointName, EndpointToken, Generation, IdToken, KeySegment, Nonce,
};
pub use error::{EpCode, EpError};
pub use grants::{Permissions, Rules};
pub use names::{InfraRole, Names};
pub use object::Object;
pub use op_principal::OpDuty;
pub use plane_subject::{FactSubject, FactTopic, WorkSubject};
pub use time::{Clock, Entropy, Revision, UnixMillis, UnixSecs};
pub use token::{
    Account, Actor, ConnId, CredentialId, Curve, DerivedOwner, InstanceId, LifecycleUid, Nkey, NkeyRole,
    OpId, Operator, Owner, OwnerKind, OwnerToken, Principal, Role, ScopeEntry, Server, SessionEndpoint,
    SessionId, Sha256Hex, Space, SpaceToken, TokenError, User,
};
pub use view::View;
