//! The `cotal` command.

fn main() -> std::process::ExitCode {
    cotal::main(std::env::args_os().collect())
}
