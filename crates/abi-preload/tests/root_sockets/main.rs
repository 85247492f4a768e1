//! C programs with the library preloaded, over a software device in the test's own network namespace.

mod forked;
mod instances;
mod limits;
mod reports;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use portolan::cm::{CmId, EventChannel};
use portolan::provider::cm::{ConnParam, EventType};
use portolan::provider::software_provider;
use portolan::wire::addr::Qpn;
use portolan_rsocket::{ConnData, Sge};

/// A folder with the compiled program. Removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        Self::with(name, "sockets.c")
    }

    /// `source` is a program in `tests/c`.
    fn with(name: &str, source: &str) -> Self {
        let name = format!("portolan-sockets-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir(&folder).unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/c")
            .join(source);
        let output = Command::new("cc")
            .args([
                "-std=gnu11",
                "-pthread",
                "-Wall",
                "-Wextra",
                "-Werror",
                "-o",
            ])
            .arg(folder.join("sockets"))
            .arg(source)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        Self(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Waits in a script until a program listens at port 7100.
const UNTIL_LISTENING: &str =
    "for i in $(seq 400); do if ss -Hltn | grep -q :7100; then break; fi; sleep 0.02; done";

/// Runs a script in a network namespace: `$tcp` runs the program on TCP, `$rsockets` with the library. Returns the
/// script's output and the library's report.
fn run(folder: &Folder, script: &str) -> (String, String) {
    // Cargo puts the library next to the test binaries.
    let library = std::env::current_exe()
        .unwrap()
        .with_file_name("librspreload.so");
    assert!(library.exists(), "{} is not built", library.display());
    let report = folder.0.join("report");
    let program = folder.0.join("sockets");
    let program = program.display();
    let script = format!(
        "ip link set lo up; tcp={program}; rsockets='env LD_PRELOAD={} {program}'; {script}",
        library.display()
    );
    let output = Command::new("unshare")
        .args(["--net", "sh", "-euc", &script])
        .env("PORTOLAN_PROVIDER", "software")
        .env("PORTOLAN_SOCKETS_CONFIG", "/dev/null")
        .env("PORTOLAN_SOCKETS_TIMEOUT_MS", "20000")
        .env("PORTOLAN_SOCKETS_REPORT", &report)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let erred = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{erred}");
    let report = std::fs::read_to_string(report).unwrap_or_default();
    (said, report)
}

#[test]
fn every_call_returns_on_rsockets_what_it_returns_on_tcp() {
    let folder = Folder::new("calls");
    let (on_tcp, report) = run(&folder, "$tcp all");
    assert_eq!(report, "");
    assert!(on_tcp.ends_with("done\n"), "{on_tcp}");
    let (on_rsockets, report) = run(&folder, "$rsockets all");
    assert_eq!(on_rsockets, on_tcp);
    // Only the connect to a port without listener falls back to TCP, which refuses it.
    assert!(report.contains("TCP 0 connected, 0 accepted"), "{report}");
}

#[test]
fn a_report_that_cannot_be_written_is_a_line_on_stderr() {
    let folder = Folder::new("unwritten");
    let place = "PORTOLAN_SOCKETS_REPORT=/nonexistent/report";
    let (said, report) = run(&folder, &format!("{place} $rsockets all 2>&1"));
    let line = "the file of PORTOLAN_SOCKETS_REPORT cannot be written (errno 2): the file's folder does not exist";
    assert!(said.contains(line), "{said}");
    assert_eq!(report, "");
}

/// Commands that give the network namespace a device with an address.
const WITH_VETH: &str = "ip link add veth0 type veth peer name veth1; ip addr add 10.7.0.1/24 dev veth0; \
                         ip link set veth0 up; ip link set veth1 up;";

/// Plays a case of a program on TCP, where it must print `on_tcp`, and on rsockets, where it must print the same. Returns the
/// report of the latter.
fn same_case(program: &str, case: &str, on_tcp: &str) -> String {
    let folder = Folder::with(&format!("{program}-{case}"), &format!("{program}.c"));
    let (said, _) = run(&folder, &format!("timeout 100 $tcp {case}"));
    assert_eq!(said, on_tcp);
    let (on_rsockets, report) = run(&folder, &format!("timeout 100 $rsockets {case}"));
    assert_eq!(on_rsockets, said, "{report}");
    report
}

/// Runs a program, which prints `done` at its end, on TCP and on rsockets. Its output must be the same. Returns the report of the
/// second run.
fn same_on_both(folder: &Folder, before: &str, argument: &str) -> String {
    let on = |way| run(folder, &format!("{before} timeout 200 {way} {argument}"));
    let (on_tcp, _) = on("$tcp");
    assert!(on_tcp.ends_with("done\n"), "{on_tcp}");
    let (on_rsockets, report) = on("$rsockets");
    assert_eq!(on_rsockets, on_tcp);
    report
}

/// Each process that had connections has reported, and none had TCP.
fn only_rsockets(report: &str) {
    assert!(!report.is_empty());
    for line in report.lines() {
        assert!(line.contains("TCP 0 connected, 0 accepted"), "{report}");
    }
}

#[test]
fn rare_uses_of_the_calls_return_on_rsockets_what_they_return_on_tcp() {
    let report = same_on_both(&Folder::with("edges", "edges.c"), "", "");
    only_rsockets(&report);
}

#[test]
fn numbers_of_streams_that_system_calls_close_are_those_of_the_next_files() {
    let report = same_on_both(&Folder::with("numbers", "numbers.c"), "", "");
    // The connect to a listener that is closed falls back to TCP, which refuses it.
    assert!(report.contains("TCP 0 connected"), "{report}");
}

#[test]
fn no_connect_that_begins_after_the_close_of_a_listener_succeeds() {
    same_on_both(&Folder::with("closing", "closing.c"), "", "");
}

#[test]
fn connections_and_processes_end_and_options_hold_as_on_tcp() {
    let report = same_on_both(&Folder::with("ends", "ends.c"), WITH_VETH, "");
    // The 40 clients with a file, the one that exits in poll, and the 40 that exit in a signal handler.
    let clients = report.matches("rsockets 1 connected").count();
    assert_eq!(clients, 81, "{report}");
    // A client that is bound to a device has TCP, whose connect does not end. One that TCP refuses does not count.
    let own = "rsockets 9 connected, 49 accepted, 4 handed over; TCP 1 connected, 0 accepted";
    assert!(report.contains(own), "{report}");
}

#[test]
fn stdio_and_calls_that_take_much_at_once_return_on_rsockets_what_they_return_on_tcp() {
    let report = same_on_both(&Folder::with("files", "files.c"), "", "");
    only_rsockets(&report);
}

#[test]
fn calls_that_go_on_while_a_program_starts_or_the_process_exits_return_what_they_return_on_tcp() {
    let report = same_on_both(&Folder::with("amid", "amid.c"), "", "");
    assert!(report.contains("rsockets 60 connected"), "{report}");
    // Both ends of each of these.
    assert!(report.contains("120 handed over"), "{report}");
}

#[test]
fn time_signals_and_other_threads_end_waiting_calls_as_on_tcp() {
    let report = same_on_both(&Folder::with("waits", "threads.c"), WITH_VETH, "waits");
    assert!(report.contains("rsockets 2 connected"), "{report}");
}

#[test]
fn a_fork_replaces_no_descriptor_that_another_thread_has_given_to_a_file() {
    let folder = Folder::with("forks", "threads.c");
    let (on_tcp, _) = run(&folder, "timeout 60 $tcp forks 20");
    let (on_rsockets, report) = run(&folder, "timeout 100 $rsockets forks 200");
    assert_eq!(on_rsockets, on_tcp);
    only_rsockets(&report);
}

#[test]
fn a_socket_that_enters_a_set_wakes_a_thread_that_waits_or_is_about_to() {
    let folder = Folder::with("sets", "threads.c");
    let (on_tcp, _) = run(&folder, "timeout 60 $tcp sets 1000");
    let (on_rsockets, report) = run(&folder, "timeout 100 $rsockets sets 100000");
    assert_eq!(on_rsockets, on_tcp);
    assert!(report.contains("rsockets 1 connected"), "{report}");
}

#[test]
fn what_waits_takes_no_processor_time_and_hears_what_it_waits_for() {
    let folder = Folder::with("idle", "idle.c");
    for (case, streams) in [
        ("relayed", 2),
        ("listener", 6),
        ("polled", 1),
        ("end", 1),
        ("polled-end", 3),
        ("file", 1),
    ] {
        let (on_tcp, _) = run(&folder, &format!("timeout 60 $tcp {case}"));
        assert!(on_tcp.ends_with("done\n"), "{on_tcp}");
        assert!(!on_tcp.contains("busy: 1"), "{on_tcp}");
        let (on_rsockets, report) = run(&folder, &format!("timeout 60 $rsockets {case}"));
        assert_eq!(on_rsockets, on_tcp, "{case}: {report}");
        let connected = format!("rsockets {streams} connected");
        assert!(report.contains(&connected), "{case}: {report}");
        std::fs::remove_file(folder.0.join("report")).unwrap();
    }
}

#[test]
fn a_program_on_tokio_has_rsockets() {
    let folder = Folder::new("tokio");
    let this = std::env::current_exe().unwrap();
    let library = this.with_file_name("librspreload.so");
    let process = format!(
        "timeout 60 {} --ignored --exact process_on_tokio --nocapture",
        this.display()
    );
    let expected = "20 clients have their bytes back";
    let (on_tcp, _) = run(&folder, &process);
    assert!(on_tcp.contains(expected), "{on_tcp}");
    let script = format!("export LD_PRELOAD={}; {process}", library.display());
    let (on_rsockets, report) = run(&folder, &script);
    assert!(on_rsockets.contains(expected), "{on_rsockets}");
    let own = "rsockets 20 connected, 20 accepted, 0 handed over; TCP 0 connected";
    assert!(report.contains(own), "{report}");
}

#[test]
#[ignore = "a process of another test"]
fn process_on_tokio() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    const BYTES: usize = 100_000;
    let serve = async |listener: TcpListener| {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let (mut from, mut to) = stream.split();
                tokio::io::copy(&mut from, &mut to).await.unwrap();
                to.shutdown().await.unwrap();
            });
        }
    };
    let call = async |number: usize| {
        let sent: Vec<_> = (0..BYTES)
            .map(|at| (at * 31 + at / 251 + number) as u8)
            .collect();
        let stream = TcpStream::connect("127.0.0.1:7100").await.unwrap();
        let (mut from, mut to) = stream.into_split();
        let data = sent.clone();
        let sender = tokio::spawn(async move {
            to.write_all(&data).await.unwrap();
            to.shutdown().await.unwrap();
        });
        let mut back = Vec::new();
        from.read_to_end(&mut back).await.unwrap();
        sender.await.unwrap();
        assert!(back == sent, "{number}");
    };
    let runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = { runtime }.worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:7100").await.unwrap();
        tokio::spawn(serve(listener));
        let clients: Vec<_> = (0..20).map(|number| tokio::spawn(call(number))).collect();
        let count = clients.len();
        for client in clients {
            client.await.unwrap();
        }
        println!("{count} clients have their bytes back");
    });
}

