//! Memory windows of connections: who reaches the memory through them, until when, and what is refused before it could
//! break the connection.

use std::time::Instant;

use portolan::provider::verbs::WcStatus;
use portolan::software::SoftwareConfig;
use portolan::{Access, Cause, Connection, Domain, Options, RemoteMemory, SharedMemory};

use crate::harness::*;

const RIGHTS: Access = Access::MW_BIND;
/// Bytes of a message of many packets.
const LONG: usize = 4 << 20;

fn refused(active: &Connection, memory: RemoteMemory) {
    let failed = active.write(vec![1; 8], memory).unwrap().wait();
    let cause = failed.unwrap_err().error.cause;
    assert_eq!(cause, Cause::WorkFailed(WcStatus::RemAccessErr));
}

#[test]
fn a_window_opens_its_part_with_its_rights_to_one_connection() {
    let domain = Domain::new();
    let passive_options = || options().domain(domain.clone());
    let (active, passive) = pair_with(&options(), &passive_options());
    let (other, _passive) = pair_with(&options(), &passive_options());
    let memory = passive.share(4096, RIGHTS).unwrap();
    let window = passive
        .open_window(&memory, 100..108, Access::REMOTE_WRITE)
        .unwrap();
    let remote = window.remote();
    assert_eq!((remote.length, remote.access), (8, Access::REMOTE_WRITE));
    active
        .write(b"for you!".to_vec(), remote)
        .unwrap()
        .wait()
        .unwrap();
    let mut found = [0; 8];
    memory.load(100, &mut found);
    assert_eq!(&found, b"for you!");
    // The owner of the window knows its bounds and rights.
    let failed = active.write(vec![0; 9], remote).unwrap_err();
    assert!(
        failed
            .error
            .to_string()
            .contains("does not fit into the 8 bytes")
    );
    let failed = active.read(vec![0; 8], remote).unwrap_err();
    assert!(matches!(
        failed.error.cause,
        Cause::RemoteRightMissing { .. }
    ));
    // The same domain and the same key, but another connection.
    refused(&other, remote);
    // The memory itself is open to nobody.
    refused(
        &active,
        RemoteMemory::new(remote.addr, 8, memory.remote().rkey),
    );
}

#[test]
fn a_closed_or_dropped_window_gives_no_access_and_its_memory_can_be_withdrawn() {
    for by_drop in [false, true] {
        let (active, passive) = pair();
        let memory = passive.share(64, RIGHTS).unwrap();
        let window = passive
            .open_window(&memory, 0..64, Access::REMOTE_WRITE)
            .unwrap();
        let remote = window.remote();
        match by_drop {
            true => drop(window),
            false => window.close().unwrap(),
        }
        let again = passive.open_window(&memory, 0..64, Access::REMOTE_WRITE);
        assert_ne!(again.unwrap().remote().rkey, remote.rkey);
        refused(&active, remote);
        assert_eq!(memory.revoke().unwrap().len(), 64);
    }
}

#[test]
fn a_window_closes_when_its_memory_expires() {
    let (active, passive) = pair();
    let memory = passive.share(64, RIGHTS).unwrap();
    let window = passive
        .open_window(&memory, 0..64, Access::REMOTE_WRITE)
        .unwrap();
    let write = |to| active.write(vec![1; 8], to).unwrap().wait();
    write(window.remote()).unwrap();
    memory.expire_at(Instant::now()).unwrap();
    eventually("an end", || memory.has_expired());
    refused(&active, window.remote());
    let (_active, passive) = pair();
    let error = passive
        .open_window(&memory, 0..64, Access::REMOTE_WRITE)
        .unwrap_err();
    assert!(
        error.to_string().contains("found memory that has expired"),
        "{error}"
    );
}

#[test]
fn windows_that_cannot_be_are_errors_that_leave_the_connection_usable() {
    let (active, passive) = pair();
    let memory = passive.share(64, RIGHTS).unwrap();
    let plain = passive.share(64, Access::REMOTE_READ).unwrap();
    let foreign = Options::default().domain(Domain::new());
    let (_active, other) = pair_with(&options(), &foreign.timeout(PATIENCE));
    let foreign = other.share(64, RIGHTS).unwrap();
    let says = |memory: &SharedMemory, range: std::ops::Range<usize>, access, text: &str| {
        let error = passive.open_window(memory, range, access).unwrap_err();
        assert!(error.to_string().contains(text), "{error}");
    };
    let write = Access::REMOTE_WRITE;
    says(
        &plain,
        0..64,
        write,
        "rights of the shared memory: expected MW_BIND among them, found REMOTE_READ",
    );
    says(
        &memory,
        0..65,
        write,
        "range of a memory window: expected 1 or more of the 64 bytes, found 0..65",
    );
    says(
        &memory,
        9..9,
        write,
        "expected 1 or more of the 64 bytes, found 9..9",
    );
    says(
        &memory,
        0..64,
        Access::empty(),
        "rights of a memory window: expected some of",
    );
    says(&memory, 0..64, write | Access::LOCAL_WRITE, "LOCAL_WRITE");
    says(
        &foreign,
        0..64,
        write,
        "domain of shared memory: expected the connection's, found another",
    );
    let window = passive.open_window(&memory, 0..64, write).unwrap();
    active
        .write(vec![7; 64], window.remote())
        .unwrap()
        .wait()
        .unwrap();
}

