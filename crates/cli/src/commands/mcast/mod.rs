//! `mcast`: sends to and receives from multicast groups with the protocol of rdma-core's mckey, so that either end may
//! be mckey.
//!
//! Both ends resolve the group's address in the port space UDP, which binds them to a device, and join the group.
//! Datagrams go to queue pair 0xFFFFFF with the Q_Key that the join returns. Their immediate data is the sender's queue
//! pair number in network order. Nothing is answered.

mod join;
mod send;

use std::time::Duration;

use anyhow::Result;
use portolan::Cause;
use portolan::datagram::{Joined, Options, Socket};
use portolan::provider::cm::JoinKind;
use serde_json::json;

use crate::args::{GroupArgs, McastArgs, McastCommand};
use crate::exit::Outcome;
use crate::interrupt::Interrupt;
use crate::output::Output;

/// Maximum delay until Ctrl-C is noticed.
const INTERRUPT_CHECK: Duration = Duration::from_millis(100);
/// Maximum number of datagrams queued for receiving or sending.
const DEPTH: u32 = 512;

/// Joins a group, and receives or sends.
///
/// # Errors
///
/// The group cannot be joined; the output cannot be written.
pub(crate) fn run(args: &McastArgs, output: &mut Output) -> Result<Outcome> {
    let outcome = match &args.what {
        McastCommand::Join(args) => join::run(args, output),
        McastCommand::Send(args) => send::run(args, output),
    };
    output.flush()?;
    outcome
}

fn enter(
    args: &GroupArgs,
    kind: JoinKind,
    output: &mut Output,
) -> Result<(Socket, Joined, Interrupt)> {
    let options = Options::default().send_depth(DEPTH).receive_depth(DEPTH);
    let joined = Socket::join(args.group, args.bind, kind, &options);
    let (socket, joined) = joined.map_err(|error| {
        let wants_route = error.cause == Cause::NetworkUnreachable && args.bind.is_none();
        let error = anyhow::Error::new(error);
        match wants_route {
            true => error.context(format!(
                "no route chooses an interface for {} (--bind ADDR does, by one of its addresses)",
                args.group.ip()
            )),
            false => error,
        }
    })?;
    let interrupt = Interrupt::install()?;
    let local = socket.local_addr().map(|local| local.ip().to_string());
    let (group, destination) = (joined.group, &joined.destination);
    if output.json {
        output.object(&json!({
            "type": "joined",
            "group": group.to_string(),
            "local": local,
            "qp": socket.qpn().value(),
            "group_qp": destination.qpn.value(),
            "qkey": destination.qkey.0,
            "send_only": kind == JoinKind::SendOnlyFullMember,
        }))?;
    } else {
        let how = match kind {
            JoinKind::FullMember => "joined",
            JoinKind::SendOnlyFullMember => "joined to send only",
        };
        let local = local.unwrap_or_else(|| "an address unknown".to_owned());
        output.line(&format!(
            "{how} {group} on {local}: queue pair {}, Q_Key {}",
            socket.qpn(),
            destination.qkey
        ))?;
    }
    output.flush()?;
    Ok((socket, joined, interrupt))
}
