//! `cargo xtask`: the project's own tasks.

#![forbid(unsafe_code)]

mod crash_test;
mod demo;
#[cfg(test)]
mod dependencies;
mod dissect;
mod doc_examples;
mod drop_in;
mod fabric;
mod figures;
mod fuzz;
mod holder;
mod idle;
mod install;
mod interop;
mod kernel_events;
mod kernel_provider;
mod kernels;
mod leaks;
mod leftovers;
mod links;
mod loops;
mod namespace;
mod netem;
mod pairs;
mod parallel;
mod perf_gates;
mod processes;
mod programs;
mod promises;
mod public_api;
mod simulate;
mod stress;
mod test;
#[cfg(test)]
mod tidy;
mod vm;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Tasks of the project.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Run 64 processes that listen and ping, kill some all the time, and check that the others finish.
    Stress(stress::Arguments),
    /// Measure connections compared with librdmacm, and write the figures into docs/performance.md.
    Figures(figures::Arguments),
    /// Run the fuzz targets.
    Fuzz(fuzz::Arguments),
    /// Compare the public items of the crate `portolan` with docs/api.txt.
    Api(public_api::Arguments),
    /// Build and install the command, the libraries for C programs and their headers.
    Install(install::Arguments),
    /// Play all exchanges between Linux's rdma_rxe and our device, and write docs/interop.md.
    Interop(interop::Arguments),
    /// Print the files of a crate that use each other in a circle.
    Loops,
    /// Play Debian's C programs on our libraries, and write the table of docs/interop.md.
    Programs(programs::Arguments),
    /// Run whole engines on a virtual clock and a network determined by a seed.
    Simulate(simulate::Arguments),
    /// Run all checks of the project.
    Test(test::Arguments),
    /// Run one part of the tests and write its result to a file.
    #[command(hide = true)]
    Part(test::PartArguments),
    /// Write down how cargo starts a test program, as its runner.
    #[command(hide = true)]
    NoteRun(test::NoteRunArguments),
    /// Boot a kernel machine with rdma_rxe and run a script in it.
    Vm(vm::Arguments),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().task {
        Task::Stress(arguments) => stress::task(&arguments),
        Task::Figures(arguments) => figures::write(&arguments),
        Task::Fuzz(arguments) => fuzz::run(&arguments),
        Task::Api(arguments) => public_api::task(&arguments),
        Task::Install(arguments) => install::run(&arguments),
        Task::Interop(arguments) => interop::run(&arguments),
        Task::Loops => loops::task(),
        Task::Programs(arguments) => programs::run_all(&arguments),
        Task::Simulate(arguments) => simulate::run(&arguments),
        Task::Test(arguments) => test::run(&arguments),
        Task::Part(arguments) => test::run_part(&arguments),
        Task::NoteRun(arguments) => test::note_run(&arguments),
        Task::Vm(arguments) => vm::run(&arguments),
    };
    result.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}
