//! A forked child is refused its parent's devices and does not affect them.
#![allow(unsafe_code, reason = "fork has no safe form")]

use std::time::{Duration, Instant};

use portolan::cm::{CmId, EventChannel};
use portolan::provider::default_provider;
use portolan::provider::verbs::{MwType, SendOp, WcStatus, WorkCompletion};
use portolan::{Access, Cause, Error};

use crate::pair::*;

/// Runs `told` in a forked child and returns its result.
fn in_child(told: impl FnOnce() -> String) -> String {
    use std::io::{Read, Write};
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
    // SAFETY: the closure uses no lock that another thread of the parent may hold, which is what the test
    // proves. The child ends with `_exit`, without running the parent's exit handlers.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork");
    if child == 0 {
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(told));
        let text = outcome.unwrap_or_else(|_| "it panicked".into());
        let written = std::fs::File::from(write).write_all(text.as_bytes());
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(written.is_err())) };
    }
    drop(write);
    let deadline = Instant::now() + PATIENCE;
    let mut status = 0;
    // SAFETY: the child created above; `status` is valid for the write.
    while unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } == 0 {
        if Instant::now() > deadline {
            // SAFETY: the child created above, which has not been waited for.
            unsafe { libc::kill(child, libc::SIGKILL) };
            panic!("the child hangs");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(status, 0);
    let mut text = String::new();
    std::fs::File::from(read).read_to_string(&mut text).unwrap();
    text
}

/// Returns an empty text if an error says that the device is the parent's.
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
fn a_forked_child_is_refused_and_its_drops_do_not_affect_its_parent() {
    let (active, passive) = connected();
    let window = active.pd.alloc_mw(MwType::Type1).unwrap();
    let opened = provider();
    passive.post_recv(1, 0, 64);
    let mut copies = Some((active, passive, window));
    let said = in_child(|| {
        let (active, _, window) = copies.as_ref().unwrap();
        let mut text = String::new();
        let mut completion = [WorkCompletion::EMPTY];
        let start = active.memory.as_ptr() as u64;
        text += &refused("post", active.work(1, SendOp::Send).err());
        text += &refused("poll", active.cq.poll(&mut completion).err());
        text += &refused("event", active.comp_channel.take_event().err());
        text += &refused("domain", active.device.alloc_pd().err());
        // SAFETY: the call is refused.
        let region = unsafe { active.pd.register(start, 64, Access::LOCAL_WRITE) };
        text += &refused("register", region.err());
        text += &refused("query", active.qp.query().err());
        text += &refused("destroy", active.qp.destroy().err());
        text += &refused("deregister", active.mr.deregister().err());
        text += &refused("id", CmId::new(&active.channel).err());
        text += &refused("disconnect", active.id.disconnect().err());
        match default_provider().and_then(|own| own.devices()) {
            Ok(devices) if !devices.is_empty() => {}
            other => text += &format!("devices of its own: {other:?}"),
        }
        text += &refused("channel", EventChannel::open_on(opened.clone()).err());
        text += &refused("window", window.deallocate().err());
        drop(copies.take());
        text
    });
    assert_eq!(said, "");
    let (mut active, passive, window) = copies.expect("the parent still has its own");
    active.memory[..4].copy_from_slice(b"ahoy");
    active.post_send(2, SendOp::Send, 0, 4);
    assert_eq!(active.complete().status, WcStatus::Success);
    assert_eq!(passive.complete().status, WcStatus::Success);
    assert_eq!(passive.memory[..4], *b"ahoy");
    window.deallocate().unwrap();
}
