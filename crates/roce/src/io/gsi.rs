//! QP1, the general services interface: the trait that a connection manager implements, and the packets of management
//! datagrams.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use portolan_wire::bth::Opcode;
use portolan_wire::eth::DethRepr;
use portolan_wire::mad::MAD_LEN;
use portolan_wire::rocev2::{Headers, ICRC_LEN, Packet};
use portolan_wire::{Psn, QKey, Qpn};

use crate::io::host::hotplug::DeviceChange;
use crate::io::verbs::device::SoftDevice;

/// UDP payload of a management datagram: BTH, DETH, MAD, ICRC.
pub(crate) const MAD_PACKET_LEN: usize =
    portolan_wire::bth::LEN + DethRepr::LEN + MAD_LEN + ICRC_LEN;

/// Receives management datagrams and manages its own timeout.
///
/// The progress thread calls the methods, and a thread in [`Stack::wait_for`](crate::io::Stack::wait_for)
/// calls `mad`, without a lock of the stack. They may call the stack. Datagrams are passed one at a time, in order.
pub trait Gsi: Send + Sync + std::fmt::Debug {
    /// Handles a datagram for this process.
    fn mad(&self, mad: ReceivedMad<'_>);
    /// A queue pair in RTR received a packet, although no message has established the connection: that message is
    /// late or lost. The owner also gets this as `AsyncEvent::CommEst`.
    fn communication_established(&self, qp: Qpn) {
        let _ = qp;
    }
    /// The time until [`timeout`](Self::timeout) must be called; `None` for never.
    ///
    /// Called again after `mad`, after `timeout`, and after [`Stack::wake`](crate::io::Stack::wake).
    fn next_timeout(&self) -> Option<Duration>;
    /// Handles the timeout.
    fn timeout(&self);
    /// A device was added, changed or removed. A removed device is not in the stack's list any more, and its queue
    /// pairs have failed.
    fn device_changed(&self, _device: &Arc<SoftDevice>, _change: DeviceChange) {}
}

/// A management datagram with a valid ICRC and Q_Key.
#[derive(Clone, Debug)]
pub struct ReceivedMad<'a> {
    /// The sender's address (with the scope if it is link-local) and UDP source port.
    pub remote: SocketAddr,
    /// The local address that it was sent to.
    pub local: IpAddr,
    /// Index of the interface it arrived on, 0 if unknown.
    pub interface: u32,
    /// The device that has the address; `None` if its interface has lost the address meanwhile.
    pub device: Option<Arc<SoftDevice>>,
    /// The sender's queue pair, 1 for connection managers.
    pub source_qp: Qpn,
    /// IPv4 type of service or IPv6 traffic class.
    pub traffic_class: u8,
    /// IPv4 time to live or IPv6 hop limit.
    pub hop_limit: u8,
    /// The datagram.
    pub mad: &'a [u8; MAD_LEN],
}

/// How to send a management datagram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MadOptions {
    /// IPv4 type of service or IPv6 traffic class.
    pub traffic_class: u8,
    /// IPv4 time to live or IPv6 hop limit; 0 for the system's default.
    pub hop_limit: u8,
}

/// Writes the packet of a MAD, without its ICRC.
pub(crate) fn emit(
    psn: Psn,
    mad: &[u8; MAD_LEN],
    out: &mut [u8; MAD_PACKET_LEN],
) -> portolan_wire::Result<()> {
    let mut headers = Headers::new(Opcode::UdSendOnly, Qpn::GSI, psn);
    headers.deth = Some(DethRepr {
        qkey: QKey::GSI,
        src_qp: Qpn::GSI,
    });
    let at = headers.emit(out)?;
    if let Some(body) = out.get_mut(at..at + MAD_LEN) {
        body.copy_from_slice(mad);
    }
    Ok(())
}

/// Returns the sender's queue pair and the management datagram of a packet for QP1; `None` if opcode, Q_Key or length
/// is wrong.
pub(crate) fn mad_of<'a>(packet: &Packet<'a>) -> Option<(Qpn, &'a [u8; MAD_LEN])> {
    let deth = packet.deth().filter(|deth| deth.qkey == QKey::GSI)?;
    let mad = packet.mad()?.try_into().ok()?;
    Some((deth.src_qp, mad))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet() -> [u8; MAD_PACKET_LEN] {
        let mut packet = [0; MAD_PACKET_LEN];
        emit(Psn::new(7), &[0x5a; MAD_LEN], &mut packet).unwrap();
        packet
    }

    fn check(packet: &[u8]) -> Option<(Qpn, &[u8; MAD_LEN])> {
        mad_of(&Packet::parse(packet).unwrap())
    }

    #[test]
    fn a_mad_packet_is_280_bytes_and_survives_a_round_trip() {
        let packet = packet();
        assert_eq!(packet.len(), 280);
        assert_eq!(check(&packet), Some((Qpn::GSI, &[0x5a; MAD_LEN])));
    }

    #[test]
    fn packets_with_a_wrong_key_queue_pair_or_length_are_not_mads() {
        let mut wrong_key = packet();
        wrong_key[15] ^= 1;
        assert_eq!(check(&wrong_key), None);
        let mut other_queue_pair = packet();
        other_queue_pair[7] = 2;
        assert_eq!(check(&other_queue_pair), None);
        assert_eq!(check(&packet()[..MAD_PACKET_LEN - 4]), None);
    }
}
