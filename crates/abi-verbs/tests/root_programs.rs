//! Debian's programs, unmodified, on the software device: two processes each, on loopback. Packages ibverbs-utils and
//! perftest.

use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What one end may take: both spin, and the machine may have other things to do.
const LIMIT: Duration = Duration::from_secs(240);
const PAUSE: Duration = Duration::from_millis(20);
/// The device of the loopback interface, and its GID of 127.0.0.1.
const DEVICE: [&str; 2] = ["-d", "sw_lo"];

/// One pair at a time: both ends spin.
static TURN: Mutex<()> = Mutex::new(());

/// A folder with our library under the name that programs look for; gone when dropped.
struct Library(PathBuf);

impl Library {
    fn new(name: &str) -> Self {
        let folder = format!("portolan-verbs-programs-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        std::fs::create_dir_all(&folder).unwrap();
        let test = std::env::current_exe().unwrap();
        let made = test.parent().unwrap().join("libibverbs.so");
        std::os::unix::fs::symlink(made, folder.join("libibverbs.so.1")).unwrap();
        Self(folder)
    }

    fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let before = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env("LD_LIBRARY_PATH", format!("{}:{before}", self.0.display()))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// What a program prints that ends well.
    fn run(&self, program: &str, arguments: &[&str]) -> String {
        let end = End::start(self.command(program, arguments));
        end.finish(&format!("{program} {arguments:?}"))
    }

    /// What both ends of a program print that end well.
    fn pair(&self, program: &str, port: u16, arguments: &[&str]) -> [String; 2] {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let port_text = port.to_string();
        let mut all = [&DEVICE[..], &["-p", &port_text], arguments].concat();
        let name = format!("{program} {all:?}");
        let mut server = End::start(self.command(program, &all));
        server.wait_for_listener(port, &name);
        all.push("127.0.0.1");
        let client = End::start(self.command(program, &all));
        let client = client.finish(&format!("client {name}"));
        [server.finish(&format!("server {name}")), client]
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A process, which does not outlive its test.
struct End(Child);

impl End {
    fn start(mut command: Command) -> Self {
        let started = command.spawn();
        Self(started.unwrap_or_else(|error| panic!("{command:?}: {error}")))
    }

    /// Waits until something listens at a TCP port: the ends tell each other of themselves by it.
    fn wait_for_listener(&mut self, port: u16, name: &str) {
        let begun = Instant::now();
        while !is_listened(port) {
            let ended = self.0.try_wait().unwrap();
            assert!(ended.is_none(), "{name} ended: {ended:?} {}", self.said());
            assert!(begun.elapsed() < LIMIT, "{name} does not listen");
            std::thread::sleep(PAUSE);
        }
    }

    fn finish(mut self, name: &str) -> String {
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                break status;
            }
            assert!(begun.elapsed() < LIMIT, "{name} does not end");
            std::thread::sleep(PAUSE);
        };
        let said = self.said();
        assert!(status.success(), "{name}: {status}\n{said}");
        said
    }

    /// All it printed; it prints less than a pipe holds.
    fn said(&mut self) -> String {
        let mut said = String::new();
        if let Some(stdout) = &mut self.0.stdout {
            stdout.read_to_string(&mut said).unwrap();
        }
        if let Some(stderr) = &mut self.0.stderr {
            stderr.read_to_string(&mut said).unwrap();
        }
        said
    }
}

impl Drop for End {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether the kernel's tables have a listener at a port (proc(5): state 0A).
fn is_listened(port: u16) -> bool {
    let ends = format!(":{port:04X}");
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|table| {
        let table = std::fs::read_to_string(table).unwrap_or_default();
        table.lines().any(|line| {
            let mut words = line.split_whitespace().skip(1);
            let local = words.next().unwrap_or_default();
            local.ends_with(&ends) && words.nth(1) == Some("0A")
        })
    })
}

#[test]
fn the_device_of_loopback_is_listed_and_described_as_rdma_rxe_would_be() {
    let library = Library::new("info");
    let listed = library.run("ibv_devices", &[]);
    assert!(listed.contains("sw_lo"), "{listed}");
    let described = library.run("ibv_devinfo", &["-v", "-d", "sw_lo"]);
    for expected in [
        "transport:\t\t\tInfiniBand (0)",
        "device_cap_flags:\t\t0x01223c76",
        "state:\t\t\tPORT_ACTIVE (4)",
        "link_layer:\t\tEthernet",
        "GID[  0]:\t\t::ffff:127.0.0.1, RoCE v2",
    ] {
        assert!(described.contains(expected), "{expected}: {described}");
    }
}

#[test]
fn the_pingpong_programs_exchange_validated_messages_by_polling_and_by_events() {
    let library = Library::new("pingpong");
    let validated = ["-g", "0", "-n", "100", "-c"];
    for (port, program, more) in [
        (21_001, "ibv_rc_pingpong", &[][..]),
        (21_002, "ibv_rc_pingpong", &["-e"]),
        // Requests built by calls, and completions of an extended queue.
        (21_003, "ibv_rc_pingpong", &["-N"]),
        (21_004, "ibv_uc_pingpong", &[]),
        (21_005, "ibv_uc_pingpong", &["-e"]),
        (21_006, "ibv_ud_pingpong", &[]),
        (21_007, "ibv_ud_pingpong", &["-e"]),
        (21_008, "ibv_srq_pingpong", &[]),
        (21_009, "ibv_srq_pingpong", &["-e"]),
    ] {
        for said in library.pair(program, port, &[&validated, more].concat()) {
            assert!(said.contains("100 iters in"), "{program}: {said}");
            assert!(!said.contains("invalid data"), "{program}: {said}");
        }
    }
}

#[test]
fn perftest_measures_sends_writes_reads_and_atomics_beside_the_drivers_that_it_loads() {
    let library = Library::new("perftest");
    for (port, program, more) in [
        (21_101, "ib_send_lat", &[][..]),
        (21_102, "ib_send_lat", &["-e"]),
        (21_103, "ib_send_lat", &["-c", "UC"]),
        (21_104, "ib_send_bw", &["-c", "UD", "-s", "1024"]),
        (21_105, "ib_write_lat", &["-I", "128"]),
        (21_106, "ib_write_bw", &["-q", "2"]),
        (21_107, "ib_read_lat", &[]),
        (21_108, "ib_read_bw", &[]),
        (21_109, "ib_atomic_lat", &["-A", "FETCH_AND_ADD"]),
        (21_110, "ib_atomic_bw", &["-A", "CMP_AND_SWAP"]),
    ] {
        let few = ["-x", "0", "-n", "20", "-F"];
        let [_, client] = library.pair(program, port, &[&few, more].concat());
        assert!(client.contains("#bytes"), "{program}: {client}");
    }
}
