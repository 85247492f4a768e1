//! The output of a command.

use std::fmt;
use std::io::{self, Write};
use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::terminal::Theme;
use crate::text::{harmless, without_controls};

/// Prints an error to stderr. If that fails, the exit code is the only sign.
pub(crate) fn complain(error: &dyn fmt::Display) {
    let error = error.to_string();
    let _ = writeln!(io::stderr(), "portolan: {}", harmless(&error));
}

/// Standard output, or a buffer in tests, and the output format.
pub(crate) struct Output {
    writer: Box<dyn Write + Send>,
    /// How to draw.
    pub(crate) theme: Theme,
    /// Whether the output is for machines: one JSON object per line and nothing else.
    pub(crate) json: bool,
    /// Whether to print details.
    pub(crate) verbose: bool,
}

impl Output {
    /// Creates an output to `writer`.
    pub(crate) fn new(
        writer: Box<dyn Write + Send>,
        theme: Theme,
        json: bool,
        verbose: bool,
    ) -> Output {
        Output {
            writer,
            theme,
            json,
            verbose,
        }
    }

    /// Writes a line for people.
    ///
    /// # Errors
    ///
    /// Errors of the writer.
    pub(crate) fn line(&mut self, line: &str) -> io::Result<()> {
        writeln!(self.writer, "{}", harmless(line))
    }

    /// Writes an object for machines.
    ///
    /// # Errors
    ///
    /// Errors of the writer.
    pub(crate) fn object(&mut self, object: &Value) -> io::Result<()> {
        writeln!(self.writer, "{}", without_controls(&object.to_string()))
    }

    /// Reports a listening address.
    ///
    /// # Errors
    ///
    /// Errors of the writer.
    pub(crate) fn listening(&mut self, local: SocketAddr) -> io::Result<()> {
        if self.json {
            self.object(&json!({ "type": "listening", "address": local.to_string() }))?;
        } else {
            self.line(&format!("listening on {local}"))?;
        }
        self.flush()
    }

    /// Writes buffered output.
    ///
    /// # Errors
    ///
    /// Errors of the writer.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Output")
            .field("theme", &self.theme)
            .field("json", &self.json)
            .field("verbose", &self.verbose)
            .finish_non_exhaustive()
    }
}
