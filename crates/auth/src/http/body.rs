//! Reads a bounded JSON body (contract 05 §2.5).

use std::borrow::Cow;

use bytes::{Bytes, BytesMut};
use http::StatusCode;
use http_body_util::BodyExt;
use hyper::body::Body;
use serde::de::DeserializeOwned;

use super::reply::Reply;

/// The bound of an ordinary body, in bytes.
pub(crate) const BODY_MAX: usize = 65_536;

const NOT_JSON: &str = "request body is not valid JSON";

/// Why there is no body.
#[derive(Debug)]
pub(crate) enum BodyRefusal {
    /// More than this many bytes came; all of them were read.
    TooLarge(usize),
    /// The bytes are not JSON.
    NotJson,
    /// The client went away.
    Gone,
}

impl BodyRefusal {
    /// How it is answered.
    pub(crate) fn status_and_sentence(&self) -> (StatusCode, Cow<'static, str>) {
        match self {
            Self::TooLarge(max) => (
                StatusCode::PAYLOAD_TOO_LARGE,
                format!("request body too large (maximum {max} bytes)").into(),
            ),
            // Nobody reads the answer to a body that broke off; a body that ends early is not JSON either.
            Self::NotJson | Self::Gone => (StatusCode::BAD_REQUEST, NOT_JSON.into()),
        }
    }
}

impl From<BodyRefusal> for Reply {
    fn from(refusal: BodyRefusal) -> Self {
        let (status, sentence) = refusal.status_and_sentence();
        Self::error(status, &sentence)
    }
}

/// Reads to the end, keeping at most `max` bytes, then decodes UTF-8 lossily and parses JSON.
pub(crate) async fn read_json<T, B>(body: &mut B, max: usize) -> Result<T, BodyRefusal>
where
    T: DeserializeOwned,
    B: Body<Data = Bytes> + Unpin,
{
    parse(&read_bounded(body, max).await?)
}

/// Decodes UTF-8 lossily and parses JSON.
pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, BodyRefusal> {
    serde_json::from_str(&String::from_utf8_lossy(bytes)).map_err(|_| BodyRefusal::NotJson)
}

async fn read_bounded<B>(body: &mut B, max: usize) -> Result<BytesMut, BodyRefusal>
where
    B: Body<Data = Bytes> + Unpin,
{
    let mut kept = BytesMut::new();
    let mut too_large = false;
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|_| BodyRefusal::Gone)?.into_data() else { continue };
        if too_large {
            continue;
        }
        if kept.len() + data.len() > max {
            // The rest is read and forgotten: a socket closed early would take the answer with it.
            too_large = true;
            kept = BytesMut::new();
        } else {
            kept.extend_from_slice(&data);
        }
    }
    if too_large { Err(BodyRefusal::TooLarge(max)) } else { Ok(kept) }
}

#[cfg(test)]
mod tests {
    use http_body_util::Full;
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    async fn read(bytes: Vec<u8>) -> Result<Value, BodyRefusal> {
        read_json(&mut Full::new(Bytes::from(bytes)), BODY_MAX).await
    }

    #[tokio::test]
    async fn exactly_the_bound_is_read_and_one_byte_more_is_not() {
        let at = |len: usize| format!("\"{}\"", "a".repeat(len - 2)).into_bytes();
        assert!(read(at(BODY_MAX)).await.is_ok());
        assert!(matches!(read(at(BODY_MAX + 1)).await, Err(BodyRefusal::TooLarge(BODY_MAX))));
    }

    #[tokio::test]
    async fn an_empty_body_is_not_json_and_bad_utf8_is_replaced() {
        assert!(matches!(read(Vec::new()).await, Err(BodyRefusal::NotJson)));
        assert_eq!(read(b"\"\xff\"".to_vec()).await.unwrap(), Value::String("\u{fffd}".to_owned()));
    }

    proptest! {
        #[test]
        fn any_bytes_get_a_value_or_a_refusal(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let _ = runtime.block_on(read(bytes));
        }
    }
}
