//! The trust of a root: made once, checked ever after.

use cotal_ledger::shell_quote;
use cotal_trust::bundle::{BrokerTrust, SpaceAccount};
use cotal_wire::{Account, Nkey, Space};
use cotal_workspace::{material, secret_store::FsSecretStore, trust_files};

use crate::{context::Context, outcome::CliError};

/// The broker's trust and this space's account under it.
pub(super) struct Trust {
    pub(super) broker: BrokerTrust,
    pub(super) account: SpaceAccount,
}

/// Every account that the broker is told.
pub(super) struct Accounts {
    /// The data accounts.
    pub(super) spaces: Vec<SpaceAccount>,
    /// The callout accounts.
    pub(super) callouts: Vec<(Nkey<Account>, String)>,
}

/// Loads the records of this root, or makes them.
pub(super) fn load_or_create(ctx: &Context, space: &Space) -> Result<Trust, CliError> {
    let now = ctx.clock.now_secs();
    let broker = if let Some(broker) = trust_files::load_broker(&ctx.root)? {
        broker
    } else {
        let broker = BrokerTrust::create(space.as_str(), &*ctx.entropy, now);
        trust_files::save_broker(&ctx.root, &broker)?;
        broker
    };
    let account = if let Some(account) = trust_files::load_account(&ctx.root, space)? {
        account.check_signed_by(&broker)?;
        account
    } else {
        let account = SpaceAccount::create(&broker, space, &*ctx.entropy, now);
        trust_files::save_account(&ctx.root, &account)?;
        account
    };
    Ok(Trust { broker, account })
}

/// Every space of the root with its callout account; an enabled space without one refuses (contract 04 §14).
pub(super) async fn accounts(ctx: &Context, trust: &Trust) -> Result<Accounts, CliError> {
    let store = FsSecretStore::open(&ctx.root)?;
    let mut accounts = Accounts { spaces: Vec::new(), callouts: Vec::new() };
    for space in trust_files::inventory(&ctx.root)? {
        let account = trust_files::load_account(&ctx.root, &space)?
            .ok_or_else(|| CliError::failed(format!("the account of space {:?} vanished", space.as_str())))?;
        account.check_signed_by(&trust.broker)?;
        if ctx.root.is_user_auth(&space)? {
            // Of a space that is half made the broker needs this alone; its own `up` makes the rest.
            let callout =
                material::load_callout(&store, &space).await?.ok_or_else(|| without_callout(&space))?;
            accounts.callouts.push((callout.account.public().clone(), callout.jwt.clone()));
        }
        accounts.spaces.push(account);
    }
    Ok(accounts)
}

fn without_callout(space: &Space) -> CliError {
    CliError::failed(format!(
        "space {:?} of this workspace is half made and lacks its callout account: `cotal up --user-auth --space {}` \
         goes on from there",
        space.as_str(),
        shell_quote(space.as_str())
    ))
}
