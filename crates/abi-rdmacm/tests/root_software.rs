//! C programs that make every call, with both of our libraries, over a software device in the test's own
//! network namespace.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The beginning of each script: an interface for the device, and a function that waits.
const BEGINNING: &str = r#"
set -u
ip link set lo up
ip link add veth0 type veth peer name veth1
ip addr add 10.7.0.1/24 dev veth0
ip link set veth0 up
ip link set veth1 up
# A link that is not up yet is a port that is not active yet.
until ip link show veth0 | grep -q 'state UP'; do sleep 0.05; done
here=10.7.0.1

fail() {
    echo "$1"
    exit 1
}
"#;

/// Runs a script in its own network namespace, with both of our libraries before Debian's.
fn run_in(folder: &Folder, name: &str, script: &str) {
    let here = std::env::current_exe().unwrap();
    for (library, soname) in [
        ("librdmacm.so", "librdmacm.so.1"),
        ("libibverbs.so", "libibverbs.so.1"),
    ] {
        // Cargo puts them beside the tests.
        let built = here.with_file_name(library);
        assert!(built.exists(), "{} is not built", built.display());
        std::os::unix::fs::symlink(built, folder.0.join(soname)).unwrap();
    }
    let output = Command::new("unshare")
        .args(["--net", "sh", "-c", &format!("{BEGINNING}\n{script}")])
        .env("LD_LIBRARY_PATH", &folder.0)
        .env("folder", &folder.0)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let erred = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {said}{erred}");
}

/// A folder that is removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let name = format!("portolan-software-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir(&folder).unwrap();
        Self(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(Path::new(&self.0));
    }
}

/// Builds one of our C programs against our headers and libraries.
fn build(folder: &Folder, source: &str) -> PathBuf {
    build_with(folder, source, &["librdmacm.so", "libibverbs.so"])
}

/// Builds one of our C programs against our headers and these libraries.
fn build_with(folder: &Folder, source: &str, libraries: &[&str]) -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = folder.0.join("program");
    let here = std::env::current_exe().unwrap();
    let libraries = libraries.iter().map(|library| here.with_file_name(library));
    let output = Command::new("cc")
        .args([
            "-std=gnu11",
            "-pthread",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-I",
        ])
        .arg(package.join("../../include"))
        .arg("-o")
        .arg(&program)
        .arg(package.join("tests/c").join(source))
        .args(libraries)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{source}: {said}");
    program
}

#[test]
fn the_calls_of_rdmacm_1_4_and_ibv_gid_reachable_work_as_documented() {
    let folder = Folder::new("newer");
    build(&folder, "newer.c");
    let expected = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/newer.txt");
    let script = format!(
        "timeout 120 $folder/program $here 192.0.2.1 > $folder/said || fail \"ended with $?\"
         diff -U 3 {expected} $folder/said"
    );
    run_in(&folder, "newer", &script);
}

#[test]
fn the_socket_calls_do_what_rsocket_and_their_pages_say() {
    let folder = Folder::new("rsockets");
    build(&folder, "rsockets.c");
    let script = "timeout 120 $folder/program $here 2>&1 || fail \"ended with $?\"";
    run_in(&folder, "rsockets", script);
}

#[test]
fn a_program_that_has_no_descriptor_left_for_libibverbs_loads_it_later() {
    let folder = Folder::new("limits");
    build_with(&folder, "limits.c", &["librdmacm.so"]);
    let script = "for limit in soft hard; do
                      timeout 120 $folder/program $limit 2>&1 || fail \"$limit ended with $?\"
                  done";
    run_in(&folder, "limits", script);
}

mod against_the_clock {
    use super::*;

    #[test]
    fn a_killed_end_ends_the_socket_calls_of_the_other_in_errors_within_a_second() {
        let folder = Folder::new("killed");
        build(&folder, "killed.c");
        let script = "timeout 120 $folder/program $here 2>&1 || fail \"ended with $?\"";
        run_in(&folder, "killed", script);
    }
}

#[test]
fn datagram_sockets_do_what_rsocket_and_the_pages_of_the_calls_say() {
    let folder = Folder::new("datagrams");
    build(&folder, "datagrams.c");
    let script = "timeout 120 $folder/program $here 2>&1 || fail \"ended with $?\"";
    run_in(&folder, "datagrams", script);
}