#[test]
fn two_processes_have_rsockets_and_a_peer_without_them_has_tcp() {
    let folder = Folder::new("peers");
    let both = |server: &str, client: &str| {
        // A client that finds neither listener and then TCP's, which has started meanwhile, would use TCP.
        let script =
            format!("${server} serve > /dev/null & {UNTIL_LISTENING}; ${client} call; wait $!");
        let (said, report) = run(&folder, &script);
        assert!(said.contains("the data are right"), "{said}");
        std::fs::remove_file(folder.0.join("report")).unwrap();
        report
    };
    let report = both("rsockets", "rsockets");
    assert!(report.contains("rsockets 1 connected"), "{report}");
    assert!(
        report.contains("1 accepted, 0 handed over; TCP 0"),
        "{report}"
    );
    let report = both("rsockets", "tcp");
    assert!(report.contains("TCP 0 connected, 1 accepted"), "{report}");
    let report = both("tcp", "rsockets");
    assert!(report.contains("rsockets 0 connected"), "{report}");
}

#[test]
fn a_server_has_rsockets_at_one_port_for_ipv4_and_for_ipv6_alone() {
    let folder = Folder::with("families", "families.c");
    let (on_tcp, _) = run(&folder, "timeout 60 $tcp");
    assert_eq!(on_tcp, "IPv4: 4\nIPv6: 6\ndone\n");
    let (on_rsockets, report) = run(&folder, "timeout 60 $rsockets");
    assert_eq!(on_rsockets, on_tcp);
    assert!(report.contains("rsockets 2 connected"), "{report}");
    assert!(
        report.contains("2 accepted, 0 handed over; TCP 0"),
        "{report}"
    );
}

