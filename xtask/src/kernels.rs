//! Runs a judge on both kernels: in parallel, since machines wait much of their time, or one after the other.

use portolan_lab::machine::{MachineError, Suite};

use crate::parallel::side_by_side;

/// Linux 6.1, and the newest kernel of Debian's backports.
const SUITES: [Suite; 2] = [Suite::Bookworm, Suite::TrixieBackports];

/// Runs a judge on each kernel in parallel.
///
/// # Errors
/// The first failure of a kernel's machine.
pub(crate) fn on_each<R: Send>(
    judge: impl Fn(Suite) -> Result<R, MachineError> + Sync,
) -> Result<Vec<R>, MachineError> {
    side_by_side(&SUITES, |suite| judge(*suite))
        .into_iter()
        .collect()
}

/// Runs a judge on each kernel, one after the other. For programs that spin while they wait for their peer and
/// leave no processor time to others.
///
/// # Errors
/// As for [`on_each`].
pub(crate) fn on_each_in_turn<R>(
    judge: impl Fn(Suite) -> Result<R, MachineError>,
) -> Result<Vec<R>, MachineError> {
    SUITES.into_iter().map(judge).collect()
}
