//! Memory of the program's and of the library's: what is posted comes back uncopied, and who reaches what.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use portolan::provider::traits::{Device, Provider};
use portolan::provider::verbs::WcStatus;
use portolan::{Access, Buffer, Cause, Connection, Domain, Error, SharedMemory};

use crate::harness::*;

fn lo(provider: &Arc<dyn Provider>) -> Arc<dyn Device> {
    let devices = provider.devices().unwrap();
    let mut loopback = devices.into_iter().filter(|it| it.name() == "sw_lo");
    loopback.next().expect("every machine has loopback")
}

/// A connection on a provider, whose passive side is in a domain.
fn pair_in(provider: &Arc<dyn Provider>, domain: Option<Domain>) -> (Connection, Connection) {
    let listener = listener_on(provider.clone(), "127.0.0.1:0");
    let address = listener.local_addr().unwrap();
    let passive = options().domain(domain);
    pair_at(connector_on(provider.clone()), &listener, address, &passive)
}

fn refused(connection: &Connection, memory: &SharedMemory) -> Error {
    let error = connection.offer(memory).unwrap_err();
    let Cause::InvalidArgument { what, .. } = error.cause else {
        panic!("{error}");
    };
    assert_eq!(what, "domain of shared memory");
    error
}

#[test]
fn a_vector_is_sent_and_written_and_comes_back_as_it_was() {
    let (active, passive) = pair();
    let bytes = pattern(4000, 1);
    let (at, capacity) = (bytes.as_ptr(), bytes.capacity());
    let done = active.send(bytes).unwrap().wait().unwrap();
    let message = passive.receive_within(PATIENCE).unwrap();
    assert_same(&message, &pattern(4000, 1));
    let memory = passive.share(4000, Access::REMOTE_WRITE).unwrap();
    let done = active.write(done.buffer, memory.remote());
    let buffer = done.unwrap().wait().unwrap().buffer;
    let mut found = vec![0; 4000];
    memory.load(0, &mut found);
    assert_same(&found, &pattern(4000, 1));
    let bytes: Vec<u8> = buffer.into_memory().unwrap();
    assert_eq!((bytes.as_ptr(), bytes.capacity()), (at, capacity));
}

#[test]
fn slices_of_a_buffer_are_in_flight_at_the_same_time() {
    let (active, passive) = pair();
    let mut whole = Buffer::from(pattern(10 * 1024, 2));
    let mut sends = Vec::new();
    while !whole.is_empty() {
        sends.push(active.send(whole.split_to(1024)).unwrap());
    }
    for at in 0..10 {
        let message = passive.receive_within(PATIENCE).unwrap();
        assert_same(&message, &pattern(10 * 1024, 2)[at * 1024..][..1024]);
    }
    let mut slices = sends.into_iter().map(|send| send.wait().unwrap().buffer);
    let mut joined = slices.next().unwrap();
    slices.for_each(|slice| joined.unsplit(slice).unwrap());
    joined.unsplit(whole).unwrap();
    let bytes: Vec<u8> = joined.into_memory().unwrap();
    assert_same(&bytes, &pattern(10 * 1024, 2));
}

#[test]
fn a_gather_list_is_one_message_one_write_and_one_read() {
    let (active, passive) = pair();
    let parts = || {
        let part = |bytes: &[u8]| active.buffer_from(bytes).unwrap();
        vec![
            part(b"head"),
            Buffer::from(b"er and ".to_vec()),
            part(b"body"),
        ]
    };
    let done = active.send(parts()).unwrap().wait().unwrap();
    assert_eq!((&done.buffer[..], done.more.len()), (&b"head"[..], 2));
    let message = passive.receive_within(PATIENCE).unwrap();
    assert_eq!(&message[..], b"header and body");

    let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
    let memory = passive.share(15, access).unwrap();
    let done = active.write(parts(), memory.remote()).unwrap().wait();
    let mut more = done.unwrap().more.into_vec();
    let mut found = [0; 15];
    memory.load(0, &mut found);
    assert_eq!(&found, b"header and body");

    more.iter_mut().for_each(|buffer| buffer.fill(0));
    more.push(active.buffer(100).unwrap());
    let done = active.read(more, memory.remote()).unwrap().wait().unwrap();
    assert_eq!(
        (&done.buffer[..], &done.more[0][..]),
        (&b"header "[..], &b"and "[..])
    );
    assert_eq!(&done.more[1][..5], b"body\0");
}

