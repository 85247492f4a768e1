//! Reads a command's targets from a file, one per line.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use anyhow::{Context, Result, anyhow};

/// A kind of list.
pub(super) struct List {
    /// Name of the entries, in the plural.
    pub(super) entries: &'static str,
    /// Maximum number of entries of one command.
    pub(super) entries_max: usize,
    /// Maximum length of a line, in bytes.
    pub(super) line_max: u64,
}

impl List {
    /// Parses each line of a file, or of standard input for `-`, and appends the results to `entries`.
    ///
    /// # Errors
    /// The file cannot be read, or has too many entries, a line that is too long, or an invalid line. The error
    /// contains the line number.
    pub(super) fn read_file<T>(
        &self,
        path: &Path,
        parse: impl Fn(&str) -> Result<T, String>,
        entries: &mut Vec<T>,
    ) -> Result<()> {
        if path == Path::new("-") {
            return self
                .read(&mut io::stdin().lock(), parse, entries)
                .context("standard input");
        }
        let name = || path.display().to_string();
        let file = File::open(path).with_context(name)?;
        self.read(&mut BufReader::new(file), parse, entries)
            .with_context(name)
    }

    /// Reads lines; skips empty ones and those that begin with `#`.
    fn read<T>(
        &self,
        lines: &mut impl BufRead,
        parse: impl Fn(&str) -> Result<T, String>,
        entries: &mut Vec<T>,
    ) -> Result<()> {
        let mut number = 0;
        let mut line = String::new();
        loop {
            line.clear();
            number += 1;
            // One more byte, for its newline.
            let length = Read::take(&mut *lines, self.line_max + 1).read_line(&mut line)?;
            if length == 0 {
                return Ok(());
            }
            if length as u64 > self.line_max && !line.ends_with('\n') {
                return Err(anyhow!(
                    "line {number} is longer than {} bytes",
                    self.line_max
                ));
            }
            let text = line.trim();
            if text.is_empty() || text.starts_with('#') {
                continue;
            }
            if entries.len() >= self.entries_max {
                return Err(anyhow!("more than {} {}", self.entries_max, self.entries));
            }
            let entry = parse(text).map_err(|why| anyhow!("line {number}: {text}: {why}"))?;
            entries.push(entry);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: List = List {
        entries: "numbers",
        entries_max: 4,
        line_max: 10,
    };

    fn read(text: &str) -> Result<Vec<u32>> {
        let mut entries = Vec::new();
        let parse = |text: &str| text.parse().map_err(|_| "no number".to_owned());
        LIST.read(&mut text.as_bytes(), parse, &mut entries)?;
        Ok(entries)
    }

    #[test]
    fn a_list_has_one_entry_per_line_and_comments() {
        assert_eq!(
            read("# some\n7\n\n  8 \n0000000009\n10").unwrap(),
            [7, 8, 9, 10]
        );
    }

    #[test]
    fn an_invalid_line_is_reported_by_its_number() {
        let error = read("1\nx\n").unwrap_err();
        assert_eq!(error.to_string(), "line 2: x: no number");
    }

    #[test]
    fn a_line_that_is_too_long_is_refused_and_not_read_as_two() {
        let error = read("1\n1         2\n").unwrap_err();
        assert_eq!(error.to_string(), "line 2 is longer than 10 bytes");
    }

    #[test]
    fn too_many_entries_are_refused() {
        let error = read("1\n2\n3\n4\n5\n").unwrap_err();
        assert_eq!(error.to_string(), "more than 4 numbers");
    }
}
