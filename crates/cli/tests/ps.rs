//! `portolan ps`: the processes that share the UDP port.

mod common;

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::time::Instant;

use serde_json::Value;

use common::*;

/// A running command that has printed a line. Killed on drop.
struct Running(Child);

impl Running {
    fn start(args: &[&str]) -> (Self, Value) {
        Self::start_with(args, "")
    }

    /// Starts it with `PORTOLAN_LOCAL` set.
    fn start_with(args: &[&str], way: &str) -> (Self, Value) {
        let mut child = portolan()
            .args(args)
            .env("PORTOLAN_LOCAL", way)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        // Kept open so that the process can continue to write.
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        lines.read_line(&mut line).unwrap();
        std::thread::spawn(move || lines.lines().map_while(Result::ok).count());
        (Self(child), serde_json::from_str(&line).unwrap())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The output of `ps` once it lists these processes. Other tests' processes share the port. When the holder
/// among them ends, the others need a moment to elect a new one.
fn listed_with(pids: &[u32]) -> Vec<Value> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let listed = run(&["ps", "--json"]);
        let objects: Vec<Value> = stdout(&listed)
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let is_member = |pid: &u32| {
            objects
                .iter()
                .any(|object| object["type"] == "member" && object["pid"] == *pid)
        };
        if listed.status.success() && pids.iter().all(is_member) {
            return objects;
        }
        let complaint = stderr(&listed);
        assert!(
            Instant::now() < deadline,
            "no {pids:?} in {objects:?}: {complaint}"
        );
    }
}

#[test]
fn ps_lists_the_holder_of_the_port_listeners_and_connections() {
    let (listener, told) = Running::start(&["listen", "127.0.0.1:0", "--json"]);
    let address = told["address"].as_str().unwrap().to_owned();
    let (ping, told) = Running::start(&["ping", &address, "--interval", "3600", "--json"]);
    let (local, qpn) = (&told["local"], &told["qp"]);
    let objects = listed_with(&[listener.0.id(), ping.0.id()]);
    let of_type = |kind: &str| {
        let kind = kind.to_owned();
        objects
            .iter()
            .filter(move |object| object["type"] == kind.as_str())
    };
    let group = of_type("group").next().unwrap();
    assert_eq!(group["udp_port"], 4791);
    let holder = &group["holder_pid"];
    assert!(of_type("member").any(|member| member["pid"] == *holder && member["holder"] == true));
    let member = |pid: u32| of_type("member").find(|m| m["pid"] == pid).unwrap().clone();
    let (listening, pinging) = (member(listener.0.id()), member(ping.0.id()));
    assert_eq!(listening["program"], "portolan");
    assert_ne!(listening["block"], pinging["block"]);
    assert!(pinging["counters"]["sent_packets"].as_u64().unwrap() > 0);
    let port = of_type("port")
        .find(|port| port["address"] == address.as_str())
        .unwrap();
    assert_eq!(
        (&port["listening"], &port["pid"], &port["port_space"]),
        (&true.into(), &listener.0.id().into(), &"tcp".into())
    );
    let connection = of_type("connection")
        .find(|connection| connection["local"] == *local)
        .unwrap();
    assert_eq!(connection["pid"], ping.0.id());
    assert_eq!(connection["remote"], address.as_str());
    assert_eq!(connection["state"], "established");
    assert_eq!(connection["qpn"], *qpn);
    // The output for people too.
    let pid = ping.0.id().to_string();
    let member = format!("{pid} portolan, user ");
    let deadline = Instant::now() + PATIENCE;
    let text = loop {
        let text = stdout(&run(&["ps"]));
        if text.contains(&member) {
            break text;
        }
        // The holder may have changed since.
        assert!(Instant::now() < deadline, "{text}");
    };
    assert!(
        text.contains(&format!("listens on tcp {address}")),
        "{text}"
    );
    assert!(text.contains("holds the port"), "{text}");
}

#[test]
fn ps_shows_how_packets_travel_and_why() {
    let (_listener, told) = Running::start(&["listen", "127.0.0.1:0", "--json"]);
    let address = told["address"].as_str().unwrap().to_owned();
    let pings = ["ping", &address, "--interval", "0.01", "--json"];
    let (_by_memory, by_memory) = Running::start(&pings);
    let (_by_socket, by_socket) = Running::start_with(&pings, "off");
    let ways = || {
        let objects = listed_with(&[]);
        let way = |ping: &Value| {
            let mut objects = objects.iter();
            let of = objects.find(|object| object["qpn"] == ping["qp"])?;
            let words = |key: &str| of[key].as_str().map(str::to_owned);
            Some((words("way"), words("why")))
        };
        Some((way(&by_memory)?, way(&by_socket)?))
    };
    eventually(|| ways().filter(|(by_memory, _)| by_memory.0.as_deref() == Some("memory")));
    let (by_memory, (socket, why)) = ways().unwrap();
    assert_eq!(by_memory, (Some("memory".into()), None));
    assert_eq!(socket.as_deref(), Some("socket"));
    let expected = "memory is turned off in this process, or could not be prepared";
    assert_eq!(why.as_deref(), Some(expected));
    let text = stdout(&run(&["ps"]));
    assert!(text.contains(", through memory"), "{text}");
    assert!(text.contains(", by socket: memory is turned off"), "{text}");
}

#[test]
fn the_name_of_a_program_is_written_as_it_is_and_escaped_only_for_people() {
    let folder = std::env::temp_dir().join(format!("portolan-ps-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let name = "it's \"x\"\t\u{e9}";
    let program = folder.join(name);
    copy_program(env!("CARGO_BIN_EXE_portolan"), &program);
    own_network::enter();
    let child = std::process::Command::new(&program)
        .args(["listen", "127.0.0.1:0", "--json"])
        .stdout(Stdio::piped())
        .spawn();
    let mut listener = Running(child.unwrap());
    let mut line = String::new();
    let mut lines = BufReader::new(listener.0.stdout.take().unwrap());
    lines.read_line(&mut line).unwrap();
    let pid = listener.0.id();
    let objects = listed_with(&[pid]);
    let member = objects
        .iter()
        .find(|object| object["type"] == "member" && object["pid"] == pid);
    assert_eq!(member.unwrap()["program"], name);
    let text = stdout(&run(&["ps"]));
    let told = format!("{pid} it's \"x\"\\t\u{e9}, user ");
    assert!(text.contains(&told), "{told} in {text}");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_killed_process_and_ps_itself_are_not_listed() {
    let (listener, told) = Running::start(&["listen", "127.0.0.1:0", "--json"]);
    // Keeps the group alive.
    let (_other, _) = Running::start(&["listen", "127.0.0.1:0", "--json"]);
    let pid = listener.0.id();
    drop(listener);
    let deadline = Instant::now() + PATIENCE;
    loop {
        let listed = run(&["ps", "--json"]);
        let text = stdout(&listed);
        let is_listed = text.lines().any(|line| {
            let object: Value = serde_json::from_str(line).unwrap();
            object["pid"] == pid || object["address"] == told["address"]
        });
        if listed.status.success() && !is_listed {
            break;
        }
        assert!(Instant::now() < deadline, "{text}");
    }
}
