//! `portolan doctor` in network namespaces with real firewalls and real programs on the port. Needs root.

mod common;
#[path = "../../addrinfo/tests/support/mod.rs"]
mod support;

use std::net::UdpSocket;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Output};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, socket};
use rustix::process::Uid;
use rustix::thread::set_thread_res_uid;
use serde_json::Value;

use common::*;
use support::{Namespace, ip_batch};

/// A host with one uplink.
const UPLINK: &str = "link add up0 type veth peer name up1
    link set up1 up
    link set up0 up
    addr add 192.0.2.1/24 dev up0
    route add default via 192.0.2.254 dev up0";

/// Runs the doctor in a namespace with these interfaces after `act` has made trouble. The value returned by
/// `act` lives until the doctor has ended.
fn doctor_after<T>(
    interfaces: &'static str,
    act: impl FnOnce() -> T + Send + 'static,
    args: &'static [&'static str],
) -> (Option<i32>, Value) {
    Namespace::new().run(move || {
        ip_batch(interfaces);
        let _trouble = act();
        let output = run(&[&["doctor", "--json"], args].concat());
        let told = objects(&stdout(&output));
        assert_eq!(told.len(), 1, "{}", stderr(&output));
        (output.status.code(), told[0].clone())
    })
}

/// The finding with this code, which must exist.
#[track_caller]
fn finding(told: &Value, code: &str) -> Value {
    let mut findings = told["findings"].as_array().unwrap().iter();
    let found = findings.find(|finding| finding["code"] == code);
    found
        .unwrap_or_else(|| panic!("no {code}: {told:#}"))
        .clone()
}

fn problems(told: &Value) -> Vec<&str> {
    let findings = told["findings"].as_array().unwrap().iter();
    let problems = findings.filter(|finding| finding["severity"] == "problem");
    problems
        .filter_map(|finding| finding["code"].as_str())
        .collect()
}

fn sh(script: &str) {
    let output = Command::new("sh").args(["-euc", script]).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script}: {error}");
}

#[test]
fn a_namespace_with_an_uplink_has_no_problems() {
    let (code, told) = doctor_after(UPLINK, || (), &["192.0.2.7:7471"]);
    assert_eq!((code, problems(&told)), (Some(0), vec![]), "{told:#}");
    let way = &told["destination"]["ways"][0];
    assert_eq!(
        (&way["source"], &way["device"]),
        (&"192.0.2.1:0".into(), &"sw_up0".into())
    );
    assert_eq!(told["udp_port"]["sockets"], Value::Array(vec![]));
    assert!(
        !told["network"]["firewall"]["tools"]
            .as_array()
            .unwrap()
            .is_empty()
    );
}

#[test]
fn a_program_that_holds_the_port_is_named_and_the_device_cannot_start() {
    let holds = || UdpSocket::bind("0.0.0.0:4791").unwrap();
    let (code, told) = doctor_after(UPLINK, holds, &[]);
    assert_eq!(
        (code, problems(&told)),
        (Some(1), vec!["port-held"]),
        "{told:#}"
    );
    let held = finding(&told, "port-held");
    let own = std::process::id();
    assert_eq!(held["remedy"], format!("kill {own}"));
    let failed = Namespace::new().run(move || {
        let _held = holds();
        run(&["listen", "127.0.0.1:0"]).status.code()
    });
    assert_eq!(failed, Some(2));
}