#[test]
fn rdma_getaddrinfo_returns_lists_that_c_walks_and_frees_or_an_error() {
    let folder = Folder::new("lists");
    build(&folder, "lists.c");
    let expected = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/lists.txt");
    let script = format!(
        "timeout 120 $folder/program $here > $folder/said || fail \"ended with $?\"
         diff -U 3 {expected} $folder/said"
    );
    run_in(&folder, "lists", &script);
}

#[test]
fn memory_that_the_program_made_or_replaced_is_freed_with_free() {
    let folder = Folder::new("freed");
    build(&folder, "freed.c");
    let script = "timeout 240 valgrind --quiet --fair-sched=try --leak-check=full --show-leak-kinds=definite,indirect \\
                  --errors-for-leak-kinds=definite,indirect --error-exitcode=9 \\
                  $folder/program $here 2>&1 || fail \"ended with $?\"";
    run_in(&folder, "freed", script);
}

#[test]
fn an_rsocket_listener_skips_requests_whose_clients_are_killed_before_they_are_accepted() {
    let folder = Folder::new("gone");
    build(&folder, "gone.c");
    let script = "timeout 120 $folder/program $here 2>&1 || fail \"ended with $?\"";
    run_in(&folder, "gone", script);
}

#[test]
fn waiting_calls_are_interrupted_and_cancelled_like_read_and_bad_ids_are_refused() {
    let folder = Folder::new("waits");
    build(&folder, "waits.c");
    // No host has the second address.
    let script = "timeout 120 $folder/program $here 10.7.0.99 2>&1 || fail \"ended with $?\"";
    run_in(&folder, "waits", script);
}

#[test]
fn ids_that_move_to_a_channel_where_threads_wait_lose_no_event() {
    let folder = Folder::new("moves");
    build(&folder, "moves.c");
    let script = "timeout 120 $folder/program $here 2>&1 || fail \"ended with $?\"";
    run_in(&folder, "moves", script);
}

#[test]
fn a_request_is_delivered_before_the_program_asks_for_the_next_event() {
    let folder = Folder::new("at-once");
    build(&folder, "requests.c");
    let script = "timeout 120 $folder/program $here at-once 2>&1 || fail \"ended with $?\"";
    run_in(&folder, "at-once", script);
}

#[test]
fn the_environment_can_hold_a_request_until_the_program_asks_for_the_next_event() {
    let folder = Folder::new("held");
    build(&folder, "requests.c");
    let script = "PORTOLAN_HOLD_REQUESTS_MS=20000 timeout 120 $folder/program $here held 2>&1 \
                  || fail \"ended with $?\"";
    run_in(&folder, "held", script);
}

/// The differences that docs/compatibility.md lists in the table with this header.
fn listed_differences(header: &str) -> BTreeSet<(String, String)> {
    let text = include_str!("../../../docs/compatibility.md");
    let table = text.split(&format!("{header}\n")).nth(1);
    let rows = table.unwrap().lines().skip(1);
    let rows = rows.take_while(|line| line.starts_with("| "));
    let cell = |cell: &str| {
        let text = cell.trim().trim_matches('`');
        text.replace("\\|", "|")
    };
    let pairs = rows.map(|row| {
        let mut cells = row.split(" | ");
        let theirs = cells.next().unwrap().trim_start_matches("| ");
        (cell(theirs), cell(cells.next().unwrap()))
    });
    pairs.collect()
}

/// Output of calls.c with Debian's librdmacm over rdma_rxe on Linux 6.1.
const CALLS: &str = include_str!("c/calls.txt");

#[test]
fn every_call_gives_the_same_as_debians_over_rdma_rxe_except_listed_differences() {
    let folder = Folder::new("calls");
    build(&folder, "calls.c");
    let script = "timeout 120 $folder/program $here > $folder/said || fail \"ended with $?\"
                  tail -n 1 $folder/said | grep -x '== end' || fail \"$(cat $folder/said)\"";
    run_in(&folder, "calls", script);
    let said = std::fs::read_to_string(folder.0.join("said")).unwrap();
    let said = said.replace("device sw_veth0", "device rxe0");
    assert_eq!(said.lines().count(), CALLS.lines().count(), "{said}");
    let pairs = CALLS.lines().zip(said.lines());
    let differ = pairs.filter(|(theirs, ours)| theirs != ours);
    let found: BTreeSet<_> = differ
        .map(|(theirs, ours)| (theirs.trim().to_owned(), ours.trim().to_owned()))
        .collect();
    assert_eq!(
        found,
        listed_differences("| on rdma_rxe | on the software device | reason |")
    );
}