#[test]
fn a_client_of_a_worker_of_another_user_has_tcp_without_a_wait() {
    let folder = Folder::with("users", "users.c");
    let (on_tcp, _) = run(&folder, "timeout 60 $tcp");
    assert_eq!(on_tcp, "most are quick\ndone\n");
    let (on_rsockets, report) = run(&folder, "timeout 60 $rsockets");
    assert_eq!(on_rsockets, on_tcp, "{report}");
    assert!(report.contains("TCP 5 connected"), "{report}");
}

#[test]
fn a_close_has_its_effect_after_a_vfork_and_after_an_exec_that_fails() {
    let folder = Folder::with("vfork", "vfork.c");
    let (on_tcp, _) = run(&folder, "timeout 60 $tcp");
    let expected = "read: 1\nend: 0\nconnect after the close: ECONNREFUSED\ndone\n";
    assert_eq!(on_tcp, expected);
    let (on_rsockets, report) = run(&folder, "timeout 60 $rsockets");
    assert_eq!(on_rsockets, on_tcp, "{report}");
    assert!(report.contains("rsockets 1 connected"), "{report}");
}

#[test]
fn a_child_that_is_spawned_with_a_listener_serves_its_clients() {
    let folder = Folder::with("spawn", "spawn.c");
    for way in ["", "vfork"] {
        let (on_tcp, _) = run(&folder, &format!("timeout 60 $tcp {way}"));
        assert!(
            on_tcp.ends_with("accept of the parent: 1\ndone\n"),
            "{on_tcp}"
        );
        let (on_rsockets, report) = run(&folder, &format!("timeout 60 $rsockets {way}"));
        assert_eq!(on_rsockets, on_tcp, "{report}");
        // The child's client, and then the parent's.
        let own = "rsockets 1 connected, 1 accepted, 0 handed over; TCP 1 connected";
        assert!(report.contains(own), "{report}");
        std::fs::remove_file(folder.0.join("report")).unwrap();
    }
}

