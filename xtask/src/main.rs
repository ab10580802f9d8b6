//! Developer commands, run as `cargo xtask <command>`: one file each.

mod nats_server;
mod repository;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Developer commands of the Cotal auth service.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Install the pinned nats-server that the tests and the demo run.
    NatsServer(nats_server::Arguments),
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
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
