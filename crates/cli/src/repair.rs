//! `cotal reconcile-gate` and `cotal deregister-instance`: what a service instance that died leaves behind, and an
//! operator clears away (contract 07 §11.6, §11.9, 08 §10).

use std::collections::BTreeSet;

use cotal_authority::{
    delivery_admin::DeliveryAdmin,
    manager::OfInstance,
    registration::{
        Deregistration, EndpointInstance, Registry, RepairRefusal, RepairReport, deregister_instance,
        reconcile_endpoint_gate,
    },
};
use cotal_broker::{Connection, Connector, connector::Lifetime};
use cotal_wire::{
    ConnId, EndpointName, EpError, InfraRole, InstanceId, Principal, grants::endpoint_serve,
    rows::GateCoordinate,
};
use serde_json::{Value, json};

use cotal_workspace::printed;

use crate::{
    cli::Output,
    context::{Context, DEFAULT_SPACE, space_flag},
    outcome::CliError,
    progress::if_slow,
    space_broker::{self, ONE_SHOT_SECS},
};

/// Which instance.
#[derive(Debug, clap::Args)]
pub struct InstanceFlags {
    /// The endpoint's name, `manager` or `com.example.search`.
    #[arg(long, value_name = "NAME")]
    pub endpoint: String,
    /// The instance's id.
    #[arg(long, value_name = "ID")]
    pub instance: String,
    /// The space.
    #[arg(long, default_value = DEFAULT_SPACE)]
    pub space: String,
    /// How to print.
    #[command(flatten)]
    pub output: Output,
}

/// `cotal reconcile-gate`
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Repair the issuance gate of a service instance that died while it registered.\n\n\
        It changes nothing until the delivery daemon has proved the instance gone. Then what it held is revoked, and its \
        registration is completed or undone, so that the instance can register again. Run it again after a refusal: it \
        goes on from where it stopped.",
    after_help = "\
Example:
  cotal reconcile-gate --endpoint manager --instance 0123456789abcdefghijklmnop"
)]
pub struct ReconcileArgs {
    /// Which instance.
    #[command(flatten)]
    pub at: InstanceFlags,
}

/// `cotal deregister-instance`
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Take a service instance that is gone out of the registry.\n\n\
        Its credentials and its gate are not touched: stop the instance first. One that still runs registers again at its \
        next start.",
    after_help = "\
Example:
  cotal deregister-instance --endpoint manager --instance 0123456789abcdefghijklmnop"
)]
pub struct DeregisterArgs {
    /// Which instance.
    #[command(flatten)]
    pub at: InstanceFlags,
}

/// A repair on its way: the stores of one instance, over a connection that may touch nothing else.
struct Repair {
    at: EndpointInstance,
    connector: Connector,
    connection: Connection,
    registry: Registry,
}

impl Repair {
    async fn begin(flags: &InstanceFlags, ctx: &Context) -> Result<Self, CliError> {
        let endpoint = EndpointName::parse(&flags.endpoint)
            .map_err(|e| CliError::usage(format!("--endpoint is {e}")))?
            .token();
        let instance =
            InstanceId::parse(&flags.instance).map_err(|e| CliError::usage(format!("--instance is {e}")))?;
        let space = space_flag(&flags.space)?;
        let connector = space_broker::required_connector(ctx, &space)?;
        let (token, at) = (space.token(), EndpointInstance { endpoint, instance });
        let grants = {
            let at = at.clone();
            move |conn: &ConnId| {
                endpoint_serve::registration_executor(&token, conn, &at.endpoint, &at.instance)
            }
        };
        let lifetime = Lifetime::OneShot { ttl_secs: ONE_SHOT_SECS, principal: None };
        let connection = connector.open(InfraRole::OPERATOR_REPAIR.label(&space), &grants, lifetime).await?;
        match Registry::bind(&connection, &space).await {
            Ok(registry) => Ok(Self { at, connector, connection, registry }),
            Err(refusal) => {
                let _ = connection.close().await;
                Err(refusal.into())
            }
        }
    }

    /// What was done stands, however the connection ends.
    async fn end(self) {
        let _ = self.connection.close().await;
    }
}

