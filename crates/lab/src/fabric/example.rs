//! The example fabrics in the simulator's own package.

use super::topology::{Node, Topology};
use crate::machine::{Cache, MachineError, shipped_text};

/// The package, and its directory of examples.
const PACKAGE: &str = "ibsim-utils";
const FOLDER: &str = "/usr/share/doc/ibsim-utils/net-examples";

/// An example from the simulator's package.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Example {
    /// Two switches joined by two cables, with one host each.
    TwoSwitchesTwoHosts,
    /// Two switches joined by two cables, with two hosts each.
    TwoSwitchesFourHosts,
}

impl Example {
    /// All examples.
    pub const ALL: [Self; 2] = [Self::TwoSwitchesTwoHosts, Self::TwoSwitchesFourHosts];

    /// The file's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::TwoSwitchesTwoHosts => "net.2sw2path",
            Self::TwoSwitchesFourHosts => "net.2sw2path4hca",
        }
    }

    /// Reads the fabric from the package's file.
    ///
    /// # Errors
    /// [`MachineError`] if the package is unavailable or the file has another format.
    pub fn topology(self) -> Result<Topology, MachineError> {
        super::install()?;
        let path = format!("{FOLDER}/{}", self.name());
        let text = shipped_text(&Cache::locate()?, PACKAGE, &path)?;
        Topology::read(text).map_err(|why| MachineError::unexpected(path, why))
    }
}

impl Topology {
    /// Parses the simulator's text format, which has no GUIDs: the simulator assigns them.
    fn read(text: String) -> Result<Self, String> {
        let mut topology = Self::default();
        let mut last: Option<&mut Node> = None;
        let lines = text.lines().map(str::trim);
        for line in lines.filter(|line| !line.is_empty() && !line.starts_with('#')) {
            if let Some(cable) = line.strip_prefix('[') {
                let node = last.as_mut().ok_or("a cable before any node")?;
                node.cables
                    .push(cable_of(cable).ok_or_else(|| line.to_owned())?);
                continue;
            }
            let (kind, node) = node_of(line).ok_or_else(|| line.to_owned())?;
            let nodes = match kind {
                "Hca" => &mut topology.hosts,
                "Switch" => &mut topology.switches,
                _ => return Err(line.to_owned()),
            };
            nodes.push(node);
            last = nodes.last_mut();
        }
        if topology.hosts.is_empty() {
            return Err("no host".into());
        }
        topology.text = Some(text);
        Ok(topology)
    }

    /// Returns whether the GUIDs must be read from the simulator.
    pub(super) fn lacks_guids(&self) -> bool {
        self.hosts.iter().any(|node| node.guid == 0)
    }

    /// Reads the simulator's GUIDs from the output of its console command `Dump`.
    pub(super) fn learn_guids(&mut self, dump: &str) -> Result<(), MachineError> {
        for node in self.hosts.iter_mut().chain(&mut self.switches) {
            let named = format!("\"{}\"\tnodeguid ", node.name);
            let guid = dump.split_once(&named).and_then(|(_, after)| {
                let digits = after.split_whitespace().next()?;
                u64::from_str_radix(digits, 16).ok()
            });
            node.guid = guid.ok_or_else(|| {
                let what = format!("no GUID of {} in {dump}", node.name);
                MachineError::unexpected("the simulator's console", what)
            })?;
        }
        Ok(())
    }
}

/// Parses `Hca 2 "Hca1"`.
fn node_of(line: &str) -> Option<(&str, Node)> {
    let (kind, rest) = line.split_once(char::is_whitespace)?;
    let (ports, name) = rest.trim().split_once(char::is_whitespace)?;
    let name = name.trim().strip_prefix('"')?.strip_suffix('"')?;
    let node = Node {
        name: name.to_owned(),
        guid: 0,
        ports: ports.parse().ok()?,
        cables: Vec::new(),
    };
    Some((kind, node))
}

/// Parses `1] "Switch1"[2]`, the text after the first bracket.
fn cable_of(text: &str) -> Option<(u8, String, u8)> {
    let (port, rest) = text.split_once(']')?;
    let (other, rest) = rest.trim().strip_prefix('"')?.split_once('"')?;
    let (other_port, _) = rest.trim().strip_prefix('[')?.split_once(']')?;
    Some((
        port.parse().ok()?,
        other.to_owned(),
        other_port.parse().ok()?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# a comment\n\nSwitch\t8 \"Switch1\"\n[1]\t\"Hca1\"[1]\n[3]\t\"Switch2\"[3]\n\n\
                        Switch 8 \"Switch2\"\n[3]\t\"Switch1\"[3]\n\nHca \t2 \"Hca1\"\n[1]\t\"Switch1\"[1]\n";

    #[test]
    fn the_simulators_text_is_read_and_handed_on_as_it_is() {
        let mut topology = Topology::read(TEXT.to_owned()).unwrap();
        assert_eq!(topology.to_string(), TEXT);
        assert_eq!(topology.hosts().collect::<Vec<_>>(), ["Hca1"]);
        assert_eq!(topology.hosts[0].cables, [(1, "Switch1".to_owned(), 1)]);
        assert_eq!(topology.switches.len(), 2);
        assert!(topology.lacks_guids());
        assert_eq!(topology.gid("Hca1"), None);
        let switch = |number| {
            format!(
                "\nSwitch 8 \"Switch{number}\"\tnodeguid 20000{number}\tsysimgguid 1\nlinearcap 1\n"
            )
        };
        let host =
            "\nCa 2 \"Hca1\"\tnodeguid 100000\tsysimgguid 100000\n100001\t[1]\t\"Switch1\"[1]\n";
        let dump = [switch(1), switch(2), host.to_owned()].concat();
        topology.learn_guids(&dump).unwrap();
        let gid = topology.gid("Hca1").unwrap();
        assert_eq!(gid[8..], 0x10_0001_u64.to_be_bytes());
        assert!(topology.learn_guids(host).is_err());
    }

    #[test]
    fn a_description_without_a_fabric_is_refused() {
        for text in [
            "",
            "[1] \"Hca1\"[1]\n",
            "Hca two \"Hca1\"\n",
            "Hca 2 Hca1\n",
            "Hca 2 \"Hca1\"\n[1] Switch1\n",
            "Router 2 \"Router1\"\n",
            "Switch 8 \"Switch1\"\n",
        ] {
            assert!(Topology::read(text.to_owned()).is_err(), "{text}");
        }
    }
}
