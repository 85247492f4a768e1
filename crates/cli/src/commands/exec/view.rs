//! The contents of /sys/class/infiniband and /dev/infiniband for a device: the files that programs read, as rdma_rxe's
//! devices have them.

use std::net::IpAddr;
use std::path::PathBuf;

use portolan::software::DevicePreview;

/// A folder for the program, and its contents.
pub(super) struct View {
    /// Its path.
    pub(super) place: &'static str,
    /// Its files, with their paths from there.
    pub(super) tree: Vec<(String, Leaf)>,
}

impl View {
    /// The names that it shows in its place.
    pub(super) fn names(&self) -> Vec<&str> {
        let names = self.tree.iter().map(|(path, _)| path.split('/').next());
        let mut names: Vec<&str> = names.flatten().collect();
        names.dedup();
        names
    }
}

/// The folder in which programs find devices without libibverbs.
const CLASS: &str = "/sys/class/infiniband";
/// Programs check here whether they may open a device.
const NODES: &str = "/dev/infiniband";

/// The folders for these devices.
pub(super) fn views(devices: &[DevicePreview]) -> [View; 2] {
    [
        View {
            place: CLASS,
            tree: tree(devices),
        },
        View {
            place: NODES,
            tree: devices.iter().map(node).collect(),
        },
    ]
}

/// The character device of a device, under libibverbs's name. It only exists to be seen: opening it fails (`EACCES`),
/// because its file system allows no devices.
fn node(device: &DevicePreview) -> (String, Leaf) {
    (format!("uverbs{}", device.interface_index), Leaf::Node)
}

/// The kind of a channel adapter.
const NODE_TYPE: &str = "1: CA";
/// The files of an Ethernet port, except for its GIDs.
const PORT: [(&str, &str); 8] = [
    ("cap_mask", "0x00010000"),
    ("lid", "0x0"),
    ("lid_mask_count", "0"),
    ("link_layer", "Ethernet"),
    ("pkeys/0", "0xffff"),
    ("rate", "2.5 Gb/sec (1X SDR)"),
    ("sm_lid", "0x0"),
    ("sm_sl", "0"),
];

/// A file or a link of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Leaf {
    /// A file with this text.
    Text(String),
    /// A link to there.
    Link(PathBuf),
    /// A character device without a driver, readable and writable by all.
    Node,
}

/// The files under `/sys/class/infiniband`, with relative paths.
fn tree(devices: &[DevicePreview]) -> Vec<(String, Leaf)> {
    devices.iter().flat_map(of_device).collect()
}

fn of_device(device: &DevicePreview) -> Vec<(String, Leaf)> {
    let mut files = Vec::new();
    let mut add = |path: &str, text: &str| {
        let path = format!("{}/{path}", device.name);
        files.push((path, Leaf::Text(format!("{text}\n"))));
    };
    add("node_type", NODE_TYPE);
    add("node_guid", &guid(device.node_guid));
    add("sys_image_guid", &guid(device.node_guid));
    add("node_desc", &device.name);
    add("fw_ver", "");
    add("parent", &device.interface);
    let (state, phys_state) = match device.running {
        true => ("4: ACTIVE", "5: LinkUp"),
        false => ("1: DOWN", "3: Disabled"),
    };
    add("ports/1/state", state);
    add("ports/1/phys_state", phys_state);
    for (name, text) in PORT {
        add(&format!("ports/1/{name}"), text);
    }
    for (index, ip) in device.gids.iter().enumerate() {
        add(&format!("ports/1/gids/{index}"), &gid(*ip));
        add(&format!("ports/1/gid_attrs/types/{index}"), "RoCE v2");
        add(
            &format!("ports/1/gid_attrs/ndevs/{index}"),
            &device.interface,
        );
    }
    // A hardware interface has a device; a virtual one does not.
    let interface = PathBuf::from(format!("/sys/class/net/{}", device.interface));
    let files_of_it = match std::fs::canonicalize(interface.join("device")) {
        Ok(hardware) => (format!("{}/device", device.name), Leaf::Link(hardware)),
        // Links the interface in place of the device that hardware has.
        Err(_) => (
            format!("{}/device/net/{}", device.name, device.interface),
            Leaf::Link(interface),
        ),
    };
    files.push(files_of_it);
    files
}

/// `5054:00ff:fe12:3456`.
fn guid(guid: u64) -> String {
    let part = |shift: u32| format!("{:04x}", (guid >> shift) & 0xffff);
    [48, 32, 16, 0].map(part).join(":")
}

/// `fe80:0000:…`, all eight parts with all their digits.
fn gid(ip: IpAddr) -> String {
    let ip = match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    ip.segments().map(|part| format!("{part:04x}")).join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_has_the_same_files_as_one_of_rdma_rxe() {
        let device = DevicePreview {
            name: "sw_none0".into(),
            interface: "none0".into(),
            interface_index: 7,
            node_guid: 0x5054_00ff_fe12_3456,
            gids: vec!["10.7.0.1".parse().unwrap(), "fe80::1".parse().unwrap()],
            interface_mtu: 1500,
            active_mtu: portolan::provider::verbs::Mtu::Mtu1024,
            running: true,
        };
        let tree = tree(&[device]);
        let text = |path: &str| {
            let found = tree.iter().find(|(at, _)| at == path);
            let (_, leaf) = found.unwrap_or_else(|| panic!("{path}: {tree:?}"));
            let Leaf::Text(text) = leaf else {
                panic!("{leaf:?}")
            };
            text.trim_end()
        };
        assert_eq!(text("sw_none0/node_guid"), "5054:00ff:fe12:3456");
        assert_eq!(text("sw_none0/ports/1/state"), "4: ACTIVE");
        assert_eq!(
            text("sw_none0/ports/1/gids/0"),
            "0000:0000:0000:0000:0000:ffff:0a07:0001"
        );
        assert_eq!(
            text("sw_none0/ports/1/gids/1"),
            "fe80:0000:0000:0000:0000:0000:0000:0001"
        );
        assert_eq!(text("sw_none0/ports/1/gid_attrs/types/1"), "RoCE v2");
        assert_eq!(text("sw_none0/ports/1/gid_attrs/ndevs/0"), "none0");
        let interface = Leaf::Link("/sys/class/net/none0".into());
        let links = tree
            .iter()
            .filter(|(_, leaf)| !matches!(leaf, Leaf::Text(_)));
        assert_eq!(
            links.collect::<Vec<_>>(),
            [&("sw_none0/device/net/none0".to_owned(), interface)]
        );
    }
}
