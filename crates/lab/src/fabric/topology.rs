//! The hosts and switches of a fabric, and their cabling.

use std::fmt::{self, Write};

/// Number of ports of each switch in a tree.
const TREE_SWITCH_PORTS: u8 = 36;
/// Number of a leaf switch's ports to hosts.
const HOSTS_PER_LEAF: usize = 32;
/// Number of a leaf switch's ports to spines, one to each.
const SPINES: usize = 4;
/// Maximum number of hosts in a tree, limited by the ports of its spines.
pub const TREE_HOSTS_MAX: usize = TREE_SWITCH_PORTS as usize * HOSTS_PER_LEAF;

/// The first node GUIDs: of hosts, then of switches. Both count up.
const HOST_GUID_FIRST: u64 = 0x0002_c903_0010_0000;
const SWITCH_GUID_FIRST: u64 = 0x0002_c903_0020_0000;
/// Distance between two nodes' GUIDs. A port's GUID is its node's GUID plus its port number.
const GUID_STEP: u64 = 0x100;
/// The subnet's prefix, the default one (IBTA 4.1.1).
const GID_PREFIX: u64 = 0xfe80_0000_0000_0000;

/// Hosts, switches and the cables between them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    pub(super) hosts: Vec<Node>,
    pub(super) switches: Vec<Node>,
    /// The simulator's own text, if the topology was read from a file.
    pub(super) text: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) name: String,
    /// Zero until the simulator reports the GUID that it assigned.
    pub(super) guid: u64,
    pub(super) ports: u8,
    /// The node's port, the other node's name, and the other port.
    pub(super) cables: Vec<(u8, String, u8)>,
}

impl Topology {
    /// Two switches joined by two cables, with two hosts each. `Host1` and `Host3` are on the
    /// first.
    #[must_use]
    pub fn two_switches_four_hosts() -> Self {
        let mut topology = Self::default();
        (1..=2).for_each(|number| topology.add_switch(number, 8));
        (1..=4).for_each(|number| topology.add_host(number));
        topology.cable("Host1", 1, "Switch1", 1);
        topology.cable("Host3", 1, "Switch1", 2);
        topology.cable("Host2", 1, "Switch2", 1);
        topology.cable("Host4", 1, "Switch2", 2);
        topology.cable("Switch1", 3, "Switch2", 3);
        topology.cable("Switch1", 5, "Switch2", 5);
        topology
    }

    /// Three switches in a row, with two hosts, one host and two hosts.
    #[must_use]
    pub fn three_switches_in_a_row() -> Self {
        let mut topology = Self::default();
        (1..=3).for_each(|number| topology.add_switch(number, 8));
        (1..=5).for_each(|number| topology.add_host(number));
        for (host, switch, port) in [(1, 1, 1), (2, 1, 2), (3, 2, 1), (4, 3, 1), (5, 3, 2)] {
            topology.cable(&format!("Host{host}"), 1, &format!("Switch{switch}"), port);
        }
        topology.cable("Switch1", 7, "Switch2", 6);
        topology.cable("Switch2", 7, "Switch3", 6);
        topology
    }

    /// A two-level tree with `hosts` hosts, 32 on each leaf.
    ///
    /// # Panics
    /// If `hosts` is zero or more than [`TREE_HOSTS_MAX`].
    #[must_use]
    pub fn tree(hosts: usize) -> Self {
        assert!((1..=TREE_HOSTS_MAX).contains(&hosts), "{hosts} hosts");
        let leaves = hosts.div_ceil(HOSTS_PER_LEAF);
        let mut topology = Self::default();
        for number in 1..=leaves + SPINES {
            topology.add_switch(number, TREE_SWITCH_PORTS);
        }
        for number in 1..=hosts {
            topology.add_host(number);
            let (leaf, slot) = ((number - 1) / HOSTS_PER_LEAF, (number - 1) % HOSTS_PER_LEAF);
            let (leaf, port) = (format!("Switch{}", leaf + 1), port_number(slot + 1));
            topology.cable(&format!("Host{number}"), 1, &leaf, port);
        }
        for leaf in 1..=leaves {
            for spine in 1..=SPINES {
                let from = (format!("Switch{leaf}"), port_number(HOSTS_PER_LEAF + spine));
                let to = (format!("Switch{}", leaves + spine), port_number(leaf));
                topology.cable(&from.0, from.1, &to.0, to.1);
            }
        }
        topology
    }

    /// The hosts' names in order. The subnet manager runs on the first.
    pub fn hosts(&self) -> impl ExactSizeIterator<Item = &str> {
        self.hosts.iter().map(|host| host.name.as_str())
    }

