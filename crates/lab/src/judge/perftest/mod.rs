//! Measures Debian's perftest on the software device compared with rdma_rxe, in one kernel machine.
//! The unmodified programs run over two rdma_rxe on the ends of a veth pair, and through `portolan
//! exec` over the software device between two network namespaces connected by another veth pair.
//!
//! They take turns, round by round, so that disturbances affect both. The result is the median of
//! the rounds' ratios.

mod printed;

use std::fmt::{self, Write as _};
use std::io;
use std::path::Path;
use std::time::Duration;

use self::printed::Quantity;
use super::figures::median;
use super::{LIBRARY, LIBRARY_PATH, Report, step};
use crate::machine::{
    Cache, Job, Machine, MachineError, OnFailure, Package, Step, Suite, ensure_installed,
};

const SCRIPT: &str = include_str!("../guest/perftest.sh");
/// Guest path of [`SCRIPT`].
const SCRIPT_PATH: &str = "/job/perftest.sh";
/// Large enough for packets of the path MTU in use, 4096 bytes.
const INTERFACE_MTU: u32 = 9000;
/// The command, and beside it the libraries for C programs.
const OURS: [&str; 3] = ["portolan", "libibverbs.so", "librdmacm.so"];
/// Many times what everything takes on a slow host.
const DEADLINE: Duration = Duration::from_secs(3 * 3600);
const PACKAGES: &[Package] = &[Package {
    name: "perftest",
    purpose: "the programs that measure",
}];

/// The measurements, in order.
const MEASUREMENTS: [Measurement; 9] = [
    Measurement::new(Program::SendLatency, 64, 1000),
    Measurement::new(Program::SendLatency, 65_536, 100),
    Measurement::new(Program::SendLatency, 1_048_576, 10),
    Measurement::new(Program::WriteBandwidth, 64, 2000),
    Measurement::new(Program::WriteBandwidth, 65_536, 300),
    Measurement::new(Program::WriteBandwidth, 1_048_576, 30),
    Measurement::new(Program::ReadLatency, 64, 1000),
    Measurement::new(Program::ReadLatency, 65_536, 100),
    Measurement::new(Program::ReadLatency, 1_048_576, 10),
];

/// Messages of one size by one program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Measurement {
    program: Program,
    /// Message size in bytes.
    bytes: u32,
    /// Number of messages.
    times: u32,
}

impl Measurement {
    const fn new(program: Program, bytes: u32, times: u32) -> Self {
        Self {
            program,
            bytes,
            times,
        }
    }
}

impl fmt::Display for Measurement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {} bytes", self.program.name(), self.bytes)
    }
}

/// A program of perftest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Program {
    SendLatency,
    WriteBandwidth,
    ReadLatency,
}

impl Program {
    const ALL: [Self; 3] = [Self::SendLatency, Self::WriteBandwidth, Self::ReadLatency];

    fn name(self) -> &'static str {
        match self {
            Self::SendLatency => "ib_send_lat",
            Self::WriteBandwidth => "ib_write_bw",
            Self::ReadLatency => "ib_read_lat",
        }
    }

    fn quantity(self) -> Quantity {
        match self {
            Self::SendLatency | Self::ReadLatency => Quantity::Latency,
            Self::WriteBandwidth => Quantity::Bandwidth,
        }
    }
}

/// The device that a program runs over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subject {
    /// The reference.
    RdmaRxe,
    SoftwareDevice,
}

impl Subject {
    /// All subjects, in the order of their turns.
    const ALL: [Self; 2] = [Self::RdmaRxe, Self::SoftwareDevice];

    fn name(self) -> &'static str {
        match self {
            Self::RdmaRxe => "rdma_rxe",
            Self::SoftwareDevice => "software device",
        }
    }

    fn command(self) -> &'static str {
        match self {
            Self::RdmaRxe => "over_rxe",
            Self::SoftwareDevice => "over_software",
        }
    }
}

/// The results of all programs in all rounds.
#[derive(Clone, Debug)]
pub struct Perftest {
    /// The kernel's release, as `uname -r` prints it.
    kernel_release: String,
    /// Indexed by round, then as [`MEASUREMENTS`], then as [`Subject::ALL`].
    rounds: Vec<Vec<[f64; 2]>>,
}

/// Runs perftest's programs in turns over rdma_rxe and over the software device, for `rounds`
/// rounds. The folder `built` has the command and the libraries for C programs. Returns figures
/// only if every turn succeeded.
///
/// # Errors
/// [`MachineError::Unavailable`] if this host cannot provide the machine; other variants if the
/// machine failed. Failures in it are in the [`Report`].
pub fn perftest(
    cache: &Cache,
    debian: Suite,
    built: &Path,
    rounds: u32,
) -> Result<(Report, Option<Perftest>), MachineError> {
    ensure_installed(PACKAGES)?;
    let machine = Machine::prepare(cache, debian)?;
    let job = job(built, rounds);
    let outcome = machine.run(&job, &mut io::sink())?;
    let mut report = Report::new(machine.kernel_release(), &outcome, job.step_names());
    let mut measured = Vec::new();
    let steps = report.parts.iter_mut().zip(&outcome.steps).skip(SET_UP);
    for ((part, step), (measurement, _)) in steps.zip(turns(rounds)) {
        if part.verdict.is_ok() {
            let quantity = measurement.program.quantity();
            part.verdict = printed::read(&step.output, measurement.bytes, quantity)
                .inspect(|value| measured.push(*value))
                .map(|value| told(value, quantity));
        }
    }
    let is_whole = report.passed();
    let figures = is_whole.then(|| Perftest {
        kernel_release: machine.kernel_release().to_owned(),
        rounds: by_round(&measured),
    });
    Ok((report.keep_if_failed(outcome), figures))
}

