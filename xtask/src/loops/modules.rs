//! The modules of a crate as declared in its files: what each defines, imports and mentions.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use proc_macro2::{TokenStream, TokenTree};
use syn::{Attribute, Expr, Item, ItemMod, Lit, Meta, UseTree};

/// An index in [`Crate::modules`].
pub(super) type ModuleId = usize;
/// An index in [`Crate::files`].
pub(super) type FileId = usize;

/// More files than any crate has. Stops at a folder that includes itself.
const FILES_MAX: usize = 2_000;

/// A crate: the modules reachable from its root file.
#[derive(Debug, Default)]
pub(super) struct Crate {
    /// The first is the crate's root.
    pub(super) modules: Vec<Module>,
    pub(super) files: Vec<PathBuf>,
}

/// A module, in a file of its own or inside another's.
#[derive(Debug)]
pub(super) struct Module {
    pub(super) file: FileId,
    pub(super) parent: Option<ModuleId>,
    pub(super) children: BTreeMap<String, ModuleId>,
    /// Its definitions, with their files. An exported macro is in the crate's root but in another file.
    pub(super) items: BTreeMap<String, FileId>,
    /// Names that `use` imports, with their paths.
    pub(super) imports: BTreeMap<String, Vec<String>>,
    /// Modules and enums imported with a glob.
    pub(super) globs: Vec<Vec<String>>,
    /// Every path of more than one segment in its code.
    pub(super) mentions: BTreeSet<Vec<String>>,
}

impl Module {
    fn new(file: FileId, parent: Option<ModuleId>) -> Self {
        Self {
            file,
            parent,
            children: BTreeMap::new(),
            items: BTreeMap::new(),
            imports: BTreeMap::new(),
            globs: Vec::new(),
            mentions: BTreeSet::new(),
        }
    }
}

/// Folders in which a module's children are searched.
#[derive(Clone, Copy)]
struct Place<'a> {
    module: ModuleId,
    /// For files named after a child.
    folder: &'a Path,
    /// For files named by an attribute.
    file_folder: &'a Path,
}

impl Crate {
    /// Parses the crate with the root file `root`. `read` returns a file's text, if it exists.
    pub(super) fn parse(root: &Path, read: &dyn Fn(&Path) -> Option<String>) -> Result<Self> {
        let mut parsed = Self::default();
        parsed.modules.push(Module::new(0, None));
        let folder = root.parent().unwrap_or(Path::new(""));
        parsed.read_file(0, root, folder, read)?;
        Ok(parsed)
    }

    fn read_file(
        &mut self,
        module: ModuleId,
        path: &Path,
        folder: &Path,
        read: &dyn Fn(&Path) -> Option<String>,
    ) -> Result<()> {
        ensure!(self.files.len() < FILES_MAX, "{path:?}: too many files");
        let text = read(path).with_context(|| format!("{}: cannot read it", path.display()))?;
        let file = syn::parse_file(&text).with_context(|| path.display().to_string())?;
        self.modules[module].file = self.files.len();
        self.files.push(path.to_owned());
        let place = Place {
            module,
            folder,
            file_folder: path.parent().unwrap_or(Path::new("")),
        };
        self.take_items(place, &file.items, read)
    }

    fn take_items(
        &mut self,
        place: Place<'_>,
        items: &[Item],
        read: &dyn Fn(&Path) -> Option<String>,
    ) -> Result<()> {
        for item in items.iter().filter(|item| !is_for_tests(attributes(item))) {
            let file = self.modules[place.module].file;
            match item {
                Item::Use(item) if item.leading_colon.is_none() => {
                    self.modules[place.module].import(&item.tree, true);
                }
                Item::Mod(item) => self.take_module(place, item, read)?,
                Item::Macro(item) => {
                    if let Some(name) = &item.ident {
                        let exported = item
                            .attrs
                            .iter()
                            .any(|attribute| attribute.path().is_ident("macro_export"));
                        let module = if exported { 0 } else { place.module };
                        self.modules[module].items.insert(name.to_string(), file);
                    }
                    self.modules[place.module].scan(item.mac.tokens.clone());
                }
                item => {
                    let module = &mut self.modules[place.module];
                    if let Some(name) = name(item) {
                        module.items.insert(name, file);
                    }
                    module.scan(quote(item));
                }
            }
        }
        Ok(())
    }

    fn take_module(
        &mut self,
        place: Place<'_>,
        item: &ItemMod,
        read: &dyn Fn(&Path) -> Option<String>,
    ) -> Result<()> {
        let name = item.ident.to_string();
        let child = self.modules.len();
        let file = self.modules[place.module].file;
        self.modules.push(Module::new(file, Some(place.module)));
        self.modules[place.module]
            .children
            .insert(name.clone(), child);
        let folder = place.folder.join(&name);
        let named = path_attribute(&item.attrs);
        if let Some((_, items)) = &item.content {
            let inner = Place {
                module: child,
                folder: &folder,
                file_folder: &folder,
            };
            return self.take_items(inner, items, read);
        }
        if let Some(named) = named {
            let path = normal(&place.file_folder.join(named));
            let folder = path.parent().unwrap_or(Path::new("")).to_owned();
            return self.read_file(child, &path, &folder, read);
        }
        let own = place.folder.join(format!("{name}.rs"));
        let path = if read(&own).is_some() {
            own
        } else {
            folder.join("mod.rs")
        };
        self.read_file(child, &path, &folder, read)
    }
}