#[test]
fn the_child_of_a_server_ends_when_its_client_is_killed() {
    let folder = Folder::new("killed");
    for kind in ["tcp", "rsockets"] {
        let script = format!(
            "timeout 60 ${kind} fork & {UNTIL_LISTENING}; sleep 1; for i in $(seq 100); do \
             if ${kind} die; then break; elif test $? -eq 137; then break; fi; sleep 0.1; done; wait $!"
        );
        let (said, report) = run(&folder, &script);
        assert!(said.contains("the child has ended"), "{kind}: {said}");
        if kind == "rsockets" {
            assert!(report.contains("1 handed over"), "{report}");
        }
    }
}

#[test]
fn a_program_or_port_that_the_settings_leave_out_stays_tcps() {
    let folder = Folder::new("settings");
    let rules = folder.0.join("rules");
    std::fs::write(&rules, "other * stream tcp\n").unwrap();
    let rules = format!("PORTOLAN_SOCKETS_CONFIG={}", rules.display());
    let by_tcp = "rsockets 0 connected, 0 accepted, 0 handed over; TCP ";
    // A program that the settings leave out has nothing to report.
    for (setting, of_client) in [
        (rules.as_str(), None),
        ("PORTOLAN_SOCKETS_PORTS=!7100", Some(by_tcp)),
    ] {
        let script =
            format!("export {setting}; $rsockets serve > /dev/null & $rsockets call; wait $!");
        let (said, report) = run(&folder, &script);
        assert!(said.contains("the data are right"), "{said}");
        assert_eq!(report.is_empty(), of_client.is_none(), "{report}");
        assert!(report.contains(of_client.unwrap_or_default()), "{report}");
        assert!(!report.contains("rsockets 1"), "{report}");
        let _ = std::fs::remove_file(folder.0.join("report"));
    }
}

#[test]
fn a_program_with_wrong_settings_says_so_once_and_runs() {
    let folder = Folder::new("wrong-settings");
    let script = "export PORTOLAN_SOCKETS_CONFIG=/missing PORTOLAN_SOCKETS_PORTS=7100,http; \
                  $rsockets serve > /dev/null 2>&1 & $rsockets call 2>&1; wait $!";
    let (said, _) = run(&folder, script);
    assert!(said.contains("the data are right"), "{said}");
    for wrong in [
        "cannot read /missing",
        "PORTOLAN_SOCKETS_PORTS: \"http\" is not",
    ] {
        assert_eq!(said.matches(wrong).count(), 1, "{said}");
    }
}

#[test]
fn a_connect_succeeds_while_the_program_does_not_look_at_it() {
    let folder = Folder::with("to-self", "confirm.c");
    for count in [1, 300] {
        let (on_tcp, _) = run(&folder, &format!("timeout 60 $tcp self {count}"));
        let all = format!("{count} of {count}");
        assert_eq!(on_tcp, format!("{all} connected\n{all} heard\ndone\n"));
        let (on_rsockets, report) = run(&folder, &format!("timeout 60 $rsockets self {count}"));
        assert_eq!(on_rsockets, on_tcp);
        let own = format!("rsockets {count} connected, {count} accepted");
        assert!(report.contains(&own), "{report}");
        std::fs::remove_file(folder.0.join("report")).unwrap();
    }
}

