//! Paths and reachability: the library's client of the subnet administrator compared with saquery.

use std::io::Write;
use std::net::Ipv6Addr;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use portolan_lab::fabric::{Example, Fabric, Topology};
use portolan_wire::sa::PathRecord;

use super::HOST;
use super::harness::path_by_saquery_at;

/// How many saqueries run at a time. The simulator takes ten programs, including the subnet
/// manager.
const AT_ONCE: usize = 6;
const ENXIO: i32 = 6;
const EIO: i32 = 5;
const EINVAL: i32 = 22;

fn gid(fabric: &Fabric, host: &str) -> String {
    let gid = fabric.topology().gid(host).expect("a host of the fabric");
    Ipv6Addr::from(gid).to_string()
}

fn output(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {text}{errors}", output.status);
    text
}

/// The errno of each GID at `host`; 0 if it is reachable.
fn reach(fabric: &Fabric, host: &str, gids: &[String]) -> Vec<i32> {
    let said = output(fabric.at(host, HOST).arg("reach").args(gids));
    let errno = |line: &str| line.split(' ').nth(1).unwrap().parse().unwrap();
    let errnos: Vec<i32> = said.lines().map(errno).collect();
    assert_eq!(errnos.len(), gids.len(), "{said}");
    errnos
}

/// The paths of the pairs, queried by one client at `host`.
fn paths(fabric: &Fabric, host: &str, pairs: &[(&str, &str)]) -> Vec<PathRecord> {
    let mut child = fabric
        .at(host, HOST)
        .arg("paths")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut questions = child.stdin.take().unwrap();
    let text: String = pairs
        .iter()
        .map(|(from, to)| format!("{} {}\n", gid(fabric, from), gid(fabric, to)))
        .collect();
    let writer = thread::spawn(move || questions.write_all(text.as_bytes()).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8(output.stdout).unwrap();
    said.lines().map(record).collect()
}

fn record(line: &str) -> PathRecord {
    let byte = |at| u8::from_str_radix(line.get(at..at + 2).unwrap_or("?"), 16);
    let bytes: Result<Vec<u8>, _> = (0..PathRecord::LEN).map(|at| byte(at * 2)).collect();
    let bytes = bytes.unwrap_or_else(|_| panic!("no record: {line}"));
    PathRecord::parse(&bytes).unwrap()
}

/// Asserts that every path equals saquery's, field by field.
fn assert_as_saquery(fabric: &Fabric, at: &str, pairs: &[(&str, &str)]) {
    let ours = paths(fabric, at, pairs);
    assert_eq!(ours.len(), pairs.len());
    let next = AtomicUsize::new(0);
    let compared = Mutex::new(0);
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some((from, to)) = pairs.get(number) else {
                        return;
                    };
                    let theirs = path_by_saquery_at(fabric, at, from, to);
                    assert_eq!(Some(ours[number]), theirs, "{from} to {to}");
                    *compared.lock().unwrap() += 1;
                }
            });
        }
    });
    assert_eq!(compared.into_inner().unwrap(), pairs.len());
}

/// Asserts that every host reaches every other host over the path that saquery prints.
fn assert_every_pair(fabric: &Fabric) {
    let hosts: Vec<&str> = fabric.topology().hosts().collect();
    let mut pairs = Vec::new();
    for from in &hosts {
        let others = hosts.iter().filter(|host| *host != from);
        let gids: Vec<String> = others.clone().map(|host| gid(fabric, host)).collect();
        assert_eq!(reach(fabric, from, &gids), vec![0; gids.len()], "{from}");
        pairs.extend(others.map(|to| (*from, *to)));
    }
    assert_eq!(pairs.len(), hosts.len() * (hosts.len() - 1));
    assert_as_saquery(fabric, hosts[1], &pairs);
}

#[test]
fn every_pair_of_hosts_is_reachable_and_its_path_is_that_of_saquery() {
    let Some(fabric) = crate::fabric(Topology::three_switches_in_a_row()) else {
        return;
    };
    assert_every_pair(&fabric);
}

#[test]
fn in_the_simulators_examples_every_pair_is_reachable_an_unlinked_host_is_enxio_and_back_again() {
    for example in Example::ALL {
        let Some(mut fabric) = crate::example(example) else {
            return;
        };
        assert_every_pair(&fabric);
        let hosts: Vec<String> = fabric.topology().hosts().map(str::to_owned).collect();
        let (asking, gone) = (&hosts[0], &hosts[hosts.len() - 1]);
        let gids: Vec<String> = hosts[1..].iter().map(|host| gid(&fabric, host)).collect();
        let all_but_the_last = |errno| {
            let mut errnos = vec![0; gids.len() - 1];
            errnos.push(errno);
            errnos
        };
        fabric.unlink(gone).unwrap();
        let name = example.name();
        let unlinked = reach(&fabric, asking, &gids);
        assert_eq!(unlinked, all_but_the_last(ENXIO), "{name}");
        assert_eq!(path_by_saquery_at(&fabric, asking, asking, gone), None);
        fabric.relink(gone).unwrap();
        assert_eq!(reach(&fabric, asking, &gids), all_but_the_last(0), "{name}");
        assert_every_pair(&fabric);
    }
}

#[test]
fn gids_that_are_none_are_einval_and_without_an_administrator_it_is_eio() {
    let Some(mut fabric) = crate::fabric(Topology::two_switches_four_hosts()) else {
        return;
    };
    let none = ["::", "ff12::1"].map(str::to_owned);
    assert_eq!(reach(&fabric, "Host2", &none), [EINVAL, EINVAL]);
    let stranger = ["fe80::dead:beef".to_owned()];
    assert_eq!(reach(&fabric, "Host2", &stranger), [ENXIO]);
    let host = [gid(&fabric, "Host3")];
    fabric.stop_manager();
    assert_eq!(reach(&fabric, "Host2", &host), [EIO]);
}

/// Number of hosts of the large fabric.
const MANY: usize = 500;

#[test]
fn one_of_500_hosts_gets_the_same_path_to_each_other_host_as_saquery() {
    let Some(fabric) = crate::fabric(Topology::tree(MANY)) else {
        return;
    };
    let hosts: Vec<&str> = fabric.topology().hosts().collect();
    let from = "Host77";
    let others = hosts.iter().filter(|host| **host != from);
    let pairs: Vec<(&str, &str)> = others.map(|to| (from, *to)).collect();
    assert_as_saquery(&fabric, from, &pairs);
}

#[test]
fn none_of_10000_queries_is_lost_although_5_percent_of_the_datagrams_are() {
    let Some(mut fabric) = crate::fabric(Topology::tree(MANY)) else {
        return;
    };
    let at = "Host77";
    fabric.drop_arriving(at, 5).unwrap();
    fabric.console("Verbose 1").unwrap();
    let hosts: Vec<&str> = fabric.topology().hosts().collect();
    let gids: Vec<String> = hosts.iter().map(|host| gid(&fabric, host)).collect();
    let said = output(
        fabric
            .at(at, HOST)
            .args(["flood", "10000", "256"])
            .args(gids),
    );
    assert_eq!(said, "10000 of 10000 answered\n");
    let lost = fabric
        .printed()
        .matches("drop pkt due error rate 5")
        .count();
    // 500 are expected. Fewer than 250 occur about once in 10^30 runs.
    assert!(lost >= 250, "{lost} lost");
}
