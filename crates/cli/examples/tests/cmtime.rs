//! `portolan-cmtime`: the steps of many simultaneous connections.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

#[path = "../../../lab/src/own_network.rs"]
#[allow(unreachable_pub, reason = "it is public where it belongs")]
mod own_network;

fn cmtime(args: &[&str]) -> Command {
    own_network::enter();
    let mut command = Command::new(env!("CARGO_BIN_EXE_portolan-cmtime"));
    command.args(args).env("PORTOLAN_PROVIDER", "software");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[test]
fn every_step_of_connections_at_once_is_timed_towards_a_peer_that_listens() {
    let mut server = cmtime(&["--listen", "127.0.0.1:0"]).spawn().unwrap();
    let mut line = String::new();
    let stdout = server.stdout.take().unwrap();
    BufReader::new(stdout).read_line(&mut line).unwrap();
    let listening = line.strip_prefix("listening at ").unwrap();
    let (address, _) = listening.split_once(',').unwrap();
    let steps = [
        "create id",
        "bind addr",
        "resolve addr",
        "resolve route",
        "create qp",
        "connect",
        "disconnect",
        "destroy",
        "all steps",
    ];
    let plain = cmtime(&[address, "--count", "20"]).output().unwrap();
    let args = [address, "--source", "127.0.0.1", "--count", "50"];
    let bound = cmtime(&args).output().unwrap();
    server.kill().unwrap();
    server.wait().unwrap();
    for (output, connections, binds) in [(plain, 20, false), (bound, 50, true)] {
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        let head = format!("{connections} connections at once, provider software");
        assert_eq!(text.lines().next(), Some(&*head));
        let rows: Vec<_> = text
            .lines()
            .filter_map(|line| line.split_once(':'))
            .collect();
        let names = rows.iter().map(|(name, _)| name.trim());
        let expected = steps
            .iter()
            .copied()
            .filter(|step| binds || *step != "bind addr");
        assert!(names.eq(expected), "{text}");
        let total = |row: &str| {
            row.split_whitespace()
                .next()
                .unwrap()
                .parse::<f64>()
                .unwrap()
        };
        let (all, each) = rows.split_last().unwrap();
        let sum: f64 = each.iter().map(|(_, row)| total(row)).sum();
        // Each is rounded to 10 us.
        assert!((sum - total(all.1)).abs() <= 0.05, "{text}");
    }
}
