//! `mcast send`.

use std::time::Instant;

use anyhow::{Result, ensure};
use portolan::provider::cm::JoinKind;
use serde_json::json;

use super::{INTERRUPT_CHECK, enter};
use crate::args::McastSendArgs;
use crate::commands::datagrams::{immediate, message};
use crate::exit::Outcome;
use crate::output::Output;

pub(super) fn run(args: &McastSendArgs, output: &mut Output) -> Result<Outcome> {
    let kind = match args.send_only {
        true => JoinKind::SendOnlyFullMember,
        false => JoinKind::FullMember,
    };
    let (mut socket, joined, interrupt) = enter(&args.group, kind, output)?;
    let size = args.size as usize;
    ensure!(
        size <= socket.mtu(),
        "--size {size}: a datagram to {} holds {} bytes at most",
        joined.group,
        socket.mtu()
    );
    let imm_data = Some(immediate(socket.qpn()));
    let mut next = Instant::now();
    let mut sent = 0;
    while sent < args.count && !interrupt.is_raised() {
        // A datagram too short for a number has none.
        let data = message::data(sent, size);
        socket.send(&joined.destination, &data, imm_data)?;
        sent += 1;
        next += args.interval;
        while sent < args.count && !interrupt.is_raised() {
            let left = next.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            std::thread::sleep(left.min(INTERRUPT_CHECK));
        }
    }
    // Posted datagrams are still sent when the queue pair is destroyed.
    socket.flush()?;
    if output.json {
        output.object(&json!({ "type": "summary", "sent": sent }))?;
    } else {
        output.line(&format!("{sent} datagrams sent"))?;
    }
    Ok(Outcome::Good)
}