impl Module {
    /// Handles a `use`. Inside a function it imports names only for the function.
    fn import(&mut self, tree: &UseTree, for_module: bool) {
        let mut leaves = Vec::new();
        flatten(tree, &mut Vec::new(), &mut leaves);
        for (path, name) in leaves {
            match name {
                Some(name) if for_module => {
                    self.imports.insert(name, path.clone());
                }
                None if for_module => self.globs.push(path.clone()),
                _ => {}
            }
            self.mentions.insert(path);
        }
    }

    /// Collects the paths in code, including macro arguments.
    fn scan(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut at = 0;
        while at < tokens.len() {
            match &tokens[at] {
                TokenTree::Group(group) => self.scan(group.stream()),
                TokenTree::Ident(ident) if ident == "use" => {
                    let end = tokens[at..]
                        .iter()
                        .position(|token| is_punct(Some(token), ';'));
                    let end = at + end.unwrap_or(1);
                    let tree = tokens[at + 1..end].iter().cloned().collect();
                    if let Ok(tree) = syn::parse2::<UseTree>(tree) {
                        self.import(&tree, false);
                        at = end;
                    }
                }
                TokenTree::Ident(_) if !follows_path(&tokens, at) => {
                    let (path, end) = path_at(&tokens, at);
                    if path.len() > 1 {
                        self.mentions.insert(path);
                    }
                    at = end;
                    continue;
                }
                _ => {}
            }
            at += 1;
        }
    }
}

/// The paths of a `use`, each with its imported name; without a name for `*`.
fn flatten(
    tree: &UseTree,
    before: &mut Vec<String>,
    leaves: &mut Vec<(Vec<String>, Option<String>)>,
) {
    match tree {
        UseTree::Path(tree) => {
            before.push(tree.ident.to_string());
            flatten(&tree.tree, before, leaves);
            before.pop();
        }
        UseTree::Group(group) => {
            for tree in &group.items {
                flatten(tree, before, leaves);
            }
        }
        UseTree::Glob(_) => leaves.push((before.clone(), None)),
        UseTree::Name(name) if name.ident == "self" => {
            leaves.push((before.clone(), before.last().cloned()));
        }
        UseTree::Name(name) => {
            let name = name.ident.to_string();
            leaves.push((
                [&before[..], std::slice::from_ref(&name)].concat(),
                Some(name),
            ));
        }
        UseTree::Rename(rename) => {
            let mut path = before.clone();
            if rename.ident != "self" {
                path.push(rename.ident.to_string());
            }
            leaves.push((path, Some(rename.rename.to_string())));
        }
    }
}

/// The path that begins at `at`, and the index after it.
fn path_at(tokens: &[TokenTree], mut at: usize) -> (Vec<String>, usize) {
    let mut path = Vec::new();
    while let Some(TokenTree::Ident(ident)) = tokens.get(at) {
        path.push(ident.to_string());
        at += 1;
        let goes_on = is_punct(tokens.get(at), ':')
            && is_punct(tokens.get(at + 1), ':')
            && matches!(tokens.get(at + 2), Some(TokenTree::Ident(_)));
        if !goes_on {
            break;
        }
        at += 2;
    }
    (path, at)
}

/// Whether two colons precede `at`, so that no path begins there.
fn follows_path(tokens: &[TokenTree], at: usize) -> bool {
    at >= 2 && is_punct(tokens.get(at - 1), ':') && is_punct(tokens.get(at - 2), ':')
}

fn is_punct(token: Option<&TokenTree>, wanted: char) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == wanted)
}

/// A path without the `..` of an attribute's path.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        if part.as_os_str() == ".." {
            normal.pop();
        } else {
            normal.push(part);
        }
    }
    normal
}

fn path_attribute(attributes: &[Attribute]) -> Option<String> {
    let attribute = attributes
        .iter()
        .find(|attribute| attribute.path().is_ident("path"))?;
    let Meta::NameValue(meta) = &attribute.meta else {
        return None;
    };
    match &meta.value {
        Expr::Lit(literal) => match &literal.lit {
            Lit::Str(text) => Some(text.value()),
            _ => None,
        },
        _ => None,
    }
}

/// Whether it is built only for tests, which may use everything they test.
fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::List(list) if list.path.is_ident("cfg") => {
            let text = list.tokens.to_string().replace(' ', "");
            text == "test" || text.starts_with("all(test,")
        }
        meta => meta.path().is_ident("test"),
    })
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

fn name(item: &Item) -> Option<String> {
    let name = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(name.to_string())
}

fn quote(item: &Item) -> TokenStream {
    use quote::ToTokens;
    item.to_token_stream()
}
