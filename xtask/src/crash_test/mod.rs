//! Three pairs of `listen` and `ping` in six processes. Each of the six is killed in turn, so the holder of the
//! UDP port is among them; then two at once. The other pairs must not lose a ping.

mod together;

use std::ops::RangeInclusive;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::mpsc::RecvTimeoutError;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use portolan_lab::own_network;
use serde_json::Value;

use crate::holder;
use crate::namespace::{self, Namespace};
use crate::processes::Speaker;
use crate::test::{Outcome, Workspace};

const ADDRESSES: [&str; 3] = ["127.0.0.1:7471", "127.0.0.1:7472", "127.0.0.1:7473"];
/// Two victims at once, from two pairs: the first listener, which holds the port, with another listener and
/// with a ping.
const VICTIMS_AT_ONCE: [[usize; 2]; 2] = [[0, 1], [0, 5]];
/// Pings of each pair in a round: as many as one pair alone makes in [`PINGS_TIME`], within these bounds.
const PINGS: RangeInclusive<u64> = 4_000..=20_000;
const PINGS_TIME: Duration = Duration::from_secs(1);
/// Number of pings for measuring that.
const PINGS_TIMED: u64 = 1_000;
/// The kill happens when the fastest pair has made this many of [`PARTS`] parts of its pings.
const PARTS_BEFORE: u64 = 3;
const PARTS: u64 = 5;
/// Time limit for a process to report that it listens or is connected.
const START_TIME_MAX: Duration = Duration::from_secs(20);
/// Time limit for the time until the kill.
const HALF_WAY_TIME_MAX: Duration = Duration::from_secs(120);
/// Time limit for all processes to end after the kill.
const END_TIME_MAX: Duration = Duration::from_secs(30);
const LOOK_AGAIN: Duration = Duration::from_millis(5);

pub(crate) fn run(workspace: &Workspace) -> Result<Outcome> {
    own_network::enter();
    let together = match Namespace::is_possible(workspace.is_root)? {
        true => together::run(workspace).context("listeners killed at once")?,
        false => format!("no listeners killed at once: {}", namespace::UNAVAILABLE),
    };
    println!("{together}");
    let pings = pings_of_a_round(&workspace.portolan).context("measuring the speed of pings")?;
    let mut longest = 0.0_f64;
    let mut holders = 0;
    let single = (0..2 * ADDRESSES.len()).map(|victim| vec![victim]);
    let deaths: Vec<_> = single.chain(VICTIMS_AT_ONCE.map(Vec::from)).collect();
    for victims in &deaths {
        let round = round(&workspace.portolan, victims, pings)
            .with_context(|| format!("the death of {}", names(victims)))?;
        println!("{round}");
        longest = longest.max(round.longest_gap_ms);
        holders += u32::from(round.was_holder);
    }
    ensure!(holders > 0, "the holder of the port was never killed");
    Ok(Outcome::Passed(format!(
        "{together}; {} times one or two of three pairs killed, the port's holder \
         among them, each amid 3 x {pings} pings; longest gap {longest:.1} ms",
        deaths.len()
    )))
}

/// The victims by number: the listeners come first.
fn name(victim: usize) -> String {
    let side = if victim < ADDRESSES.len() {
        "listen"
    } else {
        "ping"
    };
    format!("{side} of {}", ADDRESSES[victim % ADDRESSES.len()])
}

fn names(victims: &[usize]) -> String {
    let names: Vec<_> = victims.iter().map(|victim| name(*victim)).collect();
    names.join(" and ")
}

/// The result of a round.
struct Round {
    victims: String,
    was_holder: bool,
    longest_gap_ms: f64,
    bereaved: Duration,
    complaint: String,
}

impl std::fmt::Display for Round {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let holder = if self.was_holder {
            ", which held the port"
        } else {
            ""
        };
        write!(
            f,
            "killed {}{holder}: the others' longest gap {:.1} ms; a peer ended after {:.2} s: {}",
            self.victims,
            self.longest_gap_ms,
            self.bereaved.as_secs_f64(),
            self.complaint
        )
    }
}

/// Number of pings that take about [`PINGS_TIME`].
fn pings_of_a_round(portolan: &Path) -> Result<u64> {
    let [address, ..] = ADDRESSES;
    let mut listener = Process::start(portolan, &["listen", address, "--once", "--json"])?;
    listener.await_line("listening")?;
    let count = PINGS_TIMED.to_string();
    let mut ping = Process::start(portolan, &["ping", address, "--count", &count, "--json"])?;
    ping.await_line("connected")?;
    let connected_at = Instant::now();
    let (status, took) = ping.await_end(connected_at)?;
    ensure!(status.success(), "{count} pings ended with {status}");
    listener.await_end(connected_at)?;
    let pings = PINGS_TIMED as f64 * PINGS_TIME.as_secs_f64() / took.as_secs_f64();
    Ok((pings as u64).clamp(*PINGS.start(), *PINGS.end()))
}

