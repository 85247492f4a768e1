//! Debian's rstream and riostream with all of their sizes (`-S all`), one end on our libraries and the software device,
//! the other on Debian's and rdma_rxe.
//!
//! They move so much data that only Debian's end runs in a kernel machine. Ours runs on this host, in a network namespace
//! of its own. A tap device joins the two. The machine obeys this host by `guest/interop_kernel.sh`.
//!
//! riostream looks at the last byte of a message to know that it has arrived, and then writes to the same memory. The machine's kernel
//! must place that byte last. In a run on Linux 7.3, whose own threads can be interrupted amid a copy, a message had old
//! bytes from its second write on.

mod far;
mod kept;
mod pair;
mod table;

use std::fmt;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;
use std::sync::RwLock;
use std::thread;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, unshare};

use super::interop::{FOLLOWER, FOLLOWER_PATH};
use super::{LIBRARY, LIBRARY_PATH, Part, Report};
use crate::machine::{Cache, Job, Machine, MachineError, Outcome, Step, Suite, Tap, checked};
use far::Far;
use kept::Kept;
use pair::Host;
pub use table::every_size_section;

/// The programs.
const PROGRAMS: [&str; 2] = ["rstream", "riostream"];
/// The tap device.
const TAP: &str = "tap0";
/// Its address: that of the side `peer` in `guest/judge.sh`.
const OWN_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 2);
/// The longest frames that rdma_rxe makes use of, so that data are few packets.
const MTU: u32 = 9000;
/// The host's processors. Pairs that spin have them alone: if another kernel's pair ran meanwhile, each message would wait for the
/// end of a time slice.
static PROCESSORS: RwLock<()> = RwLock::new(());
/// Far longer than all pairs take.
const DEADLINE: Duration = Duration::from_secs(9 * 3600);

/// The results of the programs on one kernel.
#[derive(Debug)]
pub struct EverySize {
    /// Failures and times.
    pub report: Report,
    plays: Vec<Played>,
}

/// A pair that was played.
#[derive(Debug)]
struct Played {
    play: Play,
    has_passed: bool,
    /// In an earlier run.
    is_kept: bool,
    time: Duration,
}

/// A pair of programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Play {
    program: &'static str,
    ours: Ours,
}

impl Play {
    /// Whether both ends look at their memory for the peer's bytes, also with `-T b`.
    fn spins(&self) -> bool {
        self.program == "riostream"
    }
}

/// Our end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ours {
    Serves,
    Calls,
}

impl Ours {
    const BOTH: [Self; 2] = [Self::Serves, Self::Calls];
}

impl fmt::Display for Ours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Serves => "ours serves",
            Self::Calls => "ours calls",
        })
    }
}

impl fmt::Display for Play {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} -S all: {}", self.program, self.ours)
    }
}

/// The pairs whose names contain `only`.
fn plays(only: Option<&str>) -> Vec<Play> {
    PROGRAMS
        .into_iter()
        .flat_map(|program| Ours::BOTH.map(|ours| Play { program, ours }))
        .filter(|play| only.is_none_or(|only| play.to_string().contains(only)))
        .collect()
}

/// Plays the pairs, optionally only those whose names contain `only`, between the libraries beside the command `portolan`
/// and Debian's over the rdma_rxe of the kernel of `debian`. With `resumes`, pairs that the same command, libraries and
/// kernel have passed in an earlier run are not played again. `tell` gets a line when a pair has ended.
///
/// # Errors
/// [`MachineError::Unavailable`] if this host cannot provide the machine; other variants if the machine or the network
/// could not be prepared. Failures of the pairs and of the running machine are in the report.
pub fn every_size(
    cache: &Cache,
    debian: Suite,
    portolan: &Path,
    only: Option<&str>,
    resumes: bool,
    tell: &(dyn Fn(&str) + Sync),
) -> Result<EverySize, MachineError> {
    let machine = Machine::prepare(cache, debian)?;
    let folder = cache.folder(&format!("every-size-{}", debian.codename()))?;
    let passed = cache.folder(&format!("every-size-{}/passed", debian.codename()))?;
    let release = machine.kernel_release();
    // Its network namespace is that of what it starts, and ends with all of it.
    let judge = || {
        make_network()?;
        let kept =
            Kept::open(&passed, portolan, release).map_err(MachineError::io("read", portolan))?;
        let plays = plays(only);
        if !resumes {
            kept.forget(&plays)
                .map_err(MachineError::io("clean", &passed))?;
        }
        let host = Host {
            portolan,
            folder: &folder,
        };
        let tell = |line: &str| tell(&format!("Linux {release}: {line}"));
        Ok(play_all(&machine, &host, &kept, &plays, &tell))
    };
    thread::scope(|scope| scope.spawn(judge).join())
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Moves the calling thread into a new network namespace with the tap device.
fn make_network() -> Result<(), MachineError> {
    unshare(CloneFlags::CLONE_NEWNET).map_err(|errno| {
        MachineError::io("create", Path::new("network namespace"))(errno.into())
    })?;
    let script = format!(
        "ip link set lo up
        ip tuntap add dev {TAP} mode tap
        ip link set {TAP} mtu {MTU} addrgenmode none
        ip addr add {OWN_ADDRESS}/24 dev {TAP}
        ip link set {TAP} up"
    );
    checked(Command::new("sh").args(["-ec", &script])).map(drop)
}

fn play_all(
    machine: &Machine,
    host: &Host<'_>,
    kept: &Kept<'_>,
    plays: &[Play],
    tell: &dyn Fn(&str),
) -> EverySize {
    let script = format!(
        ". {LIBRARY_PATH}\n. {FOLLOWER_PATH}\nset_up kernel\nset_network {MTU} 0\nadd_link\nobey\n"
    );
    let job = Job::new()
        .deadline(DEADLINE)
        .processors(1)
        .measuring()
        .copies_in_order()
        .file(LIBRARY_PATH, LIBRARY)
        .file(FOLLOWER_PATH, FOLLOWER)
        .step(Step::new("rdma_rxe on an emulated machine", script).limit(DEADLINE));
    let tap = Tap::new(TAP);
    let (played, parts, outcome) = thread::scope(|scope| {
        let running = scope.spawn(|| machine.run_at_tap(&job, &tap));
        let leaves = Leaves(&tap);
        let (played, parts) = lead(host, kept, plays, tell);
        drop(leaves);
        let outcome = running
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        (played, parts, outcome)
    });
    EverySize {
        report: report(machine, &job, parts, outcome),
        plays: played,
    }
}

/// Leaves the machine when it is dropped, also in a panic.
struct Leaves<'a>(&'a Tap);

