//! Tests of the simulator itself: it must find each planted defect, and soon.

use portolan_cm::mutant as cm;
use portolan_roce::engine::mutant as roce;
use portolan_rsocket::mutant as rsocket;

use super::failure::Failure;
use super::library;
use super::run::run_seed;

/// Seeds within which each defect must be found.
pub const SEEDS_TO_CATCH: u64 = 1000;

/// A planted defect, in an engine or above the engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// A defect of the connection manager.
    Cm(cm::Mutant),
    /// A defect of the queue pairs.
    QueuePair(roce::Mutant),
    /// A defect of the endpoints of streams.
    Stream(rsocket::Mutant),
    /// A defect of the library above the engines, which is modelled here.
    Library(library::Mutant),
}

impl Mutant {
    /// All mutants.
    pub fn all() -> impl Iterator<Item = Self> {
        let cm = cm::Mutant::ALL.into_iter().map(Self::Cm);
        cm.chain(roce::Mutant::ALL.into_iter().map(Self::QueuePair))
            .chain(rsocket::Mutant::ALL.into_iter().map(Self::Stream))
            .chain(library::Mutant::ALL.into_iter().map(Self::Library))
    }

    /// Calls `run` with the defect planted in this thread's engines, and removes it afterwards.
    fn plant<T>(self, run: impl FnOnce() -> T) -> T {
        match self {
            Self::Cm(mutant) => cm::plant(Some(mutant)),
            Self::QueuePair(mutant) => roce::plant(Some(mutant)),
            Self::Stream(mutant) => rsocket::plant(Some(mutant)),
            Self::Library(mutant) => library::plant(Some(mutant)),
        }
        let ended = run();
        cm::plant(None);
        roce::plant(None);
        rsocket::plant(None);
        library::plant(None);
        ended
    }
}

/// A planted defect and the result of the search for it.
#[derive(Debug)]
pub struct Hunt {
    /// The defect.
    pub mutant: Mutant,
    /// The first failure. `None` if all seeds passed.
    pub caught: Option<Failure>,
    /// Seeds that were run.
    pub seeds: u64,
}

/// Plants a defect and runs seeds from 0 until one fails, at most [`SEEDS_TO_CATCH`].
pub fn hunt(mutant: Mutant) -> Hunt {
    mutant.plant(|| {
        let mut seeds = 0..SEEDS_TO_CATCH;
        let caught = seeds.find_map(|seed| run_seed(seed).err());
        Hunt {
            mutant,
            seeds: seeds.start,
            caught: caught.map(|failure| *failure),
        }
    })
}

/// Hunts every mutant on `threads` threads. The results are in the order of [`Mutant::all`].
pub fn check_mutants(threads: usize) -> Vec<Hunt> {
    let mutants: Vec<Mutant> = Mutant::all().collect();
    let threads = threads.max(1);
    let mut hunts: Vec<(usize, Hunt)> = std::thread::scope(|scope| {
        let hunters = (0..threads).map(|thread| {
            let mine = mutants
                .iter()
                .copied()
                .enumerate()
                .skip(thread)
                .step_by(threads);
            scope.spawn(move || {
                mine.map(|(at, mutant)| (at, hunt(mutant)))
                    .collect::<Vec<_>>()
            })
        });
        let hunters: Vec<_> = hunters.collect();
        // A hunter thread does not panic: panics in its runs are caught as failures.
        hunters
            .into_iter()
            .filter_map(|hunter| hunter.join().ok())
            .flatten()
            .collect()
    });
    hunts.sort_by_key(|(at, _)| *at);
    hunts.into_iter().map(|(_, hunt)| hunt).collect()
}
