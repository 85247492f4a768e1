//! Strangers who send descriptors along. The kernel closes what is not taken, in the receiver's thread, and to close a TCP
//! socket that lingers waits for as long as the stranger wants. Linux takes no descriptors for a socket that does not want
//! them since 6.16.

#![allow(unsafe_code, reason = "an option that no safe wrapper offers")]

use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use portolan_port_sharing::{GroupConfig, LinkMessage, observe};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, accept, connect, listen, sendmsg,
};
use rustix::process::Signal;

use super::harness::*;
use super::process::Process;
use super::squat::{AT_ONCE, STRANGER, as_user, hasty, name, named, seqpacket, take_name};

/// How long the sockets linger: longer than anything may take here.
const LINGER: Duration = Duration::from_secs(60);
/// `SO_PASSRIGHTS`.
const SO_PASSRIGHTS: i32 = 83;

/// A socket whose close waits, and its peer, which never reads.
struct Lingering {
    sender: TcpStream,
    peer: TcpStream,
}

fn lingering() -> Lingering {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (peer, _) = listener.accept().unwrap();
    socket2::SockRef::from(&sender)
        .set_linger(Some(LINGER))
        .unwrap();
    sender.set_nonblocking(true).unwrap();
    let mut rounds_full = 0;
    // The kernel makes room once more after it has acknowledged what is there.
    while rounds_full < 3 {
        rounds_full += 1;
        while (&sender).write(&[0; 1 << 16]).is_ok() {
            rounds_full = 0;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Lingering { sender, peer }
}

impl Lingering {
    /// Sends the socket, whose last owner is the receiver then. Gives the peer, which keeps it from closing.
    fn send_by(self, connection: &OwnedFd) -> (Result<usize, Errno>, TcpStream) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors = [self.sender.as_fd()];
        assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let sent = sendmsg(connection, &[IoSlice::new(&[9])], &mut control, flags);
        if sent.is_err() {
            // This process closes it.
            socket2::SockRef::from(&self.sender)
                .set_linger(None)
                .unwrap();
        }
        (sent, self.peer)
    }
}

/// Whether sockets of this kernel can refuse descriptors. Where they cannot, a stranger can do what these tests forbid.
fn can_refuse() -> bool {
    let socket = seqpacket();
    let off = 0i32;
    // SAFETY: the pointer is to a local `int`, whose size is the length.
    let status = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PASSRIGHTS,
            (&raw const off).cast(),
            size_of_val(&off) as libc::socklen_t,
        )
    };
    if status != 0 {
        println!("Linux before 6.16: sockets take descriptors whether they want or not");
    }
    status == 0
}

/// A stranger's connection to a name, and what came of sending a lingering socket by it.
fn attack(name: &str) -> (OwnedFd, Result<usize, Errno>, TcpStream) {
    let lingering = lingering();
    as_user(STRANGER, || {
        let connection = seqpacket();
        connect(&connection, &named(name)).unwrap();
        let (sent, peer) = lingering.send_by(&connection);
        (connection, sent, peer)
    })
}

/// What `act` gives, if in time.
fn in_time<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> T {
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || tell.send(act()));
    told.recv_timeout(AT_ONCE).expect("it waits for a stranger")
}

#[test]
fn a_stranger_who_sends_a_lingering_socket_does_not_stop_the_coordinator() {
    if !can_refuse() {
        return;
    }
    let config = hasty();
    let coordinator = Process::spawn(config.port);
    let member = Member::join(&config).unwrap();
    // Stopped, so that the message is there when it accepts the connection.
    coordinator.stop();
    let (_connection, sent, _peer) = attack(&name(&config));
    coordinator.signal(Signal::CONT);
    let group = member.group.clone();
    let answer = in_time(move || group.request(b"echo here", AT_ONCE));
    assert_eq!(answer.expect("the coordinator is well"), b"here");
    assert_eq!(sent, Err(Errno::PERM));
}

#[test]
fn a_stranger_who_sends_a_lingering_socket_does_not_stop_a_member_that_others_may_link_to() {
    if !can_refuse() {
        return;
    }
    let config = hasty();
    let coordinator = Member::join(&config).unwrap();
    let links = coordinator.group.link_members().unwrap();
    let block = coordinator.group.block();
    let (_connection, sent, _peer) = attack(&format!("{}/{block}/links", name(&config)));
    assert!(in_time(move || links.accept()).unwrap().is_none());
    assert_eq!(sent, Err(Errno::PERM));
}

#[test]
fn members_link_and_pass_descriptors_in_either_order_of_arrival() {
    let config = hasty();
    let (a, b) = (
        Member::join(&config).unwrap(),
        Member::join(&config).unwrap(),
    );
    let (of_a, of_b) = (
        a.group.link_members().unwrap(),
        b.group.link_members().unwrap(),
    );
    for accepted_first in [false, true] {
        let caller = of_a.call(b.group.block()).unwrap().unwrap();
        let accept = || of_b.accept().unwrap().unwrap();
        let early = accepted_first.then(accept);
        let (reader, writer) = std::io::pipe().unwrap();
        caller.send(b"\x01pipe", &[writer.as_fd()]).unwrap();
        drop(writer);
        let called = early.unwrap_or_else(accept);
        let mut buffer = [0; 8];
        let nothing = caller.receive(&mut buffer).unwrap();
        assert!(matches!(nothing, LinkMessage::Nothing), "{nothing:?}");
        let message = called.receive(&mut buffer).unwrap();
        let LinkMessage::Message(5, descriptors) = message else {
            panic!("{message:?}")
        };
        assert_eq!(rustix::io::write(&descriptors[0], b"hi"), Ok(2));
        drop(descriptors);
        assert_eq!(std::io::read_to_string(reader).unwrap(), "hi");
        called.send(b"\x01back", &[of_b.as_fd()]).unwrap();
        let message = caller.receive(&mut buffer).unwrap();
        assert!(
            matches!(&message, LinkMessage::Message(5, fds) if fds.len() == 1),
            "{message:?}"
        );
    }
}

#[test]
fn a_stranger_who_holds_the_name_and_sends_a_lingering_socket_does_not_stop_who_calls() {
    if !can_refuse() {
        return;
    }
    let config = hasty();
    let squat = as_user(STRANGER, || {
        let squat = take_name(&name(&config));
        listen(&squat, 16).unwrap();
        squat
    });
    let callers: [fn(&GroupConfig) -> String; 2] = [
        |config| {
            observe(config, Duration::from_secs(1))
                .unwrap_err()
                .to_string()
        },
        |config| Member::join(config).unwrap_err().to_string(),
    ];
    for caller in callers {
        let lingering = lingering();
        let config = config.clone();
        let (tell, told) = mpsc::channel();
        let calling = std::thread::spawn(move || tell.send(caller(&config)));
        let deadline = Instant::now() + AT_ONCE;
        let connection = loop {
            assert!(Instant::now() < deadline, "nobody calls");
            match accept(&squat) {
                Ok(connection) => break connection,
                Err(_) => std::thread::yield_now(),
            }
        };
        let (sent, _peer) = lingering.send_by(&connection);
        // Who calls may be gone by now.
        assert!(matches!(sent, Err(Errno::PERM | Errno::PIPE)), "{sent:?}");
        let text = told.recv_timeout(AT_ONCE).expect("it waits for a stranger");
        assert!(text.contains(&format!("user {STRANGER}")), "{text}");
        calling.join().unwrap().unwrap();
    }
}
