//! `/.well-known/cotal-mesh`: what a remote client bootstraps from (contract 05 §3.4).

use bytes::Bytes;
use cotal_trust::idp::IdpPin;
use cotal_wire::Space;
use http::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;

use super::{manager_authority, reply::Reply};

pub(crate) const PATH: &str = cotal_wire::routes::MESH_BUNDLE;

/// The provider that serves this space and under which clients register it: one constant (contract 04 §6.5).
pub const AUTH_PROVIDER_NAME: &str = "cotal";

/// The bundle. Member order is part of the contract.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct MeshBundle {
    /// The space.
    pub space: String,
    /// The broker URL that clients dial.
    pub server: String,
    /// Always `true`.
    pub tls_required: bool,
    /// How to log in and where to exchange.
    pub user_auth: MeshUserAuth,
    /// Creds text of the deny-all sentinel user.
    pub sentinel_creds: String,
}

/// The `userAuth` arm.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct MeshUserAuth {
    /// Provider name.
    pub provider: String,
    /// IdP pins.
    pub idp: MeshIdp,
    /// Where to exchange.
    pub endpoints: MeshEndpoints,
}

/// The IdP pins.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct MeshIdp {
    /// Base URL.
    pub url: String,
    /// Exact `iss`.
    pub issuer: String,
    /// Exact `aud`.
    pub audience: String,
}

/// The endpoints.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct MeshEndpoints {
    /// Public exchange base URL.
    pub url: String,
    /// Where managers ask for authority.
    pub manager_authority_url: String,
    /// Where agents are provisioned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_provisioning_url: Option<String>,
}

/// What the bundle is composed from, once, at start.
pub(crate) struct MeshParts<'a> {
    pub space: &'a Space,
    pub server: &'a str,
    pub idp: &'a IdpPin,
    pub public_url: &'a str,
    pub agent_provisioning_url: Option<&'a str>,
    pub sentinel_creds: &'a str,
}

impl MeshBundle {
    pub(crate) fn compose(parts: &MeshParts<'_>) -> Self {
        let base = parts.public_url.strip_suffix('/').unwrap_or(parts.public_url);
        Self {
            space: parts.space.as_str().to_owned(),
            server: parts.server.to_owned(),
            tls_required: true,
            user_auth: MeshUserAuth {
                provider: AUTH_PROVIDER_NAME.to_owned(),
                idp: MeshIdp {
                    url: parts.idp.url.clone(),
                    issuer: parts.idp.issuer.clone(),
                    audience: parts.idp.audience.clone(),
                },
                endpoints: MeshEndpoints {
                    url: parts.public_url.to_owned(),
                    manager_authority_url: format!("{base}{}", manager_authority::PATH),
                    agent_provisioning_url: parts.agent_provisioning_url.map(str::to_owned),
                },
            },
            sentinel_creds: parts.sentinel_creds.to_owned(),
        }
    }

    /// The bundle as the bytes that every request gets.
    pub(crate) fn to_bytes(&self) -> Result<Bytes, serde_json::Error> {
        serde_json::to_vec(self).map(Bytes::from)
    }
}

/// The bootstrap bundle of this space.
#[utoipa::path(get, path = PATH, operation_id = "mesh", tag = "public face", responses(
    (status = 200, description = "The bundle.", body = MeshBundle),
    (status = 404, description = "The loopback face has no such path; or another request target.", body = super::reply::ErrorBody),
    (status = 405, description = "Not a GET.", body = super::reply::ErrorBody),
    (status = 503, description = "Admission cap (with `Retry-After`) or deadline.", body = super::reply::ErrorBody),
))]
pub(crate) fn reply(bundle: Bytes) -> Reply {
    Reply::raw(StatusCode::OK, bundle)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bundle(url: &str, provisioning: Option<&str>) -> String {
        let idp = IdpPin {
            url: "https://idp.example/api/auth".into(),
            issuer: "https://idp.example".into(),
            audience: "https://idp.example".into(),
            jwks_uri: "https://idp.example/api/auth/jwks".into(),
        };
        let bundle = MeshBundle::compose(&MeshParts {
            space: &Space::parse("demo").unwrap(),
            server: "nats://127.0.0.1:4222",
            idp: &idp,
            public_url: url,
            agent_provisioning_url: provisioning,
            sentinel_creds: "CREDS",
        });
        String::from_utf8(bundle.to_bytes().unwrap().to_vec()).unwrap()
    }

    #[test]
    fn the_bundle_keeps_the_contracts_key_order() {
        assert_eq!(
            bundle("https://auth.example/", Some("https://provision.example")),
            concat!(
                r#"{"space":"demo","server":"nats://127.0.0.1:4222","tlsRequired":true,"userAuth":{"provider":"cotal","#,
                r#""idp":{"url":"https://idp.example/api/auth","issuer":"https://idp.example","audience":"https://idp.example"},"#,
                r#""endpoints":{"url":"https://auth.example/","managerAuthorityUrl":"https://auth.example/manager-service-authority","#,
                r#""agentProvisioningUrl":"https://provision.example"}},"sentinelCreds":"CREDS"}"#
            )
        );
    }

    #[test]
    fn only_one_trailing_slash_is_dropped_and_an_absent_provisioning_url_is_left_out() {
        let text = bundle("https://auth.example//", None);
        assert!(
            text.contains(r#""managerAuthorityUrl":"https://auth.example//manager-service-authority"}"#),
            "{text}"
        );
    }
}
