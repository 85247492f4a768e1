//! Two of our hosts on a network that loses and reorders packets.

use anyhow::Result;
use portolan_lab::judge;
use portolan_lab::machine::{Cache, MachineError};

use crate::test::{Outcome, Workspace};

pub(crate) fn run(workspace: &Workspace) -> Result<Outcome> {
    let rdma_write = workspace.target.join("release/portolan-rdma-write");
    let cache = Cache::locate()?;
    match judge::bad_network(&cache, &workspace.portolan, &rdma_write) {
        Ok(report) => {
            println!("{report}");
            anyhow::ensure!(report.passed(), "checks failed, see above");
            Ok(Outcome::Passed(
                "1000 pings, 64 MiB, each over 3 kinds of address".into(),
            ))
        }
        Err(MachineError::Unavailable(unavailable)) => {
            Ok(Outcome::LeftOut(unavailable.to_string()))
        }
        Err(error) => Err(error.into()),
    }
}
