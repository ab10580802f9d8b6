//! The mesh registry of a machine (contract 08 §3).
use crate::root::Home;
use cotal_wire::Space;
use serde::{Deserialize, Serialize};

/// How a mesh is entered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MeshMode {
    /// Static creds.
    Auth,
    /// No auth.
    Open,
    /// Login and bearer.
    User,
}

/// `userAuth` of a registry entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MeshUserAuth {
    /// Provider name.
    pub provider: String,
    /// IdP pins.
    pub idp: MeshIdp,
    /// Convenience endpoints.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoints: Option<MeshEndpoints>,
}

/// The IdP pins of an entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeshIdp {
    /// Base URL.
    pub url: String,
    /// Issuer.
    pub issuer: String,
    /// Audience.
    pub audience: String,
}

/// The endpoints of an entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeshEndpoints {
    /// The public exchange URL.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
}

/// One record of `<home>/meshes/space.<hex>.json`. Unknown members are kept.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MeshEntry {
    /// The space.
    pub space: Space,
    /// Broker URL.
    pub server: String,
    /// Absolute root.
    pub root: String,
    /// How it is entered.
    pub mode: MeshMode,
    /// With `mode: user`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_auth: Option<MeshUserAuth>,
    /// `up` or `manual`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin: Option<String>,
    /// When it was written, ISO.
    pub ts: String,
    /// Members this version does not know.
    #[serde(flatten)]
    pub other: serde_json::Map<String, serde_json::Value>,
}

/// The registry of a home.
pub struct MeshRegistry {
    _home: Home,
}

impl MeshRegistry {
    /// The registry of a home.
    pub fn new(home: Home) -> Self {
        Self { _home: home }
    }
    /// Every readable record.
    pub fn list(&self) -> std::io::Result<Vec<MeshEntry>> {
        todo!()
    }
    /// The record of a space.
    pub fn get(&self, _space: &Space) -> std::io::Result<Option<MeshEntry>> {
        todo!()
    }
    /// Writes a record, sweeping legacy files of the space.
    pub fn put(&self, _entry: &MeshEntry) -> std::io::Result<()> {
        todo!()
    }
    /// Removes a record.
    pub fn remove(&self, _space: &Space) -> std::io::Result<bool> {
        todo!()
    }
}
