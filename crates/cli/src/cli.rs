//! The command line: every command, its help and how a line that does not parse is told.

use std::ffi::OsString;

use clap::{
    CommandFactory, FromArgMatches, Parser, Subcommand,
    error::{ContextKind, ContextValue, ErrorKind},
};

use crate::{
    actor::ActorArgs,
    agent_bearer::AgentBearerArgs,
    auth::AuthArgs,
    auth_service::AuthServiceArgs,
    completions::CompletionsArgs,
    delivery::DeliveryArgs,
    detach::DetachArgs,
    dev_idp::DevIdpArgs,
    doctor::DoctorArgs,
    down::DownArgs,
    login::{LoginArgs, LogoutArgs},
    manager::ManagerArgs,
    repair::{DeregisterArgs, ReconcileArgs},
    status::StatusArgs,
    up::UpArgs,
};

const EXAMPLES: &str = "\
Examples:
  cotal up --user-auth --dev-idp             a space on this machine, with a development IdP
  cotal login --idp <auth base URL>          sign in
  cotal actor grant cli --sub <subject> --scope '' --allow-subscribe general --allow-publish general
  cotal status
  cotal down

Exit codes: 0 done, 1 refused or failed, 2 rate limited (try again later).";

/// Run and operate the auth service of a Cotal space.
#[derive(Debug, Parser)]
#[command(name = "cotal", version, after_help = EXAMPLES, arg_required_else_help = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Every command.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Bring up a space: broker, streams, delivery daemon, auth service.
    Up(UpArgs),
    /// Stop what `up` started.
    Down(DownArgs),
    /// Show what runs, who is logged in and what is granted.
    Status(StatusArgs),
    /// Run the auth service of a space in the foreground.
    AuthService(AuthServiceArgs),
    /// Run the delivery daemon of a space in the foreground.
    Delivery(DeliveryArgs),
    /// Say how credentials stand, and mend them.
    Doctor(DoctorArgs),
    /// Sign in at an identity provider.
    Login(LoginArgs),
    /// Sign out and forget the session.
    Logout(LogoutArgs),
    /// Explain why an actor gets in or does not; watch who connects.
    Auth(AuthArgs),
    /// Grant, revoke and list actors.
    Actor(ActorArgs),
    /// Act as a manager that holds no signing key.
    Manager(ManagerArgs),
    /// Repair the gate of a service instance that died while it registered.
    ReconcileGate(ReconcileArgs),
    /// Take a service instance that is gone out of the registry.
    DeregisterInstance(DeregisterArgs),
    /// Print a fresh bearer for a managed agent (for machines).
    AgentBearer(AgentBearerArgs),
    /// Run the development identity provider in the foreground. Not for production.
    DevIdp(DevIdpArgs),
    /// Print a completion script for a shell.
    Completions(CompletionsArgs),
    /// Start a program in a session of its own. For `up`.
    #[command(hide = true)]
    Detach(DetachArgs),
}

/// The flag of every reporting command.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
pub struct Output {
    /// Print one JSON document on stdout, errors included.
    #[arg(long)]
    pub json: bool,
}

/// A line that runs nothing.
#[derive(Debug)]
pub enum NotRun {
    /// Help or the version was asked for.
    Shown(String),
    /// A usage error.
    Usage(String),
}

impl Command {
    /// The space that a person's command is about, as it was named: what it offers to type next is about that one too.
    /// Of `agent-bearer` a machine reads what the contract says to the letter.
    pub fn space(&self) -> Option<&str> {
        match self {
            Self::Up(args) => Some(&args.space),
            Self::Down(args) => args.space.as_deref(),
            Self::Status(args) => Some(&args.space),
            Self::AuthService(args) => args.space.as_deref(),
            Self::Delivery(args) => Some(&args.space),
            Self::Doctor(args) => Some(args.space()),
            Self::Auth(args) => args.space(),
            Self::Actor(args) => Some(args.space()),
            Self::Manager(args) => Some(args.space()),
            Self::ReconcileGate(args) => Some(&args.at.space),
            Self::DeregisterInstance(args) => Some(&args.at.space),
            Self::Login(_)
            | Self::Logout(_)
            | Self::AgentBearer(_)
            | Self::DevIdp(_)
            | Self::Completions(_)
            | Self::Detach(_) => None,
        }
    }