    /// The GID of a host's port, in network order; `None` if there is no such host.
    #[must_use]
    pub fn gid(&self, host: &str) -> Option<[u8; 16]> {
        let host = self.hosts.iter().find(|node| node.name == host)?;
        if host.guid == 0 {
            return None;
        }
        // The host's only cable is at port 1.
        let gid = u128::from(GID_PREFIX) << 64 | u128::from(host.guid + 1);
        Some(gid.to_be_bytes())
    }

    fn add_host(&mut self, number: usize) {
        let name = format!("Host{number}");
        self.hosts.push(Node::new(name, HOST_GUID_FIRST, number, 2));
    }

    fn add_switch(&mut self, number: usize, ports: u8) {
        let name = format!("Switch{number}");
        let node = Node::new(name, SWITCH_GUID_FIRST, number, ports);
        self.switches.push(node);
    }

    fn cable(&mut self, one: &str, one_port: u8, other: &str, other_port: u8) {
        let nodes = self.hosts.iter_mut().chain(&mut self.switches);
        for node in nodes {
            if node.name == one {
                node.cables.push((one_port, other.to_owned(), other_port));
            } else if node.name == other {
                node.cables.push((other_port, one.to_owned(), one_port));
            }
        }
    }
}

fn port_number(number: usize) -> u8 {
    u8::try_from(number).expect("a switch has fewer ports")
}

impl Node {
    fn new(name: String, guid_first: u64, number: usize, ports: u8) -> Self {
        Self {
            name,
            guid: guid_first + GUID_STEP * number as u64,
            ports,
            cables: Vec::new(),
        }
    }
}

/// The text format of the simulator.
impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(text) = &self.text {
            return f.write_str(text);
        }
        // The first host comes first in the text: the subnet manager runs there.
        let hosts = self.hosts.iter().map(|node| ("Hca", "caguid", node));
        let switches = self
            .switches
            .iter()
            .map(|node| ("Switch", "switchguid", node));
        for (kind, guid, node) in hosts.chain(switches) {
            writeln!(f, "{guid}=0x{:x}", node.guid)?;
            writeln!(f, "{kind}\t{} \"{}\"", node.ports, node.name)?;
            for (port, other, other_port) in &node.cables {
                writeln!(f, "[{port}]\t\"{other}\"[{other_port}]")?;
            }
            f.write_char('\n')?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cables(topology: &Topology) -> Vec<(String, u8, String, u8)> {
        let nodes = topology.hosts.iter().chain(&topology.switches);
        nodes
            .flat_map(|node| {
                let cable = |(port, other, other_port): &(u8, String, u8)| {
                    (node.name.clone(), *port, other.clone(), *other_port)
                };
                node.cables.iter().map(cable).collect::<Vec<_>>()
            })
            .collect()
    }

    #[test]
    fn every_cable_has_two_ends_and_no_port_has_two_cables() {
        for topology in [
            Topology::two_switches_four_hosts(),
            Topology::three_switches_in_a_row(),
            Topology::tree(1),
            Topology::tree(500),
            Topology::tree(TREE_HOSTS_MAX),
        ] {
            let ends = cables(&topology);
            let mut ports: Vec<_> = ends.iter().map(|(node, port, ..)| (node, port)).collect();
            ports.sort();
            let all = ports.len();
            ports.dedup();
            assert_eq!(ports.len(), all);
            let seen: std::collections::HashSet<_> = ends.iter().cloned().collect();
            for (node, port, other, other_port) in ends {
                assert!(seen.contains(&(other, other_port, node, port)));
            }
            for node in topology.hosts.iter().chain(&topology.switches) {
                let within = |(port, ..): &(u8, String, u8)| (1..=node.ports).contains(port);
                assert!(node.cables.iter().all(within), "{node:?}");
            }
        }
    }

    #[test]
    fn a_host_has_the_gid_of_its_first_port() {
        let topology = Topology::tree(2);
        let gid = topology.gid("Host2").unwrap();
        assert_eq!(gid[..8], [0xfe, 0x80, 0, 0, 0, 0, 0, 0]);
        assert_eq!(gid[8..], [0x00, 0x02, 0xc9, 0x03, 0x00, 0x10, 0x02, 0x01]);
        assert_eq!(topology.gid("Host3"), None);
    }

    #[test]
    fn the_text_names_a_nodes_guid_and_its_cables() {
        let text = Topology::two_switches_four_hosts().to_string();
        let host = "caguid=0x2c90300100200\nHca\t2 \"Host2\"\n[1]\t\"Switch2\"[1]\n\n";
        assert!(text.contains(host), "{text}");
    }
}
