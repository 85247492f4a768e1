//! Each public type, trait and free function of the crate `portolan` has an example where a reader looks for one.
//!
//! One of these has to be true:
//!
//! * Its documentation has a code block that is compiled.
//! * The first page of its module has one that uses it by name.
//! * Its documentation names an item that has one: "\[`start`\] has an example".
//!
//! Items that other crates define are not checked.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use syn::{Attribute, Expr, ImplItem, Item, Lit, Meta, UseTree, Visibility};

use crate::public_api::{SOURCES, files, is_hidden, parsed};
use crate::test::{Outcome, Workspace};

/// What a sentence says that names another item, which is linked before.
const POINTERS: [&str; 2] = ["has an example", "shows its use"];

/// The documentation of the crate.
#[derive(Debug, Default)]
struct Docs {
    /// Types, traits and free functions, with the file's folder or file without extension.
    items: Vec<(PathBuf, String, String)>,
    /// By path of the file without extension, or of its folder for `mod.rs`.
    modules: BTreeMap<PathBuf, String>,
    /// Names of items and methods (`Type::method`) with a code block.
    shown: HashSet<String>,
    /// Names in `pub use`, with the documentation there.
    exported: BTreeMap<String, String>,
    public_modules: BTreeSet<PathBuf>,
}

pub(crate) fn run(workspace: &Workspace) -> Result<Outcome> {
    let folder = workspace.root.join(SOURCES);
    let mut docs = Docs::default();
    for file in files(&folder)? {
        let inside = file.strip_prefix(&folder)?.with_extension("");
        docs.add_file(&module(&inside), &parsed(&file)?);
    }
    let (checked, missing) = docs.check();
    missing.iter().for_each(|line| println!("{line}"));
    if !missing.is_empty() {
        bail!(
            "{} of {checked} public items have no example: add one, or say which item has one",
            missing.len()
        );
    }
    Ok(Outcome::Passed(format!("{checked} items")))
}

/// The path of a module: `a/mod.rs` is `a`, and `lib.rs` is the root.
fn module(file: &Path) -> PathBuf {
    match file.file_name().and_then(|name| name.to_str()) {
        Some("mod" | "lib") => file.parent().unwrap_or(Path::new("")).to_owned(),
        _ => file.to_owned(),
    }
}

impl Docs {
    fn add_file(&mut self, module: &Path, file: &syn::File) {
        self.modules.insert(module.to_owned(), text(&file.attrs));
        for item in &file.items {
            let (vis, attributes, name) = match item {
                Item::Struct(it) => (&it.vis, &it.attrs, &it.ident),
                Item::Enum(it) => (&it.vis, &it.attrs, &it.ident),
                Item::Trait(it) => (&it.vis, &it.attrs, &it.ident),
                Item::Fn(it) => (&it.vis, &it.attrs, &it.sig.ident),
                Item::Mod(it) => {
                    if is_public(&it.vis) && !is_hidden(&it.attrs) {
                        self.public_modules
                            .insert(module.join(it.ident.to_string()));
                    }
                    continue;
                }
                Item::Use(it) => {
                    if is_public(&it.vis) && !is_hidden(&it.attrs) {
                        self.export(&it.tree, &text(&it.attrs));
                    }
                    continue;
                }
                Item::Impl(it) => {
                    self.add_methods(it);
                    continue;
                }
                _ => continue,
            };
            if is_public(vis) && !is_hidden(attributes) {
                let (name, docs) = (name.to_string(), text(attributes));
                self.note(&name, &docs);
                self.items.push((module.to_owned(), name, docs));
            }
        }
    }

    fn note(&mut self, name: &str, docs: &str) {
        if !blocks(docs).is_empty() {
            self.shown.insert(name.to_owned());
        }
    }

    fn add_methods(&mut self, it: &syn::ItemImpl) {
        let syn::Type::Path(of) = &*it.self_ty else {
            return;
        };
        let Some(of) = of.path.segments.last() else {
            return;
        };
        for method in &it.items {
            if let ImplItem::Fn(method) = method {
                let name = format!("{}::{}", of.ident, method.sig.ident);
                self.note(&name, &text(&method.attrs));
            }
        }
    }

    fn export(&mut self, tree: &UseTree, docs: &str) {
        match tree {
            UseTree::Path(path) => self.export(&path.tree, docs),
            UseTree::Name(name) => {
                let known = self.exported.entry(name.ident.to_string()).or_default();
                known.push_str(docs);
            }
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.export(tree, docs)),
            UseTree::Rename(_) | UseTree::Glob(_) => {}
        }
    }

    /// The number of public items, and those without an example.
    fn check(&self) -> (usize, Vec<String>) {
        let public = self.items.iter().filter(|(module, name, _)| {
            self.exported.contains_key(name) || self.is_public_module(module)
        });
        let mut missing = Vec::new();
        let mut checked = 0;
        for (module, name, docs) in public {
            checked += 1;
            let exported = self.exported.get(name).map_or("", String::as_str);
            let is_shown = [docs, exported].iter().any(|docs| {
                !blocks(docs).is_empty() || pointed_to(docs).is_some_and(|to| self.has(module, &to))
            });
            if !is_shown && !self.is_on_first_page(module, name) {
                missing.push(format!("{}: {name}", module.display()));
            }
        }
        (checked, missing)
    }

    fn is_public_module(&self, module: &Path) -> bool {
        let mut above = module.ancestors();
        above.all(|module| module == Path::new("") || self.public_modules.contains(module))
    }

    /// Whether the item or module that a pointer names has a code block.
    fn has(&self, module: &Path, pointer: &str) -> bool {
        if pointer == "module" {
            return self
                .first_pages(module)
                .any(|page| !blocks(page).is_empty());
        }
        let parts: Vec<&str> = pointer.trim_end_matches("()").split("::").collect();
        let last = |count: usize| parts[parts.len().saturating_sub(count)..].join("::");
        self.shown.contains(&last(1)) || self.shown.contains(&last(2))
    }

    /// The documentation of a module, and of the one that contains it if it is private.
    fn first_pages(&self, module: &Path) -> impl Iterator<Item = &str> {
        let known = |module: &Path| self.modules.get(module).map(String::as_str);
        let own = known(module);
        let above = module.parent().filter(|_| !self.is_public_module(module));
        own.into_iter().chain(above.and_then(known))
    }

    fn is_on_first_page(&self, module: &Path, name: &str) -> bool {
        let is_word = |character: char| character.is_alphanumeric() || character == '_';
        self.first_pages(module).flat_map(blocks).any(|block| {
            let mut words = block.split(|character| !is_word(character));
            words.any(|word| word == name)
        })
    }
}

fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

/// The text of doc comments.
fn text(attributes: &[Attribute]) -> String {
    let lines = attributes.iter().filter_map(|attribute| {
        let Meta::NameValue(meta) = &attribute.meta else {
            return None;
        };
        match &meta.value {
            Expr::Lit(value) if meta.path.is_ident("doc") => match &value.lit {
                Lit::Str(line) => Some(line.value() + "\n"),
                _ => None,
            },
            _ => None,
        }
    });
    lines.collect()
}

/// The code blocks that are compiled and should be: not text, nor examples of what is wrong.
fn blocks(docs: &str) -> Vec<String> {
    let (mut found, mut block) = (Vec::new(), None);
    for line in docs.lines() {
        match (line.trim().strip_prefix("```"), &mut block) {
            (Some(kind), None) => {
                let is_compiled = ["", "no_run", "should_panic"].contains(&kind);
                block = Some((is_compiled, String::new()));
            }
            (Some(_), Some(_)) => {
                found.extend(block.take().filter(|(is_compiled, _)| *is_compiled))
            }
            (None, Some((_, code))) => *code += &format!("{line}\n"),
            (None, None) => {}
        }
    }
    found.into_iter().map(|(_, code)| code).collect()
}

/// The item or module that has the example, if the documentation names one: the last link before the words.
fn pointed_to(docs: &str) -> Option<String> {
    let words: Vec<&str> = docs.split_whitespace().collect();
    let docs = words.join(" ");
    let at = POINTERS.iter().find_map(|words| docs.find(words))?;
    let before = &docs[..at];
    let link = &before[before.rfind('[')? + 1..];
    Some(link[..link.find(']')?].trim_matches('`').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missing(files: &[(&str, &str)]) -> Vec<String> {
        let mut docs = Docs::default();
        for (path, source) in files {
            docs.add_file(&module(Path::new(path)), &syn::parse_file(source).unwrap());
        }
        docs.check().1
    }

    const EXAMPLE: &str = "/// ```\n/// let shown = Shown;\n/// ```\n";

    #[test]
    fn an_own_example_counts_and_one_that_is_not_compiled_does_not() {
        let own = format!("{EXAMPLE} pub struct Shown; /// It.\n pub fn not() {{}}");
        assert_eq!(missing(&[("lib", &own)]), [": not"]);
        for kind in ["text", "ignore", "compile_fail,E0505"] {
            let docs = EXAMPLE.replacen("```", &format!("```{kind}"), 1);
            assert_eq!(
                missing(&[("lib", &format!("{docs} pub enum Shown {{}}"))]),
                [": Shown"]
            );
        }
    }

    #[test]
    fn the_modules_first_page_counts_for_what_it_names() {
        let page = "//! ```\n//! let one = One::new();\n//! ```\n mod inner; pub use inner::{One, Other, On};";
        let inner = "pub struct One; pub struct Other; pub struct On;";
        let found = missing(&[("lib", "pub mod a;"), ("a/mod", page), ("a/inner", inner)]);
        assert_eq!(found, ["a/inner: Other", "a/inner: On"]);
    }

    #[test]
    fn a_pointer_counts_if_it_leads_to_an_example() {
        let with = |docs: &str| {
            let method = EXAMPLE.to_owned() + "pub fn shows(&self) {}";
            let text = format!(
                "/// {docs}\n pub trait Wanted {{}} {EXAMPLE} pub struct Shown; impl Shown {{ {method} }} pub struct Bare;"
            );
            let found = missing(&[("lib", &text)]);
            !found.contains(&": Wanted".to_owned())
        };
        assert!(with("It. [`Shown`] has an example."));
        assert!(with("It; [`Shown::shows`] has an\n/// example."));
        assert!(with(
            "It. [`shows`](crate::x) and [`Shown::shows`](Shown::shows) shows its use."
        ));
        assert!(!with("It. [`Bare`] has an example."));
        assert!(!with("It. [`Shown::hides`] has an example."));
        assert!(!with("It. The [module](self) has an example."));
        assert!(!with("It; see [`Shown`]."));
    }

    #[test]
    fn what_cannot_be_reached_is_not_checked() {
        let lib = "mod inner; #[doc(hidden)] pub fn hidden() {} pub use inner::Seen;";
        let inner = "pub struct Seen; pub trait Sealed {} pub(crate) struct Own;";
        let found = missing(&[("lib", lib), ("inner", inner)]);
        assert_eq!(found, ["inner: Seen"]);
    }
}
