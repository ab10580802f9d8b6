//! The requests of `POST /manager-service-authority` in the OpenAPI document: a union that `kind` tells apart.
//!
//! Each kind is written down once, as members with a schema and a sample. The document is built from the schemas; the tests
//! hand the samples to the parsers, so that a schema which promises another request than the parser takes does not pass.

mod kinds;
mod shape;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use cotal_wire::manager_authority::{Epoch, Gate, Kind, Proof, Rule, Scope, Stock};
use serde_json::Value;
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{
        Ref, RefOr, Schema,
        schema::{Discriminator, OneOfBuilder},
    },
};

use kinds::{shared, variants};
use shape::Shape;

/// Any request of the route.
pub(crate) struct ManagerRequest;

/// A request about a managed agent: what the verification door takes.
pub(crate) struct ManagedAgentRequest;

/// The result of a request. Each kind has its own; these members are in all of them, or in those of the manager's own
/// lifecycle.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
#[expect(dead_code, reason = "documents the answer")]
pub(crate) struct ManagerResult {
    /// 1.
    v: u64,
    /// The kind that was asked for.
    kind: String,
    /// As asked.
    request_id: String,
    /// As asked.
    operation: Option<String>,
    /// As asked.
    space: Option<String>,
    /// Derived from the proof.
    owner: Option<String>,
    /// As asked.
    actor: Option<String>,
    /// As asked.
    instance_id: Option<String>,
    /// When it was issued, in milliseconds since 1970.
    issued_at: Option<u64>,
    /// When the first of its credentials expires, in milliseconds since 1970.
    expires_at: Option<u64>,
    /// The credentials, each `{ "jwt", "exp" }`; one that is absent is no authority. No seed is ever among them.
    #[schema(value_type = Option<Object>)]
    credentials: Option<Value>,
}

impl PartialSchema for ManagerRequest {
    fn schema() -> RefOr<Schema> {
        union(Some("kind"), &Kind::ALL.map(|kind| (kind.as_str(), component(kind))))
    }
}

impl ToSchema for ManagerRequest {
    fn name() -> Cow<'static, str> {
        "ManagerRequest".into()
    }

    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        schemas.extend(Kind::ALL.into_iter().flat_map(components).chain(shared()));
    }
}

impl PartialSchema for ManagedAgentRequest {
    fn schema() -> RefOr<Schema> {
        union(Some("kind"), &Kind::MANAGED_AGENT.map(|kind| (kind.as_str(), component(kind))))
    }
}

impl ToSchema for ManagedAgentRequest {
    fn name() -> Cow<'static, str> {
        "ManagedAgentRequest".into()
    }

    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        schemas.extend(Kind::MANAGED_AGENT.into_iter().flat_map(components).chain(shared()));
    }
}

/// `manager-goal-index-scan` is the component `ManagerGoalIndexScan`.
fn component(kind: Kind) -> String {
    camel(kind.as_str())
}

fn camel(name: &str) -> String {
    name.split('-').map(capital).collect()
}

fn capital(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map(|first| first.to_ascii_uppercase()).into_iter().chain(letters).collect()
}

/// One of these components; `property` tells them apart, if one member does.
fn union(property: Option<&str>, variants: &[(&str, String)]) -> RefOr<Schema> {
    let discriminator = property.map(|property| {
        let mapping =
            variants.iter().map(|(name, of)| ((*name).to_owned(), format!("#/components/schemas/{of}")));
        Discriminator::with_mapping(property, mapping.collect::<Vec<_>>())
    });
    let one_of =
        variants.iter().fold(OneOfBuilder::new(), |one_of, (_, of)| one_of.item(Ref::from_schema_name(of)));
    one_of.discriminator(discriminator).into()
}

/// The components of a kind: one, or one for each of its variants and their union.
fn components(kind: Kind) -> Vec<(String, RefOr<Schema>)> {
    let name = component(kind);
    let (told_by, variants) = variants(kind);
    if let [(_, rule, shape)] = &variants[..] {
        return vec![(name, described(shape.clone(), *rule))];
    }
    let of = |variant: &str| name.clone() + &camel(variant);
    let told: Vec<_> = variants.iter().map(|(variant, ..)| (*variant, of(variant))).collect();
    let union = union(told_by, &told);
    let each = variants.into_iter().map(|(variant, rule, shape)| (of(variant), described(shape, rule)));
    each.chain([(name.clone(), union)]).collect()
}

/// What a request stands on, in words: the document's descriptions and the book's table say it with the same ones.
pub(crate) fn words(rule: Rule) -> [&'static str; 5] {
    let scope = match rule.scope {
        Scope::None => "none",
        Scope::Supervise => "`supervise`",
        Scope::Spawn => "`spawn`",
        Scope::RunOwnerOrAdmin => "the run's owner, or `admin`",
    };
    let epoch = match rule.epoch {
        None => "-",
        Some(Epoch::ServeEpoch) => "`serveEpoch`",
        Some(Epoch::ProcessEpoch) => "`processEpoch`",
        Some(Epoch::RetirementServeEpoch) => "`retirement.serveEpoch`",
    };
    let proof = match rule.proof {
        Proof::None => "none",
        Proof::ArtifactsOfTheRequest => "unkeyed, with artifacts",
        Proof::Artifactless => "unkeyed",
        Proof::CurrentRegistration => "keyed",
    };
    let gate = match rule.gate {
        Gate::AbsentOrOwn => "absent, or its own",
        Gate::NotRead => "not read",
        Gate::Open => "open",
        Gate::OpenAndReadAgain => "open, and read again",
        Gate::NotRetired => "not retired",
        Gate::OpenToLaunch => "open to launch",
    };
    let stock = match rule.stock {
        Stock::Serves => "serves",
        Stock::DecidesAtTheVerifyDoor => "refuses; decides at the verification door",
        Stock::Unimplemented => "refuses",
    };
    [scope, epoch, proof, gate, stock]
}

fn described(shape: Shape, rule: Rule) -> RefOr<Schema> {
    let [scope, epoch, proof, gate, stock] = words(rule);
    let text = format!("Scope: {scope}. Epoch: {epoch}. Proof: {proof}. Gate: {gate}. This service {stock}.");
    match shape.schema {
        RefOr::T(Schema::Object(mut object)) => {
            object.description = Some(text);
            RefOr::T(Schema::Object(object))
        }
        schema => schema,
    }
}