    /// Whether JSON was asked for.
    pub fn json(&self) -> bool {
        match self {
            Self::Up(args) => args.output.json,
            Self::Down(args) => args.output.json,
            Self::Status(args) => args.output.json,
            Self::Login(args) => args.output.json,
            Self::Logout(args) => args.output.json,
            Self::Actor(args) => args.output().json,
            Self::Doctor(args) => args.output().json,
            Self::Auth(args) => args.output().json,
            Self::Manager(args) => args.output().json,
            Self::ReconcileGate(args) => args.at.output.json,
            Self::DeregisterInstance(args) => args.at.output.json,
            Self::AuthService(_)
            | Self::Delivery(_)
            | Self::AgentBearer(_)
            | Self::DevIdp(_)
            | Self::Completions(_)
            | Self::Detach(_) => false,
        }
    }
}

/// Reads a command line, program name first.
pub fn parse(arguments: Vec<OsString>) -> Result<Command, NotRun> {
    parse_as(unbroken(Cli::command()), arguments)
}

fn parse_as(mut command: clap::Command, arguments: Vec<OsString>) -> Result<Command, NotRun> {
    let cli = command
        .try_get_matches_from_mut(arguments)
        .and_then(|mut matches| Cli::from_arg_matches_mut(&mut matches))
        .map_err(|error| error.format(&mut command));
    match cli {
        Ok(cli) => Ok(cli.command),
        Err(error) => Err(match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => NotRun::Shown(rendered(&error)),
            _ => NotRun::Usage(repeated(&error).unwrap_or_else(|| usage(&error))),
        }),
    }
}

/// A blank of an example, as clap gets it: it breaks lines at blanks, and half of a command is another command. [`rendered`]
/// makes it a blank again.
const UNBROKEN: char = '\u{a0}';

/// The same command, whose examples stand on one line each however narrow the terminal is.
fn unbroken(command: clap::Command) -> clap::Command {
    let after = command.get_after_help().map(ToString::to_string);
    let command = match after {
        Some(text) => {
            let lines = text.lines().map(|line| match line.strip_prefix("  ") {
                Some(example) => format!("  {example}").replace(' ', &UNBROKEN.to_string()),
                None => line.to_owned(),
            });
            command.after_help(lines.collect::<Vec<_>>().join("\n"))
        }
        None => command,
    };
    command.mut_subcommands(unbroken)
}

fn rendered(error: &clap::Error) -> String {
    error.render().to_string().replace(UNBROKEN, " ")
}

/// The sentence for a flag that is given twice (contract 08 §3.1, release 0.59.0).
fn repeated(error: &clap::Error) -> Option<String> {
    if error.kind() != ErrorKind::ArgumentConflict {
        return None;
    }
    let Some(ContextValue::String(argument)) = error.get(ContextKind::InvalidArg) else { return None };
    let prior = match error.get(ContextKind::PriorArg)? {
        ContextValue::String(prior) => prior,
        ContextValue::Strings(priors) => priors.first()?,
        _ => return None,
    };
    let flag = argument.split_whitespace().next()?;
    (argument == prior).then(|| format!("Option '{flag}' cannot be repeated"))
}

