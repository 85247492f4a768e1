//! A client's user MAD device at an Ethernet port, with the administrator at the other end of the
//! link.

use std::sync::Arc;
use std::time::Duration;

use portolan_sa::transport::Mad;
use portolan_sa::umad::{Class, Device, UmadTransport};
use portolan_sa::{Grh, LinkLayer, MadAddress, Port, Received, Transport, TransportError, Wake};
use portolan_wire::{Gid, QKey};

/// LIDs reported to the client, because Ethernet ports have none: its own and the administrator's.
const OWN_LID: u16 = 1;
const ADMINISTRATOR_LID: u16 = 2;
/// Hop limit of datagrams. They do not leave the link.
const HOP_LIMIT: u8 = 64;

/// The kernel's transport, with every datagram sent to one GID.
#[derive(Debug)]
pub(crate) struct Joined {
    umad: UmadTransport,
    sgid_index: u8,
    peer: Gid,
}

impl Joined {
    pub(crate) fn open(device: &Device, peer: Gid) -> Result<Self, TransportError> {
        let slot = gid_slot(&device.port()?);
        let (sgid_index, _) = slot.ok_or_else(|| TransportError::Unexpected {
            what: "GID table of the client's port",
            expected: "a link-local GID".into(),
            found: "none".into(),
        })?;
        let umad = device.open(&Class::SUBNET_ADMINISTRATION)?;
        Ok(Self {
            umad,
            sgid_index,
            peer,
        })
    }
}

impl Transport for Joined {
    fn port(&mut self) -> Result<Port, TransportError> {
        let mut port = self.umad.port()?;
        let slot = gid_slot(&port).map(|(_, gid)| gid);
        port.gids = slot.into_iter().collect();
        port.link_layer = LinkLayer::InfiniBand;
        (port.lid, port.sm_lid) = (OWN_LID, ADMINISTRATOR_LID);
        Ok(port)
    }

    fn send(
        &mut self,
        to: &MadAddress,
        mad: &Mad,
        answer_within: Duration,
    ) -> Result<(), TransportError> {
        let grh = Grh {
            gid: self.peer,
            sgid_index: self.sgid_index,
            flow_label: 0,
            hop_limit: HOP_LIMIT,
            traffic_class: 0,
        };
        let to = MadAddress {
            lid: 0,
            grh: Some(grh),
            ..*to
        };
        self.umad.send(&to, mad, answer_within)
    }

    fn receive(&mut self, wait: Duration) -> Result<Option<Received>, TransportError> {
        Ok(self.umad.receive(wait)?.map(|received| match received {
            Received::Mad { from, mad } => {
                let is_the_peer = from.grh.is_some_and(|grh| grh.gid == self.peer);
                let lid = if is_the_peer { ADMINISTRATOR_LID } else { 0 };
                let from = MadAddress { lid, ..from };
                Received::Mad { from, mad }
            }
            failed => failed,
        }))
    }

    fn wake(&self) -> Option<Arc<dyn Wake>> {
        self.umad.wake()
    }
}

/// Address for the answer to a received datagram. The kernel does not report the sender's Q_Key.
pub(crate) fn answered(from: &MadAddress) -> MadAddress {
    let grh = from.grh.map(|grh| Grh {
        hop_limit: HOP_LIMIT,
        ..grh
    });
    MadAddress {
        qkey: QKey::GSI,
        grh,
        ..*from
    }
}

/// The link-local GID of a port, and its index.
pub(crate) fn gid_slot(port: &Port) -> Option<(u8, Gid)> {
    let at = port.gids.iter().position(|gid| gid.is_link_local())?;
    Some((u8::try_from(at).ok()?, port.gids[at]))
}
