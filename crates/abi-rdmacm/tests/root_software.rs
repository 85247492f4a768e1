//! C programs on both of our libraries, over software devices: Debian's (package rdmacm-utils), two processes in a
//! network namespace of the test's own, and those that make every call.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What each script begins with: an interface to have a device on, and how to wait.
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

# serve COMMAND…: the server
serve() {
    "$@" > "$folder/server" 2>&1 &
    server=$!
}

# call COMMAND…: the client, until there is a server to answer it
call() {
    tries=0
    until timeout 60 "$@" > "$folder/client" 2>&1 || hasty client $?; do
        tries=$((tries + 1))
        kill -0 "$server" 2> "$folder/null" && [ $tries -lt 200 ] || fail "the client does not succeed"
        sleep 0.1
    done
}

# The server ends by itself, and well
server_ends() {
    tries=0
    while kill -0 "$server" 2> "$folder/null"; do
        tries=$((tries + 1))
        [ $tries -lt 600 ] || fail "the server does not end"
        sleep 0.1
    done
    wait "$server" || hasty server $? || fail "the server failed"
}

# hasty WHO STATUS: at its very end rping destroys its event channel, though its other thread may be about to wait on
# it, and then ends the process with 255
hasty() {
    [ "$2" -eq 255 ] && grep -q 'rdma_get_cm_event: Bad file descriptor' "$folder/$1"
}

# says WHO PATTERN
says() {
    grep -q "$2" "$folder/$1" || fail "$1 does not say $2"
}

fail() {
    echo "$1; the server, then the client:"
    cat "$folder/server" "$folder/client"
    kill "$server"
    exit 1
}
"#;

/// Runs a script in a network namespace of its own, with both libraries before Debian's.
fn run(name: &str, script: &str) {
    run_in(&Folder::new(name), name, script);
}

fn run_in(folder: &Folder, name: &str, script: &str) {
    let here = std::env::current_exe().unwrap();
    for (library, soname) in [
        ("librdmacm.so", "librdmacm.so.1"),
        ("libibverbs.so", "libibverbs.so.1"),
    ] {
        // Cargo leaves them beside the tests.
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

/// A folder of its own, gone when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let name = format!("portolan-software-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(Path::new(&self.0));
    }
}

#[test]
fn rping_finds_its_data_as_it_was_sent() {
    run(
        "rping",
        "serve rping -s -a $here -v -V -C 30 -S 1000
         call rping -c -a $here -v -V -C 30 -S 1000
         server_ends
         test $(grep -c '^ping data: rdma-ping-' $folder/client) = 30 || fail 'not 30 pings'
         says server '^server ping data: rdma-ping-29'",
    );
}

#[test]
fn ucmatose_sends_and_receives_over_many_connections() {
    run(
        "ucmatose",
        "serve ucmatose -b $here -C 10 -S 500
         call ucmatose -s $here -C 10 -S 500
         server_ends
         says client 'return status 0'
         says server 'return status 0'",
    );
}

#[test]
fn udaddy_exchanges_datagrams() {
    run(
        "udaddy",
        "serve udaddy -b $here
         call udaddy -s $here
         server_ends
         says client 'return status 0'
         says server 'return status 0'",
    );
}

#[test]
fn mckey_receives_what_is_sent_to_its_group() {
    run(
        "mckey",
        "serve mckey -m 239.1.2.3 -b $here
         tries=0
         until grep -q 030201EF /proc/net/igmp; do
             tries=$((tries + 1))
             [ $tries -lt 600 ] || fail 'the group is not joined'
             sleep 0.1
         done
         call mckey -m 239.1.2.3 -s -b $here
         server_ends
         says server 'data transfers complete'
         says server 'return status 0'",
    );
}

#[test]
fn cmtime_makes_and_ends_connections() {
    run(
        "cmtime",
        "serve cmtime -b $here -c 20
         call cmtime -s $here -c 20
         says client '^connect  *:'
         # It serves for ever.
         kill $server",
    );
}

#[test]
fn rdma_client_and_rdma_server_meet_by_synchronous_endpoints() {
    run(
        "endpoints",
        "serve rdma_server
         call rdma_client -s $here
         server_ends
         says client '^rdma_client: end 0'
         says server '^rdma_server: end 0'",
    );
}

#[test]
fn a_port_without_listener_rejects() {
    run(
        "rejected",
        ": > $folder/server
         server=$$
         timeout 60 rping -c -a $here -p 9999 -C 1 > $folder/client 2>&1 && fail 'it was served'
         says client 'cma event RDMA_CM_EVENT_REJECTED, error 8$'",
    );
}

/// Builds a C program of ours against our headers and our libraries.
fn build(folder: &Folder, source: &str) -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = folder.0.join("program");
    let libraries = std::env::current_exe().unwrap();
    let output = Command::new("cc")
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-I"])
        .arg(package.join("../../include"))
        .arg("-o")
        .arg(&program)
        .arg(package.join("tests/c").join(source))
        .arg(libraries.with_file_name("librdmacm.so"))
        .arg(libraries.with_file_name("libibverbs.so"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{source}: {said}");
    program
}

#[test]
fn the_calls_of_rdmacm_1_4_and_ibv_gid_reachable_give_what_their_pages_say() {
    let folder = Folder::new("newer");
    build(&folder, "newer.c");
    let expected = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/newer.txt");
    let script = format!(
        "timeout 120 $folder/program $here 192.0.2.1 > $folder/said; echo \"ended with $?\"
         diff -U 3 {expected} $folder/said"
    );
    run_in(&folder, "newer", &script);
}

/// The lines of [`CALLS`] that differ on software devices, as the table of docs/compatibility.md has them.
fn listed_differences() -> BTreeSet<(String, String)> {
    let text = include_str!("../../../docs/compatibility.md");
    let table = text
        .split("| on rdma_rxe | on the software device | reason |\n")
        .nth(1);
    let rows = table.unwrap().lines().skip(1);
    let rows = rows.take_while(|line| line.starts_with("| "));
    let cell = |cell: &str| cell.trim().trim_matches('`').to_owned();
    let pairs = rows.map(|row| {
        let mut cells = row.split('|').skip(1);
        let (theirs, ours) = (cells.next().unwrap(), cells.next().unwrap());
        (cell(theirs), cell(ours))
    });
    pairs.collect()
}

/// What calls.c prints on Debian's librdmacm over rdma_rxe, Linux 6.1.
const CALLS: &str = include_str!("c/calls.txt");

#[test]
fn every_call_gives_what_it_gives_on_debians_over_rdma_rxe_but_for_what_is_listed() {
    let folder = Folder::new("calls");
    build(&folder, "calls.c");
    let script = "timeout 120 $folder/program $here > $folder/said; echo \"ended with $?\"
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
    assert_eq!(found, listed_differences());
}