#[test]
fn clients_do_not_wait_for_a_busy_process_while_another_one_accepts_from_the_same_socket() {
    let folder = Folder::with("workers", "confirm.c");
    for (kind, way) in [
        ("tcp", "accept"),
        ("rsockets", "accept"),
        ("rsockets", "epoll"),
    ] {
        // Both workers accept after a moment.
        let script = format!(
            "timeout 60 ${kind} workers {way} > /dev/null & server=$!; {UNTIL_LISTENING}; sleep 1; \
             timeout 20 ${kind} hurry; kill $server"
        );
        let (said, report) = run(&folder, &script);
        let served = "20 of 20 were answered before the slow one\nthe slow one: 1\ndone\n";
        assert_eq!(said, served, "{kind}, {way}: {report}");
        if kind == "rsockets" {
            assert!(!report.contains("rsockets 0 connected"), "{report}");
        }
    }
}

#[test]
fn clients_that_never_confirm_do_not_delay_a_server_that_serves_one_after_the_other() {
    let folder = Folder::with("unconfirmed", "confirm.c");
    let this = std::env::current_exe().unwrap();
    let waiting = folder.0.join("clients-wait");
    // More than the server keeps, too.
    for count in [5, 300] {
        let script = format!(
            "export PORTOLAN_TEST_FOLDER={} PORTOLAN_TEST_COUNT={count}; \
             timeout 60 $rsockets serve > /dev/null & server=$!; {UNTIL_LISTENING}; \
             timeout 60 {} --ignored --exact process_whose_connects_stay_unconfirmed --nocapture > /dev/null & \
             clients=$!; for i in $(seq 1500); do \
             if test -e {}; then break; fi; sleep 0.02; done; \
             timeout 10 $rsockets call; kill $clients; wait $server",
            folder.0.display(),
            this.display(),
            waiting.display(),
        );
        let (said, report) = run(&folder, &script);
        assert!(waiting.exists(), "{count}: {said}");
        std::fs::remove_file(&waiting).unwrap();
        let called = "write: 4\nread: 4\nlast\ndone\n";
        assert!(said.contains(called), "{count}: {said}");
        let served = "rsockets 0 connected, 1 accepted";
        assert!(report.contains(served), "{count}: {report}");
        std::fs::remove_file(folder.0.join("report")).unwrap();
    }
}

#[test]
#[ignore = "a process of another test"]
fn process_whose_connects_stay_unconfirmed() {
    let wait = Duration::from_secs(20);
    let channel = EventChannel::open_on(software_provider().unwrap()).unwrap();
    let memory = Sge {
        addr: 0x1000,
        key: 1,
        length: 16,
    };
    let offer = ConnData {
        big_endian: false,
        credits: 16,
        iomaps: None,
        table: memory,
        buffer: memory,
    };
    let count: u32 = std::env::var("PORTOLAN_TEST_COUNT")
        .unwrap()
        .parse()
        .unwrap();
    let connected = (0..count).map(|n| {
        let id = CmId::new(&channel).unwrap();
        let next = |expected| {
            // The server may reject earlier ones meanwhile.
            let event = loop {
                let event = channel.next_event_within(wait).unwrap();
                if event.id().number() == id.number() {
                    break event;
                }
            };
            assert_eq!(event.event_type(), expected, "{event:?}");
        };
        id.resolve_addr(None, "127.0.0.1:7100".parse().unwrap(), wait)
            .unwrap();
        next(EventType::AddrResolved);
        id.resolve_route(wait).unwrap();
        next(EventType::RouteResolved);
        id.connect(&ConnParam {
            private_data: offer.encode().into(),
            qp_num: Qpn::new(0x50_0000 + n),
            ..ConnParam::default()
        })
        .unwrap();
        // The server's thread has accepted, and no RTU follows.
        next(EventType::ConnectResponse);
        id
    });
    let ids: Vec<CmId> = connected.collect();
    let folder = std::env::var("PORTOLAN_TEST_FOLDER").unwrap();
    std::fs::write(Path::new(&folder).join("clients-wait"), "").unwrap();
    std::thread::sleep(wait);
    drop(ids);
}
