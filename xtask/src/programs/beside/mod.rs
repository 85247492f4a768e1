//! Compares Portolan with rdma_rxe: the same programs in a kernel machine, with both ends on our libraries, both on
//! Debian's over rdma_rxe, and one on each. The machine mounts this host's files, so the programs are the same. It runs
//! this binary again to play the rows.

mod guest;
mod kept;
mod table;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Result, ensure};
use portolan_lab::machine::{Cache, Machine, Suite};

use super::case::{Case, End, Network};
use super::document;
use super::figures::Figure;
use crate::parallel::side_by_side;
use crate::test::Workspace;
pub(super) use guest::play;
use kept::{Kept, Pass};

const BEGIN: &str =
    "<!-- Written by `cargo xtask programs --beside --whole` from its run: do not edit. -->\n";
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
    const WHOLE: [Self; 2] = [Self::Kernel, Self::Ours];
    const MIXED: [Self; 2] = [Self::OursServes, Self::OursCalls];

    fn name(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Kernel => "kernel",
            Self::OursServes => "ours-serves",
            Self::OursCalls => "ours-calls",
        }
    }
}

/// The result of a row, played one way.
#[derive(Clone, Debug, PartialEq)]
struct Played {
    /// Why the row failed, if it did.
    result: Result<(), String>,
    /// What its programs measured, if anything.
    figures: Vec<Figure>,
    seconds: f64,
}

impl Played {
    /// Takes the figures of another run. A failure of either run of ours counts; of rdma_rxe's, only the first one's
    /// does, because it excuses failures of ours.
    fn measured_again(&mut self, way: Way, again: Self) {
        match again.result {
            Ok(()) => (self.figures, self.seconds) = (again.figures, again.seconds),
            Err(why) if way == Way::Ours => {
                *self = Self {
                    result: Err(why),
                    ..again
                }
            }
            Err(why) => {
                // The first figures are of two machines at a time.
                self.figures.clear();
                println!(
                    "a row of {} failed when it was measured again: {why}",
                    way.name()
                );
            }
        }
    }

    /// A row that the machine did not play, for example because the time was over.
    fn missing() -> Self {
        Self {
            result: Err(NOT_PLAYED.to_owned()),
            figures: Vec::new(),
            seconds: 0.0,
        }
    }
}

/// Why a row failed that was not played.
const NOT_PLAYED: &str = "was not played";

/// The results by row and way.
type Results = BTreeMap<(usize, Way), Played>;

/// The rows of stacks above verbs, and short ones of perftest and qperf. `interop --programs` compares the programs of
/// libibverbs and librdmacm with rdma_rxe.
fn cases() -> Vec<Case> {
    super::cases::all()
        .into_iter()
        .filter(is_compared)
        .collect()
}

fn is_compared(case: &Case) -> bool {
    let text = case.client_text();
    // A row of all of rdma-core's tests includes the rows of parts.
    let is_part = text.contains(" -k ");
    let is_c = matches!(case.client, End::C(_));
    is_c && !is_part && case.network == Network::Ethernet
}

/// Whether a row is in the selection, which takes a quarter of the time: of the many similar rows of UCX and MPI only the
/// tests' own, and none of fabtests, which test for minutes.
fn is_selected(case: &Case) -> bool {
    let is_one_of_many = ["UCX", "MPI"].iter().any(|many| case.group.contains(many));
    (case.is_quick || !is_one_of_many) && !case.client_text().contains("fabtests.sh")
}

/// Whether a row can have an end on each side. A row that fails with both ends on rdma_rxe is not played like that either:
/// it would say nothing about ours.
fn can_be_mixed(case: &Case) -> bool {
    // perftest takes a GID by its index, and the devices have their GIDs in different orders.
    case.server.is_some() && !case.client_text().starts_with("ib_")
}

/// What to play.
#[derive(Debug, clap::Args)]
pub(super) struct Choice {
    /// Play all rows beside rdma_rxe, not only a selection, and write the document: more than an hour
    #[arg(long, requires = "beside", conflicts_with = "only")]
    whole: bool,
    /// Continue the run that was cut off: take its results, ours only if our binaries are the same
    #[arg(long, requires = "beside", conflicts_with = "only")]
    resume: bool,
    /// Play only these ends and write no document, for a later run with --resume
    #[arg(
        long,
        requires = "beside",
        conflicts_with = "only",
        value_name = "ENDS"
    )]
    ends: Vec<Way>,
}