/// A program with this name that holds the software device's port.
fn holder_called(name: &str) -> Child {
    let folder = std::env::temp_dir().join(format!("portolan-holder-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let program = folder.join(name);
    copy_program("/bin/sleep", &program);
    let port = OwnedFd::from(UdpSocket::bind("0.0.0.0:4791").unwrap());
    let holder = Command::new(&program).arg("60").stdin(port).spawn();
    let holder = holder.unwrap();
    let comm = format!("/proc/{}/comm", holder.id());
    eventually(|| (std::fs::read_to_string(&comm).ok()?.trim_end() == name).then_some(()));
    std::fs::remove_dir_all(folder).unwrap();
    holder
}

#[test]
fn a_programs_name_cannot_write_to_the_terminal() {
    let told = Namespace::new().run(|| {
        let mut holder = holder_called("\u{1b}[31mX");
        let output = run(&["doctor"]);
        holder.kill().unwrap();
        holder.wait().unwrap();
        stdout(&output)
    });
    assert!(told.contains("(\\u{1b}[31mX)"), "{told:?}");
    assert!(!told.contains('\u{1b}'), "{told:?}");
}

/// Takes all names of places in the group as an untrusted user.
fn all_places_taken() -> Vec<OwnedFd> {
    let stranger = Uid::from_raw(40_018);
    let take = move |place: u8| {
        let socket = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        let name = format!("portolan/4791/{place}");
        let name = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
        bind(&socket, &name).unwrap();
        socket
    };
    let taking = std::thread::spawn(move || {
        // Affects only this thread, which ends here.
        set_thread_res_uid(stranger, stranger, stranger).unwrap();
        (1..=127).map(take).collect()
    });
    taking.join().unwrap()
}

#[test]
fn strangers_that_hold_all_places_are_a_problem() {
    let (code, told) = doctor_after(UPLINK, all_places_taken, &[]);
    assert_eq!(code, Some(1), "{told:#}");
    let told = finding(&told, "group-unusable").to_string();
    assert!(told.contains("127 of the 127 places"), "{told}");
}

#[test]
fn rules_of_nftables_are_reported_and_the_suggested_remedy_helps() {
    const RULES: &str = "nft -f - <<END
        table inet house {
            chain own { udp dport { 53, 4000-5000 } counter reject; }
            chain in { type filter hook input priority 0; policy accept; jump own; }
        }
        table ip nat {
            chain post { type nat hook postrouting priority 100; ip saddr 192.0.2.0/24 masquerade; }
        }\nEND";
    let (code, told) = doctor_after(UPLINK, || sh(RULES), &[]);
    assert_eq!(
        (code, problems(&told)),
        (Some(1), vec!["firewall-stops", "translation"])
    );
    let stops = finding(&told, "firewall-stops");
    assert!(
        stops["text"]
            .to_string()
            .contains("inet house/own: udp dport { 53, 4000-5000 } reject"),
        "{stops}"
    );
    assert!(
        finding(&told, "translation")["text"]
            .to_string()
            .contains("ip nat/post")
    );
    let remedy = stops["remedy"].as_str().unwrap().to_owned();
    let mend = move || {
        sh(RULES);
        sh("nft delete table ip nat");
        sh(&remedy);
    };
    let (code, told) = doctor_after(UPLINK, mend, &[]);
    assert_eq!((code, problems(&told)), (Some(0), vec![]), "{told:#}");
}

#[test]
fn rules_of_iptables_old_and_new_are_reported_and_the_suggested_remedy_helps() {
    for tool in ["iptables", "iptables-legacy", "ip6tables"] {
        let rules = format!("{tool} -A OUTPUT -p udp -m multiport --dports 53,4791 -j DROP");
        let again = rules.clone();
        let (code, told) = doctor_after(UPLINK, move || sh(&rules), &[]);
        assert_eq!(
            (code, problems(&told)),
            (Some(1), vec!["firewall-stops"]),
            "{tool}: {told:#}"
        );
        let stops = finding(&told, "firewall-stops");
        assert!(
            stops["text"].to_string().contains("--dports 53,4791"),
            "{stops}"
        );
        let remedy = stops["remedy"].as_str().unwrap().to_owned();
        let mend = move || sh(&format!("{again}; {remedy}"));
        let (code, told) = doctor_after(UPLINK, mend, &[]);
        assert_eq!(
            (code, problems(&told)),
            (Some(0), vec![]),
            "{tool}: {told:#}"
        );
    }
}

#[test]
fn the_remedy_names_the_table_and_the_chain_that_drop() {
    let nft = |hook: &str| {
        format!(
            "nft -f - <<END
            table inet house {{
                chain c {{ type filter hook {hook} priority 0; udp dport 4791 drop; }}
            }}\nEND"
        )
    };
    let iptables = |table: &str, chain: &str| {
        format!("iptables -t {table} -A {chain} -p udp --dport 4791 -j DROP")
    };
    for (rules, way, remedy) in [
        (
            iptables("raw", "PREROUTING"),
            "packets that come to",
            "iptables -t raw -I PREROUTING -p udp --dport 4791 -j ACCEPT",
        ),
        (
            iptables("mangle", "POSTROUTING"),
            "packets sent to",
            "iptables -t mangle -I POSTROUTING -p udp --dport 4791 -j ACCEPT",
        ),
        (
            nft("postrouting"),
            "packets sent to",
            "nft insert rule inet house c udp dport 4791 accept",
        ),
        (
            nft("prerouting"),
            "packets that come to",
            "nft insert rule inet house c udp dport 4791 accept",
        ),
    ] {
        let again = rules.clone();
        let (code, told) = doctor_after(UPLINK, move || sh(&rules), &[]);
        let found = (code, problems(&told));
        assert_eq!(found, (Some(1), vec!["firewall-stops"]), "{told:#}");
        let stops = finding(&told, "firewall-stops");
        assert_eq!(stops["remedy"], remedy);
        assert!(stops["text"].to_string().contains(way), "{stops}");
        let mend = move || sh(&format!("{again}\n{remedy}"));
        let (code, told) = doctor_after(UPLINK, mend, &[]);
        assert_eq!((code, problems(&told)), (Some(0), vec![]), "{told:#}");
    }
}

#[test]
fn rules_that_may_accept_the_port_make_a_drop_uncertain() {
    for rules in [
        "set s { type inet_service; elements = { 4791 }; }
         chain in { type filter hook input priority 0; policy drop; udp dport @s accept; }",
        "chain in { type filter hook input priority 0; policy drop; meta l4proto . th dport { udp . 4791 } accept; }",
        "chain own { udp dport 4791 accept; }
         chain in { type filter hook input priority 0; policy drop; iifname vmap { \"up0\" : jump own }; }",
        "chain own { udp dport 4791 accept; }
         chain in { type filter hook input priority 0; policy drop; iifname \"up0\" jump own; }",
    ] {
        let script = format!("nft -f - <<'END'\ntable inet house {{\n{rules}\n}}\nEND");
        let (code, told) = doctor_after(UPLINK, move || sh(&script), &[]);
        assert_eq!((code, problems(&told)), (Some(0), vec![]), "{told:#}");
        let stops = finding(&told, "firewall-stops");
        assert_eq!(stops["severity"], "note");
        let text = stops["text"].to_string();
        assert!(text.contains("may drop") && !text.contains("no rule of"), "{text}");
    }
    let map = "nft -f - <<'END'
        table inet house {
            chain in {
                type filter hook input priority 0; policy drop; meta l4proto vmap { udp : accept }
            }
        }\nEND";
    let (code, told) = doctor_after(UPLINK, move || sh(map), &[]);
    assert_eq!((code, problems(&told)), (Some(0), vec![]), "{told:#}");
    assert!(
        !told["findings"].to_string().contains("firewall-stops"),
        "{told:#}"
    );
    // These accept other protocols, ports or answers.
    for rules in [
        "tcp dport vmap { 22 : accept }",
        "udp dport vmap { 53 : accept }",
        "meta l4proto vmap { tcp : accept, icmp : accept }",
        "ct state vmap { established : accept, invalid : drop }",
    ] {
        let script = format!(
            "nft -f - <<'END'\ntable inet house {{ chain in {{ type filter hook input priority 0; policy drop; {rules}; }}\n}}\nEND"
        );
        let (code, told) = doctor_after(UPLINK, move || sh(&script), &[]);
        let found = (code, problems(&told));
        assert_eq!(
            found,
            (Some(1), vec!["firewall-stops"]),
            "{rules}: {told:#}"
        );
    }
}

#[test]
fn a_policy_of_drop_with_exceptions_for_others_is_a_problem() {
    const RULES: &str = "iptables -P INPUT DROP; iptables -A INPUT -i lo -j ACCEPT
        iptables -A INPUT -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT
        iptables -A INPUT -p tcp --dport 22 -j ACCEPT";
    let (_, told) = doctor_after(UPLINK, || sh(RULES), &[]);
    assert_eq!(problems(&told), ["firewall-stops"], "{told:#}");
    let text = finding(&told, "firewall-stops")["text"].to_string();
    assert!(text.contains("its policy is to drop"), "{text}");
}

#[test]
fn destinations_without_a_route_and_interfaces_without_a_carrier_are_reported() {
    const NO_DEFAULT: &str = "link add up0 type veth peer name up1
        link set up0 up
        addr add 192.0.2.1/24 dev up0";
    let (code, told) = doctor_after(NO_DEFAULT, || (), &["198.51.100.7:1"]);
    assert_eq!(
        (code, problems(&told)),
        (Some(1), vec!["destination-no-route"]),
        "{told:#}"
    );
    // The other end of the pair is down.
    assert_eq!(finding(&told, "interface-down")["severity"], "note");
    let (code, told) = doctor_after(NO_DEFAULT, || (), &["192.0.2.7:1"]);
    assert_eq!((code, problems(&told).len()), (Some(1), 1), "{told:#}");
}

/// Runs `doctor` as an ordinary user, under a limit.
fn as_user(name: &str, uid: u32, limit: &[&str]) -> Output {
    // Only root may be able to read the build folder.
    let copy = std::env::temp_dir().join(format!("portolan-{name}-{}", std::process::id()));
    copy_program(env!("CARGO_BIN_EXE_portolan"), &copy);
    sh(&format!("chmod 755 {}", copy.display()));
    let output = Command::new("setpriv")
        .args([format!("--reuid={uid}"), format!("--regid={uid}")])
        .arg("--clear-groups")
        .args(limit)
        .arg(&copy)
        .args(["doctor", "--json"])
        .env_remove("PORTOLAN_PROVIDER")
        .output()
        .unwrap();
    std::fs::remove_file(copy).unwrap();
    output
}

#[test]
fn a_user_who_may_start_no_thread_gets_a_finding() {
    const USER: u32 = 40_017;
    for processes in 1..=4 {
        let limit = format!("--nproc={processes}");
        let output = Namespace::new().run({
            let limit = limit.clone();
            move || as_user("threads", USER, &["prlimit", &limit])
        });
        let said = stderr(&output);
        assert!(!said.contains("panicked"), "{limit}: {said}");
        assert!(
            matches!(output.status.code(), Some(0..=2)),
            "{limit}: {said}"
        );
    }
}

#[test]
fn an_unprivileged_user_learns_what_could_not_be_examined() {
    let output = Namespace::new().run(|| {
        ip_batch(UPLINK);
        sh("iptables -P INPUT DROP");
        as_user("doctor", 65_534, &[])
    });
    let told = objects(&stdout(&output));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(told[0]["host"]["root"], false);
    assert_eq!(told[0]["unseen"][0]["what"], "firewall rules");
}
