//! Two machines at once, joined by a wire.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;

use super::wire::{FirstEnd, Link, Wire, WireEnd};
use super::{Job, Machine, MachineError, Outcome, qemu};

/// Runs a job in each of two machines. The results are in the order of the jobs. Each has its own
/// result, even if the other failed.
pub(crate) fn run_pair(
    machine: &Machine,
    jobs: [&Job; 2],
    wire: Wire,
) -> Result<[Result<Outcome, MachineError>; 2], MachineError> {
    let (first, second) =
        UnixStream::pair().map_err(MachineError::io("create", Path::new("wire")))?;
    let first_end = FirstEnd::default();
    let end = |socket, number| WireEnd {
        socket,
        wire,
        number,
        first_end: &first_end,
    };
    let run = |job: &Job, end: WireEnd<'_>| {
        let outcome = qemu::run(machine, job, Link::Machine(&end), &mut io::sink());
        end.first_end.note();
        outcome
    };
    let (first, second) = thread::scope(|scope| {
        let run = &run;
        let (first, second) = (end(first, 1), end(second, 2));
        let other = scope.spawn(move || run(jobs[1], second));
        (run(jobs[0], first), other.join())
    });
    let second = second.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    Ok([first, second])
}
