//! A peer process is killed, as either end of the connection.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use portolan::{Listener, Stream, StreamListener, StreamOptions};

use crate::harness::*;
use crate::pair::*;

/// The UDP port whose group the peer joins.
const GROUP_VARIABLE: &str = "PORTOLAN_TEST_STREAMS_GROUP";
/// The address that the peer connects to. Without it, the peer listens.
const DESTINATION_VARIABLE: &str = "PORTOLAN_TEST_STREAMS_DESTINATION";
const MARK: &str = "@peer ";
/// The peer ends its direction after these bytes, and does nothing more.
const THE_END: &[u8] = b"the end";
/// Time limit for noticing a peer's death on the same host.
const AT_ONCE: Duration = Duration::from_secs(1);

/// Set if the peer uses UDP only.
pub(crate) const UDP_VARIABLE: &str = "PORTOLAN_TEST_STREAMS_UDP";
/// The peer process, which returns what it reads. Killed when dropped.
pub(crate) struct Peer(pub(crate) Child);

impl Peer {
    pub(crate) fn start(port: u16, destination: Option<String>, by_udp: bool) -> Self {
        let test = ["--ignored", "--exact", "death::peer_process", "--nocapture"];
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(test).env(GROUP_VARIABLE, port.to_string());
        if let Some(destination) = destination {
            command.env(DESTINATION_VARIABLE, destination);
        }
        if by_udp {
            command.env(UDP_VARIABLE, "1");
        }
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        Self(child.unwrap())
    }

    /// The address that the peer reports to listen on.
    pub(crate) fn address(&mut self) -> String {
        let lines = BufReader::new(self.0.stdout.take().unwrap()).lines();
        lines
            .map_while(Result::ok)
            .find_map(|line| line.split_once(MARK).map(|(_, address)| address.to_owned()))
            .unwrap()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Checks that the peer echoes, kills it, and checks that reads and writes fail at once.
fn survive(mut peer: Peer, mut stream: Stream) {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"ping").unwrap();
    stream.read_exact(&mut [0; 4]).unwrap();
    peer.0.kill().unwrap();
    let killed = Instant::now();
    let error = stream.read(&mut [0]).unwrap_err();
    let took = killed.elapsed();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    assert!(took < AT_ONCE, "{took:?}");
    assert_eq!(
        stream.write(b"x").unwrap_err().kind(),
        ErrorKind::ConnectionReset
    );
    assert!(stream.ready().failed);
    assert!(stream.take_error().unwrap().is_some());
}

#[test]
fn a_peer_that_is_killed_after_its_end_has_arrived_leaves_that_end() {
    for by_udp in [false, true] {
        let (mut peer, mut stream) = crate::between::connected(by_udp);
        stream.write_all(b"words").unwrap();
        eventually("the words are back", || stream.ready().unread_bytes == 5);
        stream.write_all(THE_END).unwrap();
        eventually("the end arrives", || stream.ready().read_closed);
        peer.0.kill().unwrap();
        eventually("the death is known", || stream.ready().failed);
        let mut words = Vec::new();
        stream.read_to_end(&mut words).unwrap();
        assert_eq!(words, b"words");
        let error = stream.write(b"x").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    }
}

#[test]
fn closing_fails_if_the_peer_dies_before_it_has_the_data_although_it_has_ended_its_own_direction() {
    for by_udp in [false, true] {
        let (mut peer, mut stream) = crate::between::connected(by_udp);
        stream.write_all(THE_END).unwrap();
        eventually("the end arrives", || stream.ready().read_closed);
        crate::between::stop(&peer);
        stream.write_all(b"lost").unwrap();
        std::thread::scope(|scope| {
            let closing = scope.spawn(|| stream.close(PATIENCE));
            std::thread::sleep(Duration::from_millis(100));
            assert!(!closing.is_finished(), "by UDP: {by_udp}");
            peer.0.kill().unwrap();
            let error = closing.join().unwrap().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
        });
    }
}

#[test]
fn destroying_a_streams_id_ends_the_waits_of_both_ends() {
    let (mut destroyed, mut peer) = streams();
    peer.write_all(b"words").unwrap();
    eventually("the words arrive", || destroyed.ready().unread_bytes == 5);
    let id = destroyed.id().clone();
    let mut other = destroyed.clone();
    std::thread::scope(|scope| {
        let mut words = Vec::new();
        let reading = scope.spawn(move || (other.read_to_end(&mut words), words));
        std::thread::sleep(Duration::from_millis(50));
        id.destroy(PATIENCE).unwrap();
        let (ended, words) = reading.join().unwrap();
        let error = ended.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
        assert_eq!(words, b"words");
    });
    let error = destroyed.write(b"x").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    assert!(destroyed.ready().failed);
    let reason = destroyed.take_error().unwrap().unwrap();
    assert!(reason.to_string().contains("closed"), "{reason}");
    let error = peer.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    destroyed.close(PATIENCE).unwrap_err();
}

#[test]
#[ignore = "runs as a process of its own, started by another test"]
fn peer_process() {
    let Ok(port) = std::env::var(GROUP_VARIABLE) else {
        return;
    };
    let mut config = portolan::software::SoftwareConfig::default();
    config.stack.local_memory = std::env::var_os(UDP_VARIABLE).is_none();
    let provider = start_with(port.parse().unwrap(), config);
    let mut stream = match std::env::var(DESTINATION_VARIABLE) {
        Ok(destination) => {
            let options = stream_options().provider(provider);
            Stream::connect_to(destination.parse().unwrap(), &options).unwrap()
        }
        Err(_) => {
            let listener = Listener::bind_on(provider, "127.0.0.1:0".parse().unwrap());
            let listener = StreamListener::new(listener.unwrap(), StreamOptions::default());
            println!("{MARK}{}", listener.local_addr().unwrap());
            listener.accept().unwrap().0
        }
    };
    let mut bytes = vec![0; 20_000];
    while let Ok(length @ 1..) = stream.read(&mut bytes) {
        if &bytes[..length] == THE_END {
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            std::thread::sleep(PATIENCE);
        }
        if stream.write_all(&bytes[..length]).is_err() {
            return;
        }
    }
}

/// Deaths that are noticed within a time.
mod against_the_clock {
    use super::*;

