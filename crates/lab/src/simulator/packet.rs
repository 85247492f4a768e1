//! Packets as they are on the wire: real bytes and their ICRC.

use std::net::{IpAddr, SocketAddr};

use portolan_wire::bth::Opcode;
use portolan_wire::eth::DethRepr;
use portolan_wire::icrc::{self, Flow, Identification};
use portolan_wire::mad::MAD_LEN;
use portolan_wire::rocev2::{Headers, ICRC_LEN};
use portolan_wire::{Psn, QKey, Qpn};

use super::failure::{Violation, violation};

/// UDP port of RoCEv2 (IBTA annex A17).
pub(super) const ROCE_PORT: u16 = 4791;

/// First source port (IBTA A17.9.2).
const SOURCE_PORT_MIN: u16 = 0xC000;

/// The byte of a packet that the ICRC does not cover (IBTA 7.8.1: BTH byte 4).
const UNCOVERED_BYTE: usize = 4;

/// Every n-th packet is also checked as if its identification were hidden.
const HIDDEN_CHECK_INTERVAL: u16 = 8;

/// A UDP datagram, and the fields of lower layers that the ICRC covers.
#[derive(Clone, Debug)]
pub(super) struct Datagram {
    pub(super) source: SocketAddr,
    pub(super) destination: SocketAddr,
    /// IPv4 identification.
    pub(super) ip_id: u16,
    /// UDP payload, ICRC included.
    pub(super) payload: Vec<u8>,
    /// Whether the network corrupted bytes that the ICRC covers.
    pub(super) is_corrupt: bool,
}

impl Datagram {
    /// Builds a datagram from a packet whose last four bytes are reserved for the ICRC.
    pub(super) fn seal(
        from: IpAddr,
        to: IpAddr,
        flow_number: u32,
        ip_id: u16,
        payload: Vec<u8>,
    ) -> Result<Self, Violation> {
        let source_port = SOURCE_PORT_MIN | (flow_number as u16 & 0x3FFF);
        let mut datagram = Self {
            source: SocketAddr::new(from, source_port),
            destination: SocketAddr::new(to, ROCE_PORT),
            ip_id,
            payload,
            is_corrupt: false,
        };
        let flow = datagram.flow()?;
        icrc::append(&flow, ip_id, &mut datagram.payload)
            .map_err(|error| violation!("the packet has no room for the ICRC: {error}"))?;
        Ok(datagram)
    }

    /// High byte of the destination queue pair as a socket filter sees it; the packet may be
    /// corrupt. `None` if the packet is too short.
    pub(super) fn destination_block(&self) -> Option<u8> {
        // BTH bytes 5 to 7 (IBTA 9.2).
        self.payload.get(5).copied()
    }

    /// Whether the ICRC is right, given the identification.
    pub(super) fn is_valid(&self) -> Result<bool, Violation> {
        self.is_valid_with(Identification::Known(self.ip_id))
    }

    /// For some of the packets, checks that a receiver that cannot see the identification recovers
    /// it.
    pub(super) fn check_hidden(&self) -> Result<(), Violation> {
        if !self.ip_id.is_multiple_of(HIDDEN_CHECK_INTERVAL) || !self.source.is_ipv4() {
            return Ok(());
        }
        let found = icrc::verify(&self.flow()?, Identification::Hidden, &self.payload);
        match found {
            Ok(found) if found.identification == self.ip_id => Ok(()),
            found => Err(violation!(
                "identification {} was taken for {found:?}",
                self.ip_id
            )),
        }
    }

    fn is_valid_with(&self, identification: Identification) -> Result<bool, Violation> {
        Ok(icrc::verify(&self.flow()?, identification, &self.payload).is_ok())
    }

    /// Corrupts the packet: `change` gets the whole UDP payload.
    pub(super) fn corrupt(&mut self, change: impl FnOnce(&mut [u8])) {
        let before = self.payload.clone();
        change(&mut self.payload);
        let mut pairs = before.iter().zip(&self.payload).enumerate();
        self.is_corrupt = pairs.any(|(at, (old, new))| old != new && at != UNCOVERED_BYTE);
    }

