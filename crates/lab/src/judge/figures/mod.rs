//! Measures the cost of connections compared with librdmacm: each step of many simultaneous
//! connections, in one kernel machine. The subjects are rdmacm-utils' cmtime with Debian's
//! librdmacm over rdma_rxe, `portolan-cmtime` over the kernel provider on the same device, and
//! `portolan-cmtime` over the software device between two network namespaces.
//!
//! Time in the machine is counted in instructions, so the host's load does not matter. The subjects
//! take turns, round by round. The result is the median of the rounds' ratios.

mod table;

use std::fmt::{self, Write as _};
use std::io;
use std::path::Path;

use self::table::Table;
use super::{Report, step, topology};
use crate::machine::{Cache, Job, Machine, MachineError, Step, Suite};

const SCRIPT: &str = include_str!("../guest/figures.sh");
/// Guest path of [`SCRIPT`].
const SCRIPT_PATH: &str = "/job/figures.sh";

/// A measured program with its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// Cmtime with Debian's librdmacm over rdma_rxe: the yardstick.
    Librdmacm,
    /// `portolan-cmtime` over the kernel provider, over the same rdma_rxe.
    KernelProvider,
    /// The same over the software device, between two network namespaces.
    SoftwareDevice,
}

impl Subject {
    /// All subjects, in the order of their turns.
    pub const ALL: [Self; 3] = [Self::Librdmacm, Self::KernelProvider, Self::SoftwareDevice];

    /// Its name in the figures.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Librdmacm => "librdmacm over rdma_rxe",
            Self::KernelProvider => "kernel provider over rdma_rxe",
            Self::SoftwareDevice => "software device",
        }
    }

    fn command(self) -> &'static str {
        match self {
            Self::Librdmacm => "by_cmtime",
            Self::KernelProvider => "over_the_kernel",
            Self::SoftwareDevice => "over_software",
        }
    }
}

/// The number of connections of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Simultaneous connections.
    pub at_once: u32,
    /// Number of repetitions, each with a new client.
    pub times: u32,
}

impl Load {
    fn connections(self) -> f64 {
        f64::from(self.at_once) * f64::from(self.times)
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} times {} connections at once",
            self.times, self.at_once
        )
    }
}

/// The measured times of all subjects in all rounds.
#[derive(Clone, Debug)]
pub struct Figures {
    /// The kernel's release, as `uname -r` prints it.
    pub kernel_release: String,
    /// The connections of a turn.
    pub load: Load,
    /// By round; the subjects are in the order of [`Subject::ALL`].
    rounds: Vec<[Table; 3]>,
}

/// Measures `rounds` rounds with `load` connections per turn. The program `cmtime` is
/// `portolan-cmtime`. Returns figures only if every round succeeded.
///
/// # Errors
/// [`MachineError::Unavailable`] if this host cannot provide the machine; other variants if the
/// machine failed. Failures in the machine are in the [`Report`].
pub fn figures(
    cache: &Cache,
    debian: Suite,
    cmtime: &Path,
    load: Load,
    rounds: u32,
) -> Result<(Report, Option<Figures>), MachineError> {
    let machine = Machine::prepare(cache, debian)?;
    let job = turns(load, rounds)
        .fold(topology().counting_instructions(), Job::step)
        .program("portolan-cmtime", cmtime)
        .file(SCRIPT_PATH, SCRIPT);
    let outcome = machine.run(&job, &mut io::sink())?;
    let mut report = Report::new(machine.kernel_release(), &outcome, job.step_names());
    let mut tables = Vec::new();
    for (part, step) in report.parts.iter_mut().zip(&outcome.steps) {
        if part.verdict.is_ok() && part.name.starts_with("round ") {
            part.verdict = Table::read(&step.output, load.times).map(|table| {
                let text = format!(
                    "{:.0} us a connection",
                    table.total_us() / load.connections()
                );
                tables.push(table);
                text
            });
        }
    }
    let is_whole = report.passed();
    let rounds = by_round(tables).filter(|_| is_whole);
    let figures = rounds.map(|rounds| Figures {
        kernel_release: machine.kernel_release().to_owned(),
        load,
        rounds,
    });
    Ok((report.keep_if_failed(outcome), figures))
}

/// Creates two namespaces for the software device, then gives the subjects their turns.
fn turns(load: Load, rounds: u32) -> impl Iterator<Item = Step> {
    let script = |command: &str| format!(". {SCRIPT_PATH}\n{command}");
    let namespaces = step("two more namespaces".to_owned(), &script("two_namespaces"));
    let turns = (1..=rounds).flat_map(move |round| {
        Subject::ALL.map(|subject| {
            let name = format!("round {round}, {load}: {}", subject.name());
            step(
                name,
                &script(&format!(
                    "{} {} {}",
                    subject.command(),
                    load.at_once,
                    load.times
                )),
            )
        })
    });
    std::iter::once(namespaces).chain(turns)
}

