//! Hooks for load, fork and exit of the process.

#![allow(unsafe_code, reason = "functions that libc calls")]

use std::net::Shutdown;
use std::sync::Arc;
use std::time::{Duration, Instant};

use portolan::provider::{PROVIDER_ENV, chosen, configure_software, of_environment, pin};
use portolan_port_sharing::room;

use crate::descriptors::is_table_owner;
use crate::exiting::DELIVERY_WAIT;
use crate::inside::Inside;
use crate::settings::settings;
use crate::socket::{SOCKETS, Socket};
use crate::{epoll, exiting, handover, pump, real, report, stdio};

#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = at_load;

#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = at_exit;

extern "C" fn at_load() {
    is_table_owner();
    room::keep_limit();
    real::find_all();
    // A program must not fail because of this. The panic hook has printed the message.
    let _ = std::panic::catch_unwind(read_environment);
    // SAFETY: the library is never unloaded (`-z nodelete`), so the handlers stay valid.
    unsafe { libc::pthread_atfork(Some(before_fork), None, Some(in_child)) };
}

/// Reads all settings, because a program may clear its environment, as nginx does.
fn read_environment() {
    settings();
    report::prepare();
    // Ignores a wrong value. Opening the device reads it again and reports it, unless the program has cleared its environment.
    let _ = configure();
    if std::env::var_os(PROVIDER_ENV).is_some_and(|value| !value.is_empty())
        && let Ok(choice) = chosen()
    {
        pin(Some(choice));
    }
}

/// Makes this process refuse at once what arrives for a listener that it has just closed. Then the client has TCP, and the
/// kernel's socket may still listen. By default it would wait, because the listener may open again.
fn configure() -> portolan::Result<()> {
    let mut config = of_environment()?;
    config.cm.listener_wait = Duration::ZERO;
    configure_software(config)
}

unsafe extern "C" fn before_fork() {
    let _inside = Inside::enter();
    handover::before_fork();
    epoll::before_fork();
}

unsafe extern "C" fn in_child() {
    is_table_owner();
    room::restore_limit();
    report::forget();
    pump::forget();
    exiting::forget();
}

/// Delivers written data before the process exits, as the kernel does for TCP. Not if a signal handler exits amid a call on a
/// stream, whose locks this thread may hold.
extern "C" fn at_exit() {
    if Inside::is_entered() {
        report::finish();
        return;
    }
    let end = || {
        stdio::flush();
        let numbers: Vec<_> = SOCKETS.numbers(0, usize::MAX).collect();
        let sockets = numbers.into_iter().filter_map(|number| SOCKETS.get(number));
        let (own, inherited): (Vec<_>, Vec<_>) =
            sockets.partition(|socket| socket.owner.is_owner());
        std::mem::forget(inherited);
        let until = Instant::now() + DELIVERY_WAIT;
        let streams = || own.iter().filter(|socket| !socket.is_shared());
        let streams = || streams().filter_map(|socket| socket.stream());
        exiting::begin();
        for stream in streams() {
            // Fails if the stream has ended already.
            let _ = stream.shutdown(Shutdown::Write);
        }
        for stream in streams() {
            let left = until.saturating_duration_since(Instant::now());
            let _ = stream.wait_delivered(left);
        }
        for stream in streams() {
            let _ = stream.id().disconnect();
        }
        // The others stay in the table: other threads and later destructors may still use their numbers.
        for number in SOCKETS.numbers(0, usize::MAX).collect::<Vec<_>>() {
            let ends = |socket: Arc<Socket>| socket.stream().is_none() || socket.is_shared();
            if SOCKETS.get(number).is_some_and(ends) {
                crate::descriptors::release(number);
            }
        }
        drop(own);
        pump::wait_until(until);
        // Those of the pumps, and those that the program closed before it ended.
        portolan::stream::deliver_dropped(until.saturating_duration_since(Instant::now()));
        report::finish();
    };
    // The panic hook has printed the message.
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(end));
}
