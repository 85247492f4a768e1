//! Look-ups through the socket of a real ibacm that queries OpenSM: while it runs, hangs, sends
//! nonsense, or is gone.

use std::io::{Read, Write};
use std::net::Ipv6Addr;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use portolan_lab::fabric::{Example, Fabric, Ibacm};
use portolan_wire::sa::PathRecord;

use super::harness::path_by_saquery_at;

const LOOKUPS: &str = env!("CARGO_BIN_EXE_fabric_addresses");
/// Number of look-ups in one process.
const COUNT: u128 = 20;
/// The library's deadline for a query to ibacm.
const QUESTION_DEADLINE_MS: u128 = 400;
/// The host where ibacm is queried.
const HOST: &str = "Hca2";
const TO: &str = "Hca4";

fn gid(fabric: &Fabric, host: &str) -> Ipv6Addr {
    Ipv6Addr::from(fabric.topology().gid(host).unwrap())
}

/// Looks up the path to a host `count` times; all results must be equal. Returns the path and the
/// total time in milliseconds.
fn looked_up(fabric: &Fabric, run: &Path, to: &str, count: u128) -> (Option<PathRecord>, u128) {
    let node = gid(fabric, to).to_string();
    let mut command = fabric.at_with_run(HOST, run, LOOKUPS);
    let output = command.args(["repeat", &count.to_string(), &node]).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{output:?}");
    let told = String::from_utf8(output.stdout).unwrap();
    let (result, took_ms) = told.trim().rsplit_once('\n').expect("two lines");
    // Destination, P_Key, service id, source, and a path if there is one.
    let path = result.split_whitespace().nth(4).map(record);
    (path, took_ms.parse().unwrap())
}

/// Parses a path in hexadecimal.
fn record(text: &str) -> PathRecord {
    let byte = |at: usize| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap();
    let bytes: Vec<u8> = (0..PathRecord::LEN).map(byte).collect();
    PathRecord::parse(&bytes).unwrap()
}

/// Clears the number of paths, which two clients may ask for differently.
fn without_number_of_paths(path: PathRecord) -> PathRecord {
    PathRecord {
        numb_path: 0,
        ..path
    }
}

fn by_saquery(fabric: &Fabric, to: &str) -> PathRecord {
    path_by_saquery_at(fabric, HOST, HOST, to).expect("a path")
}

#[test]
fn the_answer_through_ibacms_socket_is_the_administrators_and_is_known_when_that_is_gone() {
    let Some(mut fabric) = crate::example(Example::TwoSwitchesFourHosts) else {
        return;
    };
    let ibacm = Ibacm::start(&fabric, HOST).unwrap();
    let hosts: Vec<String> = fabric.topology().hosts().map(str::to_owned).collect();
    let others: Vec<&String> = hosts.iter().filter(|host| *host != HOST).collect();
    let mut expected = Vec::new();
    for to in &others {
        let (path, _) = looked_up(&fabric, ibacm.run(), to, 1);
        let path = without_number_of_paths(path.expect("a path"));
        assert_eq!(
            path,
            without_number_of_paths(by_saquery(&fabric, to)),
            "{to}"
        );
        expected.push(path);
    }
    let asked = ibacm.log().matches("acm_svr_resolve_path: path").count();
    assert_eq!(asked, others.len(), "{}", ibacm.log());
    // Only ibacm can know the paths from here on.
    fabric.stop_manager();
    for (to, expected) in others.iter().zip(expected) {
        let (path, _) = looked_up(&fabric, ibacm.run(), to, 1);
        let path = path.map(without_number_of_paths);
        assert_eq!(path, Some(expected), "{to}: {}", ibacm.log());
    }
}

#[test]
fn an_ibacm_that_is_gone_hangs_or_talks_nonsense_costs_one_deadline_and_the_path_is_right() {
    let Some(fabric) = crate::example(Example::TwoSwitchesFourHosts) else {
        return;
    };
    let expected = by_saquery(&fabric, TO);
    let is_right = |run: &Path| {
        let (path, took_ms) = looked_up(&fabric, run, TO, COUNT);
        let path = path.map(without_number_of_paths);
        assert_eq!(
            path,
            Some(without_number_of_paths(expected)),
            "{}",
            run.display()
        );
        took_ms
    };
    let empty = fabric.folder().join("empty");
    std::fs::create_dir_all(&empty).unwrap();
    is_right(&empty);

    let ibacm = Ibacm::start(&fabric, HOST).unwrap();
    ibacm.hang().unwrap();
    let took_ms = is_right(ibacm.run());
    assert!(
        took_ms >= QUESTION_DEADLINE_MS,
        "the look-up did not wait for ibacm: {took_ms} ms"
    );
    drop(ibacm);

    let nonsense: &[u8] = b"HTTP/1.1 400 Bad Request\r\n\r\n";
    for (name, says) in [("silent", None), ("nonsense", Some(nonsense))] {
        let run = fabric.folder().join(name);
        std::fs::create_dir_all(&run).unwrap();
        let asked = pretend(&run, says);
        is_right(&run);
        // On a machine of any speed, only the first look-up waits for the deadline.
        assert_eq!(
            asked.load(Ordering::Relaxed),
            1,
            "{name}: only the first look-up may ask it"
        );
    }
}

/// Pretends to be ibacm: answers `says` to every client, or nothing. Returns the number of clients.
fn pretend(run: &Path, says: Option<&'static [u8]>) -> Arc<AtomicUsize> {
    let listener = UnixListener::bind(run.join("ibacm.sock")).unwrap();
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    // The thread ends with the test process.
    std::thread::spawn(move || {
        let mut waiting = Vec::new();
        while let Ok((mut stream, _)) = listener.accept() {
            count.fetch_add(1, Ordering::Relaxed);
            // The client may disconnect at any time.
            let _ = stream.read(&mut [0; 1024]);
            match says {
                Some(bytes) => {
                    let _ = stream.write_all(bytes);
                }
                None => waiting.push(stream),
            }
        }
    });
    asked
}
