//! The delivery daemon's credentials: what `up` makes, renews and leaves alone (contract 01 §3.4 and §9.1, 08 §7.4).
//!
//! The two of the data account are signed here whenever one is missing or due. The two of the system account can only
//! be signed beside a fresh seed of that account, which is never stored: a rotation makes both anew, for every space of
//! the root, and the broker must start with it. So a broker that runs is never rotated under. A space that joins it gets
//! its two from a signing key that is added to the account, whose new JWT the broker is then told.

use cotal_trust::{
    bundle::{BrokerTrust, SpaceAccount},
    mint::{CredentialKind, mint_system_user},
};
use cotal_wire::{
    Space,
    grants::{accounts, delivery},
};
use cotal_workspace::{
    daemon_creds::{self, DaemonCred},
    file,
    printed::at,
    secret_store::{FsSecretStore, SecretStore as _},
    trust_files,
};

use super::trust::Trust;
use crate::{
    context::Context,
    cred_health::{CredState, look, look_at_system},
    outcome::CliError,
    progress::Progress,
    renewal, space_daemons,
};

/// What a run does about the system account.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum System {
    /// Both credentials hold.
    Keep,
    /// They are due, and a running broker keeps its system account.
    Warn,
    /// Fresh ones for this space alone: this run made the account.
    Mint,
    /// A fresh account, and fresh credentials for every space.
    Rotate,
    /// A further signing key, and with it fresh ones for this space alone: it joins a running broker.
    Join,
    /// A further signing key, and with it what tells the broker of spaces that join it once it runs.
    Equip,
    /// They are needed, and a running broker stands in the way.
    Refuse,
}

/// What the broker is at, and whether it can be told of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BrokerState {
    /// It does not run.
    Stopped,
    /// It runs, and keeps its accounts in memory.
    Running,
    /// It runs, and takes accounts from who may publish them.
    TakesAccounts,
}

/// Makes, rotates or keeps the system account's two users of this space. Before the broker's configuration is rendered.
pub(super) async fn settle_system(
    ctx: &Context,
    space: &Space,
    trust: &mut Trust,
    broker: BrokerState,
    rotate: bool,
    progress: &Progress<'_>,
) -> Result<(), CliError> {
    daemon_creds::adopt_legacy(&ctx.root, space)?;
    let worst = worst_of_system(ctx, space, trust)?;
    let fresh = trust.broker.sys_signing_seed.is_some();
    let publisher = publisher_state(ctx, &trust.broker)?;
    match decide(worst, publisher, fresh, broker, rotate) {
        System::Keep => {}
        System::Warn => progress.note(&format!(
            "the system account's credentials of space {:?} are near their expiry: `cotal down --space <each space of \
             this root>`, then `cotal up --user-auth{}`, renews them",
            space.as_str(),
            at(space)
        )),
        System::Mint => {
            mint_system(ctx, &trust.broker, &trust.account)?;
            mint_publisher(ctx, &trust.broker)?;
        }
        System::Join => {
            progress.step("signing the credentials of a space that joins");
            add_signer(ctx, trust)?;
            mint_system(ctx, &trust.broker, &trust.account)?;
        }
        System::Equip => {
            add_signer(ctx, trust)?;
            mint_publisher(ctx, &trust.broker)?;
        }
        System::Rotate => {
            progress.step("rotating the system account");
            rotate_system(ctx, trust).await?;
        }
        System::Refuse => {
            return Err(CliError::failed(format!(
                "the system account's credentials of space {:?} are {}, and a running broker keeps its system account: \
                 `cotal down --space <each space of this root>`, then `cotal up --user-auth{}{}`, makes new ones",
                space.as_str(),
                worst.as_str(),
                if rotate { " --rotate-sys" } else { "" },
                at(space)
            )));
        }
    }
    if daemon_creds::read_membership(&ctx.root, space)?.as_ref() != Some(trust.account.account.public()) {
        daemon_creds::write_membership(&ctx.root, space, trust.account.account.public())?;
    }
    Ok(())
}

