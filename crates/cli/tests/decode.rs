//! `portolan decode` as a process: on a capture of a real kernel's traffic, and on files that are not captures.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// Two Linux 6.1 machines on rdma_rxe: rping, ucmatose, udaddy, mckey, and a refused connection.
fn golden() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../wire/tests/golden/rxe-linux-6.1.pcap")
}

fn portolan() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_portolan"));
    command.env_remove("LC_ALL").env("LANG", "C");
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Runs it with `input` as standard input.
fn fed(args: &[&str], input: &[u8]) -> Output {
    let mut child = portolan()
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn a_real_kernels_capture_is_accepted_whole() {
    let output = portolan().arg("decode").arg(golden()).output().unwrap();
    let stdout = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{stdout}");
    assert_eq!(stdout.lines().last(), Some("88 packets, 88 ICRC valid"));
    for expected in [
        "CM REQ id 0x3ab9d210 sid tcp:7174",
        "RC RDMA READ Request",
        "CM SIDR REP",
        "192.168.7.2 -> 239.1.2.3",
        "reason 8: invalid service id (nothing listens there)",
    ] {
        assert!(stdout.contains(expected), "{expected} in {stdout}");
    }
    assert_eq!(text(&output.stderr), "");
}

#[test]
fn the_ladder_of_a_real_kernels_capture_shows_each_host_and_folds_the_pings() {
    let output = portolan()
        .args(["decode", "--trace"])
        .arg(golden())
        .output()
        .unwrap();
    let stdout = text(&output.stdout);
    let heading = stdout.lines().next().unwrap();
    for host in ["192.168.7.2", "192.168.7.1", "239.1.2.3"] {
        assert!(heading.contains(host), "{heading}");
    }
    assert!(
        stdout.contains("... -> 10, 192 B, <- 11, 176 B"),
        "{stdout}"
    );
    assert!(stdout.ends_with("88 packets, 88 ICRC valid\n"), "{stdout}");
}

#[test]
fn standard_input_is_read_and_json_is_written_for_machines() {
    let input = std::fs::read(golden()).unwrap();
    let output = fed(&["decode", "-", "--json"], &input);
    let objects: Vec<serde_json::Value> = text(&output.stdout)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let (summary, packets) = objects.split_last().unwrap();
    assert_eq!(packets.len(), 88);
    assert!(packets.iter().all(|packet| packet["icrc"] == "valid"));
    assert_eq!(summary["icrc_valid"], 88);
}

#[test]
fn a_corrupted_capture_exits_with_1_and_counts_the_bad_packets() {
    let mut input = std::fs::read(golden()).unwrap();
    // In the last packet's private data, after the last occurrence of UDP port 4791.
    let port = 4791_u16.to_be_bytes();
    let last = input.windows(2).rposition(|bytes| bytes == port).unwrap();
    input[last + 100] ^= 1;
    let output = fed(&["decode", "-"], &input);
    assert_eq!(output.status.code(), Some(1));
    let stdout = text(&output.stdout);
    assert!(stdout.contains("ICRC mismatch"), "{stdout}");
    assert_eq!(stdout.lines().last(), Some("88 packets, 87 ICRC valid"));
}

#[test]
fn a_file_that_is_not_a_capture_exits_with_2_and_a_reason() {
    let output = fed(&["decode", "-"], b"this is no capture");
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("not a capture file"));

    let missing = portolan()
        .args(["decode", "/nonexistent/capture.pcap"])
        .output()
        .unwrap();
    assert_eq!(missing.status.code(), Some(2));
    assert!(text(&missing.stderr).contains("/nonexistent/capture.pcap"));
}

#[test]
fn color_is_for_terminals_unless_forced() {
    let plain = portolan().arg("decode").arg(golden()).output().unwrap();
    assert!(!text(&plain.stdout).contains('\x1b'));
    let always = portolan()
        .args(["decode", "--color", "always"])
        .arg(golden())
        .output()
        .unwrap();
    assert!(text(&always.stdout).contains("\x1b["));
}

#[test]
fn a_closed_output_pipe_is_not_a_crash() {
    // Closed before the child starts; otherwise a fast child might already have written everything.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = portolan()
        .args(["decode", "--json"])
        .arg(golden())
        .stdout(writer)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
        .wait_with_output()
        .unwrap();
    assert_eq!(text(&output.stderr), "");
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn an_error_that_cannot_be_printed_still_sets_the_exit_code() {
    let full = std::fs::File::options()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let status = portolan()
        .args(["decode", "/nonexistent/capture.pcap"])
        .stderr(full)
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(2));
}
