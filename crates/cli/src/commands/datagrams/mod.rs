//! `ping --ud` and `listen --ud`: datagram pings with the protocol of rdma-core's udaddy, so that either end may be
//! udaddy.
//!
//! The client resolves the service's queue pair (service id resolution, port space UDP) and sends datagrams to it. The
//! server learns the sender's address from the first datagram: from its network header and its immediate data, which is
//! the sender's queue pair number in network order. Every datagram carries that, in both directions. The Q_Key is
//! rdma_cm's default.
//!
//! udaddy's server answers only after the number of datagrams that its -C states, and with other data. Our server
//! answers each at once with the same data. So this client does not wait for an answer before it sends the next ping.
//! It counts answers that are not echoes as answers of unknown time.

mod listen;
pub(in crate::commands) mod message;
mod ping;
mod report;
mod tally;

pub(crate) use listen::run as listen;
pub(crate) use ping::run as ping;

use portolan::wire::addr::Qpn;

/// Immediate data as in udaddy and mckey: the sender's queue pair.
pub(in crate::commands) fn immediate(qpn: Qpn) -> u32 {
    qpn.value().to_be()
}
