//! `doctor`: shows this machine's RDMA support, what would be used and why, and a remedy for each problem.
//!
//! * `facts`, `rules`: the gathered facts, as plain data.
//! * `gather`: gathers the facts; only this part accesses the machine.
//! * `judge`: derives `finding`s from facts; pure.
//! * `print`, `object`: output for people and for machines (docs/doctor.md).

mod facts;
mod finding;
mod gather;
mod judge;
mod object;
mod print;
mod rules;

use std::time::Duration;

use anyhow::Result;

use crate::args::DoctorArgs;
use crate::exit::Outcome;
use crate::output::Output;
use facts::Owner;
use finding::Severity;

/// Checks the machine and prints the findings.
///
/// # Errors
///
/// The output cannot be written. Facts that cannot be read are reported as such, not as an error.
pub(crate) fn run(args: &DoctorArgs, output: &mut Output) -> Result<Outcome> {
    let facts = gather::gather(args.destination.as_deref(), args.timeout);
    let found = judge::judge(&facts);
    if output.json {
        output.object(&object::object(&facts, &found))?;
    } else {
        print::print(&facts, &found, output)?;
    }
    output.flush()?;
    let is_problem = |severity: Severity| severity == Severity::Problem;
    Ok(match found.iter().any(|found| is_problem(found.severity)) {
        true => Outcome::CheckFailed,
        false => Outcome::Good,
    })
}

/// The process that has the UDP port without sharing it, as a text. `None` if no process has it, or a group shares it.
pub(crate) fn foreign_holder(timeout: Duration) -> Option<String> {
    let port = gather::port(timeout);
    let mut sockets = port.sockets.iter().filter(|_| port.group.is_none());
    sockets.find_map(|socket| match &socket.owner {
        Owner::Process { pid, program } => Some(format!(
            "process {pid} ({}) of user {}",
            program.escape_debug(),
            socket.uid
        )),
        Owner::Unknown if socket.uid != 0 => Some(format!("a process of user {}", socket.uid)),
        // The kernel's rdma_rxe, whose socket is root's: no process.
        Owner::Kernel | Owner::Unknown => None,
    })
}
