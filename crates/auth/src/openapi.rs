//! The OpenAPI document of both faces, generated from the routes and served nowhere.

pub(crate) mod manager;

use utoipa::{
    Modify, OpenApi,
    openapi::{
        self,
        security::{HttpAuthScheme, HttpBuilder, SecurityScheme},
    },
};

use crate::http::{
    doors::{interactive_retire, managed_activate, managed_retire, verify_enrollment},
    exchange, health, jwks, manager_authority, manager_instances, mesh,
};

/// What the capability is, for who reads the document.
const CAPABILITY: &str = "The capability of `auth-service.json`, new at every start. Loopback face only: the public face \
    asks for none.";

/// The document's source: every route that a face of this version serves.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Auth service of a Cotal space",
        description = "Both HTTP faces. The loopback face listens on 127.0.0.1 and needs the capability of \
            `auth-service.json` on POST routes; the public face needs none and is meant for a TLS-terminating proxy. \
            Routes are matched by the exact request target. Every answer is JSON; no CORS header is ever sent.",
    ),
    paths(
        health::reply,
        jwks::reply,
        exchange::serve,
        manager_authority::serve,
        manager_instances::serve,
        verify_enrollment::serve,
        interactive_retire::serve,
        managed_retire::serve,
        managed_activate::serve,
        mesh::reply
    ),
    modifiers(&Capability)
)]
struct Document;

/// How the loopback face is entered: exactly `Authorization: Bearer <cap>`.
struct Capability;

impl Modify for Capability {
    fn modify(&self, document: &mut openapi::OpenApi) {
        let mut scheme = HttpBuilder::new();
        scheme = scheme.scheme(HttpAuthScheme::Bearer).description(Some(CAPABILITY));
        let components = document.components.get_or_insert_with(openapi::Components::default);
        components.add_security_scheme("capability", SecurityScheme::Http(scheme.build()));
    }
}

/// The OpenAPI document, as pretty JSON with a final newline.
pub fn openapi_document() -> Result<String, serde_json::Error> {
    let mut text = serde_json::to_string_pretty(&Document::openapi())?;
    text.push('\n');
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::http::{loopback, public};

    const BLESS: &str = "COTAL_BLESS";

    fn published() -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/openapi.json")
    }

    #[test]
    fn the_published_openapi_document_is_the_generated_one() {
        let generated = openapi_document().unwrap();
        if std::env::var_os(BLESS).is_some() {
            std::fs::create_dir_all(published().parent().unwrap()).unwrap();
            std::fs::write(published(), &generated).unwrap();
        }
        let stored = std::fs::read_to_string(published()).unwrap_or_default();
        assert!(
            stored == generated,
            "docs/openapi.json is stale: run `{BLESS}=1 cargo test -p cotal-auth openapi`"
        );
    }

    #[test]
    fn the_openapi_document_lists_every_path_of_both_faces_and_no_other() {
        let document = Document::openapi();
        let mut listed: Vec<&str> = document.paths.paths.keys().map(String::as_str).collect();
        let mut served: Vec<&str> = loopback::PATHS.into_iter().chain(public::PATHS).collect();
        listed.sort_unstable();
        served.sort_unstable();
        served.dedup();
        assert_eq!(listed, served);
    }
}