impl Drop for Leaves<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// Plays the pairs with the machine, and ends it.
fn lead(
    host: &Host<'_>,
    kept: &Kept<'_>,
    plays: &[Play],
    tell: &dyn Fn(&str),
) -> (Vec<Played>, Vec<Part>) {
    let far = Far;
    let mut parts = vec![Part::measure("the two ends meet".to_owned(), || {
        far.meet().map(|()| String::new())
    })];
    let mut played = Vec::new();
    for play in plays {
        if parts[0].verdict.is_err() {
            break;
        }
        let earlier = kept.time(play);
        let (verdict, time) = match earlier {
            Some(time) => {
                tell(&format!("{play}: passed in an earlier run"));
                (Ok(()), time)
            }
            None => {
                let shared = (!play.spins()).then(|| PROCESSORS.read());
                let alone = play.spins().then(|| PROCESSORS.write());
                let result = play_one(host, kept, *play, tell);
                drop((shared, alone));
                result
            }
        };
        played.push(Played {
            play: *play,
            has_passed: verdict.is_ok(),
            is_kept: earlier.is_some(),
            time,
        });
        parts.push(Part {
            name: play.to_string(),
            verdict: verdict.map(|()| String::new()),
            elapsed: time,
        });
    }
    far.end();
    (played, parts)
}

fn play_one(
    host: &Host<'_>,
    kept: &Kept<'_>,
    play: Play,
    tell: &dyn Fn(&str),
) -> (Result<(), String>, Duration) {
    let started = Instant::now();
    let verdict = host.play(play, &Far);
    // A run that is cut off here reports nothing else of this machine.
    let of_kernel = Far.tell("no_fault_of_the_kernels", far::SOON);
    let time = started.elapsed();
    let verdict = verdict
        .and(of_kernel.map(drop))
        .and_then(|()| kept.passed(&play, time).map_err(|error| error.to_string()));
    let seconds = time.as_secs();
    match &verdict {
        Ok(()) => tell(&format!("{play}: data, {seconds} s")),
        Err(why) => tell(&format!("{play}: FAILED, {seconds} s\n{why}")),
    }
    (verdict, time)
}

/// The findings at this host, after those of the machine.
fn report(
    machine: &Machine,
    job: &Job,
    parts: Vec<Part>,
    outcome: Result<Outcome, MachineError>,
) -> Report {
    match outcome {
        Ok(outcome) => {
            let mut report = Report::new(machine.kernel_release(), &outcome, job.step_names());
            parts.into_iter().for_each(|part| report.add(part));
            report.keep_if_failed(outcome)
        }
        // The pairs' results are reported anyway.
        Err(error) => {
            let mut report = Report {
                kernel_release: machine.kernel_release().to_owned(),
                parts,
                boot: Duration::ZERO,
                elapsed: Duration::ZERO,
                kept: None,
            };
            report.add(Part {
                name: "the machine".to_owned(),
                verdict: Err(error.to_string()),
                elapsed: Duration::ZERO,
            });
            report
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_addresses_are_those_of_the_guests_scripts() {
        for (side, address) in [("kernel", far::ADDRESS), ("peer", OWN_ADDRESS)] {
            let line = format!("{side}4) echo {address} ;;");
            assert!(LIBRARY.contains(&line), "{line}");
        }
    }

    #[test]
    fn each_program_is_played_both_ways_and_the_filter_selects_by_name() {
        let names = |only| -> Vec<String> { plays(only).iter().map(Play::to_string).collect() };
        assert_eq!(
            names(None),
            [
                "rstream -S all: ours serves",
                "rstream -S all: ours calls",
                "riostream -S all: ours serves",
                "riostream -S all: ours calls"
            ]
        );
        assert_eq!(
            names(Some("riostream -S all: ours c")),
            [names(None)[3].clone()]
        );
    }
}
