//! Floods of many kinds of junk with correct checksums. Each kind is refused by a different check.

use std::net::Ipv4Addr;

use portolan::wire::cm::{
    CmMessage, DrepRepr, DreqRepr, LapRepr, MraRepr, RejRepr, RepRepr, ReqRepr, RtuRepr,
    SidrRepRepr, SidrReqRepr,
};
use portolan::wire::mad::{MAD_LEN, MadHeaderRepr, Method, MgmtClass};
use portolan::wire::{PortSpace, ServiceId};

use super::forged::{Source, request};
use super::*;

/// The largest UDP datagram over IPv4.
const LARGEST: usize = 65_507;

/// Each message of the connection manager, about connections and services that do not exist.
fn stray_messages(number: u64, from: &Source) -> [CmMessage; 12] {
    let (local_comm_id, remote_comm_id) = (number as u32, (number as u32).rotate_left(24));
    let service_id = ServiceId::from_port(PortSpace::Udp, number as u16);
    let nobody = SocketAddr::from(([127, 0, 0, 1], 1));
    [
        request(from.ip(), nobody, number).into(),
        // No field fits.
        ReqRepr {
            local_comm_id,
            ..ReqRepr::default()
        }
        .into(),
        RepRepr {
            local_comm_id,
            remote_comm_id,
            ..RepRepr::default()
        }
        .into(),
        RtuRepr {
            local_comm_id,
            remote_comm_id,
            ..RtuRepr::default()
        }
        .into(),
        RejRepr {
            local_comm_id,
            remote_comm_id,
            ..RejRepr::default()
        }
        .into(),
        MraRepr {
            local_comm_id,
            remote_comm_id,
            ..MraRepr::default()
        }
        .into(),
        DreqRepr {
            local_comm_id,
            remote_comm_id,
            ..DreqRepr::default()
        }
        .into(),
        DrepRepr {
            local_comm_id,
            remote_comm_id,
            ..DrepRepr::default()
        }
        .into(),
        LapRepr {
            local_comm_id,
            remote_comm_id,
            ..LapRepr::default()
        }
        .into(),
        SidrReqRepr {
            request_id: local_comm_id,
            service_id,
            ..SidrReqRepr::default()
        }
        .into(),
        SidrRepRepr {
            request_id: local_comm_id,
            ..SidrRepRepr::default()
        }
        .into(),
        SidrRepRepr {
            request_id: remote_comm_id,
            service_id,
            ..SidrRepRepr::default()
        }
        .into(),
    ]
}

/// A base transport header with any opcode, with or without extension headers.
fn bth(opcode: u8, qpn: Qpn, number: u64) -> [u8; 12] {
    let [_, a, b, c] = qpn.value().to_be_bytes();
    let [.., x, y, z] = number.to_be_bytes();
    [opcode, 0x40, 0xff, 0xff, 0, a, b, c, 0x80, x, y, z]
}

/// A management datagram of another class, class version, method or attribute, with random contents.
fn foreign_mad(number: u64) -> [u8; MAD_LEN] {
    let [.., version, method, class, attribute] = number.to_be_bytes();
    let mut mad = [number as u8; MAD_LEN];
    let header = MadHeaderRepr {
        base_version: 1,
        mgmt_class: [MgmtClass::CM, MgmtClass(class)][usize::from(class & 1)],
        class_version: [2, version][usize::from(class >> 1 & 1)],
        method: [Method::SEND, Method(method)][usize::from(class >> 2 & 1)],
        status: 0,
        class_specific: 0,
        tid: number,
        attribute_id: u16::from(attribute),
        attribute_modifier: 0,
    };
    header.emit(&mut mad).unwrap();
    mad
}

#[test]
fn junk_of_every_kind_with_correct_checksums_does_not_stop_other_connections() {
    let port = free_port();
    let to = target(port);
    // Different from the address of the connection's other side, for whose packets the junk could be taken.
    let sources: Vec<_> = (2..10)
        .map(|last| Source::new(Ipv4Addr::new(127, 0, 0, last)))
        .collect();
    let largest = vec![0x64; LARGEST];
    goes_on_under(port, "of every kind", |queue_pairs, number| {
        let (kind, which) = (number % 8, number / 8);
        let source = &sources[which as usize % sources.len()];
        // To both sides of the connection, to an unknown number in a process's block, to an unused block, to
        // queue pair 1, and to a group's queue pair.
        let [near, far] = queue_pairs;
        let nobodys = [Qpn::new(near.value() ^ 1), Qpn::new(0xfe_0000)];
        let known = [near, far, nobodys[0], nobodys[1], Qpn::GSI, Qpn::MULTICAST];
        let qpn = known[(which / 256) as usize % known.len()];
        let length = (which % 1200) as usize;
        match kind {
            0..3 => {
                let messages = stray_messages(which, source);
                source.send_message(to, which, &messages[which as usize % messages.len()]);
            }
            3 => source.send_mad(to, &foreign_mad(which)),
            // Every opcode, including undefined ones.
            4 | 5 => source.send(to, &bth(which as u8, qpn, number), &largest[..length]),
            // A wrong checksum, and lengths up to the largest.
            6 => source.send_raw(
                to,
                &[&bth(which as u8, qpn, number), &largest[..length]].concat(),
            ),
            _ => source.send_raw(to, &largest[..(which as usize * 977) % (LARGEST + 1)]),
        }
    });
}
