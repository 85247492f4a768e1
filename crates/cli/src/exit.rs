//! Exit codes.

use std::process::{ExitCode, Termination};

/// The exit codes, for the help.
pub(crate) const HELP: &str = "\
Exit codes:
  0  all went well
  1  it ran, and something failed: a peer that rejected or did not answer, a ping lost or
     changed, a connection that broke, a wrong ICRC, a target that `resolve` did not find,
     a problem that `doctor` found
  2  it could not run: wrong usage, an unknown name, a port in use, an unreadable file
  `exec` has the exit code of the program it runs; 127 if there is none, 126 if it cannot be run";

/// The result of a command without an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// All went well.
    Good,
    /// The command ran, and an operation or check failed.
    CheckFailed,
    /// A shell's exit code for a program that it could not run.
    Status(u8),
}

/// The exit code of an error.
pub(crate) const ERROR: u8 = 2;

impl Termination for Outcome {
    fn report(self) -> ExitCode {
        match self {
            Outcome::Good => ExitCode::SUCCESS,
            Outcome::CheckFailed => ExitCode::from(1),
            Outcome::Status(code) => ExitCode::from(code),
        }
    }
}
