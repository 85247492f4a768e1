//! The simulator judged: each defect that is planted must be found, and soon.

use portolan_cm::mutant as cm;
use portolan_roce::engine::mutant as roce;

use super::failure::Failure;
use super::library;
use super::run::run_seed;

/// Seeds within which each defect must be found.
pub const SEEDS_TO_CATCH: u64 = 1000;

/// A defect of one of the engines, or above them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// Of the connection manager.
    Cm(cm::Mutant),
    /// Of the queue pairs.
    QueuePair(roce::Mutant),
    /// Of what the library does above the engines, which is modelled here.
    Library(library::Mutant),
}

impl Mutant {
    /// Every one.
    pub fn all() -> impl Iterator<Item = Self> {
        let cm = cm::Mutant::ALL.into_iter().map(Self::Cm);
        cm.chain(roce::Mutant::ALL.into_iter().map(Self::QueuePair))
            .chain(library::Mutant::ALL.into_iter().map(Self::Library))
    }

    /// Runs with the defect planted in the engines of this thread, and without it afterwards.
    fn plant<T>(self, run: impl FnOnce() -> T) -> T {
        match self {
            Self::Cm(mutant) => cm::plant(Some(mutant)),
            Self::QueuePair(mutant) => roce::plant(Some(mutant)),
            Self::Library(mutant) => library::plant(Some(mutant)),
        }
        let ended = run();
        cm::plant(None);
        roce::plant(None);
        library::plant(None);
        ended
    }
}

/// A defect that was planted, and how it was found.
#[derive(Debug)]
pub struct Hunt {
    /// The defect.
    pub mutant: Mutant,
    /// The first failure; `None` if it got through all seeds.
    pub caught: Option<Failure>,
    /// Seeds that were run.
    pub seeds: u64,
}

/// Plants a defect and runs seeds from 0 on until one fails, [`SEEDS_TO_CATCH`] at most.
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

/// Hunts every mutant, on so many threads; in the order of [`Mutant::all`].
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
        // A hunter does not panic: what its runs panic with is a failure of theirs.
        hunters
            .into_iter()
            .filter_map(|hunter| hunter.join().ok())
            .flatten()
            .collect()
    });
    hunts.sort_by_key(|(at, _)| *at);
    hunts.into_iter().map(|(_, hunt)| hunt).collect()
}
