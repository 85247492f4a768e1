//! A peer process that is killed.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use portolan::{Listener, Stream, StreamListener, StreamOptions};

use crate::harness::*;
use crate::pair::*;

const GROUP_VARIABLE: &str = "PORTOLAN_TEST_STREAMS_GROUP";
const MARK: &str = "@peer ";
/// How long the news may take, on one host.
const AT_ONCE: Duration = Duration::from_secs(1);

#[test]
fn a_killed_peer_ends_reads_and_writes_in_errors_within_a_second() {
    let port = free_port();
    let provider = start(port);
    let test = ["--ignored", "--exact", "death::peer_process", "--nocapture"];
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(test)
        .env(GROUP_VARIABLE, port.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let address = lines
        .map_while(Result::ok)
        .find_map(|line| line.split_once(MARK).map(|(_, address)| address.to_owned()))
        .unwrap();
    let options = StreamOptions {
        provider: Some(provider),
        ..stream_options()
    };
    let mut stream = Stream::connect_to(address.parse().unwrap(), &options).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"ping").unwrap();
    stream.read_exact(&mut [0; 4]).unwrap();
    child.kill().unwrap();
    let killed = Instant::now();
    let error = stream.read(&mut [0]).unwrap_err();
    let took = killed.elapsed();
    child.wait().unwrap();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    assert!(took < AT_ONCE, "{took:?}");
    assert_eq!(
        stream.write(b"x").unwrap_err().kind(),
        ErrorKind::ConnectionReset
    );
    assert!(stream.take_error().unwrap().is_some());
}

#[test]
#[ignore = "runs as a process of its own, started by another test"]
fn peer_process() {
    let Ok(port) = std::env::var(GROUP_VARIABLE) else {
        return;
    };
    let listener = Listener::bind_on(start(port.parse().unwrap()), "127.0.0.1:0".parse().unwrap());
    let listener = StreamListener::new(listener.unwrap(), StreamOptions::default());
    println!("{MARK}{}", listener.local_addr().unwrap());
    let (mut stream, _) = listener.accept().unwrap();
    let mut bytes = [0; 64];
    while let Ok(length @ 1..) = stream.read(&mut bytes) {
        stream.write_all(&bytes[..length]).unwrap();
    }
}
