//! Failures of a run.

use std::fmt;
use std::time::Duration;

/// A violated invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation(pub String);

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Makes a [`Violation`] as `format!` makes a string.
macro_rules! violation {
    ($($arg:tt)*) => { $crate::simulator::failure::Violation(format!($($arg)*)) };
}
pub(super) use violation;

/// Returns a [`Violation`] unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($arg:tt)*) => {
        if !$condition {
            return Err($crate::simulator::failure::violation!($($arg)*));
        }
    };
}
pub(super) use ensure;

/// A failed run, with its seed and what is needed to understand it.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The run.
    pub seed: u64,
    /// Time of the failure on the run's own clock.
    pub at: Duration,
    /// The violation, or the message of the panic.
    pub violation: Violation,
    /// The last trace lines.
    pub trace: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.trace {
            writeln!(f, "  {line}")?;
        }
        writeln!(
            f,
            "seed {} failed at {:.6} s: {}",
            self.seed,
            self.at.as_secs_f64(),
            self.violation
        )?;
        write!(
            f,
            "again: cargo xtask simulate --seed {} --trace",
            self.seed
        )
    }
}

impl std::error::Error for Failure {}
