//! A real ibacm that asks OpenSM, and our look-ups through its socket: while it runs, hangs, talks nonsense, and is gone.

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
/// Look-ups of one process.
const COUNT: u128 = 20;
/// How long a question to ibacm may take, as the library has it.
const QUESTION_DEADLINE_MS: u128 = 400;
/// Where ibacm is asked.
const HOST: &str = "Hca2";
const TO: &str = "Hca4";

fn gid(fabric: &Fabric, host: &str) -> Ipv6Addr {
    Ipv6Addr::from(fabric.topology().gid(host).unwrap())
}

/// The path to a host that so many look-ups find, all the same, and how long they took together, in milliseconds.
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

/// A path in hexadecimal.
fn record(text: &str) -> PathRecord {
    let byte = |at: usize| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap();
    let bytes: Vec<u8> = (0..PathRecord::LEN).map(byte).collect();
    PathRecord::parse(&bytes).unwrap()
}

/// What two administrators' clients may ask differently: of how many paths one is the answer.
fn but_for_the_number(path: PathRecord) -> PathRecord {
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
        let path = but_for_the_number(path.expect("a path"));
        assert_eq!(path, but_for_the_number(by_saquery(&fabric, to)), "{to}");
        expected.push(path);
    }
    let asked = ibacm.log().matches("acm_svr_resolve_path: path").count();
    assert_eq!(asked, others.len(), "{}", ibacm.log());
    // Nobody but ibacm can know them now.
    fabric.stop_manager();
    for (to, expected) in others.iter().zip(expected) {
        let (path, _) = looked_up(&fabric, ibacm.run(), to, 1);
        let path = path.map(but_for_the_number);
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
        let path = path.map(but_for_the_number);
        assert_eq!(
            path,
            Some(but_for_the_number(expected)),
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
        "it was waited for: {took_ms} ms"
    );
    drop(ibacm);

    let nonsense: &[u8] = b"HTTP/1.1 400 Bad Request\r\n\r\n";
    for (name, says) in [("silent", None), ("nonsense", Some(nonsense))] {
        let run = fabric.folder().join(name);
        std::fs::create_dir_all(&run).unwrap();
        let asked = pretend(&run, says);
        is_right(&run);
        // However slow the machine is: the deadline passed once, not for each look-up.
        assert_eq!(
            asked.load(Ordering::Relaxed),
            1,
            "{name}: it is left alone afterwards"
        );
    }
}

/// Is an ibacm in this folder that says this to whoever asks, or never says anything; how many asked.
fn pretend(run: &Path, says: Option<&'static [u8]>) -> Arc<AtomicUsize> {
    let listener = UnixListener::bind(run.join("ibacm.sock")).unwrap();
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    // It ends with the process of the tests.
    std::thread::spawn(move || {
        let mut waiting = Vec::new();
        while let Ok((mut stream, _)) = listener.accept() {
            count.fetch_add(1, Ordering::Relaxed);
            // Whoever asks may leave at any time.
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