/// Repairs a frozen gate.
pub async fn reconcile(args: ReconcileArgs, ctx: &Context) -> Result<(), CliError> {
    let repair = Repair::begin(&args.at, ctx).await?;
    let admin = DeliveryAdmin::new(repair.connector.clone());
    let reconciling = async {
        if repair.at.endpoint == EndpointName::manager().token() {
            let seen = OfInstance { rail: &admin, instance: &repair.at.instance, itself: None };
            reconcile_endpoint_gate(&repair.registry, &repair.at, &seen, &seen).await
        } else {
            reconcile_endpoint_gate(&repair.registry, &repair.at, &admin, &admin).await
        }
    };
    let waits = "waiting for the delivery daemon, which proves who is gone, 15 s at most for each answer";
    let outcome = if_slow(ctx, waits, reconciling).await;
    repair.end().await;
    match outcome {
        Ok(report) => ctx.report(&repaired_document(&report), || repaired(&report)),
        Err(RepairRefusal::Condition { condition, message }) => Err(CliError::Condition {
            sentence: format!("the gate is as it was ({condition}): {message}"),
            condition: condition.as_str(),
        }),
        Err(RepairRefusal::Failed(refusal)) => Err(failed("repair", &refusal)),
    }
}

/// Takes an instance out of the registry.
pub async fn deregister(args: DeregisterArgs, ctx: &Context) -> Result<(), CliError> {
    let at_space = printed::at(&space_flag(&args.at.space)?);
    let repair = Repair::begin(&args.at, ctx).await?;
    let outcome = deregister_instance(repair.registry.stores(), &repair.at).await;
    let at = repair.at.clone();
    repair.end().await;
    let document = |members: Value| {
        let mut document = json!({ "endpoint": at.endpoint.name(), "instance": at.instance });
        if let (Some(document), Value::Object(members)) = (document.as_object_mut(), members) {
            document.extend(members);
        }
        document
    };
    match outcome.map_err(|refusal| failed("deregistration", &refusal))? {
        Deregistration::Removed { spec_revision, status_revision } => {
            let removed = json!({
                "removed": true,
                "specRevision": spec_revision,
                "statusRevision": status_revision,
            });
            ctx.report(&document(removed), || format!("{at} is out of the registry"))
        }
        Deregistration::Absent => {
            let absent = json!({ "removed": false, "reason": "absent" });
            ctx.report(&document(absent), || format!("{at} is not in the registry: nothing to do"))
        }
        Deregistration::Superseded => Err(CliError::Condition {
            sentence: format!(
                "{at} changed meanwhile, so it is alive or being taken out: look, then run this again"
            ),
            condition: "superseded",
        }),
        Deregistration::RegistrationInFlight => Err(CliError::Condition {
            sentence: format!(
                "{at} is registering right now; if it died doing so, run `cotal reconcile-gate --endpoint {} --instance \
                 {}{}` first",
                at.endpoint.name(),
                at.instance,
                at_space
            ),
            condition: "registration-in-flight",
        }),
    }
}

fn failed(what: &str, refusal: &EpError) -> CliError {
    CliError::failed(format!("{what}: {}", refusal.message))
}

fn repaired(report: &RepairReport) -> String {
    let how = if report.completed { "its registration is completed" } else { "its registration is undone" };
    format!(
        "{} can register again: {how}, {} credentials revoked, {} principals proved gone, gate open at generation {}",
        report.at,
        report.revoked.len(),
        report.holders.len(),
        report.after.generation
    )
}

/// The fields of contract 07 §11.9, in its words.
fn repaired_document(report: &RepairReport) -> Value {
    let keys =
        |principals: &BTreeSet<Principal>| -> Vec<_> { principals.iter().map(Principal::key).collect() };
    json!({
        "endpoint": report.at.endpoint.name(),
        "instance": report.at.instance,
        "holderPrincipal": report.holder_principal.key(),
        "opId": report.op,
        "freezeToken": report.freeze_token,
        "before": coordinate(&report.before),
        "after": coordinate(&report.after),
        "liveness": "gone",
        "familyRows": report.family_rows,
        "revoked": report.revoked.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "evicted": keys(&report.verified_now),
        "holders": keys(&report.holders),
        "holdersVerifiedBeforeAttempt": keys(&report.verified_before),
        "holdersVerifiedThisAttempt": keys(&report.verified_now),
        "holdersRemaining": keys(&report.remaining),
        "repairCursorCleanup": if report.cursor_deleted { "deleted" } else { "retained" },
        "reopenedAtGeneration": report.after.generation,
        "completed": report.completed,
    })
}

fn coordinate(at: &GateCoordinate) -> Value {
    json!({
        "generation": at.generation,
        "processEpoch": at.process_epoch,
        "registrationRevision": at.registration_revision,
        "nameAuthorityRevision": at.name_authority_revision,
    })
}
