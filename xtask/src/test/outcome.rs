//! Results of parts.

/// The result of a part that did not fail.
pub(crate) enum Outcome {
    Passed(String),
    /// It cannot run here, for this reason. With `CI=true` this is a failure.
    LeftOut(String),
}
