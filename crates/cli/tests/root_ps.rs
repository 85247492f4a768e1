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