/// Plays the rows whose commands contain `only`, or the selection, or the whole. Writes the document of a run that plays
/// all ends of all rows: what has fewer would replace what a longer run has found.
pub(super) fn run(workspace: &Workspace, only: Option<&str>, choice: &Choice) -> Result<ExitCode> {
    let started = Instant::now();
    let machine = Machine::prepare_with_host_files(&Cache::locate()?, Suite::Bookworm)?;
    let kept = match only {
        Some(_) => Kept::without_file(workspace, machine.kernel_release())?,
        None => Kept::open(workspace, machine.kernel_release(), choice.resume)?,
    };
    let cases = cases();
    let mut results = Results::new();
    let report = |results: &Results| -> Result<bool> {
        let release = machine.kernel_release();
        let took = (!choice.resume).then(|| started.elapsed());
        let text = table::section(release, &cases, results, took);
        println!("{text}");
        if choice.whole && choice.ends.is_empty() {
            document::replace(&workspace.root, (BEGIN, END), &text)?;
        }
        Ok(table::is_right(results))
    };
    let play = |pass: Pass, ways: &[Way], rows: &[usize]| -> Result<Results> {
        let played = side_by_side(ways, |way| -> Result<Results> {
            let (mut results, missing) = kept.part(pass, *way, &cases, rows);
            let mut output = kept.output(pass, *way, &cases)?;
            let played = guest::play_in(&machine, workspace, *way, &missing, &mut output)?;
            results.extend(played);
            Ok(results)
        });
        let played = played.into_iter().collect::<Result<Vec<_>>>()?;
        Ok(played.into_iter().flatten().collect())
    };
    let is_chosen = |at: &usize| match only {
        Some(only) => cases[*at].client_text().contains(only),
        None => choice.whole || is_selected(&cases[*at]),
    };
    let rows: Vec<usize> = (0..cases.len()).filter(is_chosen).collect();
    ensure!(!rows.is_empty(), "no row has this in its client's command");
    if !choice.ends.is_empty() {
        results.extend(play(Pass::Shared, &choice.ends, &rows)?);
        report(&results)?;
        return Ok(ExitCode::SUCCESS);
    }
    results.extend(play(Pass::Shared, &Way::WHOLE, &rows)?);
    report(&results)?;
    let is_mixed = |at: &usize| {
        let kernel = results.get(&(*at, Way::Kernel));
        can_be_mixed(&cases[*at]) && kernel.is_some_and(|played| played.result.is_ok())
    };
    let mixed: Vec<usize> = rows.iter().copied().filter(is_mixed).collect();
    results.extend(play(Pass::Shared, &Way::MIXED, &mixed)?);
    report(&results)?;
    // Two machines share the processors. What both measured is measured again, with one machine at a time.
    let has_figures = |at: &usize| {
        let has_some = |way| {
            results
                .get(&(*at, way))
                .is_some_and(|played| !played.figures.is_empty())
        };
        Way::WHOLE.into_iter().all(has_some)
    };
    let measured: Vec<usize> = rows.iter().copied().filter(has_figures).collect();
    for way in Way::WHOLE {
        for (at, again) in play(Pass::Alone, &[way], &measured)? {
            if let Some(first) = results.get_mut(&at) {
                first.measured_again(way, again);
            }
        }
    }
    Ok(match report(&results)? {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn played(result: Result<(), &str>, seconds: f64) -> Played {
        Played {
            result: result.map_err(str::to_owned),
            figures: Vec::new(),
            seconds,
        }
    }

    #[test]
    fn a_second_run_excuses_no_failure() {
        let mut kernel = played(Ok(()), 1.0);
        kernel.measured_again(Way::Kernel, played(Err("late"), 9.0));
        assert_eq!(kernel, played(Ok(()), 1.0));
        kernel.measured_again(Way::Kernel, played(Ok(()), 2.0));
        assert_eq!(kernel, played(Ok(()), 2.0));
        let mut ours = played(Ok(()), 1.0);
        ours.measured_again(Way::Ours, played(Err("late"), 9.0));
        assert_eq!(ours, played(Err("late"), 9.0));
        assert!(Played::missing().result.is_err());
    }

    #[test]
    fn rows_of_every_kind_are_compared() {
        let cases: Vec<Case> = cases().into_iter().filter(is_selected).collect();
        for program in [
            "ucx_perftest",
            "mpi.sh openmpi",
            "fio",
            "ib_write_lat",
            "qperf",
        ] {
            let is_of = |case: &Case| case.client_text().contains(program);
            assert!(cases.iter().any(is_of), "{program}");
        }
    }
}
