//! Ctrl-C while a command waits for the process that holds the port. Needs root.

mod common;
#[path = "../../addrinfo/tests/support/mod.rs"]
mod support;

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use common::*;
use support::Namespace;

#[test]
fn ctrl_c_ends_a_command_that_still_waits_for_the_holder_of_the_port() {
    Namespace::new().run(|| {
        let holder = Listening::start("127.0.0.1", &[]);
        kill_process(Pid::from_child(&holder.child), Signal::STOP).unwrap();
        for command in [
            &["mcast", "join", "239.77.2.1", "--bind", "127.0.0.1"][..],
            &["mcast", "send", "239.77.2.1", "--bind", "127.0.0.1"],
            &["listen", "127.0.0.1:0"],
            &["listen", "--ud", "127.0.0.1:0"],
            &["events", "listen", "127.0.0.1:0"],
            &["events", "connect", "127.0.0.1:1"],
            &["devices", "--watch"],
        ] {
            // Who started the tests may ignore the signal, as shells do for what runs in the background.
            let portolan = portolan();
            let waiting = Command::new("env")
                .arg("--default-signal=INT")
                .arg(portolan.get_program())
                .args(command)
                .env("LANG", "C")
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            std::thread::sleep(Duration::from_millis(500));
            interrupt(&waiting);
            let interrupted = Instant::now();
            let output = output_of(waiting);
            let took = interrupted.elapsed();
            let text = format!("{}{}", stdout(&output), stderr(&output));
            assert!(
                took < Duration::from_secs(2),
                "{command:?} {took:?}: {text}"
            );
            assert_eq!(text, "", "{command:?}");
        }
    });
}
