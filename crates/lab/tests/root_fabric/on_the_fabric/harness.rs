//! The fabric itself, seen through third-party programs.

use std::net::Ipv6Addr;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use portolan_lab::fabric::{Fabric, Topology, saquery};
use portolan_wire::sa::PathRecord;

/// Time limit of one saquery run, and number of tries. The simulator's library ignores timeouts, so
/// saquery waits forever for an answer that was lost.
const TRY_TIME_MAX: Duration = Duration::from_secs(20);
const TRIES_MAX: usize = 5;

/// Output of a program that prints little; `None` if it had to be killed.
fn output_in_time(command: &mut Command) -> Option<Output> {
    let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let started = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if started.elapsed() > TRY_TIME_MAX {
            child.kill().unwrap();
            child.wait().unwrap();
            return None;
        }
        thread::sleep(Duration::from_millis(5));
    }
    Some(child.wait_with_output().unwrap())
}

/// The path between two hosts, as saquery prints it; `None` if there is none.
pub(crate) fn path_by_saquery(fabric: &Fabric, from: &str, to: &str) -> Option<PathRecord> {
    // Use the last host: the first one's port belongs to the subnet manager.
    let at = fabric.topology().hosts().last().unwrap();
    path_by_saquery_at(fabric, at, from, to)
}

/// Like [`path_by_saquery`], run at a given host.
pub(crate) fn path_by_saquery_at(
    fabric: &Fabric,
    at: &str,
    from: &str,
    to: &str,
) -> Option<PathRecord> {
    let gid = |host| Ipv6Addr::from(fabric.topology().gid(host).unwrap()).to_string();
    let mut command: Command = fabric.at(at, "saquery");
    command.args(["-p", "--sgid", &gid(from), "--dgid", &gid(to)]);
    let output = (0..TRIES_MAX).find_map(|_| output_in_time(&mut command));
    let output = output.expect("saquery ends");
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
