//! What a path names: the file that defines it, through re-exports.

use std::collections::BTreeSet;

use super::modules::{Crate, FileId, ModuleId};

/// The names that were looked for on the way to one: where re-exports lead in a circle, nothing is found.
type Asked<'a> = BTreeSet<(ModuleId, &'a str)>;

/// What a path leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Module(ModuleId),
    Item(FileId),
}

impl Crate {
    /// The file that defines what `path` names in `module`; none for other crates' names.
    pub(super) fn file_of(&self, module: ModuleId, path: &[String]) -> Option<FileId> {
        Some(match self.follow(module, path, &mut Asked::new())? {
            Found::Module(module) => self.modules[module].file,
            Found::Item(file) => file,
        })
    }

    /// A path as code in `module` writes it.
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

    /// The rest of a path, from where its beginning leads.
    fn descend<'a>(
        &'a self,
        mut at: Found,
        path: &'a [String],
        asked: &mut Asked<'a>,
    ) -> Option<Found> {
        for (place, name) in path.iter().enumerate() {
            // A variant or an associated item is where its type is.
            let Found::Module(module) = at else {
                return Some(at);
            };
            at = if name == "super" {
                Found::Module(self.modules[module].parent?)
            } else {
                let last = place + 1 == path.len();
                // What a macro defines is where the macro is used.
                self.lookup(module, name, last, asked)
                    .unwrap_or(Found::Item(self.modules[module].file))
            };
        }
        Some(at)
    }

    /// One name in a module; the last of a path is rather an item than a module.
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
