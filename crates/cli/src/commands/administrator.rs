//! Selects the port whose subnet administrator is queried, by its user MAD device.

use anyhow::{Result, anyhow};
use portolan::sa::{Client, ClientConfig, LinkLayer, Port, PortState, umad};
use portolan::wire::addr::Gid;

use crate::args::PortArgs;

/// A client of the port that the arguments name. Without a name, of the port with `gid`, or of the first active one, or
/// of the first.
///
/// # Errors
///
/// There is no such InfiniBand port, or its attributes cannot be read.
pub(super) fn client(args: &PortArgs, gid: Option<Gid>) -> Result<(Client, Port)> {
    let mut ports = Vec::new();
    for device in umad::devices()? {
        let port = device.port()?;
        let is_named = args.device.as_ref().is_none_or(|name| *name == port.device)
            && (args.port == 0 || args.port == port.port_num);
        if is_named && port.link_layer == LinkLayer::InfiniBand {
            ports.push((device, port));
        }
    }
    let Some(place) = chosen(ports.iter().map(|(_, port)| port), gid) else {
        return Err(match &args.device {
            Some(name) => anyhow!(
                "there is no InfiniBand port {} of {name}, or it has no user MAD device",
                args.port
            ),
            None => anyhow!(
                "there is no InfiniBand port with a user MAD device (modprobe ib_umad); on Ethernet there is no \
                 subnet administrator: try portolan reach or portolan resolve"
            ),
        });
    };
    let (device, port) = ports.swap_remove(place);
    Ok((Client::of_device(ClientConfig::default(), device), port))
}

/// Index of the port with the GID, otherwise of the first active one, because a port that is down has no administrator.
fn chosen<'a>(ports: impl Iterator<Item = &'a Port> + Clone, gid: Option<Gid>) -> Option<usize> {
    let has_gid = |port: &Port| gid.is_some_and(|gid| port.gids.contains(&gid));
    let is_up = |port: &Port| port.state >= PortState::Active;
    let first = |is_it: &dyn Fn(&Port) -> bool| ports.clone().position(is_it);
    first(&has_gid)
        .or_else(|| first(&is_up))
        .or_else(|| first(&|_| true))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(number: u8, state: PortState) -> Port {
        Port {
            device: "ib0".into(),
            port_num: number,
            link_layer: LinkLayer::InfiniBand,
            state,
            lid: number.into(),
            lmc: 0,
            sm_lid: 1,
            sm_sl: 0,
            gids: vec![Gid([number; 16])],
            pkeys: Vec::new(),
        }
    }

    #[test]
    fn a_port_that_is_down_is_used_only_if_there_is_no_other_or_it_has_the_gid() {
        let ports = [
            port(1, PortState::Down),
            port(2, PortState::Init),
            port(3, PortState::Active),
            port(4, PortState::Active),
        ];
        assert_eq!(chosen(ports.iter(), None), Some(2));
        assert_eq!(chosen(ports.iter(), Some(Gid([4; 16]))), Some(3));
        assert_eq!(chosen(ports.iter(), Some(Gid([1; 16]))), Some(0));
        assert_eq!(chosen(ports.iter(), Some(Gid([9; 16]))), Some(2));
        assert_eq!(chosen(ports[..2].iter(), None), Some(0));
        assert_eq!(chosen(ports[..0].iter(), None), None);
    }
}
