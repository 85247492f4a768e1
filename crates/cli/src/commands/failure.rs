//! Prints the library's errors.

use portolan::Cause;

use crate::text::{quoted, without_padding};

/// The error with the data beside its text: a reject's private data.
pub(super) fn explain(error: portolan::Error) -> anyhow::Error {
    let private_data = match &error.cause {
        Cause::Rejected { private_data, .. } => without_padding(private_data).to_vec(),
        _ => Vec::new(),
    };
    let error = anyhow::Error::new(error);
    if private_data.is_empty() {
        error
    } else {
        error.context(format!("the peer says {}", quoted(&private_data)))
    }
}

/// Private data as text: `"text" (68656c6c6f)`, or a note that there is none.
pub(super) fn private_data_text(private_data: &[u8]) -> String {
    let data = without_padding(private_data);
    if data.is_empty() {
        "no private data".to_owned()
    } else {
        format!("private data {} ({})", quoted(data), crate::text::hex(data))
    }
}