    fn flow(&self) -> Result<Flow, Violation> {
        Flow::between(self.source, self.destination)
            .ok_or_else(|| violation!("a packet between address families"))
    }
}

/// Assembles a packet: headers, payload, padding, and room for the ICRC.
pub(super) fn assemble(headers: &Headers, payload: &[&[u8]]) -> Result<Vec<u8>, Violation> {
    let payload_len: usize = payload.iter().map(|part| part.len()).sum();
    let pad = usize::from(headers.bth.pad_count);
    let mut bytes = Vec::with_capacity(headers.len() + payload_len + pad + ICRC_LEN);
    bytes.resize(headers.len(), 0);
    headers
        .emit(&mut bytes)
        .map_err(|error| violation!("headers that cannot be written: {error}"))?;
    payload
        .iter()
        .for_each(|part| bytes.extend_from_slice(part));
    bytes.resize(bytes.len() + pad + ICRC_LEN, 0);
    Ok(bytes)
}

/// Assembles the packet of a management datagram.
pub(super) fn assemble_mad(psn: Psn, mad: &[u8; MAD_LEN]) -> Result<Vec<u8>, Violation> {
    let mut headers = Headers::new(Opcode::UdSendOnly, Qpn::GSI, psn);
    headers.deth = Some(DethRepr {
        qkey: QKey::GSI,
        src_qp: Qpn::GSI,
    });
    assemble(&headers, &[mad])
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;
    use crate::simulator::rng::Rng;

    /// Corrupt packets tried: 64 of them are expected to pass.
    const SAMPLES: u64 = 1 << 22;

    fn datagram(from: IpAddr, to: IpAddr) -> Datagram {
        let headers = Headers::new(Opcode::RcSendOnly, Qpn::new(0x1234), Psn::new(77));
        let packet = assemble(&headers, &[&[0x5a; 16]]).unwrap();
        Datagram::seal(from, to, 9, 0xBEEF, packet).unwrap()
    }

    /// Number of corrupt packets that pass. Changing a run of 32 bits at random changes the CRC at
    /// random.
    fn passed(datagram: &Datagram, identification: Identification, samples: u64) -> u64 {
        const FIRST: usize = UNCOVERED_BYTE + 1;
        let mut rng = Rng::new(1);
        let mut corrupt = datagram.clone();
        let places = (corrupt.payload.len() - FIRST - 4) as u64;
        let mut passed = 0;
        for _ in 0..samples {
            let (at, change) = (FIRST + rng.below(places) as usize, rng.next_u32().max(1));
            for (place, byte) in change.to_le_bytes().into_iter().enumerate() {
                corrupt.payload[at + place] ^= byte;
            }
            passed += u64::from(corrupt.is_valid_with(identification).unwrap());
            corrupt.payload[at..at + 4].copy_from_slice(&datagram.payload[at..at + 4]);
        }
        passed
    }

    /// The tolerance is three standard deviations of a binomial distribution. A check of one bit
    /// less or more would double or halve the rate, which is at least four deviations away.
    #[test]
    fn with_the_identification_hidden_one_corrupt_packet_in_65536_passes_and_with_it_known_none() {
        let datagram = datagram([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        let expected = SAMPLES as f64 / 65_536.0;
        let passed_hidden = passed(&datagram, Identification::Hidden, SAMPLES);
        let deviation = (passed_hidden as f64 - expected).abs() / expected.sqrt();
        assert!(
            deviation < 3.0,
            "{passed_hidden} passed, {expected} expected"
        );
        let known = Identification::Known(datagram.ip_id);
        assert_eq!(passed(&datagram, known, SAMPLES / 8), 0);
    }

    #[test]
    fn over_ipv6_nothing_is_hidden_and_no_corrupt_packet_passes() {
        let host = |number| Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, number).into();
        let datagram = datagram(host(1), host(2));
        assert_eq!(passed(&datagram, Identification::Hidden, SAMPLES / 8), 0);
    }

    #[test]
    fn a_hidden_identification_is_recovered() {
        let datagram = datagram([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        let flow = datagram.flow().unwrap();
        let valid = icrc::verify(&flow, Identification::Hidden, &datagram.payload).unwrap();
        assert_eq!(valid.identification, datagram.ip_id);
    }
}
