//! Developer commands, run as `cargo xtask <command>`: one file each.

mod bench;
mod demo;
mod fuzz;
mod nats_server;
mod repository;
mod scan;
mod step;
mod test;
mod witnesses;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Developer commands of the Cotal auth service.
#[derive(Debug, Parser)]
#[command(
    name = "cargo xtask",
    after_help = "\
Examples:
  cargo xtask demo                 the main job, end to end
  cargo xtask test                 everything that must hold
  cargo xtask bench connect --quick"
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the main job end to end against real processes, with narration, and clean up.
    Demo(demo::Arguments),
    /// Run everything that must hold: format, lints, docs, unit, integration and doc tests.
    Test(test::Arguments),
    /// Measure; JSON on stdout.
    Bench(bench::Arguments),
    /// Run the fuzz targets.
    Fuzz(fuzz::Arguments),
    /// Install the pinned nats-server that the tests and the demo run.
    NatsServer(nats_server::Arguments),
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Demo(arguments) => demo::run(&arguments),
        Command::Test(arguments) => test::run(&arguments),
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Fuzz(arguments) => fuzz::run(&arguments),
        Command::NatsServer(arguments) => nats_server::run(&arguments),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    /// This command and every one below it.
    fn all(command: &clap::Command) -> Vec<clap::Command> {
        let below = command.get_subcommands().filter(|below| below.get_name() != "help").flat_map(all);
        std::iter::once(command.clone()).chain(below).collect()
    }

    #[test]
    fn the_help_of_every_command_has_examples_that_are_commands() {
        for mut command in all(&Arguments::command()) {
            let help = command.render_help().to_string();
            let (_, examples) = help.split_once("Examples:\n").unwrap_or_else(|| panic!("{help}"));
            for line in examples.lines() {
                let words = line.split("cargo xtask ").nth(1).unwrap_or_else(|| panic!("{line}"));
                // What the example says of itself stands behind two spaces.
                let words = words.split("  ").next().unwrap_or_default();
                let parsed = Arguments::try_parse_from(["cargo xtask"].into_iter().chain(words.split(' ')));
                assert!(parsed.is_ok(), "{line}");
            }
        }
    }
}
