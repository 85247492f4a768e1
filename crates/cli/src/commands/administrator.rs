//! The port whose subnet administrator is asked, by its user MAD device.

use anyhow::{Result, anyhow};
use portolan::sa::{Client, ClientConfig, LinkLayer, Port, umad};
use portolan::wire::addr::Gid;

use crate::args::PortArgs;

/// A client of the port that the arguments name or, if they name none, of the one that has `gid`, or of the
/// first.
///
/// # Errors
/// There is no such InfiniBand port, or it cannot be looked at.
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
    let has_gid = |port: &Port| gid.is_some_and(|gid| port.gids.contains(&gid));
    let place = ports
        .iter()
        .position(|(_, port)| has_gid(port))
        .unwrap_or(0);
    if ports.is_empty() {
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
    }
    let (device, port) = ports.swap_remove(place);
    Ok((Client::of_device(ClientConfig::default(), device), port))
}
