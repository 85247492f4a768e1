//! The connection manager over management datagrams: two hosts with InfiniBand addresses.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use portolan_lab::fabric::{Fabric, Topology};

use portolan_wire::sa::PathRecord;

use super::HOST;
use super::harness::path_by_saquery;

const SERVICE: &str = "0x1000000000000042";

/// Output of the two hosts: the listener and the connector.
struct Logs {
    listener: String,
    connector: String,
}

/// Returns a fabric and the path from `Host2` to `Host4`. The subnet manager is stopped once all
/// ports have addresses. It would query ports that accept requests at any time, as if they were
/// managers, and would drop ports that lose packets.
fn fabric_with_path() -> Option<(Fabric, PathRecord)> {
    let mut fabric = crate::fabric(Topology::two_switches_four_hosts())?;
    let path = path_by_saquery(&fabric, "Host2", "Host4").expect("a path");
    fabric.stop_manager();
    Some((fabric, path))
}

/// Has `Host4` listen and `Host2` connect.
fn talk(fabric: &Fabric, path: &PathRecord, service: &str, kind: &str, answer: &str) -> Logs {
    let mut bytes = [0; 64];
    path.emit(&mut bytes).unwrap();
    let record: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut command: Command = fabric.serving_at("Host4", HOST);
    command.args(["listen", SERVICE, kind, answer]);
    let mut listener = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(listener.stdout.take().unwrap());
    let mut log = String::new();
    output.read_line(&mut log).unwrap();
    assert_eq!(log, "listening\n");
    let mut command = fabric.serving_at("Host2", HOST);
    command.args(["connect", service, kind, &record]);
    let connector = command.output().unwrap();
    let connector_log = String::from_utf8(connector.stdout).unwrap();
    let errors = String::from_utf8_lossy(&connector.stderr);
    assert!(connector.status.success(), "{connector_log}{errors}");
    if service != SERVICE {
        listener.kill().unwrap();
    }
    std::io::Read::read_to_string(&mut output, &mut log).unwrap();
    let status = listener.wait().unwrap();
    assert!(status.success() || service != SERVICE, "{log}");
    Logs {
        listener: log,
        connector: connector_log,
    }
}

fn assert_lines(log: &str, expected: &[&str]) {
    let mut lines = log.lines();
    for line in expected {
        assert!(lines.any(|found| found == *line), "{line:?} in:\n{log}");
    }
}

#[test]
fn two_hosts_connect_and_disconnect_and_both_logs_have_the_whole_handshake() {
    let Some((mut fabric, path)) = fabric_with_path() else {
        return;
    };
    fabric.console("Verbose 1").unwrap();
    let logs = talk(&fabric, &path, SERVICE, "rc", "accept");
    assert_lines(
        &logs.listener,
        &[
            "event RDMA_CM_EVENT_CONNECT_REQUEST status 0",
            "event RDMA_CM_EVENT_ESTABLISHED status 0",
            "event RDMA_CM_EVENT_DISCONNECTED status 0",
            "Req sent 0 received 1",
            "Rep sent 1 received 0",
            "Rtu sent 0 received 1",
            "Dreq sent 0 received 1",
            "Drep sent 1 received 0",
        ],
    );
    assert_lines(
        &logs.connector,
        &[
            "event RDMA_CM_EVENT_ADDR_RESOLVED status 0",
            "event RDMA_CM_EVENT_ROUTE_RESOLVED status 0",
            "event RDMA_CM_EVENT_CONNECT_RESPONSE status 0",
            "event RDMA_CM_EVENT_DISCONNECTED status 0",
            "Req sent 1 received 0",
            "Rep sent 0 received 1",
            "Rtu sent 1 received 0",
            "Dreq sent 1 received 0",
            "Drep sent 0 received 1",
        ],
    );
    // The simulator saw each message: REQ, REP, RTU, DREQ, DREP.
    let seen = fabric.printed();
    for (attribute, host) in [
        ("0x10", "Host4"),
        ("0x13", "Host2"),
        ("0x14", "Host4"),
        ("0x15", "Host4"),
        ("0x16", "Host2"),
    ] {
        let line = format!("packet (attr {attribute} mod 0x0) reached host {host}");
        assert!(seen.contains(&line), "{line:?} in:\n{seen}");
    }
}

#[test]
fn a_host_rejects_and_a_service_that_nobody_has_is_rejected() {
    let Some((fabric, path)) = fabric_with_path() else {
        return;
    };
    let logs = talk(&fabric, &path, SERVICE, "rc", "reject");
    // Consumer defined.
    assert_lines(&logs.connector, &["event RDMA_CM_EVENT_REJECTED status 28"]);
    assert_lines(&logs.listener, &["Rej sent 1 received 0"]);
    let logs = talk(&fabric, &path, "0x1000000000000043", "rc", "accept");
    // Invalid service id.
    assert_lines(&logs.connector, &["event RDMA_CM_EVENT_REJECTED status 8"]);
}

#[test]
fn a_datagram_service_reports_its_queue_pair() {
    let Some((fabric, path)) = fabric_with_path() else {
        return;
    };
    let logs = talk(&fabric, &path, SERVICE, "ud", "accept");
    assert_lines(
        &logs.connector,
        &[
            "event RDMA_CM_EVENT_ESTABLISHED status 0",
            "SidrReq sent 1 received 0",
        ],
    );
    assert_lines(&logs.listener, &["SidrRep sent 1 received 0"]);
}

#[test]
fn a_connection_is_made_though_a_third_of_what_arrives_is_lost() {
    let Some((mut fabric, path)) = fabric_with_path() else {
        return;
    };
    fabric.drop_arriving("Host4", 33).unwrap();
    let logs = talk(&fabric, &path, SERVICE, "rc", "accept");
    assert_lines(
        &logs.listener,
        &["event RDMA_CM_EVENT_ESTABLISHED status 0"],
    );
    assert_lines(
        &logs.connector,
        &["event RDMA_CM_EVENT_CONNECT_RESPONSE status 0"],
    );
}
