//! Compares Portolan with rdma_rxe: the same programs in a kernel machine, with both ends on our libraries, both on
//! Debian's over rdma_rxe, and one on each. The machine mounts this host's files, so the programs are the same. It runs
//! this binary again to play the rows.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::process::{Command, ExitCode};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use portolan_lab::machine::{Cache, Job, Machine, OnFailure, Step, Suite};

use super::case::{Case, End, Network};
use super::namespace::Namespace;
use super::side::{Files, Side, Sides};
use super::{document, figures, pair};
use crate::parallel::side_by_side;
use crate::test::Workspace;

const SCRIPT: &str = include_str!("guest.sh");
/// Time limit of a row on emulated processors, with files from the host.
const ROW_TIME_MAX: Duration = Duration::from_secs(180);
/// Time limit of all rows of one way. Longer than they take.
const WAY_TIME_MAX: Duration = Duration::from_secs(2 * 3600);
/// Prefix of a line of results: the row's number, `right` or `failed`, seconds, and what it measured or why it failed.
const MARK: &str = "row\t";
const BEGIN: &str =
    "<!-- Written by `cargo xtask programs --beside` from its run: do not edit. -->\n";
const END: &str = "<!-- End of what `cargo xtask programs --beside` writes. -->\n";

/// The libraries and devices of the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(super) enum Way {
    /// Both on ours
    Ours,
    /// Both on Debian's over rdma_rxe
    Kernel,
    /// The server on ours, the client on rdma_rxe
    OursServes,
    /// The client on ours, the server on rdma_rxe
    OursCalls,
}

impl Way {
    const ALL: [Self; 4] = [Self::Kernel, Self::Ours, Self::OursServes, Self::OursCalls];

    fn name(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Kernel => "kernel",
            Self::OursServes => "ours-serves",
            Self::OursCalls => "ours-calls",
        }
    }

    fn plays(self, case: &Case) -> bool {
        let is_whole = matches!(self, Self::Ours | Self::Kernel);
        is_whole || case.server.is_some()
    }
}

/// The rows of stacks above verbs. Of many similar rows only one is played, because the emulated machine is slow.
/// `interop --programs` compares the programs of libibverbs, librdmacm and perftest with rdma_rxe.
fn cases() -> Vec<Case> {
    let is_one = |case: &Case| {
        let is_c = matches!(case.client, End::C(_));
        let stands = case.network == Network::Ethernet;
        // The row of all of rdma-core's tests includes the rows of parts. fabtests takes too long.
        let text = case.client_text();
        let is_part = text.contains(" -k ") || text.contains("fabtests.sh");
        let is_chosen =
            case.is_quick || !["UCX", "MPI"].iter().any(|many| case.group.contains(many));
        is_c && stands && is_chosen && !is_part
    };
    super::cases::all().into_iter().filter(is_one).collect()
}

/// The result of a row, played one way.
#[derive(Clone, Debug, PartialEq)]
struct Played {
    /// Why the row failed. Empty if it succeeded.
    why: String,
    /// What its programs measured, if anything.
    figure: String,
    seconds: f64,
}

