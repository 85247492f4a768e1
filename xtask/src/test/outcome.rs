//! How parts end.

/// How a part ended without failing.
pub(crate) enum Outcome {
    Passed(String),
    /// It cannot run here: why. With `CI=true` this is a failure.
    LeftOut(String),
}
