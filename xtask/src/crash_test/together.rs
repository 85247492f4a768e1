//! One listener stays while six others are killed at once, repeatedly. Afterwards it is alone and idle, and the
//! others' ports are free.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};

use super::Process;
use crate::idle;
use crate::namespace::Namespace;
use crate::processes::Speaker;
use crate::test::Workspace;

const ROUNDS: usize = 60;
const KILLED: u16 = 6;
/// Below the ports that the kernel allocates. The first one is the survivor's.
const FIRST_PORT: u16 = 7480;

/// Runs the rounds and describes the result.
pub(super) fn run(workspace: &Workspace) -> Result<String> {
    let namespace = Namespace::new(workspace.is_root)?;
    let portolan = || -> Command {
        let mut command = namespace.command();
        command.arg(&workspace.portolan);
        command
    };
    let survivor = listen(portolan(), FIRST_PORT)?;
    let survivors = BTreeSet::from([survivor.speaker.child.id()]);
    for round in 0..ROUNDS {
        let victims = listen_all(&portolan).with_context(|| format!("round {}", round + 1))?;
        // In every other round half of them are stopped first, so that the holder's messages to them wait.
        let stopped = (round % 2) * victims.len() / 2;
        signal_all(victims.iter().take(stopped), Signal::STOP)?;
        signal_all(victims.iter(), Signal::KILL)?;
    }
    let idle = idle::check(portolan, &survivors)?;
    listen_all(&portolan).context("listeners on the victims' ports")?;
    Ok(format!(
        "{ROUNDS} times {KILLED} listeners killed at once; {idle}"
    ))
}

/// Starts a listener and waits until it listens.
fn listen(mut portolan: Command, port: u16) -> Result<Process> {
    let address = format!("127.0.0.1:{port}");
    portolan.args(["listen", &address, "--json"]);
    let speaker = Speaker::spawn(portolan, format!("listen {address}"), Stdio::inherit())?;
    let mut listener = Process::of(speaker);
    listener.await_line("listening")?;
    Ok(listener)
}

/// A listener on every port except the survivor's.
fn listen_all(portolan: &impl Fn() -> Command) -> Result<Vec<Process>> {
    let ports = FIRST_PORT + 1..=FIRST_PORT + KILLED;
    ports.map(|port| listen(portolan(), port)).collect()
}

/// Sends all signals before any process is waited for.
fn signal_all<'a>(processes: impl Iterator<Item = &'a Process>, signal: Signal) -> Result<()> {
    for process in processes {
        kill_process(Pid::from_child(&process.speaker.child), signal)?;
    }
    Ok(())
}