/// Plays the rows whose commands contain `only`, in every way. Writes the document if all rows are played.
pub(super) fn run(workspace: &Workspace, only: Option<&str>) -> Result<ExitCode> {
    let started = Instant::now();
    let machine = Machine::prepare_with_host_files(&Cache::locate()?, Suite::Bookworm)?;
    let results = Mutex::new(BTreeMap::new());
    let ways = side_by_side(&Way::ALL, |way| -> Result<bool> {
        let rows = play_in(&machine, workspace, *way, only)?;
        let mut results = results.lock().unwrap_or_else(PoisonError::into_inner);
        results.extend(
            rows.into_iter()
                .map(|(number, played)| ((number, *way), played)),
        );
        let (text, is_right) = section(machine.kernel_release(), &results, started.elapsed());
        println!("{text}");
        // Write after each way, because the whole run takes hours.
        if only.is_none() {
            document::replace(&workspace.root, (BEGIN, END), &text)?;
        }
        Ok(is_right)
    });
    let mut all_right = true;
    for way in ways {
        all_right &= way?;
    }
    Ok(match all_right {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// Plays the rows one way, in a separate machine.
fn play_in(
    machine: &Machine,
    workspace: &Workspace,
    way: Way,
    only: Option<&str>,
) -> Result<Vec<(usize, Played)>> {
    let words = [
        workspace.root.to_string_lossy().into_owned(),
        std::env::current_exe()?.to_string_lossy().into_owned(),
        way.name().to_owned(),
        only.unwrap_or_default().to_owned(),
    ];
    let words = words.map(|word| format!("'{word}'")).join(" ");
    let script = format!("exec sh -eu /job/guest.sh {words}\n");
    let step = Step::new(way.name(), script)
        .limit(WAY_TIME_MAX)
        .on_failure(OnFailure::Continue);
    let job = Job::new()
        .file("/job/guest.sh", SCRIPT)
        .deadline(WAY_TIME_MAX)
        .step(step);
    let outcome = machine.run(&job, &mut io::stdout())?;
    let step = outcome.step(way.name()).context("the step was run")?;
    let rows: Vec<_> = step.output.lines().filter_map(parse).collect();
    ensure!(!rows.is_empty(), "{}: no row was played", way.name());
    Ok(rows)
}

/// Inside the machine: plays the rows and prints each result.
pub(super) fn play(workspace: &Workspace, way: Way, only: &str) -> Result<ExitCode> {
    let network = prepare(way)?;
    let side = |is_ours: bool| match is_ours {
        true => Side::Ours {
            portolan: &workspace.portolan,
            namespace: &network,
            files: Files::Whole,
            checked_in: None,
        },
        false => Side::Kernel,
    };
    let sides = Sides {
        server: side(matches!(way, Way::Ours | Way::OursServes)),
        client: side(matches!(way, Way::Ours | Way::OursCalls)),
        row_time_max: ROW_TIME_MAX,
    };
    for (number, case) in cases().iter().enumerate() {
        if !way.plays(case) || !case.client_text().contains(only) {
            continue;
        }
        let started = Instant::now();
        let (word, text) = match pair::play(&sides, case) {
            Ok(said) => ("right", figures::of(&said)),
            Err(error) => ("failed", format!("{error:#}").replace(['\t', '\n'], " ")),
        };
        let seconds = started.elapsed().as_secs_f64();
        println!("{MARK}{number}\t{word}\t{seconds:.1}\t{text}");
    }
    Ok(ExitCode::SUCCESS)
}

/// Creates the namespace of our ends. For a mixed way it is linked to the initial namespace, which has rdma_rxe.
/// Devices have the same names in both, because the rows contain them.
fn prepare(way: Way) -> Result<Namespace> {
    if way == Way::Ours {
        return Namespace::with_ethernet(true);
    }
    let namespace = Namespace::new(true)?;
    let (own, other) = match way {
        Way::OursServes => ("10.77.0.2", "10.77.0.1"),
        _ => ("10.77.0.1", "10.77.0.2"),
    };
    let process = namespace.process();
    let script = format!(
        "set -e
        echo 0 > /proc/sys/net/ipv6/conf/default/accept_dad
        ip link add eth0 type veth peer name peer0 netns {process}
        ip address add {own}/24 dev eth0
        ip link set eth0 up
        nsenter --target {process} --net sh -ec '
            echo 0 > /proc/sys/net/ipv6/conf/default/accept_dad
            ip link set peer0 name eth0
            ip address add {other}/24 dev eth0
            ip link set eth0 up'
        sleep 2
        rdma link add sw_eth0 type rxe netdev eth0
        rdma link add sw_lo type rxe netdev lo"
    );
    let status = Command::new("sh").args(["-c", &script]).status()?;
    ensure!(status.success(), "no network for both");
    Ok(namespace)
}

fn parse(line: &str) -> Option<(usize, Played)> {
    let mut words = line.strip_prefix(MARK)?.splitn(4, '\t');
    let number = words.next()?.parse().ok()?;
    let is_right = words.next()? == "right";
    let seconds = words.next()?.parse().ok()?;
    let text = words.next().unwrap_or_default().trim().to_owned();
    let (why, figure) = match is_right {
        true => (String::new(), text),
        false if text.is_empty() => ("failed".to_owned(), text),
        false => (text, String::new()),
    };
    let played = Played {
        why,
        figure,
        seconds,
    };
    Some((number, played))
}

/// The table, and whether every row that succeeds on rdma_rxe also succeeds with ours.
fn section(
    release: &str,
    results: &BTreeMap<(usize, Way), Played>,
    took: Duration,
) -> (String, bool) {
    let mut text = format!(
        "\nLinux {release}, {:.0} minutes on emulated processors.\n\n\
         | program | rdma_rxe | Portolan | Portolan serves rdma_rxe | Portolan calls rdma_rxe |\n|---|---|---|---|---|\n",
        took.as_secs_f64() / 60.0
    );
    let mut worse = String::new();
    for (number, case) in cases().iter().enumerate() {
        let cell = |way| match results.get(&(number, way)) {
            None => String::new(),
            Some(played) if !played.why.is_empty() => "**failed**".to_owned(),
            Some(played) if played.figure.is_empty() => format!("right, {:.1} s", played.seconds),
            Some(played) => format!("right: {}", played.figure),
        };
        let cells = Way::ALL.map(cell);
        if cells.iter().all(|cell| cell.is_empty()) {
            continue;
        }
        let program = case.client_text();
        writeln!(text, "| `{program}` | {} |", cells.join(" | ")).expect("text takes text");
        for way in Way::ALL {
            if let Some(played) = results.get(&(number, way))
                && !played.why.is_empty()
            {
                let why = played.why.replace('|', "/");
                let (way, seconds) = (way.name(), played.seconds);
                writeln!(worse, "* `{program}`, {way}, {seconds:.0} s: {why}")
                    .expect("text takes text");
            }
        }
    }
    let is_right = Way::ALL.iter().all(|way| {
        let failed = |number: &usize| {
            let played = |way| results.get(&(*number, way));
            let is_right = |way| played(way).is_some_and(|played| played.why.is_empty());
            *way != Way::Kernel
                && played(*way).is_some_and(|played| !played.why.is_empty())
                && is_right(Way::Kernel)
        };
        !(0..cases().len()).any(|number| failed(&number))
    });
    if !worse.is_empty() {
        write!(text, "\nWhat failed:\n\n{worse}").expect("text takes text");
    }
    text.push('\n');
    (text, is_right)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_results_is_read_and_others_are_not() {
        let played = |why: &str, figure: &str, seconds| Played {
            why: why.into(),
            figure: figure.into(),
            seconds,
        };
        assert_eq!(
            parse("row\t3\tright\t1.5\t7 µs"),
            Some((3, played("", "7 µs", 1.5)))
        );
        assert_eq!(
            parse("row\t4\tfailed\t2.0\tno way"),
            Some((4, played("no way", "", 2.0)))
        );
        assert_eq!(parse("  1.0 s  rping passed"), None);
    }

    #[test]
    fn a_row_that_fails_where_the_kernels_is_right_is_found() {
        let played = |why: &str| Played {
            why: why.into(),
            figure: String::new(),
            seconds: 1.0,
        };
        let mut results = BTreeMap::new();
        results.insert((0, Way::Ours), played("broken"));
        results.insert((0, Way::Kernel), played("broken"));
        assert!(section("6.1", &results, Duration::ZERO).1);
        results.insert((0, Way::Kernel), played(""));
        let (text, is_right) = section("6.1", &results, Duration::ZERO);
        assert!(!is_right);
        assert!(text.contains("| right, 1.0 s | **failed** |"));
        assert!(text.contains("ours, 1 s: broken"));
    }
}
