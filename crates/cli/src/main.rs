//! The `portolan` command.

#![forbid(unsafe_code)]

mod args;
mod capture;
mod commands;
mod decode;
mod exit;
mod interrupt;
mod ladder;
mod latency;
mod output;
mod record;
mod rping;
mod stack;
mod terminal;
mod text;

use std::io::{self, BufWriter};
use std::process::{ExitCode, Termination};

use anyhow::{Result, bail};
use clap::Parser;
use portolan::provider::Choice;

use args::{Cli, Command};
use exit::Outcome;
use output::Output;
use terminal::Theme;

fn main() -> ExitCode {
    let cli = stack::large_enough(Cli::parse);
    match cli.command {
        // They enter a user namespace, which is impossible for a process with several threads.
        Command::Exec(_) | Command::ExecTrial => finish(&cli),
        _ => stack::large_enough(|| finish(&cli)),
    }
}

/// Runs the command and prints a failure.
fn finish(cli: &Cli) -> ExitCode {
    match run(cli) {
        Ok(outcome) => outcome.report(),
        // The reader of our output closed it, which is not worth reporting.
        Err(error) if is_broken_pipe(&error) => ExitCode::from(exit::ERROR),
        Err(error) => {
            commands::complain(&error);
            ExitCode::from(exit::ERROR)
        }
    }
}

fn run(cli: &Cli) -> Result<Outcome> {
    let global = &cli.global;
    let always_software = match &cli.command {
        Command::Demo(_) => Some("demo"),
        Command::Bench(_) => Some("bench"),
        _ => None,
    };
    let pinned = match (always_software, global.provider) {
        (Some(name), Some(Choice::Kernel)) => {
            bail!("`{name}` always uses the software device; omit --provider kernel")
        }
        (Some(_), _) => Some(Choice::Software),
        (None, given) => given,
    };
    if let Some(choice) = pinned {
        portolan::provider::pin(Some(choice));
    }
    let theme = Theme::for_stdout(global.color, global.ascii);
    let stdout = Box::new(BufWriter::new(io::stdout()));
    let mut output = Output::new(stdout, theme, global.json, global.verbose);
    let outcome = match &cli.command {
        Command::Bench(command) => commands::bench(command, &mut output),
        Command::BenchPeer => commands::bench_peer(),
        Command::CcEnv(args) => commands::cc_env(args, &mut output),
        Command::Decode(args) => decode::run(&args.file, args.trace, &mut output),
        Command::Demo(args) => commands::demo(args, &mut output),
        Command::DemoPeer => commands::demo_peer(),
        Command::Devices(args) => commands::devices(args, &mut output),
        Command::Doctor(args) => commands::doctor(args, &mut output),
        Command::Events(args) => commands::events(args, &mut output),
        Command::Exec(args) => commands::exec(args, global.provider, &mut output),
        Command::ExecTrial => commands::exec_trial(),
        Command::Listen(args) if args.ud => commands::listen_datagrams(args, &mut output),
        Command::Listen(args) => commands::listen(args, &mut output),
        Command::Mcast(args) => commands::mcast(args, &mut output),
        Command::Path(args) => commands::path(args, &mut output),
        Command::Ping(args) if args.ud => commands::ping_datagrams(args, &mut output),
        Command::Ping(args) => commands::ping(args, &mut output),
        Command::Ps(args) => commands::ps(args, &mut output),
        Command::Reach(args) => commands::reach(args, &mut output),
        Command::Resolve(args) => commands::resolve(args, &mut output),
        Command::Service(args) => commands::service(args, &mut output),
    }?;
    // Failing to write output is an error of every command.
    output.flush()?;
    Ok(outcome)
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
