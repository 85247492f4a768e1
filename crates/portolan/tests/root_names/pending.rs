//! Pending look-ups, delayed by a name server that does not answer.

use std::time::{Duration, Instant};

use portolan::cm::{CmId, EventChannel};
use portolan_addrinfo::Eai;
use portolan_addrinfo::names::pool::THREADS_MAX;

use crate::harness::{PATIENCE, provider};
use crate::low::{TCP, channel};
use crate::{on_network, outcome};

const SILENT: Option<&str> = Some("silent.foreign.test");
/// A name that the name server knows.
const SERVED: Option<&str> = Some("n0.lab.test");
const SHORT: Duration = Duration::from_millis(300);

fn start(channel: &EventChannel, within: Duration) -> CmId {
    let id = CmId::new(channel).expect("an id");
    id.resolve_addrinfo_within(SILENT, None, None, within)
        .expect("started");
    id
}

#[test]
fn a_second_look_up_is_refused_while_one_is_pending() {
    on_network(|| {
        let channel = channel();
        let id = start(&channel, SHORT);
        let error = id.resolve_addrinfo(Some("::1"), None, None).unwrap_err();
        assert_eq!(error.errno(), 16, "{error}");
        assert_eq!(id.query_addrinfo().unwrap_err().errno(), 2);
        let error = outcome(&id, &channel).expect_err("nobody answers");
        assert_eq!(error.code(), Eai::Again);
        id.resolve_addrinfo(Some("::1"), None, None)
            .expect("it is over");
        outcome(&id, &channel).expect("a number");
    });
}

#[test]
fn with_every_thread_blocked_numbers_are_answered_and_names_meet_their_deadlines() {
    on_network(|| {
        let (stuck, others) = (channel(), channel());
        let held: Vec<CmId> = (0..THREADS_MAX).map(|_| start(&stuck, PATIENCE)).collect();
        let name = CmId::new(&others).unwrap();
        name.resolve_addrinfo_within(SERVED, None, None, SHORT)
            .expect("queued");
        let number = CmId::new(&others).unwrap();
        number
            .resolve_addrinfo(Some("192.0.2.77"), None, None)
            .expect("started");
        outcome(&number, &others).expect("no thread is needed");
        let error = outcome(&name, &others).expect_err("no thread is free");
        assert_eq!(error.code(), Eai::Again);
        drop(held);
        assert!(stuck.try_next_event().unwrap().is_none());
        // The threads are free again when libc gives up.
        let asked = Instant::now();
        name.resolve_addrinfo_within(SERVED, None, None, PATIENCE)
            .expect("queued");
        outcome(&name, &others).expect("found");
        assert!(asked.elapsed() < PATIENCE);
    });
}

#[test]
fn a_name_of_the_hosts_file_does_not_wait_behind_names_of_a_silent_server() {
    on_network(|| {
        let (stuck, others) = (channel(), channel());
        let _pending: Vec<CmId> = (0..200).map(|_| start(&stuck, PATIENCE)).collect();
        for name in ["filed", "LOCALHOST", "filed.lab.test"] {
            let id = CmId::new(&others).unwrap();
            id.resolve_addrinfo_within(Some(name), Some("7471"), None, PATIENCE)
                .expect("started");
            outcome(&id, &others).expect("the file has it");
        }
        // None of the server's names has even been given up, which takes libc five seconds.
        assert!(stuck.try_next_event().unwrap().is_none());
    });
}

#[test]
fn an_id_destroyed_during_its_look_up_has_no_event_and_is_forgotten() {
    on_network(|| {
        let channel = channel();
        let destroyed = start(&channel, SHORT);
        let dropped = start(&channel, SHORT);
        let stays = start(&channel, SHORT * 2);
        destroyed.destroy(PATIENCE).expect("nothing to wait for");
        drop(dropped);
        outcome(&stays, &channel).expect_err("nobody answers");
        assert!(channel.try_next_event().unwrap().is_none());
    });
}

#[test]
fn an_id_migrated_during_its_look_up_gets_the_event_on_its_new_channel() {
    on_network(|| {
        let (from, to) = (channel(), channel());
        let id = start(&from, SHORT);
        id.migrate(&to, PATIENCE).expect("moved");
        drop(from);
        outcome(&id, &to).expect_err("nobody answers");
    });
}

#[test]
fn a_synchronous_id_waits_no_longer_than_its_time_limit() {
    on_network(|| {
        let id = CmId::synchronous(provider(), TCP, SHORT).expect("an id");
        let asked = Instant::now();
        let error = id.resolve_addrinfo(SILENT, None, None).unwrap_err();
        assert!(asked.elapsed() >= SHORT, "{error}");
        assert_eq!(id.query_addrinfo().unwrap_err().errno(), 2);
        id.resolve_addrinfo(Some("192.0.2.77"), None, None)
            .expect("it was given up");
        assert_eq!(id.query_addrinfo().expect("found").len(), 1);
    });
}
