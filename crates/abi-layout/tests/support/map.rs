//! Parses the map file of a library's symbols.

use std::collections::BTreeSet;

/// The symbols and versions of a map.
#[derive(Debug, Default)]
pub(crate) struct Map {
    /// `symbol@@VERSION`.
    pub(crate) symbols: BTreeSet<String>,
    pub(crate) versions: BTreeSet<String>,
}

impl Map {
    pub(crate) fn read(text: &str) -> Self {
        let mut map = Self::default();
        let mut version = String::new();
        for line in text.lines().map(str::trim) {
            if let Some((name, _)) = line.split_once(" {") {
                version = name.to_owned();
                map.versions.insert(version.clone());
            } else if let Some(symbol) = line.strip_suffix(';')
                && !symbol.starts_with('}')
            {
                map.symbols.insert(format!("{symbol}@@{version}"));
            }
        }
        map
    }
}

/// The versions that a library defines, from the output of `readelf -V`, except the first, which is its name.
pub(crate) fn versions_defined(said: &str) -> BTreeSet<String> {
    let defined = said.split("Version needs section").next();
    let lines = defined.into_iter().flat_map(str::lines);
    let names = lines
        .filter(|line| line.contains("Flags: none"))
        .filter_map(|line| line.split_once("Name: "));
    names.map(|(_, name)| name.trim().to_owned()).collect()
}