fn round(portolan: &Path, victims: &[usize], count: u64) -> Result<Round> {
    let mut processes = Vec::new();
    for address in ADDRESSES {
        let listen = ["listen", address, "--once", "--json"];
        let mut listener = Process::start(portolan, &listen)?;
        // One after the other: the first one founds the group and holds the port.
        listener.await_line("listening")?;
        processes.push(listener);
    }
    let (count_text, before) = (count.to_string(), count * PARTS_BEFORE / PARTS);
    for address in ADDRESSES {
        let ping = ["ping", address, "--count", &count_text, "--json"];
        processes.push(Process::start(portolan, &ping)?);
    }
    let (listeners, pings) = processes.split_at_mut(ADDRESSES.len());
    for ping in &mut *pings {
        ping.await_line("connected")?;
    }
    for listener in listeners {
        listener.await_line("connect_request")?;
    }
    let connected_at = Instant::now();
    let holder = holder::pid(portolan)?;
    while !pings.iter_mut().any(|ping| ping.answered() >= before) {
        ensure!(
            connected_at.elapsed() < HALF_WAY_TIME_MAX,
            "no pair had {before} pings answered within {HALF_WAY_TIME_MAX:?}"
        );
        thread::sleep(LOOK_AGAIN);
    }
    for process in &mut processes {
        let status = process.speaker.child.try_wait()?;
        ensure!(
            status.is_none(),
            "`{}` ended before the kill",
            process.speaker.arguments
        );
    }
    let mut was_holder = false;
    // All are killed before any is waited for.
    for victim in victims {
        let killed = processes
            .get_mut(*victim)
            .context("a victim by its number")?;
        was_holder |= holder == killed.speaker.child.id();
        killed.speaker.child.kill()?;
    }
    let killed_at = Instant::now();
    let is_bereaved = |number: usize| {
        let pair = number % ADDRESSES.len();
        victims
            .iter()
            .any(|victim| victim % ADDRESSES.len() == pair)
    };
    let mut round = Round {
        victims: names(victims),
        was_holder,
        longest_gap_ms: 0.0,
        bereaved: Duration::ZERO,
        complaint: String::new(),
    };
    // Wait for the peers of the victims first, because their time is measured.
    let mut numbered: Vec<_> = processes.iter_mut().enumerate().collect();
    numbered.sort_by_key(|(number, _)| !is_bereaved(*number));
    for (number, process) in numbered {
        let (status, took) = process.await_end(killed_at)?;
        if victims.contains(&number) {
            continue;
        }
        let said = process.last_line()?;
        let error = said["error"].as_str();
        if is_bereaved(number) {
            let error = error.with_context(|| {
                format!("a victim's peer ended with {status} and no error: {said}")
            })?;
            ensure!(
                status.code() == Some(1),
                "a victim's peer ended with {status}, expected exit code 1"
            );
            (round.bereaved, round.complaint) = (took, error.to_owned());
        } else {
            ensure!(
                status.success(),
                "{} ended with {status}: {said}",
                name(number)
            );
            if number >= ADDRESSES.len() {
                check_summary(&said, count)?;
                let gap_us = said["longest_gap_us"].as_f64().context("a longest gap")?;
                round.longest_gap_ms = round.longest_gap_ms.max(gap_us / 1000.0);
            } else {
                ensure!(
                    said["pings"] == count,
                    "the listener's counts are wrong: {said}"
                );
            }
        }
    }
    Ok(round)
}

fn check_summary(summary: &Value, count: u64) -> Result<()> {
    let counts = ["sent", "answered", "lost", "mismatched"].map(|key| summary[key].as_u64());
    ensure!(
        counts == [Some(count), Some(count), Some(0), Some(0)],
        "not every ping came back unchanged: {summary}"
    );
    Ok(())
}

/// A process of the command that writes lines of JSON.
struct Process {
    speaker: Speaker,
    last: Option<String>,
    /// Lines about pings among the lines read.
    pings: u64,
}

impl Process {
    fn start(portolan: &Path, arguments: &[&str]) -> Result<Self> {
        let speaker = Speaker::start(portolan, arguments, Stdio::inherit())?;
        Ok(Self::of(speaker))
    }

    fn of(speaker: Speaker) -> Self {
        Self {
            speaker,
            last: None,
            pings: 0,
        }
    }

    /// Waits for the next line, which must be an object of this type.
    fn await_line(&mut self, kind: &str) -> Result<()> {
        let line = match self.speaker.lines.recv_timeout(START_TIME_MAX) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => {
                bail!(
                    "`{}`: no {kind} within {START_TIME_MAX:?}",
                    self.speaker.arguments
                )
            }
            Err(RecvTimeoutError::Disconnected) => {
                let status = self.speaker.child.wait()?;
                bail!(
                    "`{}` ended with {status} before {kind}",
                    self.speaker.arguments
                )
            }
        };
        let object: Value = serde_json::from_str(&line)?;
        ensure!(object["type"] == kind, "expected {kind}, found {line}");
        self.last = Some(line);
        Ok(())
    }

    /// The number of pings reported so far.
    fn answered(&mut self) -> u64 {
        while let Ok(line) = self.speaker.lines.try_recv() {
            self.pings += u64::from(line.contains("\"type\":\"ping\""));
            self.last = Some(line);
        }
        self.pings
    }

    /// Waits for its end. Returns its status and the time since `since`.
    fn await_end(&mut self, since: Instant) -> Result<(ExitStatus, Duration)> {
        loop {
            if let Some(status) = self.speaker.child.try_wait()? {
                return Ok((status, since.elapsed()));
            }
            ensure!(
                since.elapsed() < END_TIME_MAX,
                "`{}` did not end within {END_TIME_MAX:?} of the kill",
                self.speaker.arguments
            );
            thread::sleep(LOOK_AGAIN);
        }
    }

    /// The last line of a process that has ended.
    fn last_line(&mut self) -> Result<Value> {
        let last = self.speaker.lines.iter().last().or(self.last.take());
        let last = last.with_context(|| format!("`{}` said nothing", self.speaker.arguments))?;
        Ok(serde_json::from_str(&last)?)
    }
}
