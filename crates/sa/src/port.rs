//! What a port knows of itself.

use std::fmt;

use portolan_wire::{Gid, PKey};

/// Most slots of a GID table that are looked at.
pub const GIDS_MAX: usize = 256;
/// Most slots of a partition table that are looked at.
pub const PKEYS_MAX: usize = 1024;
/// The first LID that names a group; unicast LIDs are from 1 to the one before it (IBTA 4.1.3).
pub const MULTICAST_LID_FIRST: u16 = 0xC000;

/// A port of a device, as it was when it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// RDMA device name.
    pub device: String,
    /// Port number, from 1.
    pub port_num: u8,
    /// What the port's links are.
    pub link_layer: LinkLayer,
    /// How far the port is.
    pub state: PortState,
    /// LID, zero before the subnet manager gave one.
    pub lid: u16,
    /// LID mask control: the port has 2^lmc LIDs, from [`lid`](Self::lid).
    pub lmc: u8,
    /// LID of the subnet manager's port, zero before there is one.
    pub sm_lid: u16,
    /// Service level to reach it by.
    pub sm_sl: u8,
    /// The GID table, at most [`GIDS_MAX`] slots; empty slots are zero.
    pub gids: Vec<Gid>,
    /// The partition table, at most [`PKEYS_MAX`] slots; empty slots are zero.
    pub pkeys: Vec<PKey>,
}

impl Port {
    /// The port's first GID, which every InfiniBand port has; `None` before the subnet manager was there.
    pub fn gid(&self) -> Option<Gid> {
        let first = self.gids.first().copied();
        first.filter(|gid| !gid.is_unspecified())
    }

    /// The slot of a partition key with this partition, one of full membership if there is one.
    pub fn pkey_index(&self, partition: u16) -> Option<u16> {
        let slot = |full: bool| {
            let is_it = |key: &PKey| {
                key.partition() == partition && partition != 0 && key.is_full_member() == full
            };
            let slot = self.pkeys.iter().position(is_it);
            slot.and_then(|slot| u16::try_from(slot).ok())
        };
        slot(true).or_else(|| slot(false))
    }
}

/// What a port's links are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinkLayer {
    /// InfiniBand: there is a subnet administrator to ask.
    InfiniBand,
    /// Ethernet: there is none.
    Ethernet,
}

impl fmt::Display for LinkLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::InfiniBand => "InfiniBand",
            Self::Ethernet => "Ethernet",
        })
    }
}

/// The state of a port (IBTA 14.2.5.6, PortInfo's PortState; `enum ibv_port_state`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum PortState {
    /// No link.
    Down = 1,
    /// A link, and no subnet manager yet.
    Init = 2,
    /// The subnet manager is at it.
    Armed = 3,
    /// Traffic may flow.
    Active = 4,
    /// Traffic may flow again soon.
    ActiveDefer = 5,
}

impl PortState {
    /// The state with this number; `None` for a reserved one.
    pub const fn from_value(value: u8) -> Option<Self> {
        Some(match value {
            1 => Self::Down,
            2 => Self::Init,
            3 => Self::Armed,
            4 => Self::Active,
            5 => Self::ActiveDefer,
            _ => return None,
        })
    }
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Down => "DOWN",
            Self::Init => "INIT",
            Self::Armed => "ARMED",
            Self::Active => "ACTIVE",
            Self::ActiveDefer => "ACTIVE_DEFER",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_is_found_by_its_full_membership_first_and_the_invalid_one_never() {
        let port = Port {
            device: "ib0".into(),
            port_num: 1,
            link_layer: LinkLayer::InfiniBand,
            state: PortState::Active,
            lid: 1,
            lmc: 0,
            sm_lid: 1,
            sm_sl: 0,
            gids: vec![Gid::UNSPECIFIED],
            pkeys: [0, 0x7FFF, 0x0012, 0xFFFF, 0x8000].map(PKey).into(),
        };
        assert_eq!(port.pkey_index(0x7FFF), Some(3));
        assert_eq!(port.pkey_index(0x0012), Some(2));
        assert_eq!(port.pkey_index(0x0013), None);
        assert_eq!(port.pkey_index(0), None);
        assert_eq!(port.gid(), None);
    }
}
