//! `portolan ping` and `portolan listen`, as processes over the software device.

mod common;

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::{Duration, Instant};

use common::{
    Listening, PATIENCE, await_answer, interrupt, objects, output_of, own_network, portolan, run,
    stderr, stdout,
};
use portolan::Listener;
use portolan::cm::{CmId, EventChannel};
use portolan::datagram::{Options, Service};
use portolan::provider::cm::{ConnParam, EventType};
use portolan::wire::addr::Qpn;

#[test]
fn pings_come_back_whole_over_ipv4_and_ipv6_and_both_sides_end_well() {
    for ip in ["127.0.0.1", "[::1]"] {
        let listening = Listening::start(ip, &["--once"]);
        let output = run(&["ping", &listening.address, "--count", "20"]);
        let text = stdout(&output);
        assert_eq!(output.status.code(), Some(0), "{text}{}", stderr(&output));
        assert!(text.contains("64 bytes from"), "{text}");
        assert!(
            text.contains("20 pings sent, 20 answered, 0 lost (0.0 %), 0 came back changed"),
            "{text}"
        );
        assert!(text.contains("p99.9"), "{text}");
        let (status, text) = listening.finish();
        assert_eq!(status.code(), Some(0), "{text}");
        assert!(text.contains("disconnected after 20 pings"), "{text}");
    }
}

#[test]
fn data_of_any_size_comes_back_whole() {
    let sizes = ["1", "26", "1024", "4097", "65535", "1000000"];
    let listening = Listening::start("127.0.0.1", &["--count", "6"]);
    for size in sizes {
        let output = run(&["ping", &listening.address, "-c", "3", "-q", "--size", size]);
        assert_eq!(output.status.code(), Some(0), "{size}: {}", stdout(&output));
    }
    let (status, text) = listening.finish();
    assert_eq!(status.code(), Some(0), "{text}");
}