#[test]
fn a_gather_list_that_is_too_long_is_refused_with_numbers_and_comes_back() {
    let (active, passive) = pair();
    let buffers: Vec<Buffer> = (0..5).map(|byte| Buffer::from(vec![byte])).collect();
    let failed = active.send(buffers).unwrap_err();
    let text = failed.error.to_string();
    assert!(
        text.contains("buffers of a gather list: expected at most 4, found 5"),
        "{text}"
    );
    assert_eq!(failed.buffer.unwrap()[..], [0]);
    assert_eq!(failed.more.len(), 4);
    active.send(b"still here".to_vec()).unwrap().wait().unwrap();
    assert_eq!(
        &passive.receive_within(PATIENCE).unwrap()[..],
        b"still here"
    );
}

#[test]
fn a_buffer_serves_connections_of_every_device_and_domain() {
    let (one, other): (Arc<dyn Provider>, Arc<dyn Provider>) = (own_provider(), own_provider());
    let domain = Domain::on(&lo(&one)).unwrap();
    let pairs = [
        pair_in(&one, None),
        pair_in(&one, Some(domain.clone())),
        pair_in(&other, Some(domain)),
    ];
    let mut of_vector = Buffer::from(b"ahoy".to_vec());
    let mut of_library = pairs[0].0.buffer_from(b"ahoy").unwrap();
    for (active, passive) in &pairs {
        for (from, to) in [(active, passive), (passive, active)] {
            for buffer in [&mut of_vector, &mut of_library] {
                let posted = std::mem::replace(buffer, Buffer::from(Vec::new()));
                *buffer = from.send(posted).unwrap().wait().unwrap().buffer;
                assert_eq!(&to.receive_within(PATIENCE).unwrap()[..], b"ahoy");
            }
        }
    }
    drop(pairs);
    assert_eq!(of_vector.into_memory::<Vec<u8>>().unwrap(), b"ahoy");
}

#[test]
fn memory_of_a_domain_is_reached_by_its_connections_on_each_device_and_by_no_others() {
    let (one, other): (Arc<dyn Provider>, Arc<dyn Provider>) = (own_provider(), own_provider());
    let domain = Domain::on(&lo(&one)).unwrap();
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
    let memory = domain.share(64, access).unwrap();
    for provider in [&one, &other] {
        let (active, passive) = pair_in(provider, Some(domain.clone()));
        let offer = passive.offer(&memory).unwrap();
        let name = provider.name().as_bytes().to_vec();
        active.write(name.clone(), offer).unwrap().wait().unwrap();
        let mut found = vec![0; name.len()];
        memory.load(0, &mut found);
        assert_eq!(found, name);
    }
    // A connection without the domain is told so, and its peer does not get in with a key that leaked.
    let (active, passive) = pair_in(&one, None);
    refused(&passive, &memory);
    let failed = active.write(vec![1; 8], memory.remote()).unwrap().wait();
    let failed = failed.unwrap_err();
    assert_eq!(
        failed.error.cause,
        Cause::WorkFailed(WcStatus::RemAccessErr)
    );
    assert_eq!(failed.buffer.unwrap()[..], [1; 8]);
    // Nor does one of another domain.
    let another = Domain::on(&lo(&one)).unwrap();
    let (active, passive) = pair_in(&one, Some(another));
    refused(&passive, &memory);
    let failed = active.read(vec![0; 8], memory.remote()).unwrap().wait();
    let failed = failed.unwrap_err();
    assert_eq!(
        failed.error.cause,
        Cause::WorkFailed(WcStatus::RemAccessErr)
    );
}

#[test]
fn a_listeners_domain_is_for_its_connections_over_both_families() {
    let listener = listener("[::]:0");
    let port = listener.local_addr().unwrap().port();
    let domain = listener.domain().unwrap();
    let memory = domain.share(8, Access::REMOTE_ATOMIC).unwrap();
    let passive = options().domain(Some(domain));
    for (number, ip) in ["127.0.0.1", "::1"].into_iter().enumerate() {
        let address = std::net::SocketAddr::new(ip.parse().unwrap(), port);
        let (active, passive) = pair_at(connector(), &listener, address, &passive);
        let offer = passive.offer(&memory).unwrap();
        let done = active.fetch_add(active.buffer(8).unwrap(), offer, 1);
        let done = done.unwrap().wait().unwrap();
        assert_eq!(done.original(), Some(number as u64));
    }
}

