//! `portolan events`, as processes over the software device.

mod common;

use std::process::Stdio;

use common::{Listening, interrupt, objects, output_of, portolan, run, stderr, stdout};

/// `events listen` on a free port of a loopback address.
fn listening(ip: &str, args: &[&str]) -> Listening {
    let at = format!("{ip}:0");
    Listening::command(&[&["events", "listen", &at], args].concat())
}

/// The names of the reported events, without their common prefix.
fn names(text: &str) -> Vec<String> {
    let events = objects(text)
        .into_iter()
        .filter(|object| object["type"] == "event");
    events
        .map(|event| event["event"].as_str().unwrap()["RDMA_CM_EVENT_".len()..].to_owned())
        .collect()
}

#[test]
fn both_sides_of_a_connection_see_their_events_in_order_over_ipv4_and_ipv6() {
    for ip in ["127.0.0.1", "[::1]"] {
        let mut listener = listening(ip, &["--accept", "--json", "--count", "3"]);
        let client = portolan()
            .args(["events", "connect", &listener.address, "--json"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // Keep the client running until the listener is connected. Its last message may be lost if another test's
        // process ends, and a client that has ended does not retransmit.
        let first = listener.read_until("ESTABLISHED");
        interrupt(&client);
        let output = output_of(client);
        let text = stdout(&output);
        assert_eq!(output.status.code(), Some(0), "{text}{}", stderr(&output));
        assert_eq!(
            names(&text),
            ["ADDR_RESOLVED", "ROUTE_RESOLVED", "ESTABLISHED"]
        );
        let (status, rest) = listener.finish();
        let text = first + &rest;
        assert_eq!(status.code(), Some(0), "{text}");
        assert_eq!(
            names(&text),
            ["CONNECT_REQUEST", "ESTABLISHED", "DISCONNECTED"]
        );
    }
}

#[test]
fn a_connection_is_followed_to_the_end_of_timewait() {
    let listener = listening("127.0.0.1", &["--accept", "--count", "2"]);
    let output = run(&["events", "connect", &listener.address, "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = stdout(&output);
    assert_eq!(
        names(&text).last().map(String::as_str),
        Some("TIMEWAIT_EXIT"),
        "{text}"
    );
    assert!(names(&text).contains(&"DISCONNECTED".to_owned()), "{text}");
}

#[test]
fn every_field_of_a_request_is_printed_as_json_and_as_text() {
    let listener = listening("127.0.0.1", &["--json", "--count", "1"]);
    let connect = ["events", "connect", &listener.address];
    let asked = ["--private-data", "who is there", "--timeout", "2"];
    run(&[&connect[..], &asked].concat());
    let (_, text) = listener.finish();
    let request = &objects(&text)[0];
    assert_eq!(request["number"], 4);
    assert_eq!(request["status"], 0);
    assert_eq!(request["private_data"], "77686f206973207468657265");
    assert_eq!(request["private_data_length"], 56);
    assert_eq!(request["conn"]["responder_resources"], 1);
    assert_eq!(request["conn"]["initiator_depth"], 1);
    assert_eq!(request["conn"]["retry_count"], 7);
    assert!(request["conn"]["qp_num"].as_u64().unwrap() > 1);
    assert_ne!(request["id"], request["listener"]);
    assert!(
        request["peer"].as_str().unwrap().starts_with("127.0.0.1:"),
        "{request}"
    );

    let listener = listening("127.0.0.1", &["--count", "1"]);
    run(&[&["events", "connect", &listener.address][..], &asked].concat());
    let (_, text) = listener.finish();
    for told in [
        "CONNECT_REQUEST",
        "peer 127.0.0.1:",
        "responder resources 1, initiator depth 1",
        r#"private data "who is there""#,
    ] {
        assert!(text.contains(told), "{told} in {text}");
    }
}

#[test]
fn a_rejection_is_printed_with_its_reason_and_private_data() {
    let listener = listening(
        "127.0.0.1",
        &["--reject", "--private-data", "not today", "--count", "1"],
    );
    let output = run(&["events", "connect", &listener.address]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let text = stdout(&output);
    assert!(text.contains("REJECTED"), "{text}");
    assert!(text.contains("reason 28"), "{text}");
    assert!(text.contains(r#""not today""#), "{text}");
}

#[test]
fn a_request_without_an_answer_is_followed_until_the_time_is_up() {
    let listener = listening("127.0.0.1", &[]);
    let connect = ["events", "connect", &listener.address];
    let output = run(&[&connect[..], &["--json", "--timeout", "1"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(names(&stdout(&output)), ["ADDR_RESOLVED", "ROUTE_RESOLVED"]);
    interrupt(&listener.child);
    let (status, text) = listener.finish();
    assert_eq!(status.code(), Some(0), "{text}");
    assert!(text.contains("CONNECT_REQUEST"), "{text}");
}

#[test]
fn the_answer_must_be_accept_or_reject_and_the_count_at_least_one() {
    for wrong in [
        &["events", "listen", ":0", "--accept", "--reject"][..],
        &["events", "listen", ":0", "--count", "0"],
        &["events", "connect", "127.0.0.1"],
        &["events"],
    ] {
        let output = portolan().args(wrong).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
    }
}

#[test]
fn joining_a_group_prints_everything_needed_to_send_to_it() {
    let join = ["events", "join", "239.77.3.1", "--bind", "127.0.0.1"];
    for how in [&[][..], &["--send-only"]] {
        let until = ["--json", "--count", "2"];
        let output = run(&[&join[..], &until, how].concat());
        let text = stdout(&output);
        assert_eq!(output.status.code(), Some(0), "{text}{}", stderr(&output));
        assert_eq!(names(&text), ["ADDR_RESOLVED", "MULTICAST_JOIN"]);
        let joined = &objects(&text)[1];
        assert_eq!(joined["membership"]["group"], "239.77.3.1");
        assert_eq!(joined["membership"]["send_only"], !how.is_empty());
        assert_eq!(joined["ud"]["qp_num"], 0xff_ffff);
        assert_eq!(joined["ud"]["qkey"], 0x0123_4567);
        assert_eq!(joined["ud"]["ah_attr"]["dgid"], "::ffff:239.77.3.1");
    }
    let output = run(&[&join[..], &["--count", "2"]].concat());
    let text = stdout(&output);
    for told in ["MULTICAST_JOIN", "group 239.77.3.1,", "q_key 0x01234567"] {
        assert!(text.contains(told), "{told} in {text}");
    }
}

#[test]
fn a_membership_is_followed_until_interrupted_and_a_failed_join_has_a_reason() {
    let join = ["events", "join", "239.77.3.2", "--bind", "127.0.0.1"];
    let output = run(&[&join[..], &["--json", "--timeout", "1"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(names(&stdout(&output)).len(), 2, "no other event");
    // The loopback interface has no route to IPv6 groups.
    let output = run(&["events", "join", "ff15::77", "--bind", "::1"]);
    assert_eq!(output.status.code(), Some(1));
    let text = stdout(&output);
    assert!(text.contains("Network is unreachable"), "{text}");
    let output = portolan()
        .args(["events", "join", "127.0.0.1"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2), "no group");
}

#[test]
fn private_data_that_no_answer_can_carry_is_refused_at_once() {
    let listen = |args: &[&str], len: usize| {
        let data = "x".repeat(len);
        let common = ["events", "listen", "127.0.0.1:0", "--timeout", "0.1"];
        let output = run(&[&common[..], args, &["--private-data", &data]].concat());
        (output.status.code(), stderr(&output))
    };
    for (args, max) in [
        (&["--accept"][..], 196),
        (&["--accept", "--ud"], 136),
        (&["--reject"], 148),
        (&["--reject", "--ud"], 136),
    ] {
        let (code, complaint) = listen(args, max);
        assert_eq!(code, Some(0), "{args:?}: {complaint}");
        let (code, complaint) = listen(args, max + 1);
        assert_eq!(code, Some(2), "{args:?}: {complaint}");
        let expected = format!("at most {max} fit");
        assert!(complaint.contains(&expected), "{args:?}: {complaint}");
    }
}
