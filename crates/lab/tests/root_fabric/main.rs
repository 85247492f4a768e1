//! Portolan on a simulated InfiniBand fabric, with OpenSM as its subnet manager and administrator.

mod on_the_fabric;

use portolan_lab::fabric::{Example, Fabric, Topology};
use portolan_lab::machine::{MachineError, Unavailable};

/// Returns a fabric, or `None` if this host cannot provide one. Then it prints the reason; under
/// continuous integration it fails.
fn fabric(topology: Topology) -> Option<Fabric> {
    available(Fabric::start(topology))
}

/// Like [`fabric`], for one of the simulator's examples.
fn example(example: Example) -> Option<Fabric> {
    available(example.topology().and_then(Fabric::start))
}

fn available(fabric: Result<Fabric, MachineError>) -> Option<Fabric> {
    match fabric {
        Ok(fabric) => Some(fabric),
        Err(MachineError::Unavailable(reason)) if !Unavailable::is_failure() => {
            eprintln!("left out: {reason}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}
