//! Admission policies `policy.<e>.<hex>` in the records bucket: create-only and self-certifying (contract 02 §6).

use serde_json::Value;

use crate::{
    canonical::{canonical_json, contract_digest},
    error::EpError,
    token::Sha256Hex,
};

/// A stored policy. Its key is the digest of its canonical value, so that it can be neither changed nor confused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyRow {
    digest: Sha256Hex,
    value: Value,
}

impl PolicyRow {
    /// The row of a policy; `bad-request` for a value that has no canonical form.
    pub fn of(value: Value) -> Result<Self, EpError> {
        let digest = contract_digest(&value)
            .map_err(|why| EpError::bad_request(format!("a policy has no canonical form: {why}")))?;
        Ok(Self { digest: digest.hex(), value })
    }

    /// Reads the policy stored under this digest; other content is `internal`.
    pub fn parse(digest: &Sha256Hex, bytes: &[u8]) -> Result<Self, EpError> {
        let value: Value = serde_json::from_slice(bytes)
            .map_err(|_| EpError::internal("a stored policy is not valid JSON"))?;
        let row = Self::of(value).map_err(|_| EpError::internal("a stored policy has no canonical form"))?;
        if row.digest != *digest {
            return Err(EpError::internal("a stored policy is not what its key certifies"));
        }
        Ok(row)
    }

    /// The digest that its key ends in.
    pub fn digest(&self) -> &Sha256Hex {
        &self.digest
    }

    /// The policy.
    pub fn value(&self) -> &Value {
        &self.value
    }

    /// The canonical bytes of this row.
    pub fn to_bytes(&self) -> Vec<u8> {
        // It had a canonical form when it was made.
        canonical_json(&self.value).unwrap_or_default().into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::error::EpCode;

    #[test]
    fn a_policy_certifies_itself() {
        let row = PolicyRow::of(json!({"b": 1.0, "a": []})).unwrap();
        assert_eq!(row.to_bytes(), b"{\"a\":[],\"b\":1}");
        let read = |bytes: &[u8]| PolicyRow::parse(row.digest(), bytes).unwrap().to_bytes();
        assert_eq!(read(&row.to_bytes()), row.to_bytes());
        assert_eq!(read(b"{\"b\":1, \"a\":[]}"), row.to_bytes(), "any spelling");
        for other in [&b"{\"a\":[],\"b\":2}"[..], b"{", b""] {
            assert_eq!(PolicyRow::parse(row.digest(), other).unwrap_err().code, EpCode::Internal);
        }
    }
}