#[test]
fn the_programs_memory_is_shared_and_given_back_with_what_the_peer_wrote() {
    let (active, passive) = pair();
    let (error, empty) = passive
        .share_memory(Vec::new(), Access::REMOTE_WRITE)
        .unwrap_err();
    assert!(
        error.to_string().contains("length of shared memory"),
        "{error}"
    );
    assert_eq!(empty, [0; 0]);
    let vector = vec![0; 100];
    let at = vector.as_ptr();
    let memory = passive.share_memory(vector, Access::REMOTE_WRITE).unwrap();
    assert!(memory.access().contains(Access::REMOTE_WRITE));
    let to = memory.remote().slice(90, 10).unwrap();
    active.write(vec![7; 10], to).unwrap().wait().unwrap();
    let vector: Vec<u8> = passive.revoke(memory).unwrap().into_memory().unwrap();
    assert_eq!((vector.as_ptr(), vector.len()), (at, 100));
    assert_same(&vector[90..], &[7; 10]);
    let failed = active.write(vec![8; 10], to).unwrap().wait().unwrap_err();
    assert_eq!(
        failed.error.cause,
        Cause::WorkFailed(WcStatus::RemAccessErr)
    );
}

#[test]
fn a_request_has_a_fence_and_immediate_data_and_a_read_has_none_of_the_latter() {
    let (active, passive) = pair();
    let memory = passive.share(8, Access::REMOTE_READ | Access::REMOTE_WRITE);
    let memory = memory.unwrap();
    memory.store(0, b"old data");
    let read = active.read(vec![0; 8], memory.remote()).unwrap();
    let request = active.request().fence().immediate(42);
    let written = request
        .write(b"new data".to_vec(), memory.remote())
        .unwrap();
    assert_eq!(&read.wait().unwrap().buffer[..], b"old data");
    written.wait().unwrap();
    let message = passive.receive_within(PATIENCE).unwrap();
    assert_eq!((message.immediate(), message.len()), (Some(42), 0));
    assert_eq!(message.written(), Some(8));
    let failed = request.read(vec![0; 8], memory.remote()).unwrap_err();
    let text = failed.error.to_string();
    assert!(
        text.contains("immediate data of a read: expected none, found 42"),
        "{text}"
    );
}

#[test]
fn a_batch_is_posted_together_and_in_order_or_comes_back_as_it_was() {
    let few = options().send_depth(4);
    let (active, passive) = pair_with(&few, &options());
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
    let memory = passive.share(16, access).unwrap();
    let half = |at| memory.remote().slice(at, 8).unwrap();
    let mut batch = active.batch();
    batch.write(b"record 1".to_vec(), half(0)).unwrap();
    batch.write(b"record 2".to_vec(), half(8)).unwrap();
    batch.read(vec![0; 16], memory.remote()).unwrap();
    batch.fence().immediate(2).send(b"done".to_vec()).unwrap();
    let failed = batch.write(vec![0; 9], half(0)).unwrap_err();
    assert!(matches!(
        failed.error.cause,
        Cause::BeyondRemoteMemory { .. }
    ));
    let transfers = batch.post().unwrap();
    let done: Vec<_> = transfers.into_iter().map(|it| it.wait().unwrap()).collect();
    assert_eq!(done.len(), 4);
    assert_eq!(&done[2].buffer[..], b"record 1record 2");
    let message = passive.receive_within(PATIENCE).unwrap();
    assert_eq!((&message[..], message.immediate()), (&b"done"[..], Some(2)));

    let mut batch = active.batch();
    for number in 0..5u8 {
        batch.send(vec![number]).unwrap();
    }
    let unposted = batch.post().unwrap_err();
    assert!(unposted.error.is_limit(), "{unposted}");
    assert!(
        unposted
            .error
            .to_string()
            .contains("limit of 4 posted sends")
    );
    assert_eq!((unposted.posted.len(), unposted.rest.len()), (0, 5));
    let mut batch = active.batch();
    for gather in unposted.rest.into_iter().take(4) {
        batch.send(gather).unwrap();
    }
    let transfers = batch.post().unwrap();
    for number in 0..4 {
        assert_eq!(passive.receive_within(PATIENCE).unwrap()[..], [number]);
    }
    transfers
        .into_iter()
        .for_each(|it| drop(it.wait().unwrap()));
    passive.disconnect().unwrap();
    active.wait_disconnected(PATIENCE).unwrap();
    let mut batch = active.batch();
    batch.send(vec![7]).unwrap();
    let ended = match batch.post() {
        Err(unposted) => unposted.error,
        Ok(mut posted) => posted.remove(0).wait().unwrap_err().error,
    };
    assert!(ended.is_disconnected(), "{ended}");
}