/// Groups the tables by round. `None` if a subject's turn is missing.
fn by_round(tables: Vec<Table>) -> Option<Vec<[Table; 3]>> {
    let rounds = tables.chunks(Subject::ALL.len());
    rounds.map(|round| round.to_vec().try_into().ok()).collect()
}

impl Figures {
    /// The ratio of a subject's total time to librdmacm's.
    #[must_use]
    pub fn ratio(&self, subject: Subject) -> f64 {
        self.median_ratio(subject, |table| Some(table.total_us()))
    }

    /// Formats the figures as Markdown: a line per step, with microseconds per connection and
    /// ratios.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut text = format!(
            "Linux {}, {}, medians of {} rounds, thousands of instructions (microseconds of the machine's clock) a connection:\n\n",
            self.kernel_release,
            self.load,
            self.rounds.len()
        );
        text.push_str("| step |");
        for subject in Subject::ALL {
            let _ = write!(text, " {} |", subject.name());
            if subject != Subject::Librdmacm {
                text.push_str(" ratio |");
            }
        }
        text.push_str("\n|---|---|---|---|---|---|\n");
        for name in table::STEPS {
            self.line(&mut text, name, |table| table.us(name));
        }
        self.line(&mut text, "all steps", |table| Some(table.total_us()));
        text
    }

    fn line(&self, text: &mut String, name: &str, of: impl Fn(&Table) -> Option<f64> + Copy) {
        let _ = write!(text, "| {name} |");
        for subject in Subject::ALL {
            let us = median(self.tables(subject).filter_map(of));
            let _ = write!(text, " {:.1} |", us / self.load.connections());
            if subject != Subject::Librdmacm {
                let _ = write!(text, " {:.2} |", self.median_ratio(subject, of));
            }
        }
        text.push('\n');
    }

    /// The median of the rounds' ratios between a subject's figure and librdmacm's.
    fn median_ratio(&self, subject: Subject, of: impl Fn(&Table) -> Option<f64>) -> f64 {
        let both = self.tables(subject).zip(self.tables(Subject::Librdmacm));
        median(both.filter_map(|(subject, yardstick)| Some(of(subject)? / of(yardstick)?)))
    }

    fn tables(&self, subject: Subject) -> impl Iterator<Item = &Table> {
        self.rounds.iter().map(move |round| match subject {
            Subject::Librdmacm => &round[0],
            Subject::KernelProvider => &round[1],
            Subject::SoftwareDevice => &round[2],
        })
    }
}

/// The median. For an even number of values, the larger of the middle two, so that no promise is
/// kept by chance. Infinite if there are no values.
pub(super) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
        .get(values.len() / 2)
        .copied()
        .unwrap_or(f64::INFINITY)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(rounds: &[[f64; 3]]) -> Figures {
        let table = |us| Table::uniform(us);
        Figures {
            kernel_release: "6.1.0".into(),
            load: Load {
                at_once: 5,
                times: 2,
            },
            rounds: rounds.iter().map(|round| round.map(table)).collect(),
        }
    }

    #[test]
    fn a_round_that_was_disturbed_does_not_decide() {
        // In one round both were slow, in another only the subject.
        let figures = figures(&[
            [100.0, 90.0, 50.0],
            [900.0, 810.0, 450.0],
            [100.0, 500.0, 50.0],
        ]);
        assert_eq!(figures.ratio(Subject::KernelProvider), 0.9);
        assert_eq!(figures.ratio(Subject::SoftwareDevice), 0.5);
    }

    #[test]
    fn the_table_has_every_step_with_its_ratios_and_their_sum() {
        let text = figures(&[[100.0, 90.0, 50.0]]).markdown();
        assert!(
            text.starts_with("Linux 6.1.0, 2 times 5 connections at once"),
            "{text}"
        );
        for name in table::STEPS {
            let line = format!("| {name} | 10.0 | 9.0 | 0.90 | 5.0 | 0.50 |");
            assert!(text.lines().any(|each| each == line), "{line} in {text}");
        }
        let steps = table::STEPS.len() as f64;
        let sum = format!("| all steps | {:.1} |", 10.0 * steps);
        assert!(text.contains(&sum), "{text}");
    }

    #[test]
    fn a_missing_turn_leaves_no_figures() {
        let tables = |count: usize| vec![Table::uniform(1.0); count];
        assert_eq!(by_round(tables(6)).map(|rounds| rounds.len()), Some(2));
        assert!(by_round(tables(5)).is_none());
    }
}
