//! Detects when a server is ready for its clients.

use std::fs;
use std::net::Ipv4Addr;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::Value;

use super::case::{Ready, ours};
use super::side::Side;

/// The kernel does not list rdma_cm listeners on the wildcard address. After this time the server is assumed to listen.
const UNLISTED: Duration = Duration::from_secs(10);
/// The state of a listening socket in the kernel's TCP tables (proc(5)).
const LISTEN: &str = "0A";
/// The state of a UDP socket that is not connected.
const UNCONNECTED: &str = "07";

/// Whether a server that was started at `started` is ready.
pub(super) fn is_ready(side: &Side<'_>, ready: Ready, started: Instant) -> Result<bool> {
    match ready {
        Ready::Listener(port) if side.is_ours() => has_listener(side, port),
        Ready::Listener(port) => {
            Ok(started.elapsed() > UNLISTED || has_kernel_listener(side, port)?)
        }
        Ready::Tcp(port) => Ok(has_socket(side, ["tcp", "tcp6"], port, LISTEN)),
        Ready::Udp(port) => Ok(has_socket(side, ["udp", "udp6"], port, UNCONNECTED)),
        Ready::Member(group) => {
            let table = fs::read_to_string(side.table("igmp")).context("no table of groups")?;
            Ok(has_member(&table, group))
        }
    }
}

/// Whether `portolan ps` lists an rdma_cm listener on the port. `ps` fails if a process that shares the UDP port does
/// not answer, but prints the ports anyway.
fn has_listener(side: &Side<'_>, port: u16) -> Result<bool> {
    let output = side
        .command(&ours("ps --json"))?
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .context("cannot start `ps`")?;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(tells_of_listener(&text, port))
}

/// Whether the kernel lists an rdma_cm listener on the port: `cm-idn 0 state LISTEN ps TCP … src-addr 10.77.0.1:7471`.
fn has_kernel_listener(side: &Side<'_>, port: u16) -> Result<bool> {
    let output = side
        .plain("rdma")
        .args(["resource", "show", "cm_id"])
        .output()
        .context("cannot start `rdma`")?;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text
        .lines()
        .any(|line| line.contains("LISTEN") && line.contains(&format!(":{port} "))))
}

fn tells_of_listener(text: &str, port: u16) -> bool {
    let end = format!(":{port}");
    text.lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .any(|object| {
            let address = object["address"].as_str();
            object["type"] == "port"
                && object["listening"] == true
                && address.is_some_and(|address| address.ends_with(&end))
        })
}

/// Whether one of the kernel's tables has a socket with this port and state.
fn has_socket(side: &Side<'_>, tables: [&str; 2], port: u16, state: &str) -> bool {
    tables.iter().any(|name| {
        let table = fs::read_to_string(side.table(name));
        is_listed(&table.unwrap_or_default(), port, state)
    })
}

/// `sl local_address rem_address st …`
fn is_listed(table: &str, port: u16, state: &str) -> bool {
    let end = format!(":{port:04X}");
    table.lines().any(|line| {
        let mut words = line.split_whitespace().skip(1);
        let local = words.next().unwrap_or_default();
        local.ends_with(&end) && words.nth(1) == Some(state)
    })
}

/// The kernel prints an address as a native-endian integer.
fn has_member(table: &str, group: Ipv4Addr) -> bool {
    let printed = format!("{:08X}", u32::from_ne_bytes(group.octets()));
    table
        .lines()
        .any(|line| line.split_whitespace().next() == Some(&printed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_differs_from_a_port_that_connects() {
        let port = |listening| {
            format!(r#"{{"type":"port","address":"127.0.0.1:7471","listening":{listening}}}"#)
        };
        assert!(tells_of_listener(&port(true), 7471));
        assert!(!tells_of_listener(&port(false), 7471));
        assert!(!tells_of_listener(&port(true), 471));
        assert!(!tells_of_listener("", 7471));
    }

    #[test]
    fn a_tcp_listener_differs_from_a_connection() {
        let line = |state| format!("   0: 00000000:4853 00000000:0000 {state} 00000000:00000000");
        assert!(is_listed(&line("0A"), 18_515, LISTEN));
        assert!(!is_listed(&line("01"), 18_515, LISTEN));
        assert!(!is_listed(&line("0A"), 18_516, LISTEN));
    }

    #[test]
    fn a_member_is_found_in_the_table_of_groups() {
        let group = Ipv4Addr::new(239, 7, 0, 9);
        let number = u32::from_ne_bytes(group.octets());
        let table = format!("1\tlo : 1 V3\n\t\t\t\t{number:08X}     1 0:00000000\t\t0\n");
        assert!(has_member(&table, group));
        assert!(!has_member(&table, Ipv4Addr::new(239, 7, 0, 10)));
    }
}
