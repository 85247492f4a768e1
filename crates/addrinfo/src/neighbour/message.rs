//! Neighbour table messages, as pure code.

use std::net::IpAddr;

use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::link_address::LinkAddress;
use super::pending::{Entry, NextHop};

/// RTM_GETNEIGH for one entry.
pub(super) fn request(hop: NextHop) -> RouteNetlinkMessage {
    let mut message = NeighbourMessage::default();
    message.header.family = match hop.address {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    };
    message.header.ifindex = hop.interface_index;
    message
        .attributes
        .push(NeighbourAttribute::Destination(hop.address.into()));
    RouteNetlinkMessage::GetNeighbour(message)
}

/// Parses an entry of an IP neighbour table; `None` for another table's entry (a bridge's).
pub(super) fn read(message: &NeighbourMessage) -> Option<(NextHop, Entry)> {
    let mut next_hop = None;
    let mut link_address = LinkAddress::NONE;
    for attribute in &message.attributes {
        match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(address)) => {
                next_hop = Some(IpAddr::from(*address));
            }
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(address)) => {
                next_hop = Some(IpAddr::from(*address));
            }
            NeighbourAttribute::LinkLayerAddress(bytes) => link_address = LinkAddress::new(bytes)?,
            _ => {}
        }
    }
    let entry = match message.header.state {
        NeighbourState::Reachable | NeighbourState::Permanent | NeighbourState::Noarp => {
            Entry::Valid(link_address)
        }
        NeighbourState::Stale => Entry::Stale(link_address),
        NeighbourState::Delay | NeighbourState::Probe => Entry::Probed(link_address),
        NeighbourState::Incomplete => Entry::Incomplete,
        NeighbourState::Failed => Entry::Failed,
        _ => Entry::Absent,
    };
    let hop = NextHop {
        address: next_hop?,
        interface_index: message.header.ifindex,
    };
    Some((hop, entry))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_state_of_the_table_maps_to_one_of_our_six() {
        let address = LinkAddress::new(&[2, 0, 0, 0, 0, 1]).expect("address");
        for (state, expected) in [
            (NeighbourState::None, Entry::Absent),
            (NeighbourState::Incomplete, Entry::Incomplete),
            (NeighbourState::Failed, Entry::Failed),
            (NeighbourState::Reachable, Entry::Valid(address)),
            (NeighbourState::Stale, Entry::Stale(address)),
            (NeighbourState::Delay, Entry::Probed(address)),
            (NeighbourState::Probe, Entry::Probed(address)),
            (NeighbourState::Permanent, Entry::Valid(address)),
            (NeighbourState::Noarp, Entry::Valid(address)),
        ] {
            let hop = NextHop {
                address: [192, 0, 2, 1].into(),
                interface_index: 4,
            };
            let mut message = NeighbourMessage::default();
            message.header.ifindex = 4;
            message.header.state = state;
            message.attributes = vec![
                NeighbourAttribute::Destination(hop.address.into()),
                NeighbourAttribute::LinkLayerAddress(address.as_bytes().to_vec()),
            ];
            assert_eq!(read(&message), Some((hop, expected)), "{state:?}");
        }
    }

    #[test]
    fn entries_of_other_tables_and_oversized_addresses_are_skipped() {
        let mut message = NeighbourMessage::default();
        message.attributes = vec![NeighbourAttribute::LinkLayerAddress(vec![0; 6])];
        assert_eq!(read(&message), None);
        message.attributes = vec![
            NeighbourAttribute::Destination(IpAddr::from([192, 0, 2, 1]).into()),
            NeighbourAttribute::LinkLayerAddress(vec![0; 33]),
        ];
        assert_eq!(read(&message), None);
    }
}
