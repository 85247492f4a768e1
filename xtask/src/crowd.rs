//! Sixty-four processes that listen and ping, some of which are killed all the time and replaced. When
//! all are gone nothing of theirs is left.

use std::collections::HashSet;
use std::io::Read;
use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail, ensure};

use crate::leftovers;
use crate::processes::Speaker;
use crate::test::{Outcome, Workspace};

/// Listeners, and as many pings.
const LISTENERS: usize = 32;
const TIME: Duration = Duration::from_secs(60);
/// Time between two kills, at most.
const KILL_PAUSE_MAX_MS: u64 = 200;
/// How long a process may take to say that it listens: all share few cores.
const START_TIME_MAX: Duration = Duration::from_secs(30);
/// How long the kernel may take to clear away what the killed had.
const CLEARING_TIME_MAX: Duration = Duration::from_secs(5);
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// Each listener has a port of its own, from here on; below those that the kernel gives out.
const FIRST_PORT: u16 = 8000;
/// Gives the seed of a run that is to be repeated.
const SEED_VARIABLE: &str = "PORTOLAN_CROWD_SEED";

pub(crate) fn run(workspace: &Workspace) -> Result<Outcome> {
    await_nothing().context("the part needs UDP port 4791 for itself, before it begins")?;
    let seed = seed()?;
    println!("{SEED_VARIABLE}={seed}");
    let mut crowd = Crowd::new(&workspace.portolan, seed);
    let ran = crowd.live(TIME);
    let tally = crowd.tally.clone();
    crowd.end()?;
    ran?;
    println!("{tally}");
    ensure!(tally.pings > 0, "no ping was answered");
    await_nothing()?;
    Ok(Outcome::Passed(tally.to_string()))
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
                "everybody should be gone, and there is still\n{}",
                left.join("\n")
            );
        }
        thread::sleep(LOOK_AGAIN);
    }
}

/// What happened.
#[derive(Clone, Debug, Default)]
struct Tally {
    started: u32,
    kills: u32,
    /// Pings answered by processes that were not killed in the end.
    pings: u64,
    /// Pinging processes that were told of their listener's death.
    bereaved: u32,
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} processes started, {} killed on the way; {} pings answered, {} connections ended \
             by a death",
            self.started, self.kills, self.pings, self.bereaved
        )
    }
}

struct Crowd<'a> {
    portolan: &'a Path,
    chance: Chance,
    next_port: u16,
    members: Vec<Member>,
    /// Where the listeners were that have been killed.
    killed: HashSet<String>,
    tally: Tally,
}

impl<'a> Crowd<'a> {
    fn new(portolan: &'a Path, seed: u64) -> Self {
        Self {
            portolan,
            chance: Chance(seed),
            next_port: FIRST_PORT,
            members: Vec::new(),
            killed: HashSet::new(),
            tally: Tally::default(),
        }
    }

    /// Keeps the number of processes up and kills some, for a time.
    fn live(&mut self, time: Duration) -> Result<()> {
        let end = Instant::now() + time;
        let mut next_kill = Instant::now();
        while Instant::now() < end {
            self.bury()?;
            self.fill()?;
            if Instant::now() >= next_kill {
                let victim = self.chance.below(self.members.len() as u64) as usize;
                self.killed
                    .extend(self.members.swap_remove(victim).serves.take());
                self.tally.kills += 1;
                let pause = self.chance.below(KILL_PAUSE_MAX_MS);
                next_kill = Instant::now() + Duration::from_millis(pause);
            }
            thread::sleep(LOOK_AGAIN);
        }
        self.bury()
    }

    /// Kills them all at once, the holder of the port among them.
    fn end(mut self) -> Result<()> {
        for member in &mut self.members {
            member.speaker.child.kill()?;
        }
        Ok(())
    }

    /// Takes out whoever has ended by itself: pings whose listener was killed, and nobody else.
    fn bury(&mut self) -> Result<()> {
        let mut at = 0;
        while let Some(member) = self.members.get_mut(at) {
            member.listen_in()?;
            self.tally.pings += std::mem::take(&mut member.new_pings);
            let Some(status) = member.speaker.child.try_wait()? else {
                at += 1;
                continue;
            };
            let mut words = String::new();
            if let Some(mut stderr) = member.speaker.child.stderr.take() {
                stderr.read_to_string(&mut words)?;
            }
            // Exit code 1: it ran, and its peer did not stay, or was gone before it came.
            let lost_its_listener = member
                .calls
                .as_ref()
                .is_some_and(|address| self.killed.contains(address));
            ensure!(
                lost_its_listener && status.code() == Some(1),
                "`{}` ended with {status}: {words}",
                member.speaker.arguments
            );
            self.tally.bereaved += u32::from(member.was_connected);
            self.members.swap_remove(at);
        }
        Ok(())
    }

    /// Starts new processes in the stead of those that are gone.
    fn fill(&mut self) -> Result<()> {
        let listeners = self.members.iter().filter(|m| m.serves.is_some()).count();
        for _ in listeners..LISTENERS {
            let address = format!("127.0.0.1:{}", self.next_port);
            self.next_port += 1;
            let mut member = Member::start(self.portolan, &["listen", &address, "--json"])?;
            member.serves = Some(address);
            self.members.push(member);
            self.tally.started += 1;
        }
        let ready: Vec<String> = self
            .members
            .iter()
            .filter(|member| member.is_ready)
            .filter_map(|member| member.serves.clone())
            .collect();
        if ready.is_empty() {
            return Ok(());
        }
        while self.members.len() < 2 * LISTENERS {
            let address = &ready[self.chance.below(ready.len() as u64) as usize];
            let ping = ["ping", address, "--interval", "0.02", "--json"];
            let mut member = Member::start(self.portolan, &ping)?;
            member.calls = Some(address.clone());
            self.members.push(member);
            self.tally.started += 1;
        }
        Ok(())
    }
}

/// A process of the command.
struct Member {
    speaker: Speaker,
    started: Instant,
    /// Where it listens, if it does.
    serves: Option<String>,
    /// Whom it pings, if it does.
    calls: Option<String>,
    is_ready: bool,
    was_connected: bool,
    new_pings: u64,
}

impl Member {
    fn start(portolan: &Path, arguments: &[&str]) -> Result<Self> {
        Ok(Self {
            speaker: Speaker::start(portolan, arguments, Stdio::piped())?,
            started: Instant::now(),
            serves: None,
            calls: None,
            is_ready: false,
            was_connected: false,
            new_pings: 0,
        })
    }

    /// Reads what it has said since the last time.
    fn listen_in(&mut self) -> Result<()> {
        while let Ok(line) = self.speaker.lines.try_recv() {
            let object: serde_json::Value = serde_json::from_str(&line)?;
            match object["type"].as_str() {
                Some("listening") => self.is_ready = true,
                Some("connected") => {
                    self.is_ready = true;
                    self.was_connected = true;
                }
                Some("ping") => {
                    ensure!(
                        object["error"].is_null(),
                        "{}: {line}",
                        self.speaker.arguments
                    );
                    self.new_pings += 1;
                }
                _ => {}
            }
        }
        // A ping that is not connected by then ends by its own deadline.
        ensure!(
            self.is_ready || self.serves.is_none() || self.started.elapsed() < START_TIME_MAX,
            "`{}` does not listen after {START_TIME_MAX:?}",
            self.speaker.arguments
        );
        Ok(())
    }
}

/// A generator of chance numbers (xorshift64*): a run follows from its seed but for timing.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % bound
    }
}
