//! Which files use which, and the loops among them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::path::PathBuf;

use super::modules::{Crate, FileId, ModuleId};

/// The uses between the files of a crate.
#[derive(Debug)]
pub(super) struct Graph {
    files: Vec<PathBuf>,
    /// The used names, by the using file and the used file.
    uses: Vec<BTreeMap<FileId, BTreeSet<String>>>,
}

/// Files of which each uses the next, and the last uses the first.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Loop {
    pub(super) steps: Vec<Step>,
}

/// One file's use of another.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Step {
    pub(super) from: PathBuf,
    pub(super) to: PathBuf,
    pub(super) names: Vec<String>,
}

impl fmt::Display for Loop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for step in &self.steps {
            let (from, to) = (step.from.display(), step.to.display());
            writeln!(f, "  {from} -> {to}: {}", step.names.join(", "))?;
        }
        Ok(())
    }
}

impl Graph {
    /// All uses, except of files below the using file in the module tree.
    pub(super) fn of(parsed: &Crate) -> Self {
        let mut uses = vec![BTreeMap::<FileId, BTreeSet<String>>::new(); parsed.files.len()];
        for (id, module) in parsed.modules.iter().enumerate() {
            for path in &module.mentions {
                let Some(used) = parsed.file_of(id, path) else {
                    continue;
                };
                if !is_below(parsed, used, module.file) {
                    let name = path.last().cloned().unwrap_or_default();
                    uses[module.file].entry(used).or_default().insert(name);
                }
            }
        }
        Self {
            files: parsed.files.clone(),
            uses,
        }
    }

    /// For each use in a loop, the shortest such loop. Each loop is listed once, short ones first.
    pub(super) fn loops(&self) -> Vec<Loop> {
        let mut found = BTreeSet::new();
        for (from, used) in self.uses.iter().enumerate() {
            for to in used.keys() {
                let way_back = self.way(*to, from);
                found.extend(way_back.map(|way| self.loop_of(way)));
            }
        }
        let mut found: Vec<_> = found.into_iter().collect();
        found.sort_by_key(|found| found.steps.len());
        found
    }

    /// The shortest path along uses.
    fn way(&self, from: FileId, to: FileId) -> Option<Vec<FileId>> {
        let mut before = BTreeMap::from([(from, from)]);
        let mut next = VecDeque::from([from]);
        while let Some(at) = next.pop_front() {
            for used in self.uses[at].keys().filter(|used| **used != at) {
                if !before.contains_key(used) {
                    before.insert(*used, at);
                    next.push_back(*used);
                }
            }
        }
        let mut way = vec![to];
        while way[way.len() - 1] != from {
            way.push(*before.get(&way[way.len() - 1])?);
        }
        way.reverse();
        Some(way)
    }

    /// The loop of these files, of which the last uses the first, rotated to begin at the smallest number.
    fn loop_of(&self, mut way: Vec<FileId>) -> Loop {
        let first = (0..way.len()).min_by_key(|at| way[*at]).unwrap_or(0);
        way.rotate_left(first);
        let step = |(from, to): (&FileId, &FileId)| Step {
            from: self.files[*from].clone(),
            to: self.files[*to].clone(),
            names: self.uses[*from][to].iter().cloned().collect(),
        };
        let nexts = way.iter().cycle().skip(1);
        Loop {
            steps: way.iter().zip(nexts).map(step).collect(),
        }
    }
}

/// Whether `file` is `top`, or a module declared below it.
fn is_below(parsed: &Crate, file: FileId, top: FileId) -> bool {
    let mut at: Option<ModuleId> = parsed.modules.iter().position(|module| module.file == file);
    while let Some(id) = at {
        if parsed.modules[id].file == top {
            return true;
        }
        at = parsed.modules[id].parent;
    }
    false
}
