//! The same scenarios played by librdmacm and by the library over both providers, in kernel machines.

use anyhow::{Context, Result, anyhow, ensure};
use portolan_lab::judge;
use portolan_lab::machine::{Cache, MachineError};

use crate::kernels;
use crate::test::{Outcome, Workspace, lab_program};

/// The document with the table of differences, below the workspace's root.
const DOCUMENTED: &str = "docs/compatibility.md";

pub(crate) fn run(workspace: &Workspace) -> Result<Outcome> {
    if !workspace.is_root {
        let why = "it boots a kernel machine whose packages root installs";
        return Ok(Outcome::LeftOut(why.into()));
    }
    let play = lab_program(workspace, "play")?;
    let documented = std::fs::read_to_string(workspace.root.join(DOCUMENTED))
        .with_context(|| format!("cannot read {DOCUMENTED}"))?;
    let cache = Cache::locate()?;
    let judged = match kernels::on_each(|debian| judge::events(&cache, debian, &play)) {
        Ok(judged) => judged,
        Err(MachineError::Unavailable(unavailable)) => {
            return Ok(Outcome::LeftOut(unavailable.to_string()));
        }
        Err(error) => return Err(error.into()),
    };
    let (mut judges, mut found, mut all_passed) = (Vec::new(), Vec::new(), true);
    for (report, differences) in judged {
        found.extend(differences);
        println!("{report}");
        all_passed &= report.passed();
        judges.push(format!("Linux {}", report.kernel_release));
    }
    ensure!(
        all_passed,
        "scenarios were not played to their end, see above"
    );
    let known = judge::documented(&documented, &found);
    let known = known.map_err(|why| anyhow!("{DOCUMENTED} differs from the findings: {why}"))?;
    println!("{DOCUMENTED}: {known}");
    Ok(Outcome::Passed(judges.join(", ")))
}
