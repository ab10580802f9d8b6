//! The user of the system account that tells a running broker of an account.
//!
//! It is no part of the published contract. A broker whose accounts lie in a directory takes an account JWT that its
//! operator has signed, and no other; so this user can add and renew what the operator's key has made, and nothing else.

use super::Permissions;

/// Under which an account publisher receives its replies.
pub const PUBLISHER_INBOX: &str = "_INBOX.cotal-accounts";
/// Where a broker takes an account JWT.
pub const CLAIMS_UPDATE: &str = "$SYS.REQ.CLAIMS.UPDATE";

/// A user of the system account that publishes account JWTs.
pub fn account_publisher() -> Permissions {
    Permissions::allowing(vec![CLAIMS_UPDATE.to_owned()], vec![format!("{PUBLISHER_INBOX}.>")])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_publisher_may_do_one_thing() {
        let granted = account_publisher();
        assert_eq!(granted.publish.allow, ["$SYS.REQ.CLAIMS.UPDATE"]);
        assert_eq!(granted.subscribe.allow, ["_INBOX.cotal-accounts.>"]);
    }
}
