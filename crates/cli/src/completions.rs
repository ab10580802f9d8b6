//! `cotal completions`: a completion script on stdout.

use clap::CommandFactory;
use clap_complete::Shell;

use crate::{cli::Cli, outcome::CliError};

/// `cotal completions <shell>`
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  cotal completions bash > ~/.local/share/bash-completion/completions/cotal"
)]
pub struct CompletionsArgs {
    /// The shell.
    pub shell: Shell,
}

/// Prints the script.
pub fn run(args: &CompletionsArgs) -> Result<(), CliError> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "cotal", &mut script);
    std::io::Write::write_all(&mut std::io::stdout(), &script)?;
    Ok(())
}
