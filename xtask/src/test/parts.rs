//! The parts of the tests.

use anyhow::Result;

use super::{Outcome, Workspace, steps};

/// A part of the tests.
pub(crate) struct Part {
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    pub(super) place: Place,
    /// The part that builds what this part runs.
    needs: Option<&'static str>,
    pub(super) run: fn(&Workspace) -> Result<Outcome>,
}

#[cfg(test)]
impl Part {
    /// A part that only runs this function.
    pub(super) fn that(run: fn(&Workspace) -> Result<Outcome>) -> Self {
        Self {
            name: "for a test",
            what: "what a test says",
            place: Place::Anywhere,
            needs: None,
            run,
        }
    }
}

/// What a part may run in parallel with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// With building parts of the other [`Profile`]: processors that one compiler leaves idle are used by the
    /// other.
    Building(Profile),
    /// With nothing: it measures time, or its programs do.
    Alone,
    /// With parts that may run anywhere. It uses or inspects this host's UDP port.
    Host,
    /// With all parts but those alone. It has its own machine, or little to do.
    Anywhere,
    /// Like [`Place::Anywhere`], at a lower priority than machines. It has its own network namespace but uses
    /// this host's processors.
    Namespace,
    /// Like [`Place::Anywhere`], at the lowest priority. It uses no network, and every processor for as long as
    /// there is something to compute.
    Computing,
}

impl Place {
    /// Whether it may run in parallel with parts that do not build.
    pub(super) fn runs_in_parallel(self) -> bool {
        !matches!(self, Self::Building(_) | Self::Alone)
    }
}

/// Cargo's profiles. Each has its own folder, which only one build at a time may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Profile {
    Dev,
    Release,
}

const TEST_PROGRAMS: &str = "test-programs";
const COMMAND: &str = "build";

