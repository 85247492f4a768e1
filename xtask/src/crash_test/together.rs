//! One listener stays, and six at a time are killed at once, again and again: afterwards the one is idle, alone, and
//! the
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
/// Below those that the kernel gives out; the first is the survivor's.
const FIRST_PORT: u16 = 7480;

/// Kills them; returns the outcome.
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
        // Every other time half of them are stopped: what the holder has to tell them waits.
        let stopped = (round % 2) * victims.len() / 2;
        signal_all(victims.iter().take(stopped), Signal::STOP)?;
        signal_all(victims.iter(), Signal::KILL)?;
    }
    let idle = idle::check(portolan, &survivors)?;
    listen_all(&portolan).context("listeners where the dead had been")?;
    Ok(format!(
        "{ROUNDS} times {KILLED} listeners killed at once; {idle}"
    ))
}

/// A listener, once it listens.
fn listen(mut portolan: Command, port: u16) -> Result<Process> {
    let address = format!("127.0.0.1:{port}");
    portolan.args(["listen", &address, "--json"]);
    let speaker = Speaker::spawn(portolan, format!("listen {address}"), Stdio::inherit())?;
    let mut listener = Process::of(speaker);
    listener.await_line("listening")?;
    Ok(listener)
}

/// A listener at each of the ports but the survivor's.
fn listen_all(portolan: &impl Fn() -> Command) -> Result<Vec<Process>> {
    let ports = FIRST_PORT + 1..=FIRST_PORT + KILLED;
    ports.map(|port| listen(portolan(), port)).collect()
}

/// None is waited for before all have their signal.
fn signal_all<'a>(processes: impl Iterator<Item = &'a Process>, signal: Signal) -> Result<()> {
    for process in processes {
        kill_process(Pid::from_child(&process.speaker.child), signal)?;
    }
    Ok(())
}
