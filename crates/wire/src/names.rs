//! Names of a space's streams, buckets, consumers and keys (contract 01 §4, §7; 07 §4.1, §12.1).
//!
//! Each name appears here once. A key builder takes parsed tokens, so that no name can carry a wildcard or a dot that
//! is not meant.

use std::fmt;

use crate::{
    channel::Channel,
    endpoint_token::{Command, DigestRef, EndpointToken, Generation, IdToken, KeySegment},
    manager_authority::{RunId, Takeover},
    token::{
        CredentialId, InstanceId, LifecycleUid, Nkey, OpId, Principal, Role, SessionId, Sha256Hex, Space,
        SpaceToken, User,
    },
};

/// The JetStream API prefix.
pub const JS_API: &str = "$JS.API";
/// Prefix of a KV bucket's subjects.
pub const KV_PREFIX: &str = "$KV";
/// Key of the one plane-ownership claim row in the auth bucket.
pub const PLANE_KEY: &str = "plane";
/// Key of the row in the auth bucket that says that the space admits service endpoints (contract 13 §2).
pub const SERVICE_ADMISSION_KEY: &str = "svcadmit";
/// Key of a space's channel defaults in the channels bucket.
pub const CHANNEL_DEFAULTS_KEY: &str = "=defaults";
/// Key of the renewal lease in the manager bucket, outside `lease.*` (contract 01 §4.3).
pub const RENEWAL_KEY: &str = "renewal";
/// Consumer of the sealed scanner of the auth stream (contract 02 §2.4).
pub const LEDGER_SCAN_CONSUMER: &str = "cotal-ledger-scan";
/// Consumer of the sealed scanner of the records stream (contract 02 §2.4).
pub const RECORDS_SCAN_CONSUMER: &str = "cotal-records-scan";
/// Consumer of the sealed scanner of the records stream for the goal index (contract 05 §8.7).
pub const GOAL_INDEX_SCAN_CONSUMER: &str = "cotal-manager-goalidx-scan";

/// The streams, buckets and subjects of one space.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names {
    space: SpaceToken,
}