/// The parts, in order. Those in lanes are sorted with the longest first, because short ones fill the gap at
/// the end. Before them come the part whose programs have the tightest time limits, and beside it one of those
/// that mostly wait.
pub(super) const PARTS: &[Part] = &[
    Part {
        name: "format",
        what: "sources are formatted",
        place: Place::Building(Profile::Dev),
        needs: None,
        run: steps::format,
    },
    Part {
        name: "lints",
        what: "clippy finds nothing, in every crate and test",
        place: Place::Building(Profile::Dev),
        needs: None,
        run: steps::lints,
    },
    Part {
        name: "documentation",
        what: "rustdoc builds without a warning",
        place: Place::Building(Profile::Dev),
        needs: None,
        run: steps::documentation,
    },
    Part {
        name: "promises",
        what: "each promise of the man pages has a test",
        place: Place::Building(Profile::Dev),
        needs: None,
        run: crate::promises::run,
    },
    Part {
        name: "links",
        what: "links and paths in the documents lead somewhere",
        place: Place::Building(Profile::Dev),
        needs: None,
        run: crate::links::run,
    },
    Part {
        name: "loops",
        what: "no files of a crate use each other in a circle",
        place: Place::Building(Profile::Dev),
        needs: None,
        run: crate::loops::run,
    },
    Part {
        name: "api",
        what: "the public items of the crate portolan are those of docs/api.txt",
        place: Place::Building(Profile::Dev),
        needs: None,
        run: crate::public_api::run,
    },
    Part {
        name: "doc-examples",
        what: "each public type, trait and function of the crate portolan has an example",
        place: Place::Building(Profile::Dev),
        needs: None,
        run: crate::doc_examples::run,
    },
    Part {
        name: TEST_PROGRAMS,
        what: "the tests, built",
        place: Place::Building(Profile::Dev),
        needs: None,
        run: steps::test_programs,
    },
    Part {
        name: COMMAND,
        what: "the command and the libraries for C programs, optimized",
        place: Place::Building(Profile::Release),
        needs: None,
        run: steps::build,
    },
    Part {
        name: "foreign-crates",
        what: "examples of another Rust crate, built for the part `programs`",
        place: Place::Building(Profile::Release),
        needs: None,
        run: crate::programs::crates::build,
    },
    Part {
        name: "clock",
        what: "tests that measure time or quantity",
        place: Place::Alone,
        needs: Some(TEST_PROGRAMS),
        run: steps::clock,
    },
    Part {
        name: "perf-gates",
        what: "latency, connects, bandwidth and resolution compared with plain sockets and libc",
        place: Place::Alone,
        needs: Some(COMMAND),
        run: crate::perf_gates::run,
    },
    Part {
        name: "demo",
        what: "the demo as an ordinary user, in under 5 s",
        place: Place::Alone,
        needs: Some(COMMAND),
        run: crate::demo::run,
    },
    Part {
        name: "programs",
        what: "Debian's C programs on our libraries and software devices: a selection of `cargo xtask programs`",
        place: Place::Alone,
        needs: Some(COMMAND),
        run: crate::programs::run,
    },
    Part {
        name: "crash-test",
        what: "one process of three pairs is killed, also the port's holder; the others lose no ping",
        place: Place::Alone,
        needs: Some(COMMAND),
        run: crate::crash_test::run,
    },
    Part {
        name: "tests",
        what: "unit, property and integration tests",
        place: Place::Host,
        needs: Some(TEST_PROGRAMS),
        run: steps::tests,
    },
    Part {
        name: "pairs",
        what: "three pairs of listen and ping in six processes at once",
        place: Place::Host,
        needs: Some(COMMAND),
        run: crate::pairs::run,
    },
    Part {
        name: "drop-in",
        what: "a C program is built and run on the installed libraries, as an ordinary user",
        place: Place::Host,
        needs: Some(COMMAND),
        run: crate::drop_in::run,
    },
    Part {
        name: "captures",
        what: "tshark and an independent CRC check our captures",
        place: Place::Host,
        needs: Some(COMMAND),
        run: crate::dissect::run,
    },
    Part {
        name: "stress",
        what: "64 processes, half of them C programs, for a minute, killed at random and replaced",
        place: Place::Namespace,
        needs: Some(COMMAND),
        run: crate::stress::run,
    },
    Part {
        name: "kernel-provider",
        what: "over Linux's rdma_rxe: the conformance suite, C programs on our librdmacm, rping, faults",
        place: Place::Anywhere,
        needs: Some(COMMAND),
        run: crate::kernel_provider::run,
    },
    Part {
        name: "events",
        what: "every field of every event as librdmacm reports it, over both providers",
        place: Place::Anywhere,
        needs: None,
        run: crate::kernel_events::run,
    },
    Part {
        name: "kernel",
        what: "rping, udaddy and mckey on Linux's rdma_rxe against ours",
        place: Place::Anywhere,
        needs: Some(COMMAND),
        run: steps::kernel,
    },
    Part {
        name: "netem",
        what: "pings and 64 MiB by RDMA write through 5 % loss and reordering",
        place: Place::Anywhere,
        needs: Some(COMMAND),
        run: crate::netem::run,
    },
    Part {
        name: "interop",
        what: "two machines, ours and rdma_rxe: programs of both, data of every operation, loss, MTU 9000",
        place: Place::Anywhere,
        needs: Some(COMMAND),
        run: crate::interop::test,
    },
    Part {
        name: "machines",
        what: "the laboratory's machines and judges themselves",
        place: Place::Anywhere,
        needs: Some(TEST_PROGRAMS),
        run: steps::machines,
    },
    Part {
        name: "fabric",
        what: "a simulated InfiniBand fabric with OpenSM as its administrator",
        place: Place::Anywhere,
        needs: Some(COMMAND),
        run: crate::fabric::run,
    },
    Part {
        name: "figures",
        what: "the cost of connections compared with librdmacm, in instructions, over both providers",
        place: Place::Anywhere,
        needs: Some(COMMAND),
        run: crate::figures::test,
    },
    Part {
        name: "leaks",
        what: "a thousand names looked up at once, ids dropped meanwhile, under valgrind",
        place: Place::Anywhere,
        needs: None,
        run: crate::leaks::run,
    },
    Part {
        name: "simulator",
        what: "10,000 seeds; the planted defects are a test of the part `tests`",
        place: Place::Computing,
        needs: None,
        run: steps::simulator,
    },
    Part {
        name: "fuzz",
        what: "the fuzz targets, for some seconds each",
        place: Place::Computing,
        needs: None,
        run: crate::fuzz::test,
    },
];

/// The parts whose names contain `only`, and the parts that build what they run, so that no part tests an
/// outdated build.
pub(super) fn chosen(only: Option<&str>) -> Vec<&'static Part> {
    let named = |part: &Part| only.is_none_or(|only| part.name.contains(only));
    let needed: Vec<&str> = PARTS
        .iter()
        .filter(|part| named(part))
        .filter_map(|part| part.needs)
        .collect();
    PARTS
        .iter()
        .filter(|part| named(part) || needed.contains(&part.name))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_brings_the_one_that_builds_what_it_runs() {
        let names = |only| -> Vec<_> { chosen(Some(only)).iter().map(|part| part.name).collect() };
        assert_eq!(names("netem"), [COMMAND, "netem"]);
        assert_eq!(names("promises"), ["promises"]);
        assert_eq!(names("no such part"), [""; 0]);
    }

    #[test]
    fn each_part_needs_an_earlier_part_that_builds() {
        for (at, part) in PARTS.iter().enumerate() {
            let Some(needed) = part.needs else { continue };
            let earlier = PARTS[..at].iter().find(|earlier| earlier.name == needed);
            let builds = |part: &Part| matches!(part.place, Place::Building(_));
            assert!(
                !builds(part) && earlier.is_some_and(builds),
                "{}",
                part.name
            );
        }
    }
}
