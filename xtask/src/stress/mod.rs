//! Sixty-four processes that listen and ping, half of them C programs on our libraries. Some are killed and
//! replaced all the time, often several at once and some while they are stopped. The limit on descriptors of
//! others is lowered for a while. At the end the survivors finish and are idle, and `ps` lists nothing else; when
//! all are gone nothing of theirs is left.
//!
//! Everything runs in a network namespace with its own UDP port 4791.

mod member;
mod programs;

use std::collections::HashSet;
use std::io::{BufRead, BufReader};
use std::ops::Range;
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail, ensure};

use crate::idle::{self, Idle};
use crate::leftovers;
use crate::namespace::{self, Namespace};
use crate::test::{Outcome, Workspace};
use member::Member;
use programs::{Language, Programs};

/// Number of listeners and of pings; half of each in C.
const LISTENERS: usize = 32;
const PART_TIME_S: u64 = 60;
/// Usual longest time between two strikes.
const STRIKE_PAUSE_MAX_MS: u64 = 500;
/// Time between two lines about a long run.
const PROGRESS: Duration = Duration::from_secs(60);
/// Usual time between two pings.
const INTERVAL_MS: u64 = 20;
/// How many processes a strike kills besides the stopped ones: one of these numbers.
const KILLED_AT_ONCE: [u64; 4] = [1, 1, 3, 6];
/// How many processes at most are stopped until the next strike kills them.
const STOPPED_MAX: u64 = 2;
/// The limit on descriptors of how many processes at most is lowered until the next strike.
const LOWERED_MAX: u64 = 2;
/// Time limit for the survivors to finish.
const FINISH_TIME_MAX: Duration = Duration::from_secs(60);
/// Time limit for the kernel to clean up after killed processes.
const CLEARING_TIME_MAX: Duration = Duration::from_secs(5);
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// Ports of listeners, by turns. Below those that the kernel allocates.
const PORTS: Range<u16> = 8000..32_000;
/// Environment variable with the seed of a run to repeat.
const SEED_VARIABLE: &str = "PORTOLAN_STRESS_SEED";

/// Arguments of `stress`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// How long to kill and replace processes, in seconds.
    #[arg(long, default_value_t = PART_TIME_S)]
    seconds: u64,
    #[command(flatten)]
    rhythm: Rhythm,
    /// Run in this network namespace, whose UDP port 4791 must be free.
    #[arg(long)]
    here: bool,
}

/// How often things happen. Slower ones leave processors for several runs at once.
#[derive(Clone, Copy, Debug, clap::Args)]
struct Rhythm {
    /// Longest time between two strikes, in milliseconds.
    #[arg(long, default_value_t = STRIKE_PAUSE_MAX_MS)]
    pause_ms: u64,
    /// Time between two pings of a connection, in milliseconds.
    #[arg(long, default_value_t = INTERVAL_MS)]
    interval_ms: u64,
}

impl Rhythm {
    const OF_PART: Self = Self {
        pause_ms: STRIKE_PAUSE_MAX_MS,
        interval_ms: INTERVAL_MS,
    };
}

/// A part of the tests.
pub(crate) fn run(workspace: &Workspace) -> Result<Outcome> {
    if !Namespace::is_possible(workspace.is_root)? {
        return Ok(Outcome::LeftOut(namespace::UNAVAILABLE.into()));
    }
    elsewhere(workspace, PART_TIME_S, Rhythm::OF_PART).map(Outcome::Passed)
}

