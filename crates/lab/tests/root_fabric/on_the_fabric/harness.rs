//! The fabric itself, seen by the programs of others.

use std::net::Ipv6Addr;
use std::process::Command;

use portolan_lab::fabric::{Fabric, Topology, saquery};
use portolan_wire::sa::PathRecord;

/// The path between two hosts, as saquery prints it; `None` if there is none.
pub(crate) fn path_by_saquery(fabric: &Fabric, from: &str, to: &str) -> Option<PathRecord> {
    // The last host: the first one's port is the subnet manager's.
    let at = fabric.topology().hosts().last().unwrap();
    path_by_saquery_at(fabric, at, from, to)
}

/// As [`path_by_saquery`], asked at a host.
pub(crate) fn path_by_saquery_at(
    fabric: &Fabric,
    at: &str,
    from: &str,
    to: &str,
) -> Option<PathRecord> {
    let gid = |host| Ipv6Addr::from(fabric.topology().gid(host).unwrap()).to_string();
    let mut command: Command = fabric.at(at, "saquery");
    command.args(["-p", "--sgid", &gid(from), "--dgid", &gid(to)]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let printed = String::from_utf8(output.stdout).unwrap();
    let records = saquery::path_records(&printed).expect("path records");
    assert!(records.len() <= 1, "{printed}");
    records.first().copied()
}

#[test]
fn the_administrator_knows_the_path_between_every_two_hosts_with_the_gids_that_we_gave() {
    for topology in [
        Topology::two_switches_four_hosts(),
        Topology::three_switches_in_a_row(),
    ] {
        let Some(fabric) = crate::fabric(topology) else {
            return;
        };
        let hosts: Vec<&str> = fabric.topology().hosts().collect();
        for from in &hosts {
            let path = path_by_saquery(&fabric, from, hosts[0]).expect("a path");
            assert_eq!(Some(path.sgid.0), fabric.topology().gid(from));
            assert_eq!(Some(path.dgid.0), fabric.topology().gid(hosts[0]));
        }
    }
}

#[test]
fn a_host_that_is_unlinked_at_the_console_has_no_path_until_it_is_linked_again() {
    let Some(mut fabric) = crate::fabric(Topology::two_switches_four_hosts()) else {
        return;
    };
    let linked = |fabric: &Fabric| path_by_saquery(fabric, "Host1", "Host3").is_some();
    assert!(linked(&fabric));
    fabric.unlink("Host3").unwrap();
    assert!(!linked(&fabric));
    fabric.relink("Host3").unwrap();
    assert!(linked(&fabric));
}