fn usage(error: &clap::Error) -> String {
    let text = rendered(error);
    text.strip_prefix("error: ").unwrap_or(&text).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use cotal_wire::Space;
    use cotal_workspace::printed;

    use super::*;

    fn line(words: &str) -> Result<Command, NotRun> {
        parse(words.split(' ').map(OsString::from).collect())
    }

    fn usage_of(words: &str) -> String {
        match line(words) {
            Err(NotRun::Usage(text)) => text,
            other => panic!("{words}: {other:?}"),
        }
    }

    #[test]
    fn the_command_line_holds_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_has_help_with_an_example() {
        for command in Cli::command().get_subcommands().filter(|c| !c.is_hide_set()) {
            let Err(NotRun::Shown(help)) = line(&format!("cotal {} --help", command.get_name())) else {
                panic!("{} has no help", command.get_name());
            };
            assert!(help.contains("Example"), "{} shows no example", command.get_name());
        }
    }

    #[test]
    fn an_example_is_one_line_on_a_narrow_terminal() {
        let mut examples = 0;
        for (mut path, command) in commands(&Cli::command(), &[]) {
            let Some(after) = command.get_after_help().map(ToString::to_string) else { continue };
            path.push("--help".to_owned());
            let narrow = unbroken(Cli::command()).term_width(40);
            let Err(NotRun::Shown(help)) = parse_as(narrow, path.iter().map(OsString::from).collect()) else {
                panic!("{path:?} has no help");
            };
            for example in after.lines().filter(|line| line.starts_with("  ")) {
                assert!(help.lines().any(|line| line == example), "{path:?}: {example:?} in\n{help}");
                examples += 1;
            }
        }
        assert!(examples > 20, "only {examples} examples");
    }

    #[test]
    fn a_flag_given_twice_is_a_usage_error() {
        for (words, flag) in [
            ("cotal up --user-auth --space a --space b", "--space"),
            ("cotal up --user-auth --user-auth", "--user-auth"),
            ("cotal status --json --json", "--json"),
            ("cotal login --idp https://a --idp https://b", "--idp"),
            ("cotal actor list --space a --space b", "--space"),
        ] {
            assert_eq!(usage_of(words), format!("Option '{flag}' cannot be repeated"), "{words}");
        }
    }

    #[test]
    fn two_identity_providers_are_a_usage_error_of_another_kind() {
        assert!(usage_of("cotal up --user-auth --idp https://a --dev-idp").contains("cannot be used with"));
    }

    /// Every command with its path, subcommands included.
    fn commands(of: &clap::Command, path: &[String]) -> Vec<(Vec<String>, clap::Command)> {
        let path = [path, &[of.get_name().to_owned()]].concat();
        let below = of.get_subcommands().flat_map(|command| commands(command, &path));
        std::iter::once((path.clone(), of.clone())).chain(below).collect()
    }

    /// What is given may carry credentials that are refused only later.
    #[test]
    fn no_url_that_was_given_is_printed_with_what_was_parsed() {
        const GIVEN: &str = "nats://u:s3cret@h";
        let mut flags = 0;
        for (path, command) in commands(&Cli::command(), &[]) {
            let is_url =
                |arg: &&clap::Arg| arg.get_value_names().is_some_and(|names| names[0].as_str() == "URL");
            for url in command.get_arguments().filter(is_url) {
                let flag = format!("--{}", url.get_long().unwrap());
                let words = path.iter().chain([&flag]).map(String::as_str).chain([GIVEN]);
                let parsed = parse(words.map(OsString::from).collect());
                assert!(parsed.is_ok(), "{path:?} {flag}");
                let printed = format!("{parsed:?}");
                assert!(!printed.contains("s3cret"), "{printed}");
                flags += 1;
            }
        }
        assert!(flags >= 15, "only {flags} flags take a URL");
        let detached = line("cotal detach -- cotal delivery --server nats://u:s3cret@h");
        assert!(!format!("{detached:?}").contains("s3cret"));
    }

    #[test]
    fn every_command_of_a_space_says_which_one_it_is_about() {
        let lines = [
            "up --user-auth",
            "down",
            "status",
            "auth-service",
            "delivery",
            "doctor auth",
            "auth explain --actor cli",
            "auth watch",
            "actor grant cli",
            "actor revoke cli",
            "actor list",
            "manager remote-check",
            "reconcile-gate --endpoint manager --instance i",
            "deregister-instance --endpoint manager --instance i",
        ];
        for words in lines {
            let command =
                line(&format!("cotal {words} --space q")).unwrap_or_else(|e| panic!("{words}: {e:?}"));
            assert_eq!(command.space(), Some("q"), "{words}");
            let hint = format!("`cotal {}`", words.split(" --").next().unwrap_or_default());
            let named = printed::naming(&hint, &Space::parse("q").unwrap());
            assert!(named.ends_with(" --space 'q'`"), "{named}");
        }
        let of_a_space = commands(&Cli::command(), &[])
            .into_iter()
            .filter(|(_, command)| command.get_arguments().any(|argument| argument.get_id() == "space"))
            .filter(|(_, command)| command.get_name() != "agent-bearer");
        assert_eq!(of_a_space.count(), lines.len());
    }

    #[test]
    fn an_unknown_command_or_flag_is_a_usage_error() {
        assert!(usage_of("cotal whoami").contains("whoami"));
        assert!(usage_of("cotal status --colour").contains("--colour"));
    }
}
