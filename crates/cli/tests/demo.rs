//! `portolan demo`, as a new user runs it.

mod common;

use common::{portolan, run, stderr, stdout};

#[test]
fn the_demonstration_works_and_shows_what_it_promises() {
    let folder = std::env::temp_dir().join(format!("portolan-demo-test-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let pcap = folder.join("demo.pcap");
    let pcap = pcap.to_str().unwrap();
    let output = run(&["demo", "--pcap", pcap]);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{text}{}", stderr(&output));
    for shown in [
        "localhost resolves to",
        "127.0.0.1",
        "Connected two processes",
        "ahoy yourself",
        "SEND",
        "RDMA WRITE",
        "RDMA READ",
        "every byte is the same",
        "REQ tcp:",
        "CONNECT_REQUEST *",
        "* ESTABLISHED",
        "DREP",
        "p99.9",
        "All of it worked",
    ] {
        assert!(text.contains(shown), "{shown} in {text}");
    }
    let decoded = run(&["decode", pcap]);
    assert_eq!(decoded.status.code(), Some(0), "{}", stdout(&decoded));
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn the_demonstration_uses_the_software_device_whatever_is_pinned() {
    let output = portolan()
        .arg("demo")
        .env("PORTOLAN_PROVIDER", "kernel")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = stdout(&output);
    assert!(text.contains("127.0.0.1  from source 127.0.0.1"), "{text}");
}

#[test]
fn commands_that_always_use_the_software_device_refuse_to_be_pinned_to_the_kernels() {
    for command in [&["demo"][..], &["bench", "connect"]] {
        let refused = run(&[&["--provider", "kernel"], command].concat());
        let (text, complaint) = (stdout(&refused), stderr(&refused));
        assert_eq!(refused.status.code(), Some(2), "{text}{complaint}");
        assert_eq!(text, "");
        let expected = format!("`{}` always uses the software device", command[0]);
        assert!(complaint.contains(&expected), "{complaint}");
    }
    let same = run(&["--provider", "software", "demo", "--json"]);
    assert_eq!(same.status.code(), Some(0), "{}", stderr(&same));
}

#[test]
fn the_demonstration_can_print_json() {
    let output = run(&["demo", "--json"]);
    let text = stdout(&output);
    let types: Vec<String> = text
        .lines()
        .map(|line| {
            let object: serde_json::Value = serde_json::from_str(line).unwrap();
            object["type"].as_str().unwrap().to_owned()
        })
        .collect();
    assert!(types.contains(&"resolved".to_owned()));
    let rest: Vec<_> = types.iter().filter(|kind| *kind != "resolved").collect();
    assert_eq!(
        rest,
        ["connected", "moved", "moved", "moved", "latency", "done"],
        "{text}"
    );
}