    #[test]
    fn a_killed_passive_end_ends_reads_and_writes_in_errors_within_a_second() {
        let port = free_port();
        let provider = start(port);
        let mut peer = Peer::start(port, None, false);
        let options = stream_options().provider(provider);
        let address = peer.address().parse().unwrap();
        let stream = Stream::connect_to(address, &options).unwrap();
        survive(peer, stream);
    }

    #[test]
    fn a_killed_active_end_ends_reads_and_writes_in_errors_within_a_second() {
        let port = free_port();
        let listener = listener_on(start(port), "127.0.0.1:0");
        let listener = StreamListener::new(listener, StreamOptions::default());
        let address = listener.local_addr().unwrap().to_string();
        let peer = Peer::start(port, Some(address), false);
        let (stream, _) = listener.accept_within(PATIENCE).unwrap();
        survive(peer, stream);
    }

    #[test]
    fn a_writer_without_room_gets_an_error_within_a_second_when_its_peer_is_killed() {
        let port = free_port();
        let listener = listener_on(start(port), "127.0.0.1:0");
        let listener = StreamListener::new(listener, StreamOptions::default());
        let address = listener.local_addr().unwrap().to_string();
        let mut peer = Peer::start(port, Some(address), false);
        let (mut stream, _) = listener.accept_within(PATIENCE).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        std::thread::scope(|scope| {
            // Nobody reads the peer's echo, so both ends run out of room.
            let writer = scope.spawn(move || stream.write_all(&[7; 4_000_000]).unwrap_err());
            std::thread::sleep(Duration::from_millis(200));
            peer.0.kill().unwrap();
            let killed = Instant::now();
            let error = writer.join().unwrap();
            let took = killed.elapsed();
            assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
            assert!(took < AT_ONCE, "{took:?}");
        });
    }
}
