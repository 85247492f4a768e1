//! Datagram sockets of rsocket(7).

use std::io::{Error, ErrorKind};
use std::net::{SocketAddr, UdpSocket};

use portolan::datagram::{Options, Rsocket};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::harness::*;

fn socket() -> Rsocket {
    Rsocket::new_on(provider(), false, Options::default()).unwrap()
}

fn bound(address: &str) -> (Rsocket, SocketAddr) {
    let socket = socket();
    socket.bind(address.parse().unwrap()).unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

fn is_empty(socket: &Rsocket) -> bool {
    let received = socket.receive_from(&mut [0; 8], false, false);
    matches!(received, Err(error) if error.kind() == ErrorKind::WouldBlock)
}

/// Polls a socket until a datagram arrives, and receives it.
fn receive(socket: &Rsocket) -> (Vec<u8>, SocketAddr) {
    let mut bytes = [0; 4096];
    eventually("a datagram", || socket.is_readable().unwrap());
    let (length, source) = socket.receive_from(&mut bytes, false, false).unwrap();
    (bytes[..length].to_vec(), source)
}

#[test]
fn datagrams_go_both_ways_and_name_their_senders() {
    let (passive, address) = bound("127.0.0.1:0");
    let active = socket();
    active.connect(address).unwrap();
    assert_eq!(active.peer_addr().unwrap(), address);
    for round in 0..100u8 {
        let question = pattern(usize::from(round) * 9, round);
        assert_eq!(active.send(&question, true).unwrap(), question.len());
        let (found, source) = receive(&passive);
        assert_same(&found, &question);
        assert_eq!(source, active.local_addr().unwrap());
        passive.send_to(&[round], source, true).unwrap();
        assert_eq!(receive(&active), (vec![round], address));
    }
}

#[test]
fn a_socket_on_all_addresses_answers_from_the_one_towards_its_peer() {
    let (passive, address) = bound("0.0.0.0:0");
    let (active, _) = bound("127.0.0.1:0");
    let destination = SocketAddr::new("127.0.0.1".parse().unwrap(), address.port());
    for round in 0..5 {
        active.send_to(&[round], destination, true).unwrap();
        let (found, source) = receive(&passive);
        assert_eq!(found, [round]);
        passive.send_to(&found, source, true).unwrap();
        assert_eq!(receive(&active), (vec![round], destination));
    }
}

#[test]
fn a_datagram_that_fits_no_packet_is_refused() {
    let (socket, address) = bound("127.0.0.1:0");
    let refused = socket.send_to(&[0; 65_536], address, true).unwrap_err();
    let expected = Error::from_raw_os_error(rustix::io::Errno::MSGSIZE.raw_os_error());
    assert_eq!(refused.raw_os_error(), expected.raw_os_error());
    assert_eq!(
        socket.send(b"x", true).unwrap_err().kind(),
        ErrorKind::NotConnected
    );
}

#[test]
fn a_strangers_udp_datagrams_are_ignored() {
    let (socket, address) = bound("127.0.0.1:0");
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    for length in 0..80 {
        stranger.send_to(&vec![0x55; length], address).unwrap();
    }
    assert!(is_empty(&socket));
    let (other, _) = bound("127.0.0.1:0");
    other.send_to(b"ahoy", address, true).unwrap();
    assert_eq!(receive(&socket).0, b"ahoy");
    assert!(is_empty(&socket));
}

/// Whether a socket's descriptor is readable now.
fn shows(socket: &Rsocket) -> bool {
    let mut fds = [PollFd::new(socket, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).unwrap() > 0
}

#[test]
fn the_descriptor_shows_a_datagram_that_a_call_has_found_and_left() {
    let (passive, address) = bound("127.0.0.1:0");
    assert!(!passive.is_readable().unwrap());
    let active = socket();
    active.connect(address).unwrap();
    for _ in 0..2 {
        active.send(b"ahoy", true).unwrap();
    }
    eventually("a datagram", || {
        let peeks = true;
        let _ = passive.receive_from(&mut [0; 8], peeks, false);
        shows(&passive)
    });
    passive.receive_from(&mut [0; 8], false, true).unwrap();
    // Peeking goes on until nothing but the datagram is left to show.
    for _ in 0..10 {
        passive.receive_from(&mut [0; 8], true, true).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert!(shows(&passive));
    passive.receive_from(&mut [0; 8], false, true).unwrap();
    eventually("nothing to show", || {
        !passive.is_readable().unwrap() && !shows(&passive)
    });
}
