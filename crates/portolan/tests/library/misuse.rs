//! The texts of the errors for each misuse that types cannot stop. Each leaves the connection usable.

use std::time::Duration;

use portolan::{
    Access, Buffer, Connection, Connector, Domain, Error, Failed, Keepalive, Options, RemoteMemory,
    SharedReceiveQueue, Transport,
};

use crate::harness::*;

/// What an error says before its context, which names both addresses and the device.
#[track_caller]
fn says(error: &Error, expected: &str) {
    let text = error.to_string();
    let (sentence, context) = text.split_once(" [").unwrap_or((&text, ""));
    assert_eq!(sentence, expected);
    let names_both = context.contains("local 127.0.0.1:") && context.contains("remote 127.0.0.1:");
    assert!(names_both, "{text}");
}

/// What posting says, which returns the buffer.
#[track_caller]
fn refused<T>(posted: Result<T, Failed>, expected: &str) {
    let Err(failed) = posted else {
        panic!("it was posted");
    };
    says(&failed.error, expected);
    assert!(failed.buffer.is_some());
}

fn works(active: &Connection, passive: &Connection) {
    active.send(b"ahoy".to_vec()).unwrap().wait().unwrap();
    assert_eq!(&passive.receive_within(PATIENCE).unwrap()[..], b"ahoy");
}

#[test]
fn work_that_the_peer_would_refuse() {
    let (active, passive) = pair();
    let everything = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    let memory = passive.share(16, everything).unwrap();
    let readable = passive.share(16, Access::REMOTE_READ).unwrap();
    let writable = passive.share(16, Access::REMOTE_WRITE).unwrap();
    let place = |memory: RemoteMemory| format!("{:#x}", memory.addr);
    let right = |what: &str, needed: &str, memory: RemoteMemory, granted: &str| {
        let place = place(memory);
        format!(
            "post send: {what} needs the right {needed} to the peer's 16 bytes at {place}, which are offered with {granted}"
        )
    };
    let remote = memory.remote();
    refused(
        active.write(vec![0; 17], remote),
        &format!(
            "post send: a write of 17 bytes does not fit into the 16 bytes of the peer's memory at {}",
            place(remote)
        ),
    );
    refused(
        active.write(vec![0; 8], readable.remote()),
        &right("a write", "REMOTE_WRITE", readable.remote(), "REMOTE_READ"),
    );
    refused(
        active.read(vec![0; 8], writable.remote()),
        &right("a read", "REMOTE_READ", writable.remote(), "REMOTE_WRITE"),
    );
    refused(
        active.fetch_add(vec![0; 8], readable.remote(), 1),
        &right(
            "an atomic",
            "REMOTE_ATOMIC",
            readable.remote(),
            "REMOTE_READ",
        ),
    );
    refused(
        active.fetch_add(vec![0; 7], remote, 1),
        "post send: length of an atomic's buffer: expected 8 or more, found 7",
    );
    let short = remote.slice(0, 4).unwrap();
    refused(
        active.fetch_add(vec![0; 8], short, 1),
        "post send: length of an atomic's memory: expected 8 or more, found 4",
    );
    let odd = remote.slice(1, 8).unwrap();
    refused(
        active.fetch_add(vec![0; 8], odd, 1),
        &format!(
            "post send: address of an atomic: expected a multiple of 8, found {}",
            odd.addr
        ),
    );
    works(&active, &passive);
}

