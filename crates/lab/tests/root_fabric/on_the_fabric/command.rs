//! The `portolan` command at hosts of the fabric: `reach`, `path` and `service`.

use std::net::Ipv6Addr;
use std::process::Output;
use std::time::{Duration, Instant};

use portolan_lab::fabric::{Fabric, Topology};
use serde_json::Value;

/// Environment variable with the command to test.
const COMMAND: &str = "PORTOLAN_COMMAND";
/// Longer than OpenSM takes to notice that a host has appeared or disappeared.
const PATIENCE: Duration = Duration::from_secs(60);

fn portolan(fabric: &Fabric, host: &str, args: &[&str]) -> Output {
    let command = std::env::var_os(COMMAND)
        .expect("`cargo xtask test --only fabric` builds the command and names it");
    let output = fabric.at(host, command).args(args).arg("--json").output();
    output.expect("the command runs")
}

fn told(output: &Output) -> Vec<Value> {
    let text = String::from_utf8_lossy(&output.stdout);
    let read = |line: &str| serde_json::from_str(line).expect("an object a line");
    text.lines().map(read).collect()
}

fn gid(fabric: &Fabric, host: &str) -> String {
    let gid = fabric.topology().gid(host).expect("a host of the fabric");
    Ipv6Addr::from(gid).to_string()
}

/// Repeats the query until the exit code is `code`, and returns that output.
fn reach_until(fabric: &Fabric, to: &str, code: i32) -> Output {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let output = portolan(fabric, "Host2", &["reach", to]);
        if output.status.code() == Some(code) {
            return output;
        }
        assert!(Instant::now() < deadline, "{output:?}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn the_command_asks_for_reachability_paths_and_services() {
    let Some(mut fabric) = crate::fabric(Topology::two_switches_four_hosts()) else {
        return;
    };
    let gids = ["Host1", "Host2", "Host3", "Host4"].map(|host| gid(&fabric, host));
    let [first, own, third, fourth] = &gids;
    let output = portolan(&fabric, "Host2", &["reach", first, own, third, fourth]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let answers = told(&output);
    assert_eq!(answers.len(), gids.len(), "{output:?}");
    for (answer, gid) in answers.iter().zip(&gids) {
        assert_eq!(answer["gid"], gid.as_str());
        assert_eq!(answer["method"], "subnet administrator");
        assert_eq!(answer["source"], own.as_str());
    }
    let path = portolan(&fabric, "Host2", &["path", own, third]);
    let path = &told(&path)[0];
    assert_eq!(
        (&path["sgid"], &path["dgid"]),
        (&own.as_str().into(), &third.as_str().into())
    );
    assert_ne!(path["slid"], path["dlid"]);
    let none = portolan(&fabric, "Host2", &["path", own, "fe80::dead"]);
    assert_eq!(none.status.code(), Some(1), "{none:?}");

    let service = ["harbour", "0x1000000000000007"];
    let registered = portolan(
        &fabric,
        "Host2",
        &[&["service", "register"], &service[..]].concat(),
    );
    assert_eq!(registered.status.code(), Some(0), "{registered:?}");
    let list = ["service", "list", "--name", "harbour"];
    let listed = told(&portolan(&fabric, "Host3", &list));
    assert_eq!((listed.len(), &listed[0]["gid"]), (1, &own.as_str().into()));
    let removed = portolan(
        &fabric,
        "Host2",
        &[&["service", "remove"], &service[..]].concat(),
    );
    assert_eq!(removed.status.code(), Some(0), "{removed:?}");
    assert_eq!(portolan(&fabric, "Host3", &list).status.code(), Some(1));

    fabric.unlink("Host4").expect("the console takes it");
    let gone = reach_until(&fabric, fourth, 1);
    assert_eq!(told(&gone)[0]["error"], "ENXIO");
    fabric.relink("Host4").expect("the console takes it");
    reach_until(&fabric, fourth, 0);
}