/// Number of steps before the first turn.
const SET_UP: usize = 2;

fn job(built: &Path, rounds: u32) -> Job {
    let script = |command: String| format!(". {SCRIPT_PATH}\n{command}");
    let set_up = |name: &str, command: &str| -> Step {
        step(
            name.to_owned(),
            &script(format!("{command} {INTERFACE_MTU}")),
        )
        .on_failure(OnFailure::Stop)
    };
    let set_up: [Step; SET_UP] = [
        set_up("two rdma_rxe on a veth pair", "two_devices"),
        set_up("two namespaces on another", "two_hosts"),
    ];
    let turns = turns(rounds)
        .enumerate()
        .map(|(number, (measurement, subject))| {
            let round = number / (MEASUREMENTS.len() * Subject::ALL.len()) + 1;
            let name = format!("round {round}, {measurement}: {}", subject.name());
            let Measurement {
                program,
                bytes,
                times,
            } = measurement;
            let (command, program) = (subject.command(), program.name());
            step(
                name,
                &script(format!("{command} {program} {bytes} {times}")),
            )
        });
    let job = Job::new()
        .deadline(DEADLINE)
        .measuring()
        .file(LIBRARY_PATH, LIBRARY)
        .file(SCRIPT_PATH, SCRIPT);
    let ours = OURS.map(|name| (name, built.join(name)));
    let debians = Program::ALL.map(|program| {
        let name = program.name();
        (name, Path::new("/usr/bin").join(name))
    });
    let job = ours
        .into_iter()
        .chain(debians)
        .fold(job, |job, (name, path)| job.program(name, path));
    set_up.into_iter().chain(turns).fold(job, Job::step)
}

/// All turns in order.
fn turns(rounds: u32) -> impl Iterator<Item = (Measurement, Subject)> {
    (0..rounds)
        .flat_map(|_| MEASUREMENTS)
        .flat_map(|measurement| Subject::ALL.map(|subject| (measurement, subject)))
}

fn by_round(measured: &[f64]) -> Vec<Vec<[f64; 2]>> {
    let (turns, _) = measured.as_chunks::<{ Subject::ALL.len() }>();
    turns
        .chunks_exact(MEASUREMENTS.len())
        .map(<[_]>::to_vec)
        .collect()
}

impl Perftest {
    /// Formats the figures as Markdown: a line for each program and size.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut text = format!(
            "Linux {}, path MTU 4096, medians of {} rounds; a ratio is of times:\n\n| program | bytes |",
            self.kernel_release,
            self.rounds.len()
        );
        for subject in Subject::ALL {
            let _ = write!(text, " {} |", subject.name());
        }
        text.push_str(" ratio |\n|---|---|---|---|---|\n");
        for (at, Measurement { program, bytes, .. }) in MEASUREMENTS.iter().enumerate() {
            let quantity = program.quantity();
            let _ = write!(text, "| {} | {bytes} |", program.name());
            for subject in 0..Subject::ALL.len() {
                let value = median(self.values(at).map(|values| values[subject]));
                let _ = write!(text, " {} |", told(value, quantity));
            }
            let _ = writeln!(text, " {:.2} |", self.ratio(at));
        }
        text
    }

    /// The median of the rounds' ratios between the software device's time and rdma_rxe's.
    fn ratio(&self, measurement: usize) -> f64 {
        let quantity = MEASUREMENTS[measurement].program.quantity();
        median(
            self.values(measurement)
                .map(|[rxe, software]| match quantity {
                    Quantity::Latency => software / rxe,
                    Quantity::Bandwidth => rxe / software,
                }),
        )
    }

    fn values(&self, measurement: usize) -> impl Iterator<Item = [f64; 2]> {
        self.rounds.iter().map(move |round| round[measurement])
    }
}

fn told(value: f64, quantity: Quantity) -> String {
    match quantity {
        Quantity::Latency => format!("{value:.1} µs"),
        Quantity::Bandwidth => format!("{value:.1} MiB/s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn perftest(rounds: &[[f64; 2]]) -> Perftest {
        Perftest {
            kernel_release: "6.1.0".into(),
            rounds: rounds
                .iter()
                .map(|values| vec![*values; MEASUREMENTS.len()])
                .collect(),
        }
    }

    #[test]
    fn a_ratio_is_of_times_whatever_a_program_measures() {
        let text = perftest(&[[20.0, 10.0]]).markdown();
        let has = |line: &str| assert!(text.lines().any(|each| each == line), "{line} in {text}");
        has("| ib_send_lat | 64 | 20.0 µs | 10.0 µs | 0.50 |");
        has("| ib_write_bw | 65536 | 20.0 MiB/s | 10.0 MiB/s | 2.00 |");
        has("| ib_read_lat | 1048576 | 20.0 µs | 10.0 µs | 0.50 |");
    }

    #[test]
    fn a_round_that_was_disturbed_does_not_decide() {
        let figures = perftest(&[[10.0, 9.0], [90.0, 81.0], [10.0, 50.0]]);
        assert_eq!(figures.ratio(0), 0.9);
    }

    #[test]
    fn the_turns_and_what_they_measured_are_in_one_order() {
        let measured: Vec<f64> = (0_u32..36).map(f64::from).collect();
        let rounds = by_round(&measured);
        assert_eq!(turns(2).count(), measured.len());
        assert_eq!(rounds.len(), 2);
        assert_eq!(rounds[1][0], [18.0, 19.0]);
        let (measurement, subject) = turns(2).nth(19).unwrap();
        assert_eq!(measurement, MEASUREMENTS[0]);
        assert_eq!(subject, Subject::SoftwareDevice);
    }
}
