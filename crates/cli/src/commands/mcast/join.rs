//! `mcast join`: receives, and reports the number of received and missing datagrams by sender.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::Result;
use portolan::Cause;
use portolan::datagram::Datagram;
use portolan::provider::cm::JoinKind;
use portolan::wire::addr::Qpn;
use serde_json::json;

use super::{INTERRUPT_CHECK, enter};
use crate::args::McastJoinArgs;
use crate::commands::datagrams::message;
use crate::exit::Outcome;
use crate::output::Output;

/// Maximum number of senders tracked separately; datagrams of others are counted together.
const MAX_SENDERS: usize = 1024;

/// The datagrams of one Portolan sender, which numbers them.
#[derive(Debug, Default)]
struct Sender {
    received: u64,
    first: Option<u64>,
    last: u64,
}

impl Sender {
    fn take(&mut self, number: u64) {
        self.received += 1;
        self.first.get_or_insert(number);
        self.last = self.last.max(number);
    }

    /// Numbers missing between the first and the last. Duplicates hide losses, so this is a count, not a proof.
    fn missing(&self) -> u64 {
        let Some(first) = self.first else { return 0 };
        let span = self.last.saturating_sub(first).saturating_add(1);
        span.saturating_sub(self.received)
    }
}

pub(super) fn run(args: &McastJoinArgs, output: &mut Output) -> Result<Outcome> {
    let (mut socket, _joined, interrupt) = enter(&args.group, JoinKind::FullMember, output)?;
    let started = Instant::now();
    let mut received = 0;
    let mut senders: HashMap<(IpAddr, Qpn), Sender> = HashMap::new();
    while args.count.is_none_or(|count| received < count) && !interrupt.is_raised() {
        let left = args.timeout.map_or(Duration::MAX, |timeout| {
            timeout.saturating_sub(started.elapsed())
        });
        if left.is_zero() {
            break;
        }
        match socket.receive_within(left.min(INTERRUPT_CHECK)) {
            Ok(datagram) => {
                received += 1;
                let key = (datagram.source, datagram.source_qpn);
                if let Some(number) = message::number(&datagram.data)
                    && (senders.len() < MAX_SENDERS || senders.contains_key(&key))
                {
                    senders.entry(key).or_default().take(number);
                }
                if !args.quiet {
                    report(&datagram, output)?;
                }
            }
            Err(error) if matches!(error.cause, Cause::TimedOut { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let missing: u64 = senders
        .values()
        .map(Sender::missing)
        .fold(0, u64::saturating_add);
    if output.json {
        output.object(&json!({
            "type": "summary",
            "received": received,
            "missing": missing,
            "numbered_senders": senders.len(),
        }))?;
    } else {
        output.line(&format!(
            "{received} datagrams received, {missing} missing between those that are numbered"
        ))?;
    }
    let is_short = args.count.is_some_and(|count| received < count) && !interrupt.is_raised();
    Ok(match is_short {
        true => Outcome::CheckFailed,
        false => Outcome::Good,
    })
}

fn report(datagram: &Datagram, output: &mut Output) -> Result<()> {
    let (bytes, source, qpn) = (datagram.data.len(), datagram.source, datagram.source_qpn);
    let number = message::number(&datagram.data).map(|number| number.saturating_add(1));
    if output.json {
        output.object(&json!({
            "type": "datagram",
            "bytes": bytes,
            "source": source.to_string(),
            "source_qp": qpn.value(),
            "immediate": datagram.imm_data.map(u32::from_be),
            "seq": number,
        }))?;
    } else {
        let number = number.map_or(String::new(), |number| format!(": seq={number}"));
        output.line(&format!(
            "{bytes} bytes from {source} queue pair {qpn}{number}"
        ))?;
    }
    Ok(output.flush()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_numbers_between_the_first_and_the_last_are_missing() {
        let mut sender = Sender::default();
        assert_eq!(sender.missing(), 0);
        for number in [5, 6, 9, 8] {
            sender.take(number);
        }
        assert_eq!(sender.missing(), 1);
        for absurd in [u64::MAX, 0] {
            sender.take(absurd);
        }
        assert!(sender.missing() > u64::MAX - 20);
    }
}
