//! Which identity provider a space has (contract 04 §6.3, 12 D21).

use cotal_trust::idp::{IdpPin, JwksResolver};
use cotal_wire::Space;
use cotal_workspace::printed::at;

use super::Started;
use crate::{
    context::Context, dev_idp, given_url::GivenUrl, outcome::CliError, progress::Progress, ready,
    space_daemons,
};

/// Said as long as the development IdP approves by itself; it goes on doing so without the flag.
pub(super) fn approves(space: &Space) -> String {
    let at = at(space);
    format!(
        "it approves every login by itself, and `cotal up` remembers that: `cotal down{at}`, then `cotal up --user-auth \
         --dev-idp{at}`, forgets it"
    )
}

/// Said when `--auto-approve`, or its absence, meets a development IdP that runs already.
pub(super) fn keeps_approving(space: &Space) -> String {
    format!(
        "the development identity provider was running and goes on approving logins as before: `cotal down{}`, then this \
         command, changes that",
        at(space)
    )
}

/// What the command line says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Choice {
    /// `--idp <url>`.
    Url(GivenUrl),
    /// `--dev-idp`.
    Development {
        /// `--auto-approve`.
        auto_approve: bool,
    },
    /// Nothing: the pinned one.
    Pinned,
}

/// The development IdP of a space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Development {
    /// Its port; `None` until a first one is chosen.
    pub(super) port: u16,
    /// Whether it approves every login by itself.
    pub(super) auto_approve: bool,
}

/// The identity provider of this run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Settled {
    /// What is pinned, or compared with the pin; `None` leaves the pin as it is.
    pub(super) url: Option<GivenUrl>,
    /// The development IdP to run.
    pub(super) development: Option<Development>,
}

impl Development {
    fn url(self) -> String {
        space_daemons::dev_idp_url(self.port)
    }

    /// Starts it unless it runs. One that runs keeps approving as it was started, which `recorded` tells.
    pub(super) async fn start(
        &mut self,
        recorded: Option<bool>,
        ctx: &Context,
        space: &Space,
        started: &mut Started,
        progress: &Progress<'_>,
    ) -> Result<(), CliError> {
        let daemon = space_daemons::dev_idp(ctx, space, self.port, self.auto_approve);
        let pin = IdpPin::from_url(&self.url())?;
        progress.wait("waiting for the development identity provider", ready::MOST);
        match daemon.running()? {
            Some(mut running) => {
                if let Some(approves) = recorded.filter(|approves| *approves != self.auto_approve) {
                    self.auto_approve = approves;
                    progress.note(&keeps_approving(space));
                }
                ready::dev_idp(&mut running, ctx, &pin).await
            }
            None => ready::dev_idp(started.start(&daemon, ctx)?, ctx, &pin).await,
        }
    }
}

/// Decides from the command line, the pin and what an earlier run recorded. A pin on this machine's loopback is the
/// development IdP's when the flag or the record says so. `lost` is the URL of a pin that was lost: a development IdP
/// that is named again comes back on that port, because its issuer has the port in it.
pub(super) fn settle(
    choice: &Choice,
    pin: Option<&IdpPin>,
    lost: Option<&str>,
    recorded: Option<bool>,
    space: &Space,
) -> Result<Settled, CliError> {
    let auto_approve = match choice {
        Choice::Url(url) => return Ok(Settled { url: Some(url.clone()), development: None }),
        Choice::Development { auto_approve } => Some(*auto_approve),
        Choice::Pinned => recorded,
    };
    let Some(auto_approve) = auto_approve else { return Ok(Settled { url: None, development: None }) };
    let port = match pin {
        Some(pin) => space_daemons::dev_idp_port(&pin.url).ok_or_else(|| {
            CliError::failed(format!(
                "space {:?} is pinned to the IdP {}, which is not a development one: leave --dev-idp out",
                space.as_str(),
                pin.url
            ))
        })?,
        None => match lost.and_then(space_daemons::dev_idp_port) {
            Some(port) => port,
            None => super::broker::free_port()?,
        },
    };
    let development = Development { port, auto_approve };
    Ok(Settled { url: Some(development.url().into()), development: Some(development) })
}

/// What a run has left of which nothing is recorded: a pin of a development IdP that has run on this machine.
pub(super) fn left(pin: &IdpPin, ctx: &Context) -> Result<Option<bool>, CliError> {
    let Some(port) = space_daemons::dev_idp_port(&pin.url) else { return Ok(None) };
    Ok(dev_idp::has_run(port, ctx)?.then_some(false))
}

/// The one look at an identity provider's keys before it is pinned.
pub(super) async fn probe(idp: &Settled, ctx: &Context) -> Result<(), CliError> {
    let Some(url) = &idp.url else { return Ok(()) };
    let pin = IdpPin::from_url(url)?;
    JwksResolver::new(&pin.jwks_uri, ctx.clock.clone())?
        .probe()
        .await
        .map_err(|e| CliError::failed(format!("{} cannot be pinned: {e} (--idp names it)", pin.url)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pin(url: &str) -> IdpPin {
        IdpPin::from_url(url).unwrap()
    }

    fn space() -> Space {
        Space::parse("main").unwrap()
    }

    #[test]
    fn a_url_is_taken_as_it_is_given_and_compared_with_the_pin_later() {
        let given = GivenUrl::from("https://a/".to_owned());
        let settled = settle(&Choice::Url(given.clone()), None, None, Some(true), &space()).unwrap();
        assert_eq!(settled, Settled { url: Some(given), development: None });
    }

    #[test]
    fn nothing_said_keeps_the_pin_and_restarts_a_recorded_development_idp_on_its_port() {
        let external = pin("https://id.example/api/auth");
        let settled = settle(&Choice::Pinned, Some(&external), None, None, &space()).unwrap();
        assert_eq!(settled, Settled { url: None, development: None });
        let own = pin("http://127.0.0.1:4780/api/auth");
        let settled = settle(&Choice::Pinned, Some(&own), None, Some(true), &space()).unwrap();
        assert_eq!(settled.development, Some(Development { port: 4780, auto_approve: true }));
        assert_eq!(settled.url.as_deref(), Some("http://127.0.0.1:4780/api/auth"));
    }

    #[test]
    fn a_development_idp_never_replaces_a_pinned_one() {
        let external = pin("https://id.example/api/auth");
        let choice = Choice::Development { auto_approve: false };
        assert!(
            settle(&choice, Some(&external), None, None, &space())
                .unwrap_err()
                .to_string()
                .contains("--dev-idp")
        );
    }

    #[test]
    fn a_first_development_idp_takes_a_free_port() {
        let choice = Choice::Development { auto_approve: false };
        let settled = settle(&choice, None, None, None, &space()).unwrap();
        assert!(settled.development.unwrap().port > 0);
    }

    #[test]
    fn a_development_idp_whose_pin_was_lost_is_named_again_on_its_port() {
        let choice = Choice::Development { auto_approve: false };
        let settled = settle(&choice, None, Some("http://127.0.0.1:4780/api/auth"), None, &space()).unwrap();
        assert_eq!(settled.development.unwrap().port, 4780);
    }
}
