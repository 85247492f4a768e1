//! Portolan on a simulated InfiniBand fabric, with OpenSM as its subnet manager and administrator.

mod on_the_fabric;

use portolan_lab::fabric::{Fabric, Topology};
use portolan_lab::machine::{MachineError, Unavailable};

/// A fabric, or nothing where this host cannot provide one; then the reason is printed, and under continuous
/// integration that is a failure.
fn fabric(topology: Topology) -> Option<Fabric> {
    match Fabric::start(topology) {
        Ok(fabric) => Some(fabric),
        Err(MachineError::Unavailable(reason)) if !Unavailable::is_failure() => {
            eprintln!("left out: {reason}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}