macro_rules! streams {
    ($($(#[$doc:meta])* $method:ident => $prefix:literal;)*) => {
        $($(#[$doc])*
        pub fn $method(&self) -> String {
            format!(concat!($prefix, "_{}"), self.space)
        })*
    };
}

impl Names {
    /// The names of this space.
    pub fn new(space: &SpaceToken) -> Self {
        Self { space: space.clone() }
    }

    /// The space's token.
    pub fn space(&self) -> &SpaceToken {
        &self.space
    }

    /// `cotal.<space>`, without a trailing dot.
    pub fn subject_prefix(&self) -> String {
        format!("cotal.{}", self.space)
    }

    streams! {
        /// Multicast messages.
        chat_stream => "CHAT";
        /// Unicast messages.
        dm_stream => "DM";
        /// Anycast work.
        task_stream => "TASK";
        /// Mixed fan-out inbox, unreadable to agents.
        inbox_stream => "INBOX";
        /// Per-member handoff.
        dlv_stream => "DLV";
        /// Journal submissions.
        epj_stream => "EPJ";
        /// Facts.
        epf_stream => "EPF";
        /// Events.
        epe_stream => "EPE";
        /// Timer schedule requests.
        ept_req_stream => "EPT_REQ";
        /// Record-write ingress.
        epr_stream => "EPR";
        /// Armed timers and their fires.
        ept_stream => "EPT";
        /// Work pools.
        epw_stream => "EPW";
        /// Contract artifacts.
        epc_stream => "EPC";
        /// Workflow journals.
        wfj_stream => "WFJ";
        /// Presence bucket.
        presence_bucket => "cotal_presence";
        /// Channel registry bucket.
        channels_bucket => "cotal_channels";
        /// Channel membership bucket.
        members_bucket => "cotal_members";
        /// Channel ACL bucket.
        acl_bucket => "cotal_acl";
        /// Derived membership feed bucket.
        membership_bucket => "cotal_membership";
        /// Delivery lease bucket.
        delivery_bucket => "cotal_delivery";
        /// Manager lease bucket.
        manager_bucket => "cotal_manager";
        /// Records bucket: heads, reservations, frontiers, service records.
        records_bucket => "cotal_records";
        /// Auth bucket: gates, credential rows, source gates, intents, the plane claim, issuance rows.
        auth_bucket => "cotal_auth";
        /// Session rows that redemption reads.
        sessions_bucket => "cotal_sessions";
        /// Issued evidence bucket.
        issued_bucket => "cotal_issued";
        /// Accepted evidence bucket.
        accepted_bucket => "cotal_accepted";
        /// Run admission bucket.
        admission_bucket => "cotal_admission";
        /// Artifact object store.
        artifacts_bucket => "cotal_artifacts";
    }

    /// The stream under a KV bucket.
    pub fn kv_stream(bucket: &str) -> String {
        format!("KV_{bucket}")
    }

    /// The stream under an object store.
    pub fn object_stream(bucket: &str) -> String {
        format!("OBJ_{bucket}")
    }

    /// The subject of a KV key: `$KV.<bucket>.<key>`.
    pub fn kv_subject(bucket: &str, key: &str) -> String {
        format!("{KV_PREFIX}.{bucket}.{key}")
    }

    /// The stream under the records bucket.
    pub fn records_stream(&self) -> String {
        Self::kv_stream(&self.records_bucket())
    }

    /// The stream under the auth bucket.
    pub fn auth_stream(&self) -> String {
        Self::kv_stream(&self.auth_bucket())
    }

    /// The transfer object store of one manager instance.
    pub fn transfer_bucket(&self, instance: &InstanceId) -> String {
        format!("cotal_xfer_{}_{instance}", self.space)
    }

    /// The five message streams, in setup order (contract 01 §4.1).
    pub fn message_streams(&self) -> [String; 5] {
        [self.chat_stream(), self.dm_stream(), self.task_stream(), self.inbox_stream(), self.dlv_stream()]
    }

    /// The streams of the endpoint plane, in the order of contract 01 §7.
    pub fn endpoint_streams(&self) -> [String; 9] {
        [
            self.epj_stream(),
            self.epf_stream(),
            self.epe_stream(),
            self.ept_req_stream(),
            self.epr_stream(),
            self.ept_stream(),
            self.epw_stream(),
            self.epc_stream(),
            self.wfj_stream(),
        ]
    }

    /// The buckets of the messaging plane, in setup order (contract 01 §4.1).
    pub fn messaging_buckets(&self) -> [String; 7] {
        [
            self.presence_bucket(),
            self.channels_bucket(),
            self.members_bucket(),
            self.acl_bucket(),
            self.membership_bucket(),
            self.delivery_bucket(),
            self.manager_bucket(),
        ]
    }

    /// The buckets of the authority stores, in the order of contract 01 §7.
    pub fn authority_buckets(&self) -> [String; 6] {
        [
            self.records_bucket(),
            self.auth_bucket(),
            self.issued_bucket(),
            self.accepted_bucket(),
            self.admission_bucket(),
            self.sessions_bucket(),
        ]
    }

    /// The closed set of streams whose frontier a retirement records, in order (contract 07 §12.1).
    pub fn frontier_streams(&self) -> [String; 4] {
        [self.epf_stream(), self.epw_stream(), self.epe_stream(), self.records_stream()]
    }

    /// The mixed fan-out inbox subject of a lifecycle.
    pub fn dinbox_subject(&self, principal: &Principal, uid: &LifecycleUid) -> String {
        format!("cotal.{}.dinbox.{}", self.space, lifecycle_subject_key(principal, uid))
    }

    /// The handoff subject of a lifecycle.
    pub fn dlv_subject(&self, principal: &Principal, uid: &LifecycleUid) -> String {
        format!("cotal.{}.dlv.{}", self.space, lifecycle_subject_key(principal, uid))
    }

    /// The subject of a contract artifact: `cotal.<space>.epc.<hex>`.
    pub fn artifact_subject(&self, digest: &DigestRef) -> String {
        format!("cotal.{}.epc.{}", self.space, digest.hex())
    }

    /// The journal of one run: `cotal.<space>.wfj.<run>`.
    pub fn run_journal_subject(&self, run: &RunId) -> String {
        format!("cotal.{}.wfj.{run}", self.space)
    }

    /// The timer writer's durable.
    pub fn timer_writer_consumer(&self) -> String {
        format!("timerw_{}", self.space)
    }
}

/// `<o>.<a>.<u>`: ACL keys, tails of member keys and of delivery subjects (contract 01 §1.3).
pub fn lifecycle_subject_key(principal: &Principal, uid: &LifecycleUid) -> String {
    format!("{}.{uid}", principal.key())
}

/// `<o>-<a>-<u>`: tails of consumer names (contract 01 §1.3).
pub fn lifecycle_name_key(principal: &Principal, uid: &LifecycleUid) -> String {
    format!("{}-{uid}", principal.name())
}

/// The unicast durable of a lifecycle.
pub fn dm_consumer(principal: &Principal, uid: &LifecycleUid) -> String {
    format!("dm_{}", lifecycle_name_key(principal, uid))
}

/// The delivery durable of a lifecycle.
pub fn dlv_consumer(principal: &Principal, uid: &LifecycleUid) -> String {
    format!("dlv_{}", lifecycle_name_key(principal, uid))
}

/// The transient history consumer of a lifecycle.
pub fn history_consumer(principal: &Principal, uid: &LifecycleUid) -> String {
    format!("chathist_{}", lifecycle_name_key(principal, uid))
}

/// The durable that a role shares.
pub fn role_consumer(role: &Role) -> String {
    format!("svc_{role}")
}

/// The durable of a work pool.
pub fn pool_consumer(endpoint: &EndpointToken, pool: &Command) -> String {
    format!("pool_{endpoint}_{pool}")
}

/// The durable of one replay of a run's journal.
pub fn replay_consumer(run: &RunId, takeover: &Takeover) -> String {
    format!("wfj_{run}_{takeover}")
}

/// The effects durable of an endpoint.
pub fn effects_consumer(endpoint: &EndpointToken) -> String {
    format!("eff_{endpoint}")
}

/// Records key `lifecycle.<owner>.<actor>`: the alias head.
pub fn head_key(principal: &Principal) -> String {
    format!("lifecycle.{}", principal.key())
}

/// Records key `uid.<uid>`: the reservation.
pub fn uid_key(uid: &LifecycleUid) -> String {
    format!("uid.{uid}")
}

/// Records key `frontier.<uid>`: what a retirement recorded.
pub fn frontier_key(uid: &LifecycleUid) -> String {
    format!("frontier.{uid}")
}

/// Records keys `svc.<e>.<instance>.spec`: a service instance's registration.
pub fn service_spec_key(endpoint: &EndpointToken, instance: &InstanceId) -> String {
    format!("svc.{endpoint}.{instance}.spec")
}

/// The filter of every registration of an endpoint.
pub fn service_specs_filter(endpoint: &EndpointToken) -> String {
    format!("svc.{endpoint}.*.spec")
}

/// Records keys `svc.<e>.<instance>.status`: a service instance's own report.
pub fn service_status_key(endpoint: &EndpointToken, instance: &InstanceId) -> String {
    format!("svc.{endpoint}.{instance}.status")
}

/// Records key `govern.<e>`: the governance head of an endpoint.
pub fn govern_key(endpoint: &EndpointToken) -> String {
    format!("govern.{endpoint}")
}

/// Records key `policy.<e>.<hex>`: a self-certifying admission policy.
pub fn policy_key(endpoint: &EndpointToken, digest: &Sha256Hex) -> String {
    format!("policy.{endpoint}.{digest}")
}

/// Auth key `gate.<uid>`: the agent issuance gate.
pub fn gate_key(uid: &LifecycleUid) -> String {
    format!("gate.{uid}")
}

/// Auth key `cred.<uid>.<credential>`: an agent credential row.
pub fn cred_key(uid: &LifecycleUid, credential: &CredentialId) -> String {
    format!("cred.{uid}.{credential}")
}

/// Auth key `epcred.<e>.<instance>.<credential>`: an endpoint credential row.
pub fn epcred_key(endpoint: &EndpointToken, instance: &InstanceId, credential: &CredentialId) -> String {
    format!("epcred.{endpoint}.{instance}.{credential}")
}

/// Auth key `bysrc.<issuer key>.<handle>.<uid>.<credential>`: the lineage index.
pub fn bysrc_key(
    issuer_key: &KeySegment,
    handle: &KeySegment,
    uid: &LifecycleUid,
    credential: &CredentialId,
) -> String {
    format!("bysrc.{issuer_key}.{handle}.{uid}.{credential}")
}

/// Auth key `srcgate.<issuer key>.<handle>`: the source gate.
pub fn srcgate_key(issuer_key: &KeySegment, handle: &KeySegment) -> String {
    format!("srcgate.{issuer_key}.{handle}")
}

/// Auth key `stage.<op>`: an operation's intent.
pub fn stage_key(op: &OpId) -> String {
    format!("stage.{op}")
}

/// Auth key `natkey.<user nkey>`: a native issuance row (contract 10 §5, 12 D13).
pub fn natkey_key(user: &Nkey<User>) -> String {
    format!("natkey.{user}")
}

/// Auth key `epgate.<e>.<instance>`: the endpoint issuance gate.
pub fn epgate_key(endpoint: &EndpointToken, instance: &InstanceId) -> String {
    format!("epgate.{endpoint}.{instance}")
}

/// Auth key `eprepair.<e>.<instance>`: an interrupted repair's cursor.
pub fn eprepair_key(endpoint: &EndpointToken, instance: &InstanceId) -> String {
    format!("eprepair.{endpoint}.{instance}")
}

/// Auth key `epowner.<e>.<instance>`: whose the instance is, by the host's own word. No credential of an endpoint writes it.
pub fn epowner_key(endpoint: &EndpointToken, instance: &InstanceId) -> String {
    format!("epowner.{endpoint}.{instance}")
}

/// Auth key `sessowner.<id>`: whose a session is, by the host's own word.
pub fn session_owner_key(session: &SessionId) -> String {
    format!("sessowner.{session}")
}

/// Every `sessowner` row, as a filter.
pub const fn session_owner_key_filter() -> &'static str {
    "sessowner.>"
}

/// Sessions key `session.<id>`.
pub fn session_key(session: &SessionId) -> String {
    format!("session.{session}")
}

/// Every session row, as a filter.
pub const fn session_key_filter() -> &'static str {
    "session.*"
}

/// Manager key `lease.<instance>`: who runs that manager (contract 01 §4.3).
pub fn manager_lease_key(instance: &InstanceId) -> String {
    format!("lease.{instance}")
}

/// Admission key `admission.v1.<e>.<run>`: under whose authority a run goes (contract 03 §M).
pub fn admission_key(endpoint: &EndpointToken, run: &RunId) -> String {
    format!("admission.v1.{endpoint}.{run}")
}

/// Admission key `revoked.v1.<e>.<run>`: that the run goes no further (contract 03 §M).
pub fn revocation_key(endpoint: &EndpointToken, run: &RunId) -> String {
    format!("revoked.v1.{endpoint}.{run}")
}

/// Admission key `submission.v1.<e>.<digest>`: which run a keyed submission became (contract 10 §3.5, private).
pub fn submission_key(endpoint: &EndpointToken, digest: &Sha256Hex) -> String {
    format!("submission.v1.{endpoint}.{digest}")
}

/// Issued key `v1.<o>.<a>.<u>.<generation>`: evidence of an issuance (contract 01 §7).
pub fn issued_key(principal: &Principal, uid: &LifecycleUid, generation: &Generation) -> String {
    format!("v1.{}.{generation}", lifecycle_subject_key(principal, uid))
}

/// Issued key `attempt.v1.<o>.<a>.<u>.<generation>`: how far an issuance came (contract 03 §H.3).
pub fn issued_attempt_key(principal: &Principal, uid: &LifecycleUid, generation: &Generation) -> String {
    format!("attempt.{}", issued_key(principal, uid, generation))
}

/// Issued keys `bysource.v1.<digest>.`: what a source led to, as a filter (contract 03 §H.3).
pub fn issued_source_filter(source: &Sha256Hex) -> String {
    format!("bysource.v1.{source}.>")
}

/// Issued key `bysource.v1.<digest>.<o>.<a>.<u>.<generation>`: this source led to that issuance (contract 03 §H.3).
pub fn issued_source_key(
    source: &Sha256Hex,
    principal: &Principal,
    uid: &LifecycleUid,
    generation: &Generation,
) -> String {
    format!("bysource.v1.{source}.{}.{generation}", lifecycle_subject_key(principal, uid))
}

/// What stands for the actor ledger in a source: a label, no bucket (contract 03 §H.4).
pub fn actor_ledger_label(space: &SpaceToken) -> String {
    format!("cotal_actors_{space}")
}

/// `actor.<o>.<a>.<u>`: a row of the actor ledger in a source (contract 03 §H.4).
pub fn actor_ledger_key(principal: &Principal, uid: &LifecycleUid) -> String {
    format!("actor.{}", lifecycle_subject_key(principal, uid))
}

/// Members key `<channel>/<o>.<a>.<u>`: a durable membership (contract 01 §4.3).
pub fn member_key(channel: &Channel, principal: &Principal, uid: &LifecycleUid) -> String {
    format!("{channel}/{}", lifecycle_subject_key(principal, uid))
}

/// Accepted key `accepted.v1.<token>`, the token being 32 lower-case hex characters (contract 01 §7).
pub fn accepted_key(token: &Generation) -> String {
    format!("accepted.v1.{token}")
}

/// Records key `run.<e>.<run>.spec`: what a run was started with (contract 03 §L).
pub fn run_spec_key(endpoint: &EndpointToken, run: &RunId) -> String {
    format!("run.{endpoint}.{run}.spec")
}

/// Records key `run.<e>.<run>.status`: how a run stands (contract 03 §L).
pub fn run_status_key(endpoint: &EndpointToken, run: &RunId) -> String {
    format!("run.{endpoint}.{run}.status")
}

/// Records key `cp.<e>.<token>.status`: how a checkpoint stands (contract 02 §11).
pub fn checkpoint_status_key(endpoint: &EndpointToken, token: &IdToken) -> String {
    format!("cp.{endpoint}.{token}.status")
}

/// Every accepted key, as a filter.
pub const fn accepted_key_filter() -> &'static str {
    "accepted.v1.*"
}