#[test]
fn a_device_without_windows_says_so() {
    let mut config = SoftwareConfig::default();
    config.stack.limits.max_mw = 0;
    let provider = start_with(free_port(), config);
    let listener = listener_on(provider.clone(), "127.0.0.1:0");
    let address = listener.local_addr().unwrap();
    let connector = connector_on(provider);
    let (_active, passive) = pair_at(connector, &listener, address, &options());
    let memory = passive.share(64, RIGHTS).unwrap();
    let error = passive
        .open_window(&memory, 0..64, Access::REMOTE_READ)
        .unwrap_err();
    assert!(matches!(error.cause, Cause::Unsupported(_)), "{error}");
    assert!(
        error
            .to_string()
            .contains("a memory window for one connection (type 2B) on this device"),
        "{error}"
    );
}

#[cfg(feature = "tokio")]
#[tokio::test]
async fn a_window_is_opened_by_a_task_and_dropping_the_future_harms_nothing() {
    use portolan::tasks::AsyncConnection;
    let (active, passive) = tokio::task::spawn_blocking(pair).await.unwrap();
    let (active, passive) = (
        AsyncConnection::new(active).unwrap(),
        AsyncConnection::new(passive).unwrap(),
    );
    let memory = passive.get_ref().share(64, RIGHTS).unwrap();
    for _ in 0..100 {
        let opening = passive.open_window(&memory, 0..64, Access::REMOTE_WRITE);
        let polled = tokio::time::timeout(std::time::Duration::ZERO, opening).await;
        drop(polled);
    }
    let window = passive.open_window(&memory, 0..64, Access::REMOTE_WRITE);
    let window = window.await.unwrap();
    active
        .write(vec![9; 64], window.remote())
        .unwrap()
        .await
        .unwrap();
    let mut found = [0; 64];
    memory.load(0, &mut found);
    assert_eq!(found, [9; 64]);
}

/// A connection with a cancelled opening of a window on the memory, whose binding waits for a long send without a
/// receive: the connection, its peer, the memory, and the messages that the peer holds.
#[cfg(feature = "tokio")]
async fn with_a_waiting_bind() -> (
    portolan::tasks::AsyncConnection,
    Connection,
    SharedMemory,
    Vec<portolan::Message>,
) {
    use portolan::tasks::AsyncConnection;
    let single = options().receive_depth(1).held_messages(1);
    let single = single.receive_size(LONG);
    let pair = tokio::task::spawn_blocking(move || pair_with(&options(), &single));
    let (active, passive) = pair.await.unwrap();
    let active = AsyncConnection::new(active).unwrap();
    active.send(vec![1]).unwrap().await.unwrap();
    let held = vec![passive.receive_within(PATIENCE).unwrap()];
    drop(active.send(vec![2; LONG]).unwrap());
    let memory = active.get_ref().share(64, RIGHTS).unwrap();
    let opening = active.open_window(&memory, 0..64, Access::REMOTE_WRITE);
    let waited = tokio::time::timeout(std::time::Duration::from_millis(50), opening).await;
    assert!(waited.is_err(), "the send before it waits for the peer");
    (active, passive, memory, held)
}

/// Lets the peer receive, and checks that the connection still sends.
#[cfg(feature = "tokio")]
async fn still_sends(
    active: &portolan::tasks::AsyncConnection,
    passive: Connection,
    held: Vec<portolan::Message>,
) {
    drop(held);
    let receiving = tokio::task::spawn_blocking(move || {
        for expected in [2, 3] {
            assert_eq!(passive.receive_within(PATIENCE).unwrap()[0], expected);
        }
        passive
    });
    let sent = tokio::time::timeout(PATIENCE, active.send(vec![3]).unwrap()).await;
    sent.expect("it ends").unwrap();
    receiving.await.unwrap();
}

#[cfg(feature = "tokio")]
#[tokio::test]
async fn memory_that_is_dropped_before_a_cancelled_window_is_bound_leaves_the_connection_usable() {
    let (active, passive, memory, held) = with_a_waiting_bind().await;
    drop(memory);
    still_sends(&active, passive, held).await;
}

#[cfg(feature = "tokio")]
#[tokio::test]
async fn memory_is_not_withdrawn_before_a_cancelled_window_is_bound() {
    let (active, passive, memory, held) = with_a_waiting_bind().await;
    let failed = active.get_ref().revoke(memory).unwrap_err();
    assert!(
        matches!(failed.error.cause, Cause::InUse { count: 1, .. }),
        "{failed}"
    );
    let memory = failed.memory.expect("it is still shared");
    memory.store(0, b"ahoy");
    still_sends(&active, passive, held).await;
    // The binding has ended, and closed the window.
    assert_eq!(active.get_ref().revoke(memory).unwrap()[..4], *b"ahoy");
}
