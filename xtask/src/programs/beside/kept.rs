//! The results of a run in a file, so that a comparison of more than an hour can be continued where it was cut off.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::{Context, Result};

use super::guest;
use super::{Case, Results, Way};
use crate::test::Workspace;

/// How many machines share the processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pass {
    /// Two at a time.
    Shared,
    /// One at a time: for figures.
    Alone,
}

impl Pass {
    fn name(self) -> &'static str {
        match self {
            Self::Shared => "shared",
            Self::Alone => "alone",
        }
    }
}

/// The file, and what the run has written to it before it was cut off.
pub(super) struct Kept {
    /// `None` for a run of a few rows, which is not kept.
    path: Option<PathBuf>,
    /// By key. A later result replaces an earlier one.
    found: BTreeMap<String, String>,
    release: String,
    /// Digest of our command and libraries. A result of ours is one of these.
    binaries: u64,
}

impl Kept {
    /// Opens the file. Continues the run if `is_resumed`, and begins one otherwise.
    pub(super) fn open(workspace: &Workspace, release: &str, is_resumed: bool) -> Result<Self> {
        let folder = workspace.root.join("target/programs");
        fs::create_dir_all(&folder)?;
        let path = folder.join("beside.tsv");
        let mut text = match is_resumed {
            true => fs::read_to_string(&path).unwrap_or_default(),
            false => String::new(),
        };
        // The last line may have been cut off.
        text.truncate(text.rfind('\n').map_or(0, |end| end + 1));
        fs::write(&path, &text).with_context(|| format!("writing {}", path.display()))?;
        let mut kept = Self::without_file(workspace, release)?;
        kept.found = read(&text);
        kept.path = Some(path);
        Ok(kept)
    }

    /// Keeps nothing.
    pub(super) fn without_file(workspace: &Workspace, release: &str) -> Result<Self> {
        let folder = workspace.portolan.parent().context("a folder")?;
        let mut paths: Vec<PathBuf> = fs::read_dir(folder)
            .with_context(|| format!("reading {}", folder.display()))?
            .map(|entry| Ok(entry?.path()))
            .collect::<io::Result<_>>()?;
        paths.retain(|path| *path == workspace.portolan || path.extension() == Some("so".as_ref()));
        paths.sort();
        let contents: Vec<Vec<u8>> = paths.iter().map(fs::read).collect::<io::Result<_>>()?;
        Ok(Self {
            path: None,
            found: BTreeMap::new(),
            release: release.to_owned(),
            binaries: digest(&contents),
        })
    }

    /// The line of the file for what a machine has printed, if that is a result.
    fn line(&self, pass: Pass, way: Way, cases: &[Case], printed: &str) -> Option<String> {
        let (row, _) = guest::parse(printed)?;
        let key = self.key(pass, way, cases.get(row)?);
        Some(format!("{key}\t{printed}\n"))
    }

    fn key(&self, pass: Pass, way: Way, case: &Case) -> String {
        let binaries = match way {
            Way::Kernel => 0,
            _ => self.binaries,
        };
        // With what is expected of it.
        let case = digest(&format!("{case:?}"));
        let (pass, way, release) = (pass.name(), way.name(), &self.release);
        format!("{release}/{pass}/{way}/{binaries:016x}/{case:016x}")
    }

    /// The results that are there, and the rows that are not.
    pub(super) fn part(
        &self,
        pass: Pass,
        way: Way,
        cases: &[Case],
        rows: &[usize],
    ) -> (Results, Vec<usize>) {
        let mut results = Results::new();
        let mut missing = Vec::new();
        for row in rows {
            let line = self.found.get(&self.key(pass, way, &cases[*row]));
            match line.and_then(|line| guest::parse(line)) {
                Some((_, played)) => {
                    results.insert((*row, way), played);
                }
                None => missing.push(*row),
            }
        }
        (results, missing)
    }

    /// Where a machine's output goes: its results to the file, everything to standard output.
    pub(super) fn output<'a>(
        &'a self,
        pass: Pass,
        way: Way,
        cases: &'a [Case],
    ) -> Result<Output<'a>> {
        let open = |path: &PathBuf| {
            let file = OpenOptions::new().append(true).open(path);
            file.with_context(|| format!("opening {}", path.display()))
        };
        let file = self.path.as_ref().map(open).transpose()?;
        Ok(Output {
            kept: self,
            pass,
            way,
            cases,
            file,
            line: Vec::new(),
        })
    }
}

fn digest(what: &(impl Hash + ?Sized)) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}

/// Lines of a key, a tab, and what a machine has printed.
fn read(text: &str) -> BTreeMap<String, String> {
    let lines = text.lines().filter_map(|line| line.split_once('\t'));
    lines
        .map(|(key, line)| (key.to_owned(), line.to_owned()))
        .collect()
}

/// See [`Kept::output`].
pub(super) struct Output<'a> {
    kept: &'a Kept,
    pass: Pass,
    way: Way,
    cases: &'a [Case],
    file: Option<File>,
    line: Vec<u8>,
}

impl Output<'_> {
    fn keep(&mut self) -> io::Result<()> {
        let printed = String::from_utf8_lossy(&self.line).trim_end().to_owned();
        self.line.clear();
        let line = self.kept.line(self.pass, self.way, self.cases, &printed);
        match (&mut self.file, line) {
            (Some(file), Some(line)) => file.write_all(line.as_bytes()),
            _ => Ok(()),
        }
    }
}

impl Write for Output<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for byte in bytes {
            match byte {
                b'\n' => self.keep()?,
                byte => self.line.push(*byte),
            }
        }
        io::stdout().write_all(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stdout().flush()
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::case::c;
    use super::*;

    fn kept(text: &str, binaries: u64) -> Kept {
        Kept {
            path: None,
            found: read(text),
            release: "6.1".to_owned(),
            binaries,
        }
    }

    #[test]
    fn a_run_that_was_cut_off_continues_with_the_results_of_the_same_binaries() {
        let cases = [Case::alone("", c("rping")), Case::alone("", c("fio"))];
        let first = kept("", 1);
        let line = |way, printed| first.line(Pass::Shared, way, &cases, printed);
        let mut text = String::new();
        for way in Way::WHOLE {
            assert_eq!(line(way, "booting"), None);
            assert_eq!(line(way, "row\t0\t"), None);
            text.push_str(&line(way, "row\t1\t2.0\tright").expect("a result"));
        }
        let missing = |kept: &Kept, pass, way| kept.part(pass, way, &cases, &[0, 1]).1;

        let same = kept(&text, 1);
        let (results, open) = same.part(Pass::Shared, Way::Ours, &cases, &[0, 1]);
        assert_eq!(open, [0]);
        assert_eq!(results[&(1, Way::Ours)].result, Ok(()));
        assert_eq!(missing(&same, Pass::Alone, Way::Ours), [0, 1]);

        let other = kept(&text, 2);
        assert_eq!(missing(&other, Pass::Shared, Way::Ours), [0, 1]);
        assert_eq!(missing(&other, Pass::Shared, Way::Kernel), [0]);
    }
}
