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

use anyhow::Result;

use crate::args::DoctorArgs;
use crate::exit::Outcome;
use crate::output::Output;
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
