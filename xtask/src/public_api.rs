//! `cargo xtask api`: compares the public items of the crate `portolan` with `docs/api.txt`.
//!
//! A change of the public API must change that file, so it is visible in review. The list is generated from the
//! sources. It has each file's `pub` items with their signatures, fields, derives and trait implementations. The lint
//! `unreachable_pub` ensures that these items are reachable. Items hidden from the documentation are not listed.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Args;
use quote::ToTokens;
use syn::{Attribute, Fields, ImplItem, Item, TraitItem, Visibility};

use crate::test::{Outcome, Workspace};

pub(crate) const SOURCES: &str = "crates/portolan/src";
const FILE: &str = "docs/api.txt";

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Write the list instead of comparing it.
    #[arg(long)]
    write: bool,
}

pub(crate) fn task(arguments: &Arguments) -> Result<ExitCode> {
    let workspace = Workspace::here()?;
    if arguments.write {
        fs::write(workspace.root.join(FILE), list(&workspace)?)?;
    } else {
        run(&workspace)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the added and removed items. Any difference is an error.
pub(crate) fn run(workspace: &Workspace) -> Result<Outcome> {
    let found = list(workspace)?;
    let known = fs::read_to_string(workspace.root.join(FILE)).context(FILE)?;
    let (found, known): (BTreeSet<&str>, BTreeSet<&str>) =
        (found.lines().collect(), known.lines().collect());
    let removed: Vec<_> = known.difference(&found).collect();
    let added: Vec<_> = found.difference(&known).collect();
    removed.iter().for_each(|line| println!("- {line}"));
    added.iter().for_each(|line| println!("+ {line}"));
    if !(removed.is_empty() && added.is_empty()) {
        bail!(
            "the public items differ from {FILE}: if that is meant, say it in CHANGELOG.md and run `cargo xtask api --write`"
        );
    }
    Ok(Outcome::Passed(format!("{} items", found.len())))
}

/// Generates the list: one line for each item, sorted.
fn list(workspace: &Workspace) -> Result<String> {
    let folder = workspace.root.join(SOURCES);
    let mut lines = BTreeSet::new();
    for file in files(&folder)? {
        let parsed = parsed(&file)?;
        add(&parsed.items, &module_of(&folder, &file), &mut lines);
    }
    Ok(lines.into_iter().map(|line| line + "\n").collect())
}

pub(crate) fn parsed(file: &Path) -> Result<syn::File> {
    let text = fs::read_to_string(file)?;
    syn::parse_file(&text).with_context(|| file.display().to_string())
}

pub(crate) fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(files(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    Ok(found)
}

/// The module's path, with which each of its lines begins.
fn module_of(folder: &Path, file: &Path) -> String {
    let inside = file.strip_prefix(folder).unwrap_or(file).with_extension("");
    let names = inside
        .iter()
        .map(|name| name.to_string_lossy().into_owned());
    let names: Vec<String> = names
        .filter(|name| name != "mod" && name != "lib")
        .collect();
    [vec!["portolan".to_owned()], names].concat().join("::")
}

fn add(items: &[Item], module: &str, lines: &mut BTreeSet<String>) {
    for item in items {
        let (attributes, text) = match item {
            Item::Fn(it) if is_public(&it.vis) => (&it.attrs, tokens(&it.sig)),
            Item::Const(it) if is_public(&it.vis) => {
                let (name, of) = (&it.ident, tokens(&it.ty));
                (&it.attrs, format!("const {name}: {of}"))
            }
            Item::Type(it) if is_public(&it.vis) => (&it.attrs, tokens(&bare(it))),
            Item::Use(it) if is_public(&it.vis) => (&it.attrs, tokens(&bare(it))),
            Item::Struct(it) if is_public(&it.vis) => {
                let (name, generics) = (&it.ident, tokens(&it.generics));
                let (marks, fields) = (marks(&it.attrs), fields(&it.fields, false));
                (
                    &it.attrs,
                    format!("{marks}struct {name}{generics} {fields}"),
                )
            }
            Item::Enum(it) if is_public(&it.vis) => {
                let variant =
                    |it: &syn::Variant| format!("{} {}", it.ident, fields(&it.fields, true));
                let variants: Vec<String> = it.variants.iter().map(variant).collect();
                let (marks, name) = (marks(&it.attrs), &it.ident);
                (
                    &it.attrs,
                    format!("{marks}enum {name} {{ {} }}", variants.join(", ")),
                )
            }
            Item::Trait(it) if is_public(&it.vis) => {
                let functions = it.items.iter().filter_map(|item| match item {
                    TraitItem::Fn(function) => Some(tokens(&function.sig)),
                    _ => None,
                });
                let functions: Vec<String> = functions.collect();
                let (name, above) = (&it.ident, tokens(&it.supertraits));
                (
                    &it.attrs,
                    format!("trait {name}: {above} {{ {} }}", functions.join("; ")),
                )
            }
            Item::Impl(it) => {
                add_impl(it, module, lines);
                continue;
            }
            Item::Macro(it) if it.mac.path.is_ident("setters") => {
                add_setters(&it.mac, module, lines);
                continue;
            }
            Item::Mod(it) if is_public(&it.vis) => {
                if let Some((_, items)) = &it.content {
                    add(items, &format!("{module}::{}", it.ident), lines);
                }
                (&it.attrs, format!("mod {}", it.ident))
            }
            _ => continue,
        };
        if !is_hidden(attributes) {
            lines.insert(format!("{module}: {}{text}", features(attributes)));
        }
    }
}

/// Adds a type's public functions, or the trait implementation.
fn add_impl(it: &syn::ItemImpl, module: &str, lines: &mut BTreeSet<String>) {
    let (of, feature) = (tokens(&it.self_ty), features(&it.attrs));
    if let Some((path, _)) = &it.trait_ {
        let generics = tokens(&it.generics);
        let path = tokens(path);
        lines.insert(format!("{module}: {feature}impl{generics} {path} for {of}"));
        return;
    }
    for item in &it.items {
        let (vis, attributes, text) = match item {
            ImplItem::Fn(it) => (&it.vis, &it.attrs, tokens(&it.sig)),
            ImplItem::Const(it) => {
                let text = format!("const {}: {}", it.ident, tokens(&it.ty));
                (&it.vis, &it.attrs, text)
            }
            _ => continue,
        };
        if is_public(vis) && !is_hidden(attributes) {
            let own = features(attributes);
            lines.insert(format!("{module}: {feature}{own}{of}::{text}"));
        }
    }
}

/// Adds the methods that the macro `setters` generates. Its argument is a structure of their arguments.
fn add_setters(it: &syn::Macro, module: &str, lines: &mut BTreeSet<String>) {
    let setters = format!("struct {}", it.tokens);
    let setters: syn::ItemStruct = syn::parse_str(&setters).expect("the arguments of setters");
    for field in &setters.fields {
        let (of, name) = (&setters.ident, tokens(&field.ident));
        let argument = tokens(&field.ty);
        lines.insert(format!(
            "{module}: {of}::fn {name}(mut self, {name}: {argument}) -> Self"
        ));
    }
}

fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

pub(crate) fn is_hidden(attributes: &[Attribute]) -> bool {
    let says = |attribute: &Attribute, text: &str| tokens(&attribute.meta) == text;
    attributes
        .iter()
        .any(|it| says(it, "doc(hidden)") || says(it, "cfg(test)"))
}

/// The `cfg` attributes of an item.
fn features(attributes: &[Attribute]) -> String {
    let conditions = attributes.iter().filter(|it| it.path().is_ident("cfg"));
    conditions.map(|it| tokens(it) + " ").collect()
}

/// The attributes of a type that are part of its API.
fn marks(attributes: &[Attribute]) -> String {
    let marks = ["derive", "non_exhaustive", "must_use", "repr"];
    let said = attributes
        .iter()
        .filter(|it| marks.iter().any(|mark| it.path().is_ident(mark)));
    said.map(|it| match it.path().is_ident("must_use") {
        true => "#[must_use] ".to_owned(),
        false => tokens(it) + " ",
    })
    .collect()
}

/// The public fields. All fields of a variant are public.
fn fields(fields: &Fields, is_variant: bool) -> String {
    let shown = fields.iter().map(|field| {
        let of = tokens(&field.ty);
        match &field.ident {
            Some(name) => format!("{name}: {of}"),
            None => of,
        }
    });
    let public = fields
        .iter()
        .map(|field| is_variant || is_public(&field.vis));
    let (mut shown, hidden): (Vec<_>, Vec<_>) =
        shown.zip(public).partition(|(_, is_public)| *is_public);
    if !hidden.is_empty() {
        shown.push(("..".to_owned(), true));
    }
    let shown: Vec<String> = shown.into_iter().map(|(text, _)| text).collect();
    match fields {
        Fields::Unit => String::new(),
        _ => format!("{{ {} }}", shown.join(", ")),
    }
}

/// An item without its documentation.
fn bare<T: Clone + Stripped>(item: &T) -> T {
    let mut item = item.clone();
    item.strip();
    item
}

trait Stripped {
    fn strip(&mut self);
}

impl Stripped for syn::ItemType {
    fn strip(&mut self) {
        self.attrs.clear();
    }
}

impl Stripped for syn::ItemUse {
    fn strip(&mut self) {
        self.attrs.clear();
    }
}

/// Source text with the usual spacing.
fn tokens(item: &impl ToTokens) -> String {
    let mut text = item.to_token_stream().to_string();
    for (spaced, written) in [
        (" :: ", "::"),
        (":: ", "::"),
        (" < ", "<"),
        ("< ", "<"),
        (" > ", "> "),
        (" >", ">"),
        (" ,", ","),
        (" (", "("),
        ("( ", "("),
        (" )", ")"),
        (" :", ":"),
        ("& ", "&"),
        (" ;", ";"),
        ("# [", "#["),
        ("[ ", "["),
        (" ]", "]"),
        ("! ", "!"),
    ] {
        text = text.replace(spaced, written);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Vec<String> {
        let mut lines = BTreeSet::new();
        add(&syn::parse_file(text).unwrap().items, "it", &mut lines);
        lines.into_iter().collect()
    }

    #[test]
    fn public_items_are_listed_with_what_programs_depend_on_and_others_are_not() {
        let found = of(
            "/// Says.\n#[derive(Debug)]\n#[non_exhaustive]\npub struct One { /// It.\n pub a: u32, b: u8 }
             impl One { /// New.\n pub fn new(a: Option<u32>) -> Self { One } fn hidden(&self) {} }
             #[cfg(feature = \"bytes\")] impl From<One> for u32 { fn from(one: One) -> u32 { one.a } }
             pub struct Hides(u8); impl Hides { pub fn get(&self) -> u8 { self.0 } }
             pub enum Two { A, B(u8) }
             #[doc(hidden)] pub fn unseen() {}
             pub(crate) fn inside() {}
             setters! { One { a: impl Into<Option<u32>>, } }
             pub const LEN: usize = 3;",
        );
        let expected = [
            "it: #[cfg(feature = \"bytes\")] impl From<One> for u32",
            "it: #[derive(Debug)] #[non_exhaustive] struct One { a: u32, .. }",
            "it: Hides::fn get(&self) -> u8",
            "it: One::fn a(mut self, a: impl Into<Option<u32>>) -> Self",
            "it: One::fn new(a: Option<u32>) -> Self",
            "it: const LEN: usize",
            "it: enum Two { A , B { u8 } }",
            "it: struct Hides { .. }",
        ];
        assert_eq!(found, expected);
    }
}
