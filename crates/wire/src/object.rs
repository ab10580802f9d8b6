//! JSON objects read as objects.
//!
//! A derived reader of a struct also takes a JSON array of its members in order, which no document of the contract
//! is: "non-object → refuse" (contract 04 §6.2). What comes from outside is therefore read as an [`Object`], and its
//! nested structs with `#[serde(deserialize_with = "cotal_wire::object::read")]`.

use std::{fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor, value::MapAccessDeserializer},
};

/// A value that was read from a JSON object and from nothing else.
#[derive(Debug, Clone, Default)]
pub struct Object<T>(pub T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Members<T> {
            type Value = Object<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<Object<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(members)).map(Object)
            }
        }

        deserializer.deserialize_map(Members(PhantomData))
    }
}

/// Reads a struct from an object alone: for `deserialize_with`.
pub fn read<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    Object::deserialize(deserializer).map(|object| object.0)
}

/// Reads an object, or `None` where the member is absent or `null`: for `deserialize_with`, beside `default`.
pub fn read_optional<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    Option::<Object<T>>::deserialize(deserializer).map(|object| object.map(|object| object.0))
}

/// Reads a list of objects: for `deserialize_with`.
pub fn read_list<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    let list = Vec::<Object<T>>::deserialize(deserializer)?;
    Ok(list.into_iter().map(|object| object.0).collect())
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;

    #[derive(Debug, Deserialize, PartialEq)]
    struct Inner {
        a: u8,
    }

    #[derive(Debug, Deserialize, PartialEq)]
    struct Outer<'a> {
        #[serde(borrow)]
        name: Cow<'a, str>,
        #[serde(deserialize_with = "read")]
        inner: Inner,
        #[serde(default, deserialize_with = "read_optional")]
        maybe: Option<Inner>,
        #[serde(default, deserialize_with = "read_list")]
        list: Vec<Inner>,
    }

    #[test]
    fn an_object_reads_at_every_depth() {
        let text = r#"{"name":"n","inner":{"a":1},"maybe":{"a":2},"list":[{"a":3}]}"#;
        let Object(outer) = serde_json::from_str::<Object<Outer<'_>>>(text).unwrap();
        assert!(matches!(outer.name, Cow::Borrowed("n")));
        assert_eq!(
            (outer.inner, outer.maybe, outer.list),
            (Inner { a: 1 }, Some(Inner { a: 2 }), vec![Inner { a: 3 }])
        );
        let absent = serde_json::from_str::<Object<Outer<'_>>>(r#"{"name":"n","inner":{"a":1}}"#).unwrap().0;
        assert_eq!((absent.maybe, absent.list), (None, vec![]));
    }

    #[test]
    fn an_array_of_the_members_in_order_is_no_object() {
        // What a derived reader would have taken.
        assert!(serde_json::from_str::<Inner>("[1]").is_ok());
        for bad in [
            r#"["n",{"a":1}]"#,
            r#"{"name":"n","inner":[1]}"#,
            r#"{"name":"n","inner":{"a":1},"maybe":[2]}"#,
            r#"{"name":"n","inner":{"a":1},"list":[[3]]}"#,
            "null",
            "1",
        ] {
            assert!(serde_json::from_str::<Object<Outer<'_>>>(bad).is_err(), "{bad}");
        }
    }
}
