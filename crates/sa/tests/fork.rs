//! After fork(2) the client's thread is not in the child: the child must hear so, and hang on nothing.

#![allow(unsafe_code, reason = "fork(2), waitpid(2) and _exit(2)")]

use std::sync::Mutex;
use std::time::Duration;

use portolan_sa::engine::Request;
use portolan_sa::scripted::pair;
use portolan_sa::{Client, ClientConfig, LinkLayer, Port, PortState};
use portolan_wire::sa::{PathRecord, Query};
use portolan_wire::{Gid, PKey};

const PATIENCE: Duration = Duration::from_secs(60);
const EINVAL: i32 = 22;

/// Runs `f` in a child and gives its exit status.
fn in_child(f: impl FnOnce() -> i32) -> i32 {
    // SAFETY: glibc's fork leaves its allocator usable in the child of a threaded process, and the
    // child touches no lock that another thread of the parent may hold, then leaves by _exit.
    match unsafe { libc::fork() } {
        0 => {
            let status = f();
            // SAFETY: the call ends the child.
            unsafe { libc::_exit(status) }
        }
        child => {
            assert!(child > 0, "fork: {}", std::io::Error::last_os_error());
            let mut status = 0;
            // SAFETY: `child` is this process's child, and `status` outlives the call.
            let waited = unsafe { libc::waitpid(child, &mut status, 0) };
            assert_eq!(waited, child);
            assert!(
                libc::WIFEXITED(status),
                "the child ended by itself: {status:#x}"
            );
            libc::WEXITSTATUS(status)
        }
    }
}

#[test]
fn a_child_hears_that_the_client_is_its_parents_and_the_parent_goes_on() {
    let port = Port {
        device: "ib0".into(),
        port_num: 1,
        link_layer: LinkLayer::InfiniBand,
        state: PortState::Active,
        lid: 3,
        lmc: 0,
        sm_lid: 7,
        sm_sl: 0,
        gids: vec![Gid([1; 16])],
        pkeys: vec![PKey::DEFAULT],
    };
    let (transport, _script) = pair(port);
    let transport = Mutex::new(Some(transport));
    let client = Client::new(ClientConfig::default(), move || {
        let transport = transport
            .lock()
            .expect("whole")
            .take()
            .expect("opened once");
        Ok(Box::new(transport))
    });
    client.port(PATIENCE).expect("there");
    let request = || Request::get(&Query::<PathRecord>::new().dlid(1)).expect("fits");
    let pending = client.ask(request(), PATIENCE, |_| {});
    let inherited = client.clone();
    let status = in_child(move || {
        drop(pending);
        let errno = inherited
            .wait(request(), PATIENCE)
            .map_or_else(|failure| failure.errno(), |_| 0);
        drop(inherited);
        errno
    });
    assert_eq!(status, EINVAL);
    assert_eq!(client.port(PATIENCE).expect("still there").lid, 3);
}
