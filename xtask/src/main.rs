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
#[command(name = "cargo xtask")]
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