#[test]
fn work_beyond_the_options() {
    let few = options()
        .send_depth(1)
        .posted_receives(1)
        .gather(2)
        .inline(8);
    let (active, passive) = pair_with(&few, &options());
    refused(
        active.send_inline(&[0; 9]),
        "post send: inline data: expected at most 8 bytes, found 9",
    );
    let three: Vec<Buffer> = (0..3).map(|_| Buffer::from(vec![0])).collect();
    refused(
        active.send(three),
        "post send: buffers of a gather list: expected at most 2, found 3",
    );
    refused(
        active.send_prefix(vec![0; 2], 3),
        "post send: length of the prefix: expected at most 2, found 3",
    );
    refused(
        active
            .request()
            .immediate(1)
            .read(vec![0; 8], RemoteMemory::new(0, 8, 0)),
        "post send: immediate data of a read: expected none, found 1",
    );
    let receiving = active.post_receive(vec![0; 8]).unwrap();
    refused(
        active.post_receive(vec![0; 8]),
        "post receive: the limit of 1 receives posted by hand is reached",
    );
    let sending = passive.post_receive(vec![0; 8]).unwrap();
    drop((receiving, sending));
    refused(
        active.batch().post_as_one(),
        "post send: requests of a batch: expected 1 or more, found 0",
    );
    works(&active, &passive);
}

#[test]
fn options_that_contradict_themselves() {
    let listener = listener("127.0.0.1:0");
    let address = listener.local_addr().unwrap();
    let connect = |options: Options, transport: Transport| {
        let connector: Connector = connector().options(options).transport(transport);
        let error = connector.connect_to(address).unwrap_err();
        let text = error.to_string();
        text.split(" [").next().unwrap().to_owned()
    };
    let keepalive = Keepalive::new(Duration::from_secs(1), Duration::from_secs(5));
    let never = Keepalive::new(Duration::ZERO, Duration::from_secs(5));
    for (options, transport, expected) in [
        (
            options().send_depth(0),
            Transport::Rc,
            "create queue pair: send_depth: expected 1 or more, found 0",
        ),
        (
            options().receive_depth(0).posted_receives(0),
            Transport::Rc,
            "create queue pair: receives: expected 1 to 4294967295, found 0",
        ),
        (
            options().receive_size(0),
            Transport::Rc,
            "create queue pair: receive_size: expected 1 to 1073741824, found 0",
        ),
        (
            options().retry_count(8),
            Transport::Rc,
            "create queue pair: retry_count: expected 0 to 7, found 8",
        ),
        (
            options().rnr_retry_count(8),
            Transport::Rc,
            "create queue pair: rnr_retry_count: expected 0 to 7, found 8",
        ),
        (
            options().keepalive(never),
            Transport::Rc,
            "create queue pair: keepalive interval: expected 1 ms to a day, found 0ns",
        ),
        (
            options().private_data(vec![0; 57]),
            Transport::Rc,
            "connect: private data: expected at most 56 bytes, found 57 bytes",
        ),
        (
            options().send_depth(1 << 30),
            Transport::Rc,
            "create completion queue: send_depth, receive_depth and posted_receives together: \
             expected at most 4194303, as sw_lo allows, found 1073741904",
        ),
        (
            options().send_depth(1 << 14).keepalive(keepalive),
            Transport::Rc,
            "create queue pair: send_depth and one for the keepalive: expected at most 16384, found 16385",
        ),
        (
            options().receive_depth(1_000_000).posted_receives(64),
            Transport::Rc,
            "create queue pair: receive_depth and posted_receives together: expected at most 16384, found 1000064",
        ),
        (
            options().gather(33),
            Transport::Rc,
            "create queue pair: gather: expected at most 32, found 33",
        ),
        (
            options().inline(513),
            Transport::Rc,
            "create queue pair: inline: expected at most 512, found 513",
        ),
        (
            options().keepalive(keepalive),
            Transport::Uc,
            "create queue pair: keepalive of an unreliable connection: expected none, found one",
        ),
    ] {
        assert_eq!(connect(options, transport), expected);
    }
}

#[test]
fn memory_of_another_domain_and_receives_of_a_shared_queue() {
    let shared = options().shared_receives(Some(SharedReceiveQueue::new(4, 64)));
    let (active, passive) = pair_with(&shared, &options().domain(Some(Domain::new())));
    refused(
        active.post_receive(vec![0; 8]),
        "post receive: posting a receive to a connection with shared receives is not supported here",
    );
    let foreign = active.share(8, Access::REMOTE_READ).unwrap();
    says(
        &passive.offer(&foreign).unwrap_err(),
        "register memory: domain of shared memory: expected the connection's, found another",
    );
    works(&passive, &active);
}
