//! Prints the library's errors.

use std::net::SocketAddr;

use portolan::provider::{self, Address};
use portolan::{Cause, Error, Step};

use crate::text::{quoted, without_padding};

/// The error with what its text lacks: a reject's private data, or what to check if a host is silent.
pub(super) fn explain(error: Error) -> anyhow::Error {
    if let Some(silent) = silent_host(&error)
        && provider::towards(None, silent).is_ok_and(|chosen| chosen.provider.name() == "software")
    {
        return anyhow::Error::new(error).context(silence(silent));
    }
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

/// The host that did not answer a request to connect, if that is what failed.
fn silent_host(error: &Error) -> Option<SocketAddr> {
    match (&error.cause, error.step, error.context.remote) {
        (Cause::TimedOut { .. }, Step::Connect, Some(Address::Inet(remote))) => Some(remote),
        _ => None,
    }
}

fn silence(host: SocketAddr) -> String {
    let ip = host.ip();
    format!(
        "no answer from UDP port 4791 of {ip} (is Portolan or a RoCE device there, does its program accept, \
         does a firewall drop UDP 4791?)"
    )
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_does_not_answer_a_request_is_named_with_what_to_check() {
        let (after_ms, retries) = (9992, 0);
        let host: SocketAddr = "127.0.0.1:7471".parse().unwrap();
        let late = |step| {
            let error = Error::new(step, Cause::TimedOut { after_ms, retries });
            error.between(None, Some(host.into()))
        };
        let text = format!("{:#}", explain(late(Step::Connect)));
        assert!(
            text.starts_with("no answer from UDP port 4791 of 127.0.0.1 (is Portolan"),
            "{text}"
        );
        assert!(text.contains("connect: timed out after 9992 ms"), "{text}");
        let other = format!("{:#}", explain(late(Step::ResolveName)));
        assert!(!other.contains("4791"), "{other}");
    }
}