/// Who an infrastructure connection is, as its label says: `cotal:<role>:<space>` (contract 07 §7, 05 §8.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InfraRole(&'static str);

impl InfraRole {
    /// Authority rows that the service writes on its own behalf.
    pub const AUTH_SERVICE: Self = Self("auth-service");
    /// The callout connection of a replica.
    pub const AUTH_REPLICA: Self = Self("auth-replica");
    /// The store connection of a replica.
    pub const AUTH_REPLICA_STORE: Self = Self("auth-replica-store");
    /// The mint writer.
    pub const AUTH_MINT: Self = Self("auth-mint");
    /// The supervised connect reader.
    pub const AUTH_READER: Self = Self("auth-reader");
    /// The barrier executor.
    pub const AUTH_BARRIER: Self = Self("auth-barrier");
    /// The registration executor of the plane's own endpoint.
    pub const AUTH_REGISTRATION: Self = Self("auth-registration");
    /// The registration executor of the endpoint of the host that embeds the service.
    pub const HOST_REGISTRATION: Self = Self("host-registration");
    /// The sealed scanner of the auth stream.
    pub const AUTH_SCAN: Self = Self("auth-scan");
    /// The sealed scanner of the records stream.
    pub const RECORDS_SCAN: Self = Self("records-scan");
    /// The listener of the auth rail.
    pub const AUTH_ADMIN: Self = Self("auth-admin");
    /// The oracle that proves a plane gone.
    pub const AUTH_PLANE_ORACLE: Self = Self("auth-plane-oracle");
    /// The oracle that proves a principal gone.
    pub const AUTH_PRINCIPAL_ORACLE: Self = Self("auth-principal-oracle");
    /// Asks the delivery daemon to end connections, for a barrier.
    pub const AUTH_BARRIER_EVICT: Self = Self("auth-barrier-evict");
    /// Asks the delivery daemon which durable memberships an incarnation has.
    pub const AUTH_MEMBERSHIPS: Self = Self("auth-memberships");
    /// Asks the delivery daemon to take over renewed credentials.
    pub const AUTH_RENEWAL: Self = Self("auth-renewal");
    /// The remote manager issuer.
    pub const REMOTE_MANAGER_ISSUER: Self = Self("remote-manager-issuer");
    /// Mends the registration of one manager instance, for its owner.
    pub const REMOTE_MANAGER_MAINTENANCE: Self = Self("remote-manager-maintenance");
    /// Writes the admission, or the revocation, of one run.
    pub const RUN_ADMITTER: Self = Self("run-admitter");
    /// Writes the submission and the admission of one keyed run.
    pub const KEYED_ADMITTER: Self = Self("keyed-admitter");
    /// Writes the revocation of one cancelled run.
    pub const RUN_CANCEL: Self = Self("run-cancel");
    /// Replays the journal of one run.
    pub const RUN_ATTEMPT_READER: Self = Self("run-attempt-reader");
    /// Ends the credential pair of one session.
    pub const SESSION_PAIR: Self = Self("session-pair");
    /// Revokes one capability handle.
    pub const HANDLE_REVOCATION: Self = Self("handle-revocation");
    /// The admission mediator of one endpoint.
    pub const EP_DRAIN: Self = Self("ep-drain");
    /// The pool cleaner of one retirement.
    pub const EP_CLEANER: Self = Self("ep-cleaner");
    /// The settlement executor of one retirement.
    pub const EP_EXECUTOR: Self = Self("ep-executor");
    /// Re-applies one record commit.
    pub const EP_APPLY: Self = Self("ep-apply");
    /// Re-enqueues one pool item.
    pub const EP_REENQUEUE: Self = Self("ep-reenqueue");
    /// Writes one cancelled completion.
    pub const EP_CANCEL: Self = Self("ep-cancel");
    /// Creates a space's resources.
    pub const PROVISIONER: Self = Self("provisioner");
    /// Writes issued authority.
    pub const ISSUER: Self = Self("issuer");
    /// Removes what an ended lifecycle left on the broker.
    pub const DEPROVISIONER: Self = Self("deprovisioner");
    /// An operator's command that asks which incarnation of a name is active.
    pub const OPERATOR_MAPPING: Self = Self("operator-mapping");
    /// An operator's command that asks who holds the delivery lease.
    pub const OPERATOR_STATUS: Self = Self("operator-status");
    /// An operator's command that renews the delivery daemon's credentials.
    pub const OPERATOR_RENEWAL: Self = Self("operator-renewal");
    /// An operator's command that proves a renewed credential before it replaces the old one.
    pub const OPERATOR_PREFLIGHT: Self = Self("operator-preflight");
    /// An operator's command that mends the registration of a service instance.
    pub const OPERATOR_REPAIR: Self = Self("operator-repair");
    /// The read-only readiness probe.
    pub const PLATFORM_READINESS: Self = Self("platform-readiness");

