//! Checks that processes that share the UDP port are idle, and that no others are listed.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::holder::{self, Sharers};
use crate::test::processor_time;

/// Time limit for the holder to notice deaths, and for the others to finish their work.
const SETTLE_TIME_MAX: Duration = Duration::from_secs(20);
const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// How long to watch processor time.
const WATCHED: Duration = Duration::from_secs(4);
/// Maximum clock ticks (hundredths of a second) of an idle process in that time.
const TICKS_MAX: u64 = 1;

/// Observations of an idle group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Idle {
    pub(crate) processes: usize,
    /// Clock ticks of the busiest process.
    pub(crate) ticks: u64,
}

impl std::fmt::Display for Idle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { processes, ticks } = self;
        let seconds = WATCHED.as_secs();
        write!(
            f,
            "then {processes} listed, and at most {ticks} ticks of each in {seconds} idle seconds"
        )
    }
}

/// Waits until exactly these processes share the port and answer, then checks that they are idle. `portolan` is
/// the command to run among them.
pub(crate) fn check(portolan: impl Fn() -> Command, expected: &BTreeSet<u32>) -> Result<Idle> {
    let deadline = Instant::now() + SETTLE_TIME_MAX;
    loop {
        let sharers = holder::sharers(portolan())?;
        if sharers.as_ref().is_some_and(|s| are(s, expected)) {
            break;
        }
        ensure!(
            Instant::now() < deadline,
            "processes {expected:?} are alive, but `ps` lists {sharers:?}"
        );
        thread::sleep(LOOK_AGAIN);
    }
    loop {
        let before = ticks(expected)?;
        thread::sleep(WATCHED);
        let after = ticks(expected)?;
        let taken = before
            .iter()
            .zip(&after)
            .map(|(before, after)| after - before);
        let most = taken.max().unwrap_or_default();
        if most <= TICKS_MAX {
            return Ok(Idle {
                processes: expected.len(),
                ticks: most,
            });
        }
        ensure!(
            Instant::now() < deadline,
            "processes {expected:?} took {before:?} ticks, and {after:?} after {WATCHED:?} without work"
        );
    }
}

/// Whether exactly the expected processes are listed, and all answer.
fn are(sharers: &Sharers, expected: &BTreeSet<u32>) -> bool {
    let answer = sharers.members.iter().all(|member| member.answered);
    let listed: Vec<u32> = sharers.members.iter().map(|member| member.pid).collect();
    answer && listed.len() == expected.len() && listed.iter().all(|pid| expected.contains(pid))
}

/// Processor time of each process, in clock ticks.
fn ticks(pids: &BTreeSet<u32>) -> Result<Vec<u64>> {
    let ticks = |pid: &u32| {
        let path = format!("/proc/{pid}/stat");
        let stat = fs::read_to_string(&path).with_context(|| path.clone())?;
        processor_time::ticks(&stat).context(path)
    };
    pids.iter().map(ticks).collect()
}
