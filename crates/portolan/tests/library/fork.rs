//! A forked child is refused its parent's devices, does not affect them, and can have devices of its own.
#![allow(unsafe_code, reason = "fork has no safe form")]

use std::fs::File;
use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Instant;

use portolan::cm::{CmId, EventChannel};
use portolan::software::SoftwareProvider;
use portolan::{Cause, Error, Stream, StreamListener, StreamOptions};

use crate::harness::*;

/// Runs `told` in a forked child and returns its result.
fn in_child(told: impl FnOnce() -> String) -> String {
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
    // SAFETY: the closure uses no lock that another thread of the parent may hold, which is what the tests
    // prove. The child ends with `_exit`, without running the parent's exit handlers.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork");
    if child == 0 {
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(told));
        let text = outcome.unwrap_or_else(|_| "it panicked".into());
        let written = File::from(write).write_all(text.as_bytes());
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(written.is_err())) };
    }
    drop(write);
    let text = std::thread::spawn(move || {
        let mut text = String::new();
        File::from(read).read_to_string(&mut text).unwrap();
        text
    });
    let deadline = std::time::Instant::now() + PATIENCE;
    while !text.is_finished() {
        if std::time::Instant::now() > deadline {
            // SAFETY: the child created above, which has not been waited for.
            unsafe { libc::kill(child, libc::SIGKILL) };
            panic!("the child hangs");
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let mut status = 0;
    // SAFETY: waits for the child created above; `status` is valid for the write.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0);
    text.join().unwrap()
}

/// Whether an error says that the device is the parent's.
fn refused(what: &str, error: Option<Error>) -> String {
    match error {
        Some(Error {
            cause: Cause::Unsupported(text),
            ..
        }) if text.contains("fork") => String::new(),
        Some(error) => format!("{what}: {error:?}\n"),
        None => format!("{what} worked\n"),
    }
}

#[test]
fn a_forked_child_is_refused_everything_and_its_parent_continues() {
    let provider = own_provider();
    let listener = listener_on(provider.clone(), "127.0.0.1:0");
    let address = listener.local_addr().unwrap();
    let (active, passive) = pair_at(
        connector_on(provider.clone()),
        &listener,
        address,
        &options(),
    );
    let channel = EventChannel::open_on(provider.clone()).unwrap();
    let id = CmId::new(&channel).unwrap();
    id.resolve_addr(None, address, PATIENCE).unwrap();
    let mut buffer = Some(active.buffer(8).unwrap());
    passive
        .send(passive.buffer_from(b"for the parent").unwrap())
        .unwrap()
        .wait()
        .unwrap();

    let text = in_child(|| {
        let sent = active.send(buffer.take().unwrap());
        let mut text = String::new();
        text += &refused(
            "connect",
            connector_on(provider.clone()).connect_to(address).err(),
        );
        text += &refused("send", sent.err().map(|failed| failed.error));
        text += &refused("receive", active.receive_within(PATIENCE).err());
        text += &refused("try_receive", active.try_receive().err());
        text += &refused("disconnect", active.disconnect().err());
        text += &refused("buffer", active.buffer(8).err());
        text += &refused("accept", listener.try_accept().err());
        text += &refused("open", EventChannel::open_on(provider.clone()).err());
        text += &refused("create", CmId::new(&channel).err());
        text += &refused("event", channel.try_next_event().err());
        text += &refused("query", id.addresses().err());
        text += &refused("migrate", id.migrate(&channel, PATIENCE).err());
        text
    });
    assert_eq!(text, "");

    assert_eq!(
        &active.receive_within(PATIENCE).unwrap()[..],
        b"for the parent"
    );
    let event = channel.next_event_within(PATIENCE).unwrap();
    assert_eq!(
        event.event_type(),
        portolan::provider::cm::EventType::AddrResolved
    );
    drop(pair_at(
        connector_on(provider.clone()),
        &listener,
        address,
        &options(),
    ));
    active
        .send(active.buffer_from(b"from it").unwrap())
        .unwrap()
        .wait()
        .unwrap();
    assert_eq!(&passive.receive_within(PATIENCE).unwrap()[..], b"from it");
}

#[test]
fn a_forked_child_that_drops_its_copies_disconnects_nothing() {
    let (active, passive) = pair();
    let (mut copies, text) = (Some((active, passive)), "dropped");
    let said = in_child(|| {
        drop(copies.take());
        text.into()
    });
    assert_eq!(said, text);
    let (active, passive) = copies.expect("the parent still has its own");
    active
        .send(active.buffer_from(b"still there").unwrap())
        .unwrap()
        .wait()
        .unwrap();
    assert_eq!(
        &passive.receive_within(PATIENCE).unwrap()[..],
        b"still there"
    );
}

#[test]
fn a_forked_child_has_a_provider_of_its_own_that_reaches_its_parents() {
    let parents = portolan::provider::software_provider().unwrap();
    let listener = listener_on(parents, "127.0.0.1:0");
    let address = listener.local_addr().unwrap();
    let serving = std::thread::spawn(move || {
        let incoming = listener.accept_within(PATIENCE).unwrap();
        let passive = incoming.accept().unwrap();
        let message = passive.receive_within(PATIENCE).unwrap();
        message.to_vec()
    });
    let text = in_child(|| {
        let own = portolan::provider::software_provider().unwrap();
        let active = connector_on(own).connect_to(address).unwrap();
        let sent = active.send(active.buffer_from(b"from the child").unwrap());
        sent.unwrap().wait().unwrap();
        "sent".into()
    });
    assert_eq!(text, "sent");
    assert_eq!(serving.join().unwrap(), b"from the child");
}

/// A stream that has sent as much as its peer, which does not read, takes. Returns its ends and the number of bytes.
fn full_stream(provider: Arc<SoftwareProvider>) -> (Stream, Stream, usize) {
    let options = StreamOptions::default()
        .timeout(PATIENCE)
        .provider(provider.clone());
    let listener = StreamListener::new(listener_on(provider, "127.0.0.1:0"), options.clone());
    let address = listener.local_addr().unwrap();
    let active = std::thread::spawn(move || Stream::connect_to(address, &options).unwrap());
    let (passive, _) = listener.accept_within(PATIENCE).unwrap();
    let mut active = active.join().unwrap();
    active.set_nonblocking(true).unwrap();
    let mut written = 0;
    while let Ok(length) = active.write(&[7; 1 << 16]) {
        written += length;
    }
    passive.set_read_timeout(Some(PATIENCE)).unwrap();
    (active, passive, written)
}

#[test]
fn a_forked_child_waits_for_the_streams_that_it_has_dropped_itself_and_for_no_others() {
    let (active, passive, _) = full_stream(own_provider());
    // Its data waits for the peer, and a thread of this process for both.
    drop(active);
    let told = in_child(|| {
        let began = Instant::now();
        portolan::stream::deliver_dropped(PATIENCE);
        if began.elapsed() > PATIENCE / 4 {
            return "it waited for its parent's stream".into();
        }
        let (active, mut passive, written) = full_stream(own_provider());
        drop(active);
        let mut arrived = Vec::new();
        match passive.read_to_end(&mut arrived) {
            Ok(length) if length == written => String::new(),
            ended => format!("{written} bytes were written, then {ended:?}"),
        }
    });
    assert_eq!(told, "");
    drop(passive);
}
