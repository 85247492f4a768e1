//! Both kernels that judge: at once, since each machine waits much of its time, or in turn.

use portolan_lab::machine::{MachineError, Suite};

use crate::parallel::side_by_side;

/// Linux 6.1 and the newest of Debian's backports.
const SUITES: [Suite; 2] = [Suite::Bookworm, Suite::TrixieBackports];

/// What each kernel's judge says.
///
/// # Errors
/// The first kernel's whose machine could not do its work.
pub(crate) fn on_each<R: Send>(
    judge: impl Fn(Suite) -> Result<R, MachineError> + Sync,
) -> Result<Vec<R>, MachineError> {
    side_by_side(&SUITES, |suite| judge(*suite))
        .into_iter()
        .collect()
}

/// What each kernel's judge says, one after the other: programs that wait for their peer by spinning leave a processor
/// nothing.
///
/// # Errors
/// As [`on_each`].
pub(crate) fn on_each_in_turn<R>(
    judge: impl Fn(Suite) -> Result<R, MachineError>,
) -> Result<Vec<R>, MachineError> {
    SUITES.into_iter().map(judge).collect()
}