#[test]
fn each_side_shows_the_private_data_of_the_other() {
    let listening = Listening::start(
        "127.0.0.1",
        &["--once", "--private-data", "from the listener"],
    );
    let output = run(&[
        "ping",
        &listening.address,
        "-c",
        "1",
        "--private-data",
        "from\tthe pinger",
    ]);
    let text = stdout(&output);
    assert!(text.contains(r#""from the listener""#), "{text}");
    let (_, text) = listening.finish();
    assert!(text.contains(r#""from\tthe pinger""#), "{text}");
}

#[test]
fn private_data_too_long_for_its_message_is_refused_before_anything_is_sent() {
    let long = "x".repeat(57);
    let output = run(&["ping", "127.0.0.1:1", "-c", "1", "--private-data", &long]);
    assert_eq!(output.status.code(), Some(2));
    let text = stderr(&output);
    assert!(text.contains("private") && text.contains("56"), "{text}");
}

#[test]
fn json_has_each_ping_and_a_summary_at_both_sides() {
    let listening = Listening::start("127.0.0.1", &["--once", "--json"]);
    let output = run(&["ping", &listening.address, "-c", "5", "--json"]);
    let told = objects(&stdout(&output));
    assert_eq!(told[0]["type"], "connected");
    let pings: Vec<_> = told
        .iter()
        .filter(|object| object["type"] == "ping")
        .collect();
    assert_eq!(pings.len(), 5);
    assert!(
        pings
            .iter()
            .all(|ping| ping["time_us"].as_f64().unwrap() > 0.0)
    );
    let summary = told.last().unwrap();
    assert_eq!((&summary["sent"], &summary["lost"]), (&5.into(), &0.into()));
    assert_eq!(summary["latency"]["count"], 5);
    let (gap, shortest) = (&summary["longest_gap_us"], &summary["latency"]["min_us"]);
    assert!(
        gap.as_f64().unwrap() >= shortest.as_f64().unwrap(),
        "{summary}"
    );
    let (_, text) = listening.finish();
    let told = objects(&text);
    assert_eq!(told[0]["type"], "connect_request");
    assert_eq!(
        (&told[1]["type"], &told[1]["pings"]),
        (&"ended".into(), &5.into())
    );
}

#[test]
fn several_pingers_are_served_at_once() {
    let listening = Listening::start("127.0.0.1", &["--count", "4"]);
    let pingers: Vec<_> = (0..4)
        .map(|_| {
            portolan()
                .args(["ping", &listening.address, "-c", "50", "-q"])
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    for pinger in pingers {
        let output = output_of(pinger);
        assert_eq!(
            output.status.code(),
            Some(0),
            "{}{}",
            stdout(&output),
            stderr(&output)
        );
    }
    let (status, text) = listening.finish();
    assert_eq!(status.code(), Some(0), "{text}");
    assert_eq!(
        text.matches("disconnected after 50 pings").count(),
        4,
        "{text}"
    );
}

#[test]
fn the_rejection_of_a_port_without_listener_is_decoded() {
    let output = run(&["ping", "127.0.0.1:9", "-c", "1", "--trace"]);
    assert_eq!(output.status.code(), Some(1));
    let text = stderr(&output);
    assert!(
        text.contains("reason 8: invalid service id (nothing listens there)"),
        "{text}"
    );
    assert!(text.contains("127.0.0.1:9"), "{text}");
    let ladder = stdout(&output);
    for row in ["REQ tcp:9", "REJ 8", "connect failed"] {
        assert!(ladder.contains(row), "{row} in {ladder}");
    }
}

#[test]
fn a_port_in_use_and_an_unknown_host_have_clear_errors() {
    let listening = Listening::start("127.0.0.1", &[]);
    let output = run(&["listen", &listening.address]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("in use"), "{}", stderr(&output));
    let output = run(&["ping", "no-such-host.invalid:7471", "-c", "1"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("no-such-host.invalid"),
        "{}",
        stderr(&output)
    );
    for wrong in ["127.0.0.1", "127.0.0.1:65536", ""] {
        let output = run(&["ping", wrong, "-c", "1"]);
        assert_eq!(output.status.code(), Some(2), "{wrong}");
        assert!(!stderr(&output).is_empty());
    }
}

#[test]
fn ctrl_c_ends_a_ping_with_a_summary_and_a_listener_cleanly() {
    let listening = Listening::start("127.0.0.1", &[]);
    let mut pinger = portolan()
        .args(["ping", &listening.address, "--interval", "0.05"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    await_answer(&mut pinger);
    interrupt(&pinger);
    let output = output_of(pinger);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{text}{}", stderr(&output));
    assert!(text.contains("0 lost"), "{text}");
    interrupt(&listening.child);
    let (status, text) = listening.finish();
    assert_eq!(status.code(), Some(0), "{text}");
}

#[test]
fn ctrl_c_ends_an_attempt_to_connect_with_a_summary() {
    // They know of the question and never answer it.
    own_network::enter();
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let service = Service::bind("127.0.0.1:0", &Options::default()).unwrap();
    let pings = [
        (&["ping"][..], listener.local_addr().unwrap()),
        (&["ping", "--ud"], service.local_addr().unwrap()),
    ];
    for (ping, address) in pings {
        let pinger = portolan()
            .args(ping)
            .args([&address.to_string(), "-W", "30"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(500));
        interrupt(&pinger);
        let interrupted = Instant::now();
        let output = output_of(pinger);
        let took = interrupted.elapsed();
        let text = format!("{}{}", stdout(&output), stderr(&output));
        assert!(took < Duration::from_secs(2), "{ping:?} {took:?}: {text}");
        assert!(text.contains("statistics"), "{ping:?}: {text}");
        assert!(text.contains(" 0 answered"), "{ping:?}: {text}");
    }
}

#[test]
fn nothing_follows_the_last_ping_not_even_the_interval() {
    for ud in [&[][..], &["--ud"]] {
        let listening = Listening::start("127.0.0.1", ud);
        let started = Instant::now();
        let ping = ["ping", &listening.address, "-c", "1", "-i", "5"];
        let output = run(&[&ping[..], ud].concat());
        let took = started.elapsed();
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        assert!(took < Duration::from_secs(2), "{ud:?}: {took:?}");
    }
}

#[test]
fn a_ping_reports_that_its_listener_ended() {
    let listening = Listening::start("127.0.0.1", &[]);
    let mut pinger = portolan()
        .args(["ping", &listening.address, "--interval", "0.05"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    await_answer(&mut pinger);
    interrupt(&listening.child);
    listening.finish();
    let output = output_of(pinger);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(1), "{text}{}", stderr(&output));
    assert!(
        text.contains("broken: ") && text.contains("ping statistics"),
        "{text}"
    );
}

#[test]
fn a_ping_reports_that_its_listener_was_killed() {
    let mut listening = Listening::start("127.0.0.1", &[]);
    let mut pinger = portolan()
        .args([
            "ping",
            &listening.address,
            "--interval",
            "0.05",
            "--timeout",
            "30",
        ])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    await_answer(&mut pinger);
    listening.child.kill().unwrap();
    let killed = Instant::now();
    let output = output_of(pinger);
    assert_eq!(
        output.status.code(),
        Some(1),
        "{}{}",
        stdout(&output),
        stderr(&output)
    );
    let text = stdout(&output);
    assert!(text.contains("the process at the other end died"), "{text}");
    // Much earlier than the ping's own deadline.
    assert!(
        killed.elapsed() < Duration::from_secs(15),
        "{:?}",
        killed.elapsed()
    );
}

#[test]
fn a_listener_notices_a_killed_ping_and_keeps_a_slow_one() {
    let listening = Listening::start("127.0.0.1", &["--count", "2"]);
    let ping = |args: &[&str]| {
        portolan()
            .args(["ping", &listening.address])
            .args(args)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    };
    // Longer than a listener waits for a sign of life.
    let slow = ping(&["--count", "2", "--interval", "8"]);
    let mut killed = ping(&["--interval", "3600"]);
    let mut lines = BufReader::new(killed.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("64 bytes from")));
    killed.kill().unwrap();
    killed.wait().unwrap();
    let output = output_of(slow);
    assert_eq!(output.status.code(), Some(0), "{}", stdout(&output));
    let (status, text) = listening.finish();
    assert_eq!(status.code(), Some(1), "{text}");
    assert!(text.contains("disconnected after 2 pings"), "{text}");
    assert!(text.contains("lost after 1 pings"), "{text}");
    assert!(text.contains("the process at the other end died"), "{text}");
}

#[test]
fn a_request_that_is_never_confirmed_is_not_counted() {
    let listening = Listening::start("127.0.0.1", &["--once"]);
    let channel = EventChannel::open().unwrap();
    let id = CmId::new(&channel).unwrap();
    let next = |expected: EventType| {
        let event = channel.next_event_within(PATIENCE).unwrap();
        assert_eq!(event.event_type(), expected, "status {}", event.status());
    };
    id.resolve_addr(None, listening.address.parse().unwrap(), PATIENCE)
        .unwrap();
    next(EventType::AddrResolved);
    id.resolve_route(PATIENCE).unwrap();
    next(EventType::RouteResolved);
    let external = ConnParam {
        qp_num: Qpn::new(0x00_1234),
        ..ConnParam::default()
    };
    id.connect(&external).unwrap();
    // The id has no queue pair, so this program must confirm the connection; it leaves instead.
    next(EventType::ConnectResponse);
    drop(id);
    let output = run(&["ping", &listening.address, "-c", "3", "--timeout", "30"]);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{text}{}", stderr(&output));
    let (status, text) = listening.finish();
    assert_eq!(status.code(), Some(0), "{text}");
    assert!(text.contains("did not connect after all"), "{text}");
    assert!(text.contains("disconnected after 3 pings"), "{text}");
}

#[test]
fn captures_of_both_sides_hold_every_packet_with_a_valid_icrc() {
    let folder = std::env::temp_dir().join(format!("portolan-ping-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    for (family, ip) in [("v4", "127.0.0.1"), ("v6", "[::1]")] {
        let (theirs, ours) = (
            path(&format!("{family}-listen.pcap")),
            path(&format!("{family}-ping.pcap")),
        );
        let listening = Listening::start(ip, &["--once", "--pcap", &theirs]);
        let output = run(&[
            "ping",
            &listening.address,
            "-c",
            "3",
            "-s",
            "9000",
            "--pcap",
            &ours,
        ]);
        assert_eq!(
            output.status.code(),
            Some(0),
            "{}{}",
            stdout(&output),
            stderr(&output)
        );
        let (status, text) = listening.finish();
        assert_eq!(status.code(), Some(0), "{text}");
        for file in [theirs, ours] {
            let decoded = run(&["decode", &file]);
            let text = stdout(&decoded);
            assert_eq!(decoded.status.code(), Some(0), "{text}");
            for seen in [
                "CM REQ",
                "CM REP",
                "CM RTU",
                "READ Response Middle",
                "WRITE Middle",
                "CM DREQ",
            ] {
                assert!(text.contains(seen), "{seen} in {text}");
            }
        }
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn the_trace_shows_handshake_events_and_folded_pings() {
    let listening = Listening::start("127.0.0.1", &["--once", "--trace"]);
    let output = run(&["ping", &listening.address, "-c", "100", "-q", "--trace"]);
    let (_, listeners) = listening.finish();
    for (text, events) in [
        (
            stdout(&output),
            ["connect to 127", "* ESTABLISHED", "* DISCONNECTED"],
        ),
        (
            listeners,
            ["CONNECT_REQUEST *", "ESTABLISHED *", "DISCONNECTED *"],
        ),
    ] {
        for row in events
            .iter()
            .chain(&["REQ tcp:", "REP", "RTU", "packets, ", "DREQ", "DREP"])
        {
            assert!(text.contains(row), "{row} in {text}");
        }
        assert!(text.lines().count() < 60, "{text}");
    }
}

#[test]
fn a_capture_or_trace_of_the_kernels_devices_is_refused() {
    let pcap = ["--pcap", "/dev/null"];
    for option in [&pcap[..], &["--trace"]] {
        let ping = ["--provider", "kernel", "ping", "127.0.0.1:7471"];
        let output = run(&[&ping[..], option].concat());
        assert_eq!(output.status.code(), Some(2), "{}", stdout(&output));
        let text = stderr(&output);
        assert!(text.contains("only packets of software devices"), "{text}");
    }
}

#[test]
fn a_capture_that_cannot_be_written_is_an_error_before_connecting() {
    let output = run(&[
        "ping",
        "127.0.0.1:9",
        "-c",
        "1",
        "--pcap",
        "/nonexistent/x.pcap",
    ]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("cannot write /nonexistent/x.pcap"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn devices_lists_the_loopback_addresses() {
    let output = run(&["devices", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let devices = objects(&stdout(&output));
    let has = |address: &str| {
        devices.iter().any(|device| {
            let gids = device["gids"].as_array().unwrap();
            gids.iter().any(|gid| gid["address"] == address)
        })
    };
    assert!(has("127.0.0.1"), "{devices:?}");
}
