//! The frontier record `frontier.<uid>` in the records bucket: where each stream stood when a lifecycle was retired
//! (contract 02 §3.11, 07 §6.3 phase 8). Create-only, never deleted.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer, ser::SerializeMap as _};

use super::closed::{Closed, compact, safe_uint};
use crate::{
    error::EpError,
    token::{LifecycleUid, OpId},
};

const WHAT: &str = "frontier record";

/// The end of a predecessor's interval; it never bounds a successor's start.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FrontierRecord {
    lifecycle_uid: LifecycleUid,
    op_id: OpId,
    streams: Vec<(String, u64)>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Wire<'a> {
    lifecycle_uid: &'a LifecycleUid,
    op_id: &'a OpId,
    #[serde(serialize_with = "in_order")]
    streams: &'a [(String, u64)],
}

fn in_order<S: Serializer>(streams: &[(String, u64)], serializer: S) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(Some(streams.len()))?;
    for (stream, last) in streams {
        map.serialize_entry(stream, last)?;
    }
    map.end()
}

impl FrontierRecord {
    /// The record of an operation: each stream's last sequence, in the order of its intent.
    pub fn new(lifecycle_uid: &LifecycleUid, op_id: &OpId, streams: Vec<(String, u64)>) -> Self {
        Self { lifecycle_uid: lifecycle_uid.clone(), op_id: op_id.clone(), streams }
    }

    /// Reads a stored record. Whose it is, [`Self::is_of`] says.
    pub fn parse(bytes: &[u8]) -> Result<Self, EpError> {
        let row = Closed::parse(WHAT, bytes, &["lifecycleUid", "opId", "streams"])?;
        let (lifecycle_uid, op_id) = (row.token("lifecycleUid")?, row.token("opId")?);
        let streams = row
            .value("streams")
            .and_then(serde_json::Value::as_object)
            .ok_or_else(|| row.garbled("streams must be an object"))?;
        let streams: Option<Vec<_>> =
            streams.iter().map(|(stream, last)| Some((stream.clone(), safe_uint(last)?))).collect();
        let streams = streams
            .ok_or_else(|| row.garbled("a stream's sequence must be an integer from 0 to 2^53 - 1"))?;
        Ok(Self { lifecycle_uid, op_id, streams })
    }

    /// The exact bytes of this row.
    pub fn to_bytes(&self) -> Vec<u8> {
        compact(&Wire { lifecycle_uid: &self.lifecycle_uid, op_id: &self.op_id, streams: &self.streams })
    }

    /// Whether this operation recorded it for this incarnation.
    pub fn is_of(&self, uid: &LifecycleUid, op: &OpId) -> bool {
        self.lifecycle_uid == *uid && self.op_id == *op
    }

    /// The last sequence of each stream.
    pub fn streams(&self) -> BTreeMap<String, u64> {
        self.streams.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::EpCode;

    fn uid() -> LifecycleUid {
        LifecycleUid::parse(&"a".repeat(26)).unwrap()
    }

    fn op() -> OpId {
        OpId::parse(&"f".repeat(26)).unwrap()
    }

    fn record() -> FrontierRecord {
        let streams = [("EPF_main", 7), ("EPE_main", 0), ("KV_cotal_records_main", 9_007_199_254_740_991)];
        FrontierRecord::new(&uid(), &op(), streams.map(|(s, n)| (s.to_owned(), n)).to_vec())
    }

    #[test]
    fn a_record_has_these_bytes_with_its_streams_in_the_intents_order() {
        let bytes = format!(
            "{{\"lifecycleUid\":\"{}\",\"opId\":\"{}\",\"streams\":{{\"EPF_main\":7,\"EPE_main\":0,\
             \"KV_cotal_records_main\":9007199254740991}}}}",
            uid(),
            op()
        );
        assert_eq!(String::from_utf8(record().to_bytes()).unwrap(), bytes);
        let read = FrontierRecord::parse(bytes.as_bytes()).unwrap();
        assert_eq!(read.streams(), record().streams());
        assert!(read.is_of(&uid(), &op()));
    }

    #[test]
    fn a_record_of_another_operation_or_incarnation_is_not_ours() {
        let other = OpId::parse(&"g".repeat(26)).unwrap();
        assert!(!record().is_of(&uid(), &other));
        assert!(!record().is_of(&LifecycleUid::parse(&"b".repeat(26)).unwrap(), &op()));
    }

    #[test]
    fn a_garbled_record_is_internal() {
        let good = String::from_utf8(record().to_bytes()).unwrap();
        for bytes in [
            String::new(),
            "[]".to_owned(),
            good.replace("\"opId\"", "\"more\":1,\"opId\""),
            good.replace(op().as_str(), "x"),
            good.replace(uid().as_str(), "x"),
            good.replace(":7", ":-1"),
            good.replace(":7", ":1.5"),
            good.replace(":7", ":\"7\""),
            good.replace("9007199254740991", "9007199254740992"),
            format!("{{\"lifecycleUid\":\"{}\",\"opId\":\"{}\"}}", uid(), op()),
            format!("{{\"lifecycleUid\":\"{}\",\"opId\":\"{}\",\"streams\":[]}}", uid(), op()),
        ] {
            assert_eq!(
                FrontierRecord::parse(bytes.as_bytes()).unwrap_err().code,
                EpCode::Internal,
                "{bytes}"
            );
        }
    }
}
