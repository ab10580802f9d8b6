//! Tells a running broker of an account: without a reload, which would end every connection that came by callout.

use std::time::Duration;

use bytes::Bytes;
use cotal_wire::{
    Account, Nkey,
    grants::accounts::CLAIMS_UPDATE,
    object::{self, Object},
};
use serde::Deserialize;

use crate::connection::Connection;

/// How long the broker may take to store an account and take it over.
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(5);
/// The code of an account that was taken.
const TAKEN: u16 = 200;

/// Publishes account JWTs, over a system-account connection that can do nothing else.
pub struct AccountPublisher {
    connection: Connection,
}

#[derive(Deserialize)]
struct Answer {
    #[serde(default, deserialize_with = "object::read_optional")]
    data: Option<Taken>,
    #[serde(default, deserialize_with = "object::read_optional")]
    error: Option<Refused>,
}

#[derive(Deserialize)]
struct Taken {
    account: String,
    code: u16,
}

#[derive(Deserialize)]
struct Refused {
    #[serde(default)]
    description: String,
}

impl AccountPublisher {
    /// Over a connection whose grant is that of an account publisher.
    pub fn new(connection: Connection) -> Self {
        Self { connection }
    }

    /// Publishes the JWT of an account; the same one again changes nothing. The error says why it was not taken, or
    /// that nothing is known of it.
    pub async fn publish(&self, account: &Nkey<Account>, jwt: &str) -> Result<(), String> {
        let answer = self
            .connection
            .request(CLAIMS_UPDATE, &[], Bytes::copy_from_slice(jwt.as_bytes()), PUBLISH_TIMEOUT)
            .await
            .map_err(|error| error.message)?;
        verdict(account, &answer.payload)
    }

    /// Closes its own connection.
    pub async fn close(&self) {
        let _ = self.connection.close().await;
    }
}

fn verdict(account: &Nkey<Account>, answer: &[u8]) -> Result<(), String> {
    let Object(answer): Object<Answer> =
        serde_json::from_slice(answer).map_err(|_| "the answer to an account JWT is garbled")?;
    match (answer.error, answer.data) {
        (Some(refused), _) => Err(format!("the broker refused the account ({:?})", refused.description)),
        (None, Some(taken)) if taken.account == account.as_str() && taken.code == TAKEN => Ok(()),
        (None, _) => Err("the answer to an account JWT is of another account".into()),
    }
}

#[cfg(test)]
mod tests {
    use cotal_trust::{nkey::Seed, system::SystemEntropy};

    use super::*;

    #[test]
    fn only_the_brokers_word_that_this_account_was_taken_counts() {
        let account = Seed::<Account>::generate(&SystemEntropy).public().clone();
        let taken = |of: &str, code: u16| {
            format!(r#"{{"server":{{}},"data":{{"account":"{of}","code":{code},"message":"jwt updated"}}}}"#)
        };
        assert!(verdict(&account, taken(account.as_str(), 200).as_bytes()).is_ok());
        for answer in [
            taken(account.as_str(), 500),
            taken("AOTHER", 200),
            r#"{"server":{},"error":{"account":"A","code":500,"description":"jwt validation failed"}}"#
                .into(),
            "{}".into(),
            "[]".into(),
            String::new(),
        ] {
            assert!(verdict(&account, answer.as_bytes()).is_err(), "{answer}");
        }
    }
}
