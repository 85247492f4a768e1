//! `portolan ping --ud` and `portolan listen --ud`, as processes over the software device.

mod common;

use std::time::Duration;

use common::{Listening, interrupt, objects, own_network, run, stderr, stdout};
use portolan::datagram::{Arrival, Options, Service, Socket};

#[test]
fn datagrams_come_back_whole_over_ipv4_and_ipv6_with_their_times() {
    for ip in ["127.0.0.1", "[::1]"] {
        let listening = Listening::start(ip, &["--ud", "--count", "20"]);
        let output = run(&["ping", "--ud", &listening.address, "--count", "20"]);
        let text = stdout(&output);
        assert_eq!(output.status.code(), Some(0), "{text}{}", stderr(&output));
        assert!(text.contains("64 bytes from"), "{text}");
        assert!(
            text.contains("20 datagrams sent, 20 answered, 0 lost (0.0 %), 0 came back changed"),
            "{text}"
        );
        assert!(text.contains("p99.9"), "{text}");
        let (status, text) = listening.finish();
        assert_eq!(status.code(), Some(0), "{text}");
        assert!(
            text.contains("20 datagrams received, 20 answered"),
            "{text}"
        );
    }
}

#[test]
fn each_side_prints_the_private_data_of_the_other() {
    let listening = Listening::start(
        "127.0.0.1",
        &["--ud", "--once", "--private-data", "from the service"],
    );
    let ping = ["ping", "--ud", &listening.address, "-c", "1"];
    let output = run(&[&ping[..], &["--private-data", "from the asker"]].concat());
    let text = stdout(&output);
    assert!(text.contains(r#""from the service""#), "{text}");
    let (_, text) = listening.finish();
    assert!(text.contains(r#""from the asker""#), "{text}");
}

#[test]
fn json_has_each_datagram_and_a_summary_at_both_sides() {
    let listening = Listening::start("127.0.0.1", &["--ud", "--count", "5", "--json"]);
    let output = run(&["ping", "--ud", &listening.address, "-c", "5", "--json"]);
    let told = objects(&stdout(&output));
    assert_eq!(told[0]["type"], "reached");
    assert_eq!(told[0]["qkey"], 0x0123_4567);
    let pings = told.iter().filter(|object| object["type"] == "ping");
    assert_eq!(pings.count(), 5);
    let summary = told.last().unwrap();
    assert_eq!((&summary["sent"], &summary["lost"]), (&5.into(), &0.into()));
    assert_eq!(summary["latency"]["count"], 5);
    let (_, text) = listening.finish();
    let told = objects(&text);
    assert_eq!(told[0]["type"], "asked");
    assert_eq!(told.last().unwrap()["answered"], 5);
}

/// udaddy's server waits for all datagrams and then sends as many answers with its own data. It learns the
/// client's queue pair from the immediate data of the first datagram.
#[test]
fn udaddys_server_which_answers_at_the_end_with_other_data_is_supported() {
    const COUNT: usize = 30;
    own_network::enter();
    let mut service = Service::bind("127.0.0.1:0", &Options::default()).unwrap();
    let address = service.local_addr().unwrap().to_string();
    let serving = std::thread::spawn(move || {
        let mut first = None;
        for _ in 0..COUNT {
            let (datagram, qpn) = loop {
                match service.next_within(common::PATIENCE).unwrap() {
                    Arrival::Datagram { datagram, qpn } => break (datagram, qpn),
                    Arrival::Failed(error) => panic!("{error}"),
                    _ => {}
                }
            };
            let named = datagram.imm_data.map(u32::from_be);
            assert_eq!(named, Some(datagram.source_qpn.value()));
            first.get_or_insert((datagram, qpn));
        }
        let (datagram, qpn) = first.unwrap();
        let sender = service.sender(&datagram, qpn).unwrap();
        for _ in 0..COUNT {
            service.send(qpn, &sender, &[0x5a; 100], None).unwrap();
        }
    });
    let output = run(&["ping", "--ud", &address, "--count", "30"]);
    serving.join().unwrap();
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{text}{}", stderr(&output));
    assert!(text.contains("30 datagrams sent, 30 answered"), "{text}");
    assert!(text.contains("30 answers are not echoes"), "{text}");
}

/// udaddy's client sends all datagrams at once and waits for as many answers.
#[test]
fn a_client_that_sends_all_at_once_gets_as_many_answers() {
    let listening = Listening::start("127.0.0.1", &["--ud", "--count", "100"]);
    let (mut socket, service) = Socket::connect(&listening.address, &Options::default()).unwrap();
    let own = socket.qpn().value().to_be();
    for _ in 0..100 {
        socket
            .send(&service.destination, &[7; 100], Some(own))
            .unwrap();
    }
    for _ in 0..100 {
        let answer = socket.receive_within(common::PATIENCE).unwrap();
        assert_eq!(answer.data, [7; 100]);
        let named = answer.imm_data.map(u32::from_be);
        assert_eq!(named, Some(service.destination.qpn.value()));
    }
    let (status, text) = listening.finish();
    assert_eq!(status.code(), Some(0), "{text}");
}

#[test]
fn missing_answers_are_counted_as_lost() {
    own_network::enter();
    let mut service = Service::bind("127.0.0.1:0", &Options::default()).unwrap();
    let address = service.local_addr().unwrap().to_string();
    // Answers every second datagram.
    let serving = std::thread::spawn(move || {
        let mut count = 0;
        while count < 10 {
            if let Arrival::Datagram { datagram, qpn } =
                service.next_within(common::PATIENCE).unwrap()
            {
                count += 1;
                if count % 2 == 0 {
                    let sender = service.sender(&datagram, qpn).unwrap();
                    // Twice, as a network may deliver it.
                    for _ in 0..2 {
                        service.send(qpn, &sender, &datagram.data, None).unwrap();
                    }
                }
            }
        }
    });
    let output = run(&["ping", "--ud", &address, "--count", "10", "--json"]);
    serving.join().unwrap();
    let told = objects(&stdout(&output));
    let summary = told.last().unwrap();
    let counts = ["sent", "answered", "lost", "mismatched"].map(|name| summary[name].clone());
    assert_eq!(counts, [10, 5, 5, 0].map(serde_json::Value::from));
    assert_eq!(output.status.code(), Some(0), "datagrams may be lost");
}

#[test]
fn a_missing_or_silent_service_is_a_failed_ping() {
    let output = run(&["ping", "--ud", "127.0.0.1:9", "-c", "1"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("127.0.0.1:9"),
        "{}",
        stderr(&output)
    );

    let service = Service::bind("127.0.0.1:0", &Options::default()).unwrap();
    let address = service.local_addr().unwrap().to_string();
    let output = run(&["ping", "--ud", &address, "-c", "1", "--timeout", "0.5"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
}

#[test]
fn sizes_and_private_data_that_do_not_fit_are_refused() {
    let listening = Listening::start("127.0.0.1", &["--ud"]);
    for (size, told) in [("15", "16 bytes at least"), ("9000", "bytes at most")] {
        let ping = ["ping", "--ud", &listening.address, "-c", "1"];
        let output = run(&[&ping[..], &["--size", size]].concat());
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains(told), "{}", stderr(&output));
    }
    let long = "x".repeat(137);
    let output = run(&["listen", "--ud", "127.0.0.1:0", "--private-data", &long]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("136"), "{}", stderr(&output));
}

#[test]
fn ctrl_c_ends_the_service_with_a_summary() {
    let listening = Listening::start("127.0.0.1", &["--ud"]);
    let output = run(&["ping", "--ud", &listening.address, "-c", "3", "-q"]);
    assert_eq!(output.status.code(), Some(0), "{}", stdout(&output));
    std::thread::sleep(Duration::from_millis(100));
    interrupt(&listening.child);
    let (status, text) = listening.finish();
    assert_eq!(status.code(), Some(0), "{text}");
    assert!(text.contains("3 datagrams received, 3 answered"), "{text}");
}

#[test]
fn the_trace_and_the_capture_hold_question_answer_and_datagrams() {
    let path = std::env::temp_dir().join(format!("portolan-ud-{}.pcap", std::process::id()));
    let file = path.to_str().unwrap();
    let listening = Listening::start("127.0.0.1", &["--ud", "--count", "3"]);
    let ping = ["ping", "--ud", &listening.address, "-c", "3"];
    let output = run(&[&ping[..], &["--trace", "--pcap", file]].concat());
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{text}{}", stderr(&output));
    for row in ["ask 127", "SIDR REQ udp:", "SIDR REP", "* ESTABLISHED"] {
        assert!(text.contains(row), "{row} in {text}");
    }
    let decoded = run(&["decode", file]);
    let text = stdout(&decoded);
    assert_eq!(decoded.status.code(), Some(0), "{text}");
    assert!(text.contains("8 packets, 8 ICRC valid"), "{text}");
    std::fs::remove_file(&path).unwrap();
}
