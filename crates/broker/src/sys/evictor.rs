//! Makes connections go, by server and number.

use std::time::Duration;

use bytes::Bytes;
use cotal_wire::{
    grants::delivery::kick_subject,
    object::{self, Object},
};
use serde::{Deserialize, de::IgnoredAny};
use serde_json::json;

use super::Seen;
use crate::connection::Connection;

/// How long a server may take to close one connection.
const KICK_TIMEOUT: Duration = Duration::from_secs(2);

/// Closes connections of any account, over a system-account connection that can do nothing else.
pub struct Evictor {
    connection: Connection,
}

#[derive(Deserialize)]
struct Answer {
    #[serde(default, deserialize_with = "object::read_optional")]
    server: Option<Answering>,
    #[serde(default)]
    error: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct Answering {
    id: String,
}

impl Evictor {
    /// Over a connection whose grant is that of a connection evictor.
    pub fn new(connection: Connection) -> Self {
        Self { connection }
    }

    /// Tells a server to close a connection. The error says why it did not; that it is gone is for the next sweep.
    pub async fn kick(&self, seen: &Seen) -> Result<(), String> {
        if seen.server_id.contains(['.', '*', '>', ' ']) {
            return Err("the server's id is no token".into());
        }
        let request = Bytes::from(json!({ "cid": seen.cid }).to_string());
        let answer = self
            .connection
            .request(&kick_subject(&seen.server_id), &[], request, KICK_TIMEOUT)
            .await
            .map_err(|error| error.message)?;
        let Object(answer): Object<Answer> =
            serde_json::from_slice(&answer.payload).map_err(|_| "the answer to a kick is garbled")?;
        match (answer.error, answer.server) {
            (Some(_), _) => Err("the server refused to close the connection".into()),
            (None, Some(server)) if server.id == seen.server_id => Ok(()),
            (None, _) => Err("the answer to a kick is of another server".into()),
        }
    }

    /// Closes its own connection.
    pub async fn close(&self) {
        let _ = self.connection.close().await;
    }
}
