use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::thread::JoinHandle;

use super::message::tests::{answer, question, record};
use super::*;

/// Far longer than any step takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// An ibacm that handles one query with `act`; later connections are refused.
fn ibacm(act: impl FnOnce(Vec<u8>) -> Vec<u8> + Send + 'static) -> (Client, JoinHandle<()>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let serving = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a question");
        let mut asked = vec![0; 16 + 72];
        stream.read_exact(&mut asked).expect("a whole one");
        // The client may have closed its end.
        let _ = stream.write_all(&act(asked));
    });
    (Client::at(Server::Tcp(port)), serving)
}

/// The transaction id of a query.
fn transaction(asked: &[u8]) -> u64 {
    u64::from_ne_bytes(asked[8..16].try_into().expect("eight bytes"))
}

#[test]
fn an_ibacm_that_knows_a_path_returns_it() {
    let (client, serving) = ibacm(|asked| answer(transaction(&asked), &record()));
    let paths = client.paths(&question()).expect("a path");
    assert_eq!(paths.len(), 1);
    assert_eq!(paths[0].record, record());
    serving.join().expect("served");
}

#[test]
fn an_ibacm_that_knows_no_path_is_asked_again() {
    let (client, serving) = ibacm(|asked| {
        let mut bytes = answer(transaction(&asked), &record());
        bytes[2] = 3;
        bytes
    });
    assert_eq!(client.paths(&question()), Err(Cause::NetworkUnreachable));
    serving.join().expect("served");
    assert!(!client.is_distrusted());
}

#[test]
fn without_an_ibacm_the_query_does_not_wait() {
    let missing = std::env::temp_dir().join("portolan-no-such-ibacm.sock");
    for server in [
        Server::Unix(missing),
        Server::Unix("x".repeat(200).into()),
        Server::Tcp(closed_port()),
    ] {
        let client = Client::at(server.clone());
        let error = client.paths(&question()).expect_err("no ibacm is running");
        let expected_too_long = matches!(error, Cause::Os { .. });
        let is_absent = matches!(error, Cause::NoSuchObject(_));
        assert!(is_absent || expected_too_long, "{server:?}: {error}");
    }
}

/// A port without a listener.
fn closed_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    listener.local_addr().expect("bound").port()
}

#[test]
fn an_ibacm_that_sends_nonsense_is_not_asked_for_a_while() {
    let cases: [fn(Vec<u8>) -> Vec<u8>; 4] = [
        |_| b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(),
        // The connection ends in the middle of the answer.
        |asked| answer(transaction(&asked), &record())[..60].to_vec(),
        // An answer to another query.
        |asked| answer(transaction(&asked) + 1, &record()),
        |_| Vec::new(),
    ];
    for nonsense in cases {
        let (client, serving) = ibacm(nonsense);
        let error = client.paths(&question()).expect_err("nonsense");
        assert!(matches!(error, Cause::Os { .. }), "{error}");
        serving.join().expect("served");
        let next = client.paths(&question()).expect_err("ibacm is not asked");
        assert!(matches!(next, Cause::NoSuchObject(_)), "{next}");
    }
}

#[test]
fn a_query_that_cannot_be_sent_is_no_fault_of_ibacm() {
    let (client, serving) = ibacm(|asked| answer(transaction(&asked), &record()));
    let like = PathRecord { sl: 16, ..record() };
    let refused = client.paths(&PathRequest::Gid { like });
    let refused = refused.expect_err("a service level has four bits");
    assert!(
        matches!(refused, Cause::InvalidArgument { .. }),
        "{refused}"
    );
    assert!(client.paths(&question()).is_ok());
    serving.join().expect("served");
}

#[test]
fn an_ibacm_that_hangs_costs_its_deadline_once() {
    // The kernel completes connections, but no one accepts them.
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let client = Client::at(Server::Tcp(port));
    let started = Instant::now();
    let error = client.paths(&question()).expect_err("it hangs");
    assert!(matches!(error, Cause::TimedOut { .. }), "{error}");
    let first = started.elapsed();
    assert!(first >= QUESTION_DEADLINE && first < PATIENCE, "{first:?}");
    for _ in 0..100 {
        assert!(client.paths(&question()).is_err());
    }
    assert!(started.elapsed() < QUESTION_DEADLINE * 50);
    drop(listener);
}
