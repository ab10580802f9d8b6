//! What lies on disk: workspace roots, state directories, files written so that they are whole or absent, the
//! `SecretStore` seam and its filesystem implementation, the mesh registry, and the broker's configuration text.

pub mod broker_config;
pub mod daemon_creds;
pub mod file;
pub mod instance_identity;
pub mod lock_file;
pub mod material;
pub mod printed;
pub mod registry;
pub mod root;
pub mod secret_store;
pub mod trust_files;