/// Signs what of the data account is missing or due; what holds stays byte for byte. While the daemon runs, a renewal
/// goes the way of every renewal: under the lease, proved, and then adopted.
pub(super) async fn settle_data(
    ctx: &Context,
    space: &Space,
    account: &SpaceAccount,
    progress: &Progress<'_>,
) -> Result<(), CliError> {
    let store = FsSecretStore::open(&ctx.root)?;
    let data = account.data_account();
    for cred in DaemonCred::ALL.into_iter().filter(|cred| !cred.of_system_account()) {
        let text = store.get(&cred.key(space)).await?;
        let seen =
            look(text.as_deref().map(String::as_str), &renewal::signer_of(&data), ctx.clock.now_secs());
        if !seen.state.is_due() {
            continue;
        }
        let runs = space_daemons::delivery(ctx, space, None).running()?.is_some();
        if runs && seen.state == CredState::NearExpiry {
            progress.note(&format!(
                "{cred} of space {:?} is near its expiry, and the daemon that uses it runs: `cotal doctor auth --fix{}` \
                 renews it",
                space.as_str(),
                at(space)
            ));
            continue;
        }
        let minted = renewal::mint(ctx, space, &data, cred, text.as_deref().map(String::as_str))?;
        store.put(&cred.key(space), &minted.creds).await?;
    }
    Ok(())
}

fn worst_of_system(ctx: &Context, space: &Space, trust: &Trust) -> Result<CredState, CliError> {
    let mut worst = CredState::Healthy;
    for cred in DaemonCred::ALL.into_iter().filter(|cred| cred.of_system_account()) {
        let text = file::read_text(&cred.path(&ctx.root, space))?;
        let seen = look_at_system(text.as_deref().map(String::as_str), &trust.broker, ctx.clock.now_secs())?;
        worst = worst.max(seen.state);
    }
    // The observer watches one account: another one's is no credential of this space.
    let watched = daemon_creds::read_membership(&ctx.root, space)?;
    if worst.holds() && watched.is_some_and(|watched| watched != *trust.account.account.public()) {
        worst = CredState::Foreign;
    }
    Ok(worst)
}

fn decide(worst: CredState, publisher: CredState, fresh: bool, broker: BrokerState, rotate: bool) -> System {
    let joins = broker == BrokerState::TakesAccounts && publisher.holds();
    match (fresh, worst.is_due() || rotate, broker == BrokerState::Stopped) {
        (true, ..) => System::Mint,
        (false, false, true) if publisher.is_due() => System::Equip,
        (false, false, _) => System::Keep,
        (false, true, true) => System::Rotate,
        (false, true, false) if worst == CredState::NearExpiry && !rotate => System::Warn,
        (false, true, false) if worst == CredState::Missing && joins && !rotate => System::Join,
        (false, true, false) => System::Refuse,
    }
}

/// How the credential stands that tells a running broker of accounts.
pub(super) fn publisher_state(ctx: &Context, broker: &BrokerTrust) -> Result<CredState, CliError> {
    let text = file::read_text(&space_daemons::account_publisher_path(&ctx.root))?;
    Ok(look_at_system(text.as_deref().map(String::as_str), broker, ctx.clock.now_secs())?.state)
}

/// The record first, as below: a key that no record names signs nothing that holds.
fn add_signer(ctx: &Context, trust: &mut Trust) -> Result<(), CliError> {
    let next = trust.broker.add_system_signer(&*ctx.entropy, ctx.clock.now_secs())?;
    trust_files::save_broker(&ctx.root, &next)?;
    trust.broker = next;
    Ok(())
}

/// The record first: a run that is cut short leaves credentials of the account before, and the next run rotates again.
async fn rotate_system(ctx: &Context, trust: &mut Trust) -> Result<(), CliError> {
    let next = trust.broker.rotate_system_account(&*ctx.entropy, ctx.clock.now_secs())?;
    trust_files::save_broker(&ctx.root, &next)?;
    trust.broker = next;
    for space in trust_files::inventory(&ctx.root)? {
        // A daemon that has outlived the broker would go on with what is void now.
        space_daemons::delivery(ctx, &space, None).stop().await?;
        let account = trust_files::load_account(&ctx.root, &space)?
            .ok_or_else(|| CliError::failed(format!("the account of space {:?} vanished", space.as_str())))?;
        mint_system(ctx, &trust.broker, &account)?;
        daemon_creds::write_membership(&ctx.root, &space, account.account.public())?;
    }
    mint_publisher(ctx, &trust.broker)
}