    /// The role's word in a label.
    pub const fn as_str(self) -> &'static str {
        self.0
    }

    /// The connection label and JWT name of this role in a space.
    pub fn label(self, space: &Space) -> String {
        format!("cotal:{}:{space}", self.0)
    }

    /// The label of a role that serves one thing in a space: `cotal:<role>:<space>:<thing>`.
    pub fn label_for(self, space: &Space, thing: &dyn fmt::Display) -> String {
        format!("cotal:{}:{space}:{thing}", self.0)
    }
}

impl fmt::Display for InfraRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn principal() -> Principal {
        Principal::parse_key("u_aaaaaaaaaaaaaaaaaaaaaaaaaa.alice").unwrap()
    }

    fn uid() -> LifecycleUid {
        LifecycleUid::parse("0123456789abcdefghijklmnop").unwrap()
    }

    #[test]
    fn streams_and_buckets_carry_the_space_token() {
        let names = Names::new(&Space::parse("my space").unwrap().token());
        assert_eq!(names.chat_stream(), "CHAT_my_space");
        assert_eq!(names.ept_req_stream(), "EPT_REQ_my_space");
        assert_eq!(names.records_stream(), "KV_cotal_records_my_space");
        assert_eq!(Names::kv_subject(&names.auth_bucket(), "plane"), "$KV.cotal_auth_my_space.plane");
        assert_eq!(names.subject_prefix(), "cotal.my_space");
        assert_eq!(
            names.frontier_streams(),
            ["EPF_my_space", "EPW_my_space", "EPE_my_space", "KV_cotal_records_my_space"]
        );
        assert_eq!(
            names.dinbox_subject(&principal(), &uid()),
            "cotal.my_space.dinbox.u_aaaaaaaaaaaaaaaaaaaaaaaaaa.alice.0123456789abcdefghijklmnop"
        );
    }

    #[test]
    fn consumer_names_are_lifecycle_keyed_except_the_roles() {
        assert_eq!(
            dm_consumer(&principal(), &uid()),
            "dm_u_aaaaaaaaaaaaaaaaaaaaaaaaaa-alice-0123456789abcdefghijklmnop"
        );
        assert_eq!(role_consumer(&Role::parse("default").unwrap()), "svc_default");
    }

    #[test]
    fn keys_are_spelled_as_the_contract_spells_them() {
        let cred = CredentialId::parse("s.c").unwrap();
        let (k, h) = (KeySegment::parse("k1").unwrap(), KeySegment::parse("h1").unwrap());
        let e = EndpointToken::parse("com_x").unwrap();
        let i = InstanceId::parse("0123456789abcdefghijklmnop").unwrap();
        assert_eq!(head_key(&principal()), "lifecycle.u_aaaaaaaaaaaaaaaaaaaaaaaaaa.alice");
        assert_eq!(cred_key(&uid(), &cred), "cred.0123456789abcdefghijklmnop.s.c");
        assert_eq!(bysrc_key(&k, &h, &uid(), &cred), "bysrc.k1.h1.0123456789abcdefghijklmnop.s.c");
        assert_eq!(epcred_key(&e, &i, &cred), "epcred.com_x.0123456789abcdefghijklmnop.s.c");
        assert_eq!(epgate_key(&e, &i), "epgate.com_x.0123456789abcdefghijklmnop");
        assert_eq!(service_spec_key(&e, &i), "svc.com_x.0123456789abcdefghijklmnop.spec");
    }

    #[test]
    fn labels_carry_the_space_name_and_not_its_token() {
        assert_eq!(
            InfraRole::AUTH_MINT.label(&Space::parse("my space").unwrap()),
            "cotal:auth-mint:my space"
        );
    }
}
