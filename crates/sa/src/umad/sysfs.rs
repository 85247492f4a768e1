//! Attributes of user MAD devices and their ports in sysfs
//! (`Documentation/ABI/stable/sysfs-class-infiniband`).

use std::net::Ipv6Addr;

use portolan_provider::error::errno;
use portolan_wire::{Gid, PKey};

use crate::port::{GIDS_MAX, LinkLayer, PKEYS_MAX, Port, PortState};
use crate::sys::file;
use crate::transport::TransportError;

use super::Device;

/// Directory of the user MAD devices, each with its port.
const DEVICES: &str = "/sys/class/infiniband_mad";
/// Directory of the RDMA devices, each with its ports.
const RDMA_DEVICES: &str = "/sys/class/infiniband";
/// Maximum number of user MAD devices to read.
const DEVICES_MAX: usize = 1024;

/// The user MAD devices of this machine, by number; empty if the system has none.
pub(super) fn devices() -> Result<Vec<Device>, TransportError> {
    let names = match file::list(DEVICES, DEVICES_MAX) {
        Ok(names) => names,
        Err(errno::ENOENT) => return Ok(Vec::new()),
        Err(errno) => {
            let call = "list /sys/class/infiniband_mad";
            return Err(TransportError::Os { call, errno });
        }
    };
    let numbers = names
        .iter()
        .filter_map(|name| name.strip_prefix("umad")?.parse().ok());
    let mut devices: Vec<Device> = numbers.filter_map(device).collect();
    devices.sort_by_key(|device| device.number);
    Ok(devices)
}

/// Reads one user MAD device; `None` if it disappears meanwhile.
fn device(number: u32) -> Option<Device> {
    let attribute = |name: &str| text(&format!("{DEVICES}/umad{number}/{name}"));
    Some(Device {
        number,
        device: attribute("ibdev")?,
        port_num: attribute("port")?.parse().ok()?,
    })
}

/// Reads a port's attributes.
pub(super) fn port(of: &Device) -> Result<Port, TransportError> {
    let folder = format!("{RDMA_DEVICES}/{}/ports/{}", of.device, of.port_num);
    let attribute = |name: &str| text(&format!("{folder}/{name}"));
    let gone = || TransportError::Gone {
        device: of.device.clone(),
        port_num: of.port_num,
        why: format!("{folder} has no state"),
    };
    let state = attribute("state").ok_or_else(gone)?;
    let unexpected = |found: String| TransportError::Unexpected {
        what: "port state in sysfs",
        expected: "1 to 5".into(),
        found,
    };
    let slots = |folder_of: &str, count: usize| -> Vec<String> {
        let slot = |at| text(&format!("{folder}/{folder_of}/{at}"));
        (0..count).map_while(slot).collect()
    };
    Ok(Port {
        device: of.device.clone(),
        port_num: of.port_num,
        link_layer: link_layer(attribute("link_layer").as_deref()),
        state: state_of(&state).ok_or_else(|| unexpected(state.clone()))?,
        lid: attribute("lid").and_then(|text| number(&text)).unwrap_or(0),
        lmc: attribute("lid_mask_count")
            .and_then(|text| number(&text))
            .and_then(|lmc| u8::try_from(lmc).ok())
            .unwrap_or(0),
        sm_lid: attribute("sm_lid")
            .and_then(|text| number(&text))
            .unwrap_or(0),
        sm_sl: attribute("sm_sl")
            .and_then(|text| number(&text))
            .and_then(|sl| u8::try_from(sl).ok())
            .unwrap_or(0),
        gids: slots("gids", GIDS_MAX)
            .iter()
            .map(|text| gid(text))
            .collect(),
        pkeys: slots("pkeys", PKEYS_MAX)
            .iter()
            .map(|text| PKey(number(text).unwrap_or(0)))
            .collect(),
    })
}

/// Reads a file and trims its text; `None` if it cannot be read, like an empty slot of a table.
fn text(path: &str) -> Option<String> {
    match file::read(path) {
        Ok(bytes) => Some(String::from_utf8_lossy(&bytes).trim().to_owned()),
        Err(errno::EINVAL) => Some(String::new()),
        Err(_) => None,
    }
}

/// Kernels before 2.6.37 and emulators do not report the link layer; they only have InfiniBand.
fn link_layer(text: Option<&str>) -> LinkLayer {
    match text {
        Some("Ethernet") => LinkLayer::Ethernet,
        _ => LinkLayer::InfiniBand,
    }
}

/// Parses the state in `4: ACTIVE`.
fn state_of(text: &str) -> Option<PortState> {
    let (value, _) = text.split_once(':')?;
    PortState::from_value(value.trim().parse().ok()?)
}

/// Parses a 16-bit number: `0x1f`, or decimal without the prefix.
fn number(text: &str) -> Option<u16> {
    match text.strip_prefix("0x") {
        Some(digits) => u16::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Parses a GID; an empty slot is zero.
fn gid(text: &str) -> Gid {
    text.parse::<Ipv6Addr>()
        .map_or(Gid::UNSPECIFIED, Gid::from_ipv6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_in_both_bases_and_nothing_else() {
        assert_eq!(number("0x1f"), Some(31));
        assert_eq!(number("31"), Some(31));
        assert_eq!(number("0xffff"), Some(0xffff));
        for text in ["", "0x", "0x10000", "65536", "-1", "x"] {
            assert_eq!(number(text), None, "{text}");
        }
    }

    #[test]
    fn a_state_is_the_number_before_its_name() {
        assert_eq!(state_of("4: ACTIVE"), Some(PortState::Active));
        assert_eq!(state_of("1: DOWN"), Some(PortState::Down));
        for text in ["", "ACTIVE", "0: NOP", "9: ?", ": ACTIVE"] {
            assert_eq!(state_of(text), None, "{text}");
        }
    }

    #[test]
    fn a_gid_is_written_out_in_full_and_an_empty_slot_is_zero() {
        let text = "fe80:0000:0000:0000:0002:c903:0010:0101";
        let bytes = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 2, 0xc9, 3, 0, 0x10, 1, 1];
        assert_eq!(gid(text), Gid(bytes));
        assert_eq!(gid(""), Gid::UNSPECIFIED);
    }

    #[test]
    fn a_port_without_a_link_layer_file_is_infiniband() {
        assert_eq!(link_layer(None), LinkLayer::InfiniBand);
        assert_eq!(link_layer(Some("InfiniBand")), LinkLayer::InfiniBand);
        assert_eq!(link_layer(Some("Ethernet")), LinkLayer::Ethernet);
    }
}