fn mint_publisher(ctx: &Context, broker: &BrokerTrust) -> Result<(), CliError> {
    let (kind, now) = (CredentialKind::AccountPublisher, ctx.clock.now_secs());
    let minted = mint_system_user(broker, kind, |_| accounts::account_publisher(), &*ctx.entropy, now)?;
    file::write_atomic(&space_daemons::account_publisher_path(&ctx.root), minted.creds.as_bytes())?;
    Ok(())
}

fn mint_system(ctx: &Context, broker: &BrokerTrust, account: &SpaceAccount) -> Result<(), CliError> {
    let (root, now) = (&ctx.root, ctx.clock.now_secs());
    file::ensure_private_dir(&root.space_dir(&account.space))?;
    let observer = |_: &_| delivery::membership_observer(account.account.public());
    let evictor = |_: &_| delivery::connection_evictor();
    let minted = [
        (
            DaemonCred::MembershipObserver,
            mint_system_user(broker, CredentialKind::MembershipObserver, observer, &*ctx.entropy, now)?,
        ),
        (
            DaemonCred::ConnectionEvictor,
            mint_system_user(broker, CredentialKind::ConnectionEvictor, evictor, &*ctx.entropy, now)?,
        ),
    ];
    for (cred, user) in minted {
        file::write_atomic(&cred.path(root, &account.space), user.creds.as_bytes())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_system_account_is_rotated_only_when_it_is_needed_and_never_under_a_running_broker() {
        use CredState::{Expired, Foreign, Healthy, Missing, NearExpiry, Unreadable};
        for (worst, fresh, runs, asked, what) in [
            (Missing, true, false, false, System::Mint),
            (Healthy, true, false, true, System::Mint),
            (Healthy, false, false, false, System::Keep),
            (Healthy, false, true, false, System::Keep),
            (Healthy, false, false, true, System::Rotate),
            (Healthy, false, true, true, System::Refuse),
            (NearExpiry, false, false, false, System::Rotate),
            (NearExpiry, false, true, false, System::Warn),
            (NearExpiry, false, true, true, System::Refuse),
            (Expired, false, false, false, System::Rotate),
            (Expired, false, true, false, System::Refuse),
            (Missing, false, true, false, System::Refuse),
            (Unreadable, false, false, false, System::Rotate),
            (Foreign, false, false, false, System::Rotate),
        ] {
            let broker = if runs { BrokerState::Running } else { BrokerState::Stopped };
            assert_eq!(
                decide(worst, Healthy, fresh, broker, asked),
                what,
                "{worst:?} {fresh} {runs} {asked}"
            );
        }
    }

    #[test]
    fn a_space_without_credentials_joins_a_running_broker_that_can_be_told_of_it() {
        use BrokerState::{Running, Stopped, TakesAccounts};
        use CredState::{Expired, Foreign, Healthy, Missing, NearExpiry};
        for (worst, publisher, broker, asked, what) in [
            (Missing, Healthy, TakesAccounts, false, System::Join),
            (Missing, NearExpiry, TakesAccounts, false, System::Join),
            (Missing, Healthy, TakesAccounts, true, System::Refuse),
            (Missing, Expired, TakesAccounts, false, System::Refuse),
            (Missing, Healthy, Running, false, System::Refuse),
            (Foreign, Healthy, TakesAccounts, false, System::Refuse),
            (Expired, Healthy, TakesAccounts, false, System::Refuse),
            (NearExpiry, Healthy, TakesAccounts, false, System::Warn),
            (Healthy, Missing, TakesAccounts, false, System::Keep),
            (Healthy, Missing, Stopped, false, System::Equip),
            (Healthy, NearExpiry, Stopped, false, System::Equip),
            (Missing, Healthy, Stopped, false, System::Rotate),
        ] {
            let decided = decide(worst, publisher, false, broker, asked);
            assert_eq!(decided, what, "{worst:?} {publisher:?} {broker:?} {asked}");
        }
    }
}
