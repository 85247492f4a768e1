//! Users who share UDP port 4791 with root or may not, and a stranger who holds the name of the port's group.
//! Each test has its own network namespace.

#[path = "common/mod.rs"]
mod common;
#[path = "common/installed.rs"]
mod installed;

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use common::{output_of, stderr, stdout};
use installed::Installed;
use nix::sched::{CloneFlags, unshare};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, socket_with};
use rustix::process::Uid;
use rustix::thread::set_thread_res_uid;

const ROOT: u32 = 0;
const ALICE: u32 = 60_001;
const STRANGER: u32 = 60_009;
const ADDRESS: &str = "127.0.0.1:7471";
/// The commands that report whether the port can be shared.
const COMMANDS: [&[&str]; 6] = [
    &["listen", "127.0.0.1:0"],
    &["ping", ADDRESS, "--count", "3"],
    &["devices"],
    &["demo"],
    &["doctor"],
    &["ps"],
];
/// Well below the five seconds that a process waits for a slow group, even on a slow machine.
const AT_ONCE: Duration = Duration::from_secs(4);

/// Runs a test in an empty network.
fn alone(test: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // For this thread and the processes that it starts.
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            let up = Command::new("ip")
                .args(["link", "set", "lo", "up"])
                .status();
            assert!(up.unwrap().success());
            test();
        });
        thread.join().unwrap();
    });
}

/// The command as run by a user who trusts these users.
fn command(installed: &Installed, user: u32, trust: &str, args: &[&str]) -> Command {
    let mut command = Command::new(installed.0.join("portolan"));
    command.args(args).uid(user).gid(user).stdin(Stdio::null());
    command
        .env("LANG", "C")
        .env("PORTOLAN_PROVIDER", "software");
    command.env("PORTOLAN_TRUST", trust);
    command.env("TMPDIR", installed.0.join("work"));
    command.env_remove("XDG_RUNTIME_DIR");
    command
}

fn run(installed: &Installed, user: u32, trust: &str, args: &[&str]) -> Output {
    let mut command = command(installed, user, trust, args);
    let child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    output_of(child.unwrap())
}

fn said(output: &Output) -> String {
    format!("{}{}", stdout(output), stderr(output))
}

/// A listening process, killed on drop.
struct Listener(Child);

impl Listener {
    fn start(installed: &Installed, user: u32, trust: &str) -> Self {
        let mut command = command(installed, user, trust, &["listen", ADDRESS]);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        // Kept open so that the process can continue to write.
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        assert!(line.contains("listening"), "{line}");
        std::thread::spawn(move || lines.lines().map_while(Result::ok).count());
        Self(child)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn root_and_a_user_share_the_port_in_both_orders_if_root_trusts_the_user() {
    let installed = Installed::new("trusted");
    let alice = ALICE.to_string();
    for (listener, caller) in [
        ((ROOT, &*alice), (ALICE, "")),
        ((ALICE, ""), (ROOT, &*alice)),
    ] {
        alone(|| {
            let _listener = Listener::start(&installed, listener.0, listener.1);
            for args in &COMMANDS[1..] {
                let output = run(&installed, caller.0, caller.1, args);
                let said = said(&output);
                assert!(!said.contains("PORTOLAN_TRUST"), "{args:?}: {said}");
                // The doctor may have other findings about this machine.
                assert!(
                    output.status.success() || args[0] == "doctor",
                    "{args:?}: {said}"
                );
            }
        });
    }
}

#[test]
fn a_program_run_by_exec_shares_the_port_with_root_if_it_trusts_root_by_number() {
    let installed = Installed::new("numbered");
    let program = installed.0.join("portolan");
    let program = program.to_str().unwrap();
    let args = ["exec", "--", program, "ping", ADDRESS, "--count", "3"];
    alone(|| {
        let _listener = Listener::start(&installed, ROOT, &ALICE.to_string());
        let output = run(&installed, ALICE, "0", &args);
        assert!(output.status.success(), "{}", said(&output));
        // Without it, the program may be in a user namespace in which root has no number.
        let output = run(&installed, ALICE, "", &args);
        let said = said(&output);
        let is_told = said.contains("set PORTOLAN_TRUST to the number of that user");
        assert!(output.status.success() || is_told, "{said}");
    });
}

#[test]
fn every_command_of_root_names_the_setting_with_which_it_would_join_a_users_group() {
    let installed = Installed::new("roots");
    alone(|| {
        let listener = Listener::start(&installed, ALICE, "");
        let pid = listener.0.id();
        for args in COMMANDS {
            let output = run(&installed, ROOT, "", args);
            let said = said(&output);
            let who = format!("process {pid} (portolan) of user {ALICE} leads the processes");
            assert!(said.contains(&who), "{args:?}: {said}");
            let what = format!("set PORTOLAN_TRUST={ALICE}");
            assert!(said.contains(&what), "{args:?}: {said}");
            // Root may query the group; it only has that user's word for the answer.
            assert_eq!(output.status.success(), args == ["ps"], "{args:?}: {said}");
        }
    });
}

#[test]
fn every_command_of_a_user_names_the_setting_with_which_roots_group_would_admit_it() {
    let installed = Installed::new("users");
    alone(|| {
        let listener = Listener::start(&installed, ROOT, "");
        let pid = listener.0.id();
        for args in COMMANDS {
            let output = run(&installed, ALICE, "", args);
            let said = said(&output);
            let who = format!("process {pid} (portolan) of user {ROOT} leads the processes");
            assert!(said.contains(&who), "{args:?}: {said}");
            let what = format!("start it with PORTOLAN_TRUST={ALICE}");
            assert!(said.contains(&what), "{args:?}: {said}");
            assert!(!output.status.success(), "{args:?}: {said}");
        }
    });
}

#[test]
fn every_command_names_a_stranger_who_holds_the_name_without_delay() {
    let installed = Installed::new("squatted");
    alone(|| {
        let squat = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let uid = Uid::from_raw(STRANGER);
                // Affects only this thread, which ends here.
                set_thread_res_uid(uid, uid, uid).unwrap();
                let flags = SocketFlags::CLOEXEC;
                let kind = SocketType::SEQPACKET;
                let socket = socket_with(AddressFamily::UNIX, kind, flags, None).unwrap();
                let name = SocketAddrUnix::new_abstract_name(b"portolan/4791").unwrap();
                bind(&socket, &name).unwrap();
                socket
            });
            thread.join().unwrap()
        });
        for user in [ALICE, ROOT] {
            for args in COMMANDS {
                let started = Instant::now();
                let output = run(&installed, user, "", args);
                let (said, took) = (said(&output), started.elapsed());
                assert!(
                    said.contains(&format!("of user {STRANGER} holds the name")),
                    "{args:?}: {said}"
                );
                assert!(!output.status.success(), "{args:?}: {said}");
                assert!(took < AT_ONCE, "{args:?}: {took:?}");
                // Only root can see the owner of the descriptor.
                let pid = format!("process {} (", std::process::id());
                assert_eq!(said.contains(&pid), user == ROOT, "{args:?}: {said}");
            }
        }
        drop(squat);
        let output = run(&installed, ALICE, "", &["ps"]);
        assert!(said(&output).contains("no process shares UDP port 4791"));
    });
}
