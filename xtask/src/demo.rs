//! Runs the demo as an ordinary user.

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use portolan_lab::own_network;

use crate::test::{Outcome, Workspace};

/// `nobody`, used if the tests run as root.
const ORDINARY_USER: u32 = 65_534;
/// The README's promise.
const DEMO_TIME_MAX: Duration = Duration::from_secs(5);

pub(crate) fn run(workspace: &Workspace) -> Result<Outcome> {
    own_network::enter();
    // An ordinary user may be unable to read the folder of root's build.
    let folder = std::env::temp_dir().join(format!("portolan-demo-{}", std::process::id()));
    // Never use an existing folder: its owner could replace the program.
    std::fs::create_dir(&folder)?;
    let program = folder.join("portolan");
    std::fs::copy(&workspace.portolan, &program).context("the command is not built")?;
    let ran = demo(workspace, &program);
    std::fs::remove_dir_all(&folder)?;
    let took = ran?;
    if took > DEMO_TIME_MAX {
        bail!(
            "the demo took {:.1} s, the limit is {DEMO_TIME_MAX:?}",
            took.as_secs_f64()
        );
    }
    let user = if workspace.is_root {
        " as an ordinary user"
    } else {
        ""
    };
    Ok(Outcome::Passed(format!(
        "{:.2} s{user}",
        took.as_secs_f64()
    )))
}

fn demo(workspace: &Workspace, program: &std::path::Path) -> Result<Duration> {
    let mut command = Command::new(program);
    command.arg("demo").stdin(Stdio::null()).current_dir("/");
    if workspace.is_root {
        command.uid(ORDINARY_USER).gid(ORDINARY_USER);
    }
    let started = Instant::now();
    let status = command.status().context("cannot start the demo")?;
    if !status.success() {
        bail!("the demo ended with {status}");
    }
    Ok(started.elapsed())
}