/// Output of errnos.c with Debian's librdmacm over rdma_rxe, the same on Linux 6.1 and 7.
const ERRNOS: &str = include_str!("c/errnos.txt");

#[test]
fn wrong_socket_calls_give_the_errno_of_debians_except_listed_differences() {
    let folder = Folder::new("errnos");
    build(&folder, "errnos.c");
    let script =
        "timeout 120 $folder/program $here > $folder/said < /dev/null || fail \"ended with $?\"
                  tail -n 1 $folder/said | grep -x '== end' || fail \"$(cat $folder/said)\"";
    run_in(&folder, "errnos", script);
    let said = std::fs::read_to_string(folder.0.join("said")).unwrap();
    assert_eq!(said.lines().count(), ERRNOS.lines().count(), "{said}");
    let pairs = ERRNOS.lines().zip(said.lines());
    // Each line begins with the state of the socket.
    let call = |line: &str| line.split_once(": ").unwrap_or(("", line)).1.to_owned();
    let found: BTreeSet<_> = pairs
        .filter(|(theirs, ours)| theirs != ours)
        .map(|(theirs, ours)| (call(theirs), call(ours)))
        .collect();
    assert_eq!(
        found,
        listed_differences("| librdmacm's socket call | ours | reason |")
    );
}

/// Output of af_ib.c with Debian's librdmacm over rdma_rxe on Linux 6.1.
const AF_IB: &str = include_str!("c/af_ib.txt");

/// The lines of each look-up, by its first line without the result: "found" or "refused", and what it found.
fn look_ups(text: &str) -> BTreeMap<String, Vec<String>> {
    let mut look_ups = BTreeMap::new();
    let mut name = String::new();
    for line in text.lines() {
        if let Some((question, result)) =
            line.rsplit_once(": ").filter(|_| line.starts_with("name"))
        {
            question.clone_into(&mut name);
            look_ups.insert(name.clone(), vec![result.to_owned()]);
        } else if line.starts_with("  ") {
            if let Some(lines) = look_ups.get_mut(&name) {
                lines.push(line.trim().to_owned());
            }
        } else {
            name.clear();
        }
    }
    look_ups
}

#[test]
fn names_lead_to_the_af_ib_addresses_of_debians_and_ids_refuse_them_on_software_devices() {
    let folder = Folder::new("af-ib");
    build(&folder, "af_ib.c");
    let script = "timeout 120 $folder/program $here > $folder/said || fail \"ended with $?\"
                  tail -n 1 $folder/said | grep -x '== end' || fail \"$(cat $folder/said)\"";
    run_in(&folder, "af-ib", script);
    let said = std::fs::read_to_string(folder.0.join("said")).unwrap();
    let (theirs, ours) = (look_ups(AF_IB), look_ups(&said));
    let names = |look_ups: &BTreeMap<String, _>| look_ups.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&theirs), names(&ours));
    let mut refused = Vec::new();
    for (name, found) in &ours {
        // We return the source, as the manual page says.
        let is_compared = |line: &&String| !line.starts_with("source: ");
        let compared = |lines: &[String]| {
            lines
                .iter()
                .filter(is_compared)
                .cloned()
                .collect::<Vec<_>>()
        };
        match found[0] == "refused" && theirs[name][0] == "found" {
            true => refused.push(name.as_str()),
            false => assert_eq!(compared(found), compared(&theirs[name]), "{name}"),
        }
    }
    // librdmacm copies the IPv4 address as if it were a GID.
    let no_gid = "name 10.7.0.1 7471 flags 0xa family 27 type 2 space 0x106";
    assert_eq!(refused, [no_gid]);
    let calls: Vec<_> = said
        .lines()
        .filter(|line| line.starts_with("  rdma_"))
        .collect();
    assert_eq!(calls.len(), 10, "{said}");
    for call in calls {
        assert!(call.ends_with("= -1, EAFNOSUPPORT"), "{call}");
    }
}
