//! A port's attributes.

pub use portolan_provider::verbs::LinkLayer;
use portolan_wire::{Gid, PKey};

/// Maximum number of GID table entries to read.
pub const GIDS_MAX: usize = 256;
/// Maximum number of partition key table entries to read.
pub const PKEYS_MAX: usize = 1024;

/// A snapshot of a port's attributes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// RDMA device name.
    pub device: String,
    /// Port number, from 1.
    pub port_num: u8,
    /// Link layer of the port.
    pub link_layer: LinkLayer,
    /// State of the port.
    pub state: PortState,
    /// LID; zero until the subnet manager assigns one.
    pub lid: u16,
    /// LID mask control: the port has 2^lmc LIDs, from [`lid`](Self::lid).
    pub lmc: u8,
    /// LID of the subnet manager's port; zero if there is none.
    pub sm_lid: u16,
    /// Service level for datagrams to the subnet manager.
    pub sm_sl: u8,
    /// The GID table, at most [`GIDS_MAX`] entries; empty ones are zero.
    pub gids: Vec<Gid>,
    /// The partition key table, at most [`PKEYS_MAX`] entries; empty ones are zero.
    pub pkeys: Vec<PKey>,
}

impl Port {
    /// The port's first GID, which every InfiniBand port has; `None` until the subnet manager
    /// configures it.
    pub fn gid(&self) -> Option<Gid> {
        let first = self.gids.first().copied();
        first.filter(|gid| !gid.is_unspecified())
    }

    /// The index of a partition key with this partition, preferring one of full membership.
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

portolan_provider::enum_table! {
    /// The state of a port (IBTA 14.2.5.6, PortInfo's PortState; `enum ibv_port_state`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    #[repr(u8)]
    pub enum PortState {
        /// No link.
        Down = 1 => "DOWN",
        /// The link is up; no subnet manager has configured the port.
        Init = 2 => "INIT",
        /// The subnet manager is configuring the port.
        Armed = 3 => "ARMED",
        /// Ready for traffic.
        Active = 4 => "ACTIVE",
        /// A link error interrupted traffic; it may recover.
        ActiveDefer = 5 => "ACTIVE_DEFER",
    }
}

impl PortState {
    /// The state with this number; `None` for a reserved one.
    pub fn from_value(value: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|state| *state as u8 == value)
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
