//! Neighbour table messages, as pure code.

use super::link_address::LinkAddress;
use super::pending::{Entry, NextHop};
use crate::sys::rtnetlink::{NeighbourAttribute, NeighbourMessage, RouteNetlinkMessage, family_of};

/// RTM_GETNEIGH for one entry.
pub(super) fn request(hop: NextHop) -> RouteNetlinkMessage {
    let message = NeighbourMessage {
        family: family_of(hop.address),
        interface_index: hop.interface_index,
        attributes: vec![NeighbourAttribute::Destination(hop.address)],
        ..NeighbourMessage::default()
    };
    RouteNetlinkMessage::GetNeighbour(message)
}

/// Parses an entry of an IP neighbour table; `None` for another table's entry (a bridge's).
pub(super) fn read(message: &NeighbourMessage) -> Option<(NextHop, Entry)> {
    let mut next_hop = None;
    let mut link_address = LinkAddress::NONE;
    for attribute in &message.attributes {
        match attribute {
            NeighbourAttribute::Destination(address) => next_hop = Some(*address),
            NeighbourAttribute::LinkLayerAddress(bytes) => link_address = LinkAddress::new(bytes)?,
        }
    }
    let entry = match message.state {
        libc::NUD_REACHABLE | libc::NUD_PERMANENT | libc::NUD_NOARP => Entry::Valid(link_address),
        libc::NUD_STALE => Entry::Stale(link_address),
        libc::NUD_DELAY | libc::NUD_PROBE => Entry::Probed(link_address),
        libc::NUD_INCOMPLETE => Entry::Incomplete,
        libc::NUD_FAILED => Entry::Failed,
        _ => Entry::Absent,
    };
    let hop = NextHop {
        address: next_hop?,
        interface_index: message.interface_index,
    };
    Some((hop, entry))
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    #[test]
    fn each_state_of_the_table_maps_to_one_of_our_six() {
        let address = LinkAddress::new(&[2, 0, 0, 0, 0, 1]).expect("address");
        for (state, expected) in [
            (libc::NUD_NONE, Entry::Absent),
            (libc::NUD_INCOMPLETE, Entry::Incomplete),
            (libc::NUD_FAILED, Entry::Failed),
            (libc::NUD_REACHABLE, Entry::Valid(address)),
            (libc::NUD_STALE, Entry::Stale(address)),
            (libc::NUD_DELAY, Entry::Probed(address)),
            (libc::NUD_PROBE, Entry::Probed(address)),
            (libc::NUD_PERMANENT, Entry::Valid(address)),
            (libc::NUD_NOARP, Entry::Valid(address)),
        ] {
            let hop = NextHop {
                address: [192, 0, 2, 1].into(),
                interface_index: 4,
            };
            let message = NeighbourMessage {
                interface_index: 4,
                state,
                attributes: vec![
                    NeighbourAttribute::Destination(hop.address),
                    NeighbourAttribute::LinkLayerAddress(address.as_bytes().to_vec()),
                ],
                ..NeighbourMessage::default()
            };
            assert_eq!(read(&message), Some((hop, expected)), "{state:?}");
        }
    }

    #[test]
    fn entries_of_other_tables_and_oversized_addresses_are_skipped() {
        let mut message = NeighbourMessage {
            attributes: vec![NeighbourAttribute::LinkLayerAddress(vec![0; 6])],
            ..NeighbourMessage::default()
        };
        assert_eq!(read(&message), None);
        message.attributes = vec![
            NeighbourAttribute::Destination(IpAddr::from([192, 0, 2, 1])),
            NeighbourAttribute::LinkLayerAddress(vec![0; 33]),
        ];
        assert_eq!(read(&message), None);
    }
}
