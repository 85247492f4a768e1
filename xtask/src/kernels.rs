//! Both kernels that judge, at once: each is a machine of one processor that waits much of its time.

use portolan_lab::machine::{MachineError, Suite};

use crate::lanes::side_by_side;

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
