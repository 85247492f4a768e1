//! A finding: its stable name, its text for people, and a remedy.

use std::net::SocketAddr;

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Severity {
    /// For information.
    Note,
    /// Prevents the use of what would be used.
    Problem,
}

impl Severity {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Problem => "problem",
        }
    }
}

/// A finding and its severity on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) severity: Severity,
    pub(super) finding: Finding,
}

/// A finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    /// Its stable name for machines.
    pub(super) code: &'static str,
    /// The finding, and why it matters.
    pub(super) text: String,
    /// What to type or do.
    pub(super) remedy: Option<String>,
}

impl Finding {
    pub(super) fn new(
        code: &'static str,
        text: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            remedy: Some(remedy.into()),
            ..Self::without_remedy(code, text)
        }
    }

    pub(super) fn without_remedy(code: &'static str, text: impl Into<String>) -> Self {
        Self {
            code,
            text: text.into(),
            remedy: None,
        }
    }
}

/// An address, with its port if it has one.
pub(super) fn address_text(address: SocketAddr) -> String {
    match (address, address.port()) {
        (SocketAddr::V6(v6), 0) if v6.scope_id() != 0 => format!("{}%{}", v6.ip(), v6.scope_id()),
        (address, 0) => address.ip().to_string(),
        (address, _) => address.to_string(),
    }
}
