//! `portolan ps` in a network namespace with a single process. Needs root.

mod common;
#[path = "../../addrinfo/tests/support/mod.rs"]
mod support;

use rustix::process::{Pid, Signal, kill_process};

use common::*;
use support::Namespace;

#[test]
fn a_holder_that_does_not_answer_is_a_failed_check_not_an_error() {
    Namespace::new().run(|| {
        let listening = Listening::start("127.0.0.1", &[]);
        kill_process(Pid::from_child(&listening.child), Signal::STOP).unwrap();
        for json in [&[][..], &["--json"]] {
            let output = run(&[&["ps", "-W", "1"], json].concat());
            let complaint = stderr(&output);
            assert_eq!(output.status.code(), Some(1), "{complaint}");
            assert!(complaint.contains("does not answer"), "{complaint}");
        }
    });
}

#[test]
fn a_program_that_holds_the_port_without_sharing_it_is_named() {
    Namespace::new().run(|| {
        let _holder = std::net::UdpSocket::bind("0.0.0.0:4791").unwrap();
        let holder = format!("process {} (", std::process::id());
        for json in [&[][..], &["--json"]] {
            let output = run(&[&["ps"], json].concat());
            let complaint = stderr(&output);
            assert_eq!(output.status.code(), Some(1), "{complaint}");
            assert!(complaint.contains(&holder), "{complaint}");
        }
    });
}