/// The task `stress`.
pub(crate) fn task(arguments: &Arguments) -> Result<ExitCode> {
    let workspace = Workspace::here()?;
    if arguments.here {
        let time = Duration::from_secs(arguments.seconds);
        let tally = live(&workspace, time, arguments.rhythm)?;
        println!("{tally}");
    } else {
        elsewhere(&workspace, arguments.seconds, arguments.rhythm)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs the task in its own network namespace. Returns its last line.
fn elsewhere(workspace: &Workspace, seconds: u64, rhythm: Rhythm) -> Result<String> {
    let namespace = Namespace::new(workspace.is_root)?;
    let mut child = namespace
        .command()
        .arg(std::env::current_exe()?)
        .args(["stress", "--here", "--seconds", &seconds.to_string()])
        .args(["--pause-ms", &rhythm.pause_ms.to_string()])
        .args(["--interval-ms", &rhythm.interval_ms.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start nsenter")?;
    let stdout = child.stdout.take().context("its output is a pipe")?;
    let mut last = String::new();
    for line in BufReader::new(stdout).lines() {
        last = line?;
        println!("{last}");
    }
    let status = child.wait()?;
    ensure!(status.success(), "the stress test ended with {status}");
    Ok(last)
}

fn live(workspace: &Workspace, time: Duration, rhythm: Rhythm) -> Result<Tally> {
    await_nothing().context("the stress test needs a free UDP port 4791")?;
    let seed = seed()?;
    println!("{SEED_VARIABLE}={seed}");
    let programs = Programs::build(workspace, rhythm.interval_ms)?;
    let mut stress = Stress::new(&programs, seed, rhythm.pause_ms.max(1));
    let ran = stress.live(time).and_then(|()| stress.finish());
    let idle = ran.and_then(|()| stress.check_idle());
    let tally = stress.tally.clone();
    stress.end()?;
    println!("{}", idle?);
    tally.check()?;
    await_nothing()?;
    Ok(tally)
}

fn seed() -> Result<u64> {
    match std::env::var(SEED_VARIABLE) {
        Ok(text) => text.parse().context(SEED_VARIABLE),
        Err(_) => Ok(SystemTime::UNIX_EPOCH.elapsed()?.as_nanos() as u64 | 1),
    }
}

fn await_nothing() -> Result<()> {
    let deadline = Instant::now() + CLEARING_TIME_MAX;
    loop {
        let left = leftovers::find()?;
        if left.is_empty() {
            return Ok(());
        }
        if Instant::now() > deadline {
            bail!(
                "all processes have ended, but these remain:\n{}",
                left.join("\n")
            );
        }
        thread::sleep(LOOK_AGAIN);
    }
}

/// Counts of what happened.
#[derive(Clone, Debug, Default)]
struct Tally {
    started: u32,
    kills: u32,
    /// Killed processes that were stopped before.
    stopped: u32,
    /// Processes whose limit on descriptors was lowered for a while.
    lowered: u32,
    /// Pings answered by processes that survived, by the languages of caller and listener.
    pings: [[u64; 2]; 2],
    /// Pings that learned of their listener's death.
    bereaved: u32,
    /// The longest time that a ping took to connect.
    slowest_connect: Duration,
    /// Pings that finished when interrupted.
    finished: u32,
}

impl Tally {
    fn check(&self) -> Result<()> {
        let pairs = self.pings.iter().flatten();
        ensure!(
            pairs.copied().all(|pings| pings > 0),
            "some pair of languages had no ping answered: {self}"
        );
        ensure!(self.finished > 0, "there were no survivors: {self}");
        Ok(())
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [[rust_rust, rust_c], [c_rust, c_c]] = self.pings;
        write!(
            f,
            "{} processes started, {} killed on the way, {} of them while they were stopped; the limit on descriptors of {} lowered for a \
             while; pings answered: Rust to Rust {rust_rust}, Rust to C {rust_c}, C to Rust {c_rust}, C to C {c_c}; \
             {} connections ended by a death; the slowest connect took {:.1?}; {} survivors finished",
            self.started,
            self.kills,
            self.stopped,
            self.lowered,
            self.bereaved,
            self.slowest_connect,
            self.finished
        )
    }
}

struct Stress<'a> {
    programs: &'a Programs,
    chance: Chance,
    /// Longest time between two strikes, in milliseconds.
    pause_ms: u64,
    next_port: u16,
    members: Vec<Member>,
    /// Processes that the next strike kills.
    stopped: Vec<Member>,
    /// Ports of killed listeners.
    killed: HashSet<u16>,
    tally: Tally,
}

impl<'a> Stress<'a> {
    fn new(programs: &'a Programs, seed: u64, pause_ms: u64) -> Self {
        Self {
            programs,
            chance: Chance(seed),
            pause_ms,
            next_port: PORTS.start,
            members: Vec::new(),
            stopped: Vec::new(),
            killed: HashSet::new(),
            tally: Tally::default(),
        }
    }

    /// Replaces processes and kills some, for a time.
    fn live(&mut self, time: Duration) -> Result<()> {
        let end = Instant::now() + time;
        let mut next_strike = Instant::now();
        let mut next_line = Instant::now() + PROGRESS;
        while Instant::now() < end {
            self.bury()?;
            self.fill()?;
            if Instant::now() >= next_strike {
                self.strike()?;
                let pause = self.chance.below(self.pause_ms);
                next_strike = Instant::now() + Duration::from_millis(pause);
            }
            if Instant::now() >= next_line {
                println!("{}", self.tally);
                next_line += PROGRESS;
            }
            thread::sleep(LOOK_AGAIN);
        }
        self.stopped.clear();
        self.restore_limits()?;
        self.bury()
    }

    /// Kills some processes at once, including those that were stopped, and stops others until the next strike.
    /// The coordinator's messages to stopped processes wait. The limits on descriptors of others are lowered until then.
    fn strike(&mut self) -> Result<()> {
        let mut victims = std::mem::take(&mut self.stopped);
        self.tally.stopped += victims.len() as u32;
        let at_once = self.chance.below(KILLED_AT_ONCE.len() as u64) as usize;
        victims.extend(self.take_some(KILLED_AT_ONCE[at_once]));
        victims.iter_mut().try_for_each(Member::kill)?;
        self.tally.kills += victims.len() as u32;
        // All get their signal before the first is waited for.
        drop(victims);
        let count = self.chance.below(STOPPED_MAX + 1);
        self.stopped = self.take_some(count);
        self.stopped.iter().try_for_each(Member::stop)?;
        self.restore_limits()?;
        self.lower_limits()
    }

    /// Lowers the limits of some members. They go on as before: their library raises the limit when it needs to.
    fn lower_limits(&mut self) -> Result<()> {
        for _ in 0..self.chance.below(LOWERED_MAX + 1) {
            let chosen = self.chance.below(self.members.len().max(1) as u64) as usize;
            // A process that starts also needs descriptors that are not the library's.
            let Some(member) = self.members.get_mut(chosen).filter(|m| m.is_connected()) else {
                continue;
            };
            self.tally.lowered += u32::from(member.lower_limit()?);
        }
        Ok(())
    }

    fn restore_limits(&mut self) -> Result<()> {
        self.members.iter_mut().try_for_each(Member::restore_limit)
    }

    /// Removes `count` members to be killed.
    fn take_some(&mut self, count: u64) -> Vec<Member> {
        let count = count.min(self.members.len() as u64);
        let mut taken = Vec::new();
        for _ in 0..count {
            let victim = self.chance.below(self.members.len() as u64) as usize;
            taken.push(self.members.swap_remove(victim));
        }
        self.killed
            .extend(taken.iter().filter_map(Member::listens_at));
        taken
    }

    /// Lets the pings finish. Every ping must have been answered unchanged.
    fn finish(&mut self) -> Result<()> {
        let deadline = Instant::now() + FINISH_TIME_MAX;
        // A ping of a living listener connects, or ends by its own deadline, which is a failure.
        while self.members.iter().any(|member| !member.is_connected()) {
            self.bury()?;
            ensure!(
                Instant::now() < deadline,
                "members are not connected within {FINISH_TIME_MAX:?}"
            );
            thread::sleep(LOOK_AGAIN);
        }
        self.members.iter().try_for_each(Member::interrupt)?;
        while self.members.iter().any(|member| !member.is_listener()) {
            self.bury()?;
            ensure!(
                Instant::now() < deadline,
                "survivors do not finish within {FINISH_TIME_MAX:?}"
            );
            thread::sleep(LOOK_AGAIN);
        }
        Ok(())
    }

    /// Checks that only the listeners are left, and that they are idle.
    fn check_idle(&self) -> Result<Idle> {
        let pids = self.members.iter().map(Member::pid).collect();
        idle::check(|| Command::new(&self.programs.portolan), &pids)
    }

    /// Kills all listeners at once.
    fn end(mut self) -> Result<()> {
        self.members.iter_mut().try_for_each(Member::kill)
    }

    /// Removes members that ended by themselves. Only pings may: those whose listener was killed, and those
    /// that were interrupted.
    fn bury(&mut self) -> Result<()> {
        let mut at = 0;
        while let Some(member) = self.members.get_mut(at) {
            member.listen_in()?;
            if let Some((caller, listener)) = member.languages() {
                self.tally.pings[caller as usize][listener as usize] += member.take_pings();
            }
            let connect = member.connect_time().unwrap_or_default();
            self.tally.slowest_connect = self.tally.slowest_connect.max(connect);
            let Some(status) = member.ended()? else {
                at += 1;
                continue;
            };
            let member = self.members.swap_remove(at);
            let lost_its_listener = member
                .calls()
                .is_some_and(|port| self.killed.contains(&port));
            if member.has_finished(status) {
                self.tally.finished += 1;
            } else if lost_its_listener && status.code() == Some(1) {
                // Exit code 1: its peer left, or was gone before it connected.
                self.tally.bereaved += u32::from(member.is_connected());
            } else {
                bail!("{}", member.obituary(status)?);
            }
        }
        Ok(())
    }

    /// Starts replacements for the processes that are gone.
    fn fill(&mut self) -> Result<()> {
        let listeners = self.members.iter().filter(|m| m.is_listener()).count();
        for _ in listeners..LISTENERS {
            let language = self.rarer(Member::is_listener);
            let port = self.free_port();
            let member = Member::listener(self.programs, language, port)?;
            self.members.push(member);
            self.tally.started += 1;
        }
        let ready: Vec<(u16, Language)> = self
            .members
            .iter()
            .filter_map(Member::ready_listener)
            .collect();
        if ready.is_empty() {
            return Ok(());
        }
        while self.members.len() < 2 * LISTENERS {
            let listener = ready[self.chance.below(ready.len() as u64) as usize];
            let language = self.rarer(|member| !member.is_listener());
            self.members
                .push(Member::caller(self.programs, language, listener)?);
            self.tally.started += 1;
        }
        Ok(())
    }

    /// A port that no living process listens on.
    fn free_port(&mut self) -> u16 {
        loop {
            let port = self.next_port;
            self.next_port = if port + 1 < PORTS.end {
                port + 1
            } else {
                PORTS.start
            };
            let takes_it = |member: &Member| member.listens_at() == Some(port);
            if !self.members.iter().chain(&self.stopped).any(takes_it) {
                self.killed.remove(&port);
                return port;
            }
        }
    }

    /// The language that fewer of these members use.
    fn rarer(&self, are: impl Fn(&Member) -> bool) -> Language {
        let members = || self.members.iter().filter(|member| are(member));
        let in_c = members().filter(|m| m.language() == Language::C).count();
        match 2 * in_c < members().count() {
            true => Language::C,
            false => Language::Rust,
        }
    }
}

/// A pseudo-random generator (xorshift64*). Except for timing, a run is determined by its seed.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % bound
    }
}
