//! Resolves paths to the files with their definitions, through re-exports.

use std::collections::BTreeSet;

use super::modules::{Crate, FileId, ModuleId};

/// The names already being resolved. A circle of re-exports resolves to nothing.
type Asked<'a> = BTreeSet<(ModuleId, &'a str)>;

/// The target of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Module(ModuleId),
    Item(FileId),
}

impl Crate {
    /// The file with the definition of `path` as seen in `module`; `None` for names of other crates.
    pub(super) fn file_of(&self, module: ModuleId, path: &[String]) -> Option<FileId> {
        Some(match self.follow(module, path, &mut Asked::new())? {
            Found::Module(module) => self.modules[module].file,
            Found::Item(file) => file,
        })
    }

    /// Resolves a path in the code of `module`.
    fn follow<'a>(
        &'a self,
        module: ModuleId,
        path: &'a [String],
        asked: &mut Asked<'a>,
    ) -> Option<Found> {
        let (first, rest) = path.split_first()?;
        let begin = match first.as_str() {
            "crate" => Found::Module(0),
            "self" => Found::Module(module),
            "super" => Found::Module(self.modules[module].parent?),
            name => self.lookup(module, name, rest.is_empty(), asked)?,
        };
        self.descend(begin, rest, asked)
    }

    /// Resolves the rest of a path after its beginning.
    fn descend<'a>(
        &'a self,
        mut at: Found,
        path: &'a [String],
        asked: &mut Asked<'a>,
    ) -> Option<Found> {
        for (place, name) in path.iter().enumerate() {
            // A variant or associated item is defined with its type.
            let Found::Module(module) = at else {
                return Some(at);
            };
            at = if name == "super" {
                Found::Module(self.modules[module].parent?)
            } else {
                let last = place + 1 == path.len();
                // Definitions by a macro are attributed to the file that invokes the macro.
                self.lookup(module, name, last, asked)
                    .unwrap_or(Found::Item(self.modules[module].file))
            };
        }
        Some(at)
    }

    /// Resolves one name in a module. The last name of a path is an item rather than a module.
    fn lookup<'a>(
        &'a self,
        module: ModuleId,
        name: &'a str,
        last: bool,
        asked: &mut Asked<'a>,
    ) -> Option<Found> {
        if !asked.insert((module, name)) {
            return None;
        }
        let own = &self.modules[module];
        let item = own.items.get(name).map(|file| Found::Item(*file));
        let child = own.children.get(name).map(|child| Found::Module(*child));
        let here = if last { item.or(child) } else { child.or(item) };
        if here.is_some() {
            return here;
        }
        if let Some(path) = own.imports.get(name) {
            return self.follow(module, path, asked);
        }
        own.globs
            .iter()
            .find_map(|path| match self.follow(module, path, asked)? {
                Found::Module(all) => self.lookup(all, name, last, asked),
                Found::Item(_) => None,
            })
    }
}
