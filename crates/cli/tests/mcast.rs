//! `portolan mcast`, as processes over the software device.

mod common;

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Stdio};

use common::{objects, output_of, portolan, run, stderr, stdout};

/// A running `mcast join` that has joined.
struct Member {
    child: Child,
    stdout: BufReader<ChildStdout>,
    joined: String,
}

impl Member {
    fn start(group: &str, local: &str, args: &[&str]) -> Member {
        let mut child = portolan()
            .args(["mcast", "join", group, "--bind", local, "--timeout", "30"])
            .args(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut joined = String::new();
        stdout.read_line(&mut joined).unwrap();
        if joined.is_empty() {
            panic!("cannot join: {}", stderr(&output_of(child)));
        }
        Member {
            child,
            stdout,
            joined,
        }
    }

    /// Its exit code, and its output after joining.
    fn finish(mut self) -> (Option<i32>, String) {
        let mut text = String::new();
        std::io::Read::read_to_string(&mut self.stdout, &mut text).unwrap();
        (common::wait(&mut self.child).code(), text)
    }
}

#[test]
fn every_member_of_a_group_gets_what_is_sent_to_it() {
    let (group, local) = ("239.77.1.1", "127.0.0.1");
    let members = [(); 2].map(|()| Member::start(group, local, &["--count", "10"]));
    let output = run(&["mcast", "send", group, "--bind", local]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(
        stdout(&output).contains("10 datagrams sent"),
        "{}",
        stdout(&output)
    );
    for member in members {
        assert!(
            member.joined.contains("Q_Key 0x01234567"),
            "{}",
            member.joined
        );
        let (code, text) = member.finish();
        assert_eq!(code, Some(0), "{text}");
        assert_eq!(text.matches("100 bytes from ").count(), 10, "{text}");
        assert!(text.contains("10 datagrams received, 0 missing"), "{text}");
    }
}

/// The loopback interface has no route to IPv6 groups, so datagrams to them would be lost.
#[test]
fn an_ipv6_group_without_a_route_is_refused_with_a_reason() {
    for (local, why) in [
        ("::1", "no route"),
        ("127.0.0.1", "an address of the source's family"),
    ] {
        let output = run(&["mcast", "join", "ff15::77:1", "--bind", local]);
        assert_eq!(output.status.code(), Some(2));
        let text = stderr(&output);
        assert!(text.contains(why), "{text}");
    }
}

#[test]
fn a_send_only_member_reaches_the_members_and_json_has_everything() {
    let (group, local) = ("239.77.1.2", "127.0.0.1");
    let member = Member::start(group, local, &["--count", "3", "--json"]);
    let send = ["mcast", "send", group, "--bind", local, "--json"];
    let output = run(&[&send[..], &["--send-only", "--count", "3", "--size", "64"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let told = objects(&stdout(&output));
    assert_eq!(told[0]["send_only"], true);
    assert_eq!(told[0]["group_qp"], 0xFF_FFFF);
    assert_eq!(told.last().unwrap()["sent"], 3);
    let (code, text) = member.finish();
    assert_eq!(code, Some(0), "{text}");
    let received = objects(&text);
    for (number, datagram) in received.iter().take(3).enumerate() {
        assert_eq!(datagram["type"], "datagram");
        assert_eq!(datagram["bytes"], 64);
        assert_eq!(datagram["seq"], number + 1);
        assert_eq!(datagram["source_qp"], told[0]["qp"]);
        assert_eq!(datagram["immediate"], told[0]["qp"]);
    }
    assert_eq!(received.last().unwrap()["missing"], 0);
}

#[test]
fn other_groups_and_groups_that_were_left_receive_nothing() {
    let member = Member::start("239.77.1.3", "127.0.0.1", &["--count", "1", "--quiet"]);
    let output = run(&["mcast", "send", "239.77.1.4", "--bind", "127.0.0.1"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let send = ["mcast", "send", "239.77.1.3", "--bind", "127.0.0.1"];
    let output = run(&[&send[..], &["--count", "1"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let (code, text) = member.finish();
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("1 datagrams received, 0 missing"), "{text}");
}

#[test]
fn too_few_datagrams_in_time_are_a_failure() {
    let join = ["mcast", "join", "239.77.1.5", "--bind", "127.0.0.1"];
    let output = run(&[&join[..], &["--count", "1", "--timeout", "0.3"]].concat());
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stdout(&output).contains("0 datagrams received"));
}

#[test]
fn bad_groups_and_oversized_datagrams_are_refused() {
    for wrong in ["127.0.0.1", "::1", "all", "239.1.2.3%lo"] {
        let output = run(&["mcast", "join", wrong]);
        assert_eq!(output.status.code(), Some(2), "{wrong}");
    }
    for size in ["0", "4097"] {
        let output = run(&["mcast", "send", "239.77.1.6", "--size", size]);
        assert_eq!(output.status.code(), Some(2), "{size}");
    }
}
