//! After fork(2) the child has neither the threads of resolver and pool nor its own socket. The library must
//! notice that and create new ones.

#[path = "../../threads/tests/support/child.rs"]
mod child;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::Duration;

use child::in_child;
use portolan_addrinfo::names::pool::Pool;
use portolan_addrinfo::{LinkAddress, Query, Resolver, lookup};
use portolan_provider::Cause;
use portolan_threads::ProcessCell;

const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const DEADLINE: Duration = Duration::from_secs(5);

fn resolve(resolver: &Resolver) -> Result<LinkAddress, Cause> {
    let index = lookup(&Query::to(LOCALHOST))?.interface_index;
    let (send, receive) = channel();
    let done = Box::new(move |outcome| drop(send.send(outcome)));
    resolver.resolve(LOCALHOST, index, DEADLINE, done)?;
    receive
        .recv_timeout(DEADLINE * 2)
        .unwrap_or(Err(Cause::WouldBlock))
}

#[test]
fn a_cell_is_the_processs_own_even_if_another_thread_held_its_lock_at_the_fork() {
    static CELL: ProcessCell<Mutex<Vec<u32>>> = ProcessCell::new();
    fn cell() -> &'static Mutex<Vec<u32>> {
        CELL.get_or_make(Mutex::default)
    }
    let mut held = cell().lock().expect("whole");
    held.push(1);
    let status = in_child(|| {
        let Ok(mut own) = cell().try_lock() else {
            return 1;
        };
        own.push(2);
        i32::from(*own != [2])
    });
    assert_eq!((status, &held[..]), (0, &[1][..]));
}

#[test]
fn parent_child_and_grandchild_each_resolve() {
    let own = Resolver::start().expect("resolver");
    assert_eq!(
        resolve(Resolver::shared().expect("resolver")),
        Ok(LinkAddress::NONE)
    );
    let status = in_child(|| {
        let inherited = resolve(&own);
        if !matches!(inherited, Err(Cause::InvalidState { .. })) {
            return 1;
        }
        let Ok(shared) = Resolver::shared() else {
            return 2;
        };
        if resolve(shared) != Ok(LinkAddress::NONE) {
            return 3;
        }
        let grandchild = in_child(|| match Resolver::shared().and_then(resolve) {
            Ok(_) => 0,
            Err(_) => 4,
        });
        if grandchild != 0 {
            return grandchild;
        }
        // The parent's resolver can be dropped here without disturbing the parent.
        drop(own);
        0
    });
    assert_eq!(status, 0);
    assert_eq!(
        resolve(Resolver::shared().expect("resolver")),
        Ok(LinkAddress::NONE)
    );
}

#[test]
fn a_child_has_its_own_pool_and_does_not_touch_its_parents() {
    let pool = Pool::shared().expect("pool");
    assert_eq!(run(pool), Ok(42));
    let (open, waits) = channel::<()>();
    let work = move || {
        let _ = waits.recv();
    };
    let pending = pool.submit(DEADLINE, work, |_| {}).expect("room");
    let status = in_child(move || {
        if !matches!(run(pool), Err(Cause::InvalidState { .. })) {
            return 1;
        }
        // The child cannot cancel the parent's job, and does not wait for the parent's lock.
        drop(pending);
        match Pool::shared().and_then(run) {
            Ok(42) => 0,
            _ => 2,
        }
    });
    assert_eq!(status, 0);
    drop(open);
    assert_eq!(run(pool), Ok(42));
}

/// Runs a job in the pool.
fn run(pool: &Pool) -> Result<u32, Cause> {
    let (send, receive) = channel();
    let done = move |outcome| {
        let _ = send.send(outcome);
    };
    let _pending = pool.submit(DEADLINE, || 42, done)?;
    let outcome = receive.recv_timeout(DEADLINE * 2);
    outcome
        .expect("told")
        .map_err(|why| panic!("not run: {why:?}"))
}
