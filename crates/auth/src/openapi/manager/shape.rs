//! What a request's members are built of: a schema, and samples of what it admits.

use cotal_wire::time::MAX_SAFE_INTEGER;
use serde_json::{Map, Value, json};
use utoipa::openapi::{
    Ref, RefOr, Schema,
    schema::{AdditionalProperties, ArrayBuilder, ObjectBuilder, Type},
};

/// A schema, a value that it admits with everything optional left out, and one with all of it.
#[derive(Clone)]
pub(super) struct Shape {
    pub(super) schema: RefOr<Schema>,
    pub(super) least: Value,
    pub(super) full: Value,
}

impl Shape {
    pub(super) fn of(schema: impl Into<RefOr<Schema>>, sample: Value) -> Self {
        Self { schema: schema.into(), full: sample.clone(), least: sample }
    }
}

pub(super) struct Member {
    name: &'static str,
    shape: Shape,
    pub(super) required: bool,
}

pub(super) fn must(name: &'static str, shape: Shape) -> Member {
    Member { name, shape, required: true }
}

pub(super) fn may(name: &'static str, shape: Shape) -> Member {
    Member { name, shape, required: false }
}

pub(super) fn string() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::String)
}

pub(super) fn matching(pattern: &str, sample: impl Into<String>) -> Shape {
    Shape::of(string().pattern(Some(pattern)), Value::String(sample.into()))
}

pub(super) fn text(most: usize, sample: &str) -> Shape {
    Shape::of(string().min_length(Some(1)).max_length(Some(most)), json!(sample))
}

pub(super) fn literal(value: &str) -> Shape {
    Shape::of(string().enum_values(Some([value])), json!(value))
}

pub(super) fn number(least: u64) -> Shape {
    let schema =
        ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(least)).maximum(Some(MAX_SAFE_INTEGER));
    Shape::of(schema, json!(least))
}

pub(super) fn list(item: Shape, least: usize, most: usize) -> Shape {
    let schema =
        ArrayBuilder::new().items(item.schema).min_items((least > 0).then_some(least)).max_items(Some(most));
    Shape { schema: schema.into(), least: json!([item.least]), full: json!([item.full]) }
}

/// A closed object.
pub(super) fn closed(members: Vec<Member>) -> Shape {
    let mut schema =
        ObjectBuilder::new().additional_properties(Some(AdditionalProperties::<Schema>::FreeForm(false)));
    let (mut least, mut full) = (Map::new(), Map::new());
    for Member { name, shape, required } in members {
        schema = schema.property(name, shape.schema);
        full.insert(name.to_owned(), shape.full);
        if required {
            schema = schema.required(name);
            least.insert(name.to_owned(), shape.least);
        }
    }
    Shape { schema: schema.into(), least: Value::Object(least), full: Value::Object(full) }
}

/// The shape, told by its name.
pub(super) fn by_name(name: &str, shape: Shape) -> Shape {
    Shape { schema: Ref::from_schema_name(name).into(), ..shape }
}
