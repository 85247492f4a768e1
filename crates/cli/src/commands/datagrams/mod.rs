//! `ping --ud` and `listen --ud`: pings by datagrams, in the protocol of rdma-core's udaddy, so that
//! either end may be udaddy.
//!
//! The client asks the service for its queue pair (service id resolution, port space UDP) and sends
//! datagrams to it; the server learns whom to answer from the first that arrives: its network header
//! and its immediate data, the sender's queue pair number in network order. Every datagram carries
//! that, in both directions. Q_Key is rdma_cm's own.
//!
//! udaddy's server answers only once as many datagrams have come as its -C says, and with other data;
//! ours answers each at once with the same data. So the client here does not wait for an answer before
//! it sends on, and takes answers that are no echo for what they are: answers, of unknown time.

mod listen;
pub(in crate::commands) mod message;
mod ping;
mod report;
mod tally;

pub(crate) use listen::run as listen;
pub(crate) use ping::run as ping;

use portolan::wire::addr::Qpn;

/// Immediate data as udaddy and mckey send it: the sender's queue pair.
pub(in crate::commands) fn immediate(qpn: Qpn) -> u32 {
    qpn.value().to_be()
}
