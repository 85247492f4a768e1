//! The command with a small `ulimit -s`, which services and containers may have.

mod common;

use std::process::{Output, Stdio};

use common::*;

/// KiB; the initial size of the process's stack.
const STACK_KIB: u32 = 64;

/// Runs the command with arguments under the limit.
fn run_limited(args: &[&str]) -> Output {
    let command = portolan();
    let mut limited = std::process::Command::new("sh");
    let script = format!("ulimit -s {STACK_KIB} && exec \"$@\"");
    limited.args(["-c", &script, "sh"]);
    limited.arg(command.get_program()).args(args);
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    let limited = limited
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    output_of(limited.spawn().unwrap())
}

#[track_caller]
fn runs(args: &[&str]) -> String {
    let output = run_limited(args);
    let (text, complaint) = (stdout(&output), stderr(&output));
    assert!(
        output.status.success(),
        "{args:?}: {}: {complaint}",
        output.status
    );
    text
}

#[test]
fn every_command_prints_its_help_on_a_small_stack() {
    let help = runs(&["--help"]);
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names = lines.map_while(|line| line.split_whitespace().next());
    let names: Vec<&str> = names.collect();
    assert!(
        names.contains(&"listen") && names.contains(&"exec"),
        "{help}"
    );
    for name in names {
        assert!(runs(&["help", name]).contains("Usage: portolan"), "{name}");
        if name != "help" {
            assert!(
                runs(&[name, "--help"]).contains("Usage: portolan"),
                "{name}"
            );
        }
    }
}

#[test]
fn commands_work_on_a_small_stack() {
    assert!(runs(&["devices"]).contains("sw_lo"));
    assert!(runs(&["resolve", "localhost"]).contains("sw_lo"));
    assert!(runs(&["demo"]).contains("All of it worked"));
    let listening = Listening::start("127.0.0.1", &["--once"]);
    runs(&["ping", &listening.address, "--count", "1"]);
    assert!(listening.finish().0.success());
    runs(&["ps"]);
    // The doctor may have findings on this machine; it only has to report them.
    let doctor = run_limited(&["doctor"]);
    assert!(doctor.status.code().is_some(), "{}", stderr(&doctor));
}

#[test]
fn programs_run_by_exec_on_a_small_stack() {
    assert_eq!(runs(&["exec", "--", "sh", "-c", "echo here"]), "here\n");
}
