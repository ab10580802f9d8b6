//! Members of an answer: every one of them, another one, none.

use cotal_wire::es_value::EsValue;
use serde_json::{Value, json};

pub(crate) fn es(value: &Value) -> EsValue {
    EsValue::parse(value.to_string().as_bytes()).unwrap()
}

/// Every path of a document, the root left out.
pub(crate) fn paths(value: &Value, at: &str, found: &mut Vec<String>) {
    let mut inner = |key: String, value: &Value| {
        let path = format!("{at}/{key}");
        found.push(path.clone());
        paths(value, &path, found);
    };
    match value {
        Value::Object(members) => members.iter().for_each(|(key, value)| inner(key.clone(), value)),
        Value::Array(items) => items.iter().enumerate().for_each(|(at, value)| inner(at.to_string(), value)),
        _ => {}
    }
}

/// Another value of the same type.
pub(crate) fn another(value: &Value) -> Value {
    match value {
        Value::Null => json!(null),
        Value::Bool(flag) => json!(!flag),
        Value::Number(number) => json!(number.as_u64().unwrap_or(0) + 1),
        Value::String(text) => {
            // The last character moved on within the alphabet of every token, or one more where that is none.
            let mut text = text.clone();
            match text.pop() {
                Some('b') | None => text.push('c'),
                Some(_) => text.push('b'),
            }
            json!(text)
        }
        Value::Array(items) => items.iter().chain(items).cloned().collect(),
        Value::Object(members) => json!([members]),
    }
}

/// Values of every other type.
pub(crate) fn others(value: &Value) -> impl Iterator<Item = Value> {
    let kind = std::mem::discriminant(value);
    [json!(null), json!(true), json!(7), json!(-1), json!(0.5), json!("x"), json!([7]), json!({ "x": 1 })]
        .into_iter()
        .filter(move |other| {
            std::mem::discriminant(other) != kind || matches!(other, Value::Number(n) if n.as_u64().is_none())
        })
}

pub(crate) fn without(answer: &Value, path: &str) -> Value {
    let mut answer = answer.clone();
    let (parent, key) = path.rsplit_once('/').unwrap();
    match answer.pointer_mut(parent).unwrap() {
        Value::Object(members) => drop(members.remove(key)),
        Value::Array(items) => drop(items.remove(key.parse().unwrap())),
        _ => unreachable!(),
    }
    answer
}

pub(crate) fn with(answer: &Value, path: &str, value: Value) -> Value {
    let mut answer = answer.clone();
    *answer.pointer_mut(path).unwrap() = value;
    answer
}