#[test]
fn inline_data_needs_no_buffer_and_more_than_the_limit_is_refused_with_numbers() {
    let inline = options().inline(32);
    let (active, passive) = pair_with(&inline, &options());
    let mut bytes = *b"ahoy";
    let sending = active.send_inline(&bytes).unwrap();
    bytes.fill(0);
    assert_eq!(&passive.receive_within(PATIENCE).unwrap()[..], b"ahoy");
    assert!(sending.wait().unwrap().buffer.is_empty());
    let memory = passive.share(8, Access::REMOTE_WRITE).unwrap();
    let written = active.write_inline(b"12345678", memory.remote());
    written.unwrap().wait().unwrap();
    let mut found = [0; 8];
    memory.load(0, &mut found);
    assert_eq!(&found, b"12345678");
    let error = active.send_inline(&[0; 33]).unwrap_err().error;
    let text = error.to_string();
    assert!(
        text.contains("inline data: expected at most 32 bytes, found 33"),
        "{text}"
    );
    let error = active
        .write_inline(&[0; 9], memory.remote())
        .unwrap_err()
        .error;
    assert!(
        matches!(error.cause, Cause::BeyondRemoteMemory { .. }),
        "{error}"
    );
    let error = passive.send_inline(&[0]).unwrap_err().error;
    assert!(error.to_string().contains("at most 0 bytes"), "{error}");
}

#[test]
fn messages_that_were_taken_out_may_be_kept_forever_and_delay_no_others() {
    let few = options().receive_depth(2);
    let (active, passive) = pair_with(&options(), &few);
    let mut kept = Vec::new();
    for number in 0..20u8 {
        let bytes = vec![number; usize::from(number) + 1];
        active.send(bytes).unwrap().wait().unwrap();
        let message = passive.receive_within(PATIENCE).unwrap();
        kept.push(message.into_buffer().unwrap());
    }
    for (number, buffer) in kept.into_iter().enumerate() {
        assert_same(&buffer, &vec![number as u8; number + 1]);
        passive.send(buffer).unwrap().wait().unwrap();
        assert_eq!(active.receive_within(PATIENCE).unwrap().len(), number + 1);
    }
}

#[test]
fn messages_that_are_held_do_not_stall_the_peer_and_their_receives_are_freed_afterwards() {
    let provider = own_provider();
    let few = options().receive_depth(2).held_messages(100);
    let listener = listener_on(provider.clone(), "127.0.0.1:0");
    let address = listener.local_addr().unwrap();
    let (active, passive) = pair_at(connector_on(provider.clone()), &listener, address, &few);
    let idle = provider.usage().memory_regions;
    for _ in 0..2 {
        let mut held = Vec::new();
        for number in 0..98u8 {
            let sent = active.send(vec![number]).unwrap();
            held.push(passive.receive_within(PATIENCE).unwrap());
            sent.wait().unwrap();
        }
        let numbers = held.iter().map(|message| message[0]);
        assert!(numbers.eq(0..98));
        assert!(provider.usage().memory_regions > idle + 90);
        drop(held);
        eventually("receives freed", || {
            provider.usage().memory_regions <= idle + 1
        });
    }
}

/// Counts warnings.
struct Warnings(AtomicU64);

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::WARN
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn a_program_that_holds_the_maximum_of_messages_learns_once_why_its_peer_waits() {
    let few = options().receive_depth(2).held_messages(2);
    let (active, passive) = pair_with(&options(), &few);
    let warnings = Arc::new(Warnings(AtomicU64::new(0)));
    tracing::subscriber::with_default(warnings.clone(), || {
        let told = || warnings.0.load(Ordering::Relaxed);
        for _ in 0..3 {
            let sends = [(); 2].map(|()| active.send(b"ahoy".to_vec()).unwrap());
            let first = passive.receive_within(PATIENCE).unwrap();
            let before = told();
            for send in sends {
                send.wait().unwrap();
            }
            let second = passive.receive_within(PATIENCE).unwrap();
            assert!(before <= told());
            assert_eq!(told(), 1);
            drop((first, second));
        }
    });
}

#[cfg(feature = "bytes")]
#[test]
fn bytes_come_back_as_bytes() {
    let (active, passive) = pair();
    let mut bytes = bytes::BytesMut::zeroed(100);
    let body = bytes.split_off(50);
    let at = body.as_ptr();
    let done = active.send(body).unwrap().wait().unwrap();
    assert_eq!(passive.receive_within(PATIENCE).unwrap().len(), 50);
    let body: bytes::BytesMut = done.buffer.into_memory().unwrap();
    assert_eq!((body.as_ptr(), body.len(), bytes.len()), (at, 50, 50));
}

#[cfg(feature = "memmap2")]
#[test]
fn mapped_memory_is_sent_without_copying() {
    let (active, passive) = pair();
    let mut map = memmap2::MmapMut::map_anon(4096).unwrap();
    map.copy_from_slice(&pattern(4096, 5));
    let done = active.send(map).unwrap().wait().unwrap();
    assert_same(
        &passive.receive_within(PATIENCE).unwrap(),
        &pattern(4096, 5),
    );
    let map: memmap2::MmapMut = done.buffer.into_memory().unwrap();
    assert_same(&map, &pattern(4096, 5));
}
