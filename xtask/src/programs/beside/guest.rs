//! The kernel machine: starts it, and plays rows inside it.

use std::io::Write;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use portolan_lab::machine::{Job, Machine, OnFailure, Step};

use super::{Played, Results, Way, cases};
use crate::programs::case::Case;
use crate::programs::figures::{self, Figure, Unit};
use crate::programs::namespace::Namespace;
use crate::programs::pair;
use crate::programs::side::{Files, Side, Sides};
use crate::test::Workspace;

const SCRIPT: &str = include_str!("guest.sh");
/// Time limit of a row on emulated processors, with files from the host.
const ROW_TIME_MAX: Duration = Duration::from_secs(180);
/// Time limit of a row that runs many tests.
const LONG_ROW_TIME_MAX: Duration = Duration::from_secs(900);
/// Programs of such rows.
const LONG: [&str; 3] = ["fabtests.sh", "imb.sh", "osu.sh"];
/// Time limit of all rows of one way. Longer than they take.
const WAY_TIME_MAX: Duration = Duration::from_secs(3 * 3600);
/// Prefix of a line of results: the row's number, seconds, and the parts that [`parse`] reads.
const MARK: &str = "row";
const RIGHT: &str = "right";
const FAILED: &str = "failed";

/// Plays rows one way, in a machine of its own. Its output goes to `output` as it comes.
pub(super) fn play_in(
    machine: &Machine,
    workspace: &Workspace,
    way: Way,
    rows: &[usize],
    output: &mut (dyn Write + Send),
) -> Result<Results> {
    if rows.is_empty() {
        return Ok(Results::new());
    }
    let numbers: Vec<String> = rows.iter().map(usize::to_string).collect();
    let words = [
        workspace.root.to_string_lossy().into_owned(),
        std::env::current_exe()?.to_string_lossy().into_owned(),
        way.name().to_owned(),
        numbers.join(","),
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
    let outcome = machine.run(&job, output)?;
    let step = outcome.step(way.name()).context("the step was run")?;
    let played = step.output.lines().filter_map(parse);
    let played: Results = played
        .map(|(number, played)| ((number, way), played))
        .collect();
    ensure!(!played.is_empty(), "{}: no row was played", way.name());
    let all = rows.iter().map(|row| (*row, way));
    Ok(all
        .map(|at| {
            let found = played.get(&at).cloned();
            (at, found.unwrap_or_else(Played::missing))
        })
        .collect())
}

/// Inside the machine: plays the rows and prints each result.
pub(in crate::programs) fn play(
    workspace: &Workspace,
    way: Way,
    rows: &[usize],
) -> Result<ExitCode> {
    let network = prepare(way)?;
    let cases = cases();
    for row in rows {
        let case = cases.get(*row).context("no such row")?;
        let started = Instant::now();
        let played = pair::play(&sides(workspace, way, &network, case), case);
        let seconds = started.elapsed().as_secs_f64();
        println!("{MARK}\t{row}\t{seconds:.1}\t{}", line(played));
    }
    Ok(ExitCode::SUCCESS)
}

fn sides<'a>(
    workspace: &'a Workspace,
    way: Way,
    namespace: &'a Namespace,
    case: &Case,
) -> Sides<'a> {
    let side = |is_ours: bool| match is_ours {
        true => Side::Ours {
            portolan: &workspace.portolan,
            namespace,
            files: Files::Whole,
            checked_in: None,
            // rdma_rxe has to use its link-local GID, see there.
            is_link_local: Way::MIXED.contains(&way),
        },
        false => Side::Kernel,
    };
    let text = case.client_text();
    let is_long = LONG.iter().any(|long| text.contains(long));
    Sides {
        server: side(matches!(way, Way::Ours | Way::OursServes)),
        client: side(matches!(way, Way::Ours | Way::OursCalls)),
        row_time_max: match is_long {
            true => LONG_ROW_TIME_MAX,
            false => ROW_TIME_MAX,
        },
    }
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

/// What [`parse`] reads: `right` and three words for each figure, or `failed` and why.
fn line(played: Result<String>) -> String {
    match played {
        Ok(said) => {
            let figures = figures::of(&said).into_iter();
            let words = figures
                .map(|figure| format!("\t{}\t{}\t{}", figure.what, figure.value, figure.unit));
            format!("{RIGHT}{}", words.collect::<String>())
        }
        Err(error) => {
            let why = format!("{error:#}").replace(['\t', '\n'], " ");
            format!("{FAILED}\t{why}")
        }
    }
}

/// A result that [`play`] has printed: the row's number, and what came out.
pub(super) fn parse(line: &str) -> Option<(usize, Played)> {
    let mut words = line.split('\t');
    if words.next()? != MARK {
        return None;
    }
    let number = words.next()?.parse().ok()?;
    let seconds = words.next()?.parse().ok()?;
    let word = words.next()?;
    let rest: Vec<&str> = words.collect();
    let result = match word.trim() {
        RIGHT => Ok(()),
        FAILED => Err(rest.join(" ").trim().to_owned()),
        _ => return None,
    };
    let figure = |words: &[&str]| match words {
        [what, value, unit] => Some(Figure {
            what: (*what).to_owned(),
            value: value.parse().ok()?,
            unit: Unit::of(unit.trim())?,
        }),
        _ => None,
    };
    let figures = match result {
        Ok(()) => rest.chunks(3).filter_map(figure).collect(),
        Err(_) => Vec::new(),
    };
    let played = Played {
        result,
        figures,
        seconds,
    };
    Some((number, played))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_that_the_machine_prints_is_read_again() {
        let said = "rc_lat:\n    latency  =  24.5 us\nrc_bw:\n    bw  =  3 GB/sec\n";
        let text = format!("{MARK}\t3\t1.5\t{}\r", line(Ok(said.to_owned())));
        let (number, played) = parse(&text).expect("a result");
        assert_eq!((number, played.seconds), (3, 1.5));
        assert_eq!(played.result, Ok(()));
        assert_eq!(played.figures, figures::of(said));

        let failed = line(Err(anyhow::anyhow!("no\tway\n")));
        let (_, played) = parse(&format!("{MARK}\t4\t2.0\t{failed}")).expect("a result");
        assert_eq!(played.result, Err("no way".to_owned()));
        assert!(played.figures.is_empty());
        assert_eq!(parse("  1.0 s  rping passed"), None);
    }
}
