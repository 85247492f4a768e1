//! What `std::net` promises of its streams.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::thread;
use std::time::{Duration, Instant};

use portolan::provider::verbs::Access;
use portolan::software::StackConfig;
use portolan::software::survey::survey;
use portolan::stream::{Iomap, Sge, Socket};
use portolan::{Cause, SharedMemory, Stream, StreamListener};

use crate::harness::*;
use crate::pair::*;

#[test]
fn megabytes_go_both_ways_at_once_whole_and_in_order() {
    let (active, passive) = streams();
    let sent = [pattern(5_000_000, 1), pattern(3_333_333, 2)];
    thread::scope(|scope| {
        for (stream, own, others) in [(&active, 0, 1), (&passive, 1, 0)] {
            let sent = &sent;
            let mut writer = stream.try_clone().unwrap();
            scope.spawn(move || {
                writer.write_all(&sent[own]).unwrap();
                writer.shutdown(Shutdown::Write).unwrap();
            });
            let mut reader = stream;
            scope.spawn(move || {
                let mut found = Vec::new();
                reader.read_to_end(&mut found).unwrap();
                assert_same(&found, &sent[others]);
            });
        }
    });
}

#[test]
fn a_destination_without_a_port_is_refused_at_once() {
    for error in [
        Stream::connect("127.0.0.1").unwrap_err(),
        Stream::connect_to("127.0.0.1:0".parse().unwrap(), &stream_options()).unwrap_err(),
    ] {
        let is_invalid = matches!(error.cause, Cause::InvalidArgument { .. });
        assert!(is_invalid, "{error}");
        assert!(error.to_string().contains("as in host:port"), "{error}");
    }
}

#[test]
fn odd_buffers_and_short_queues_move_the_same_bytes() {
    let small = |receive_buffer, inline| {
        stream_options()
            .send_buffer(3001)
            .receive_buffer(receive_buffer)
            .send_queue(16)
            .receive_queue(16)
            .inline(inline)
    };
    let (mut active, mut passive) = streams_with(&small(777, 0), small(1111, 16));
    let sent = pattern(300_000, 3);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut found = vec![0; sent.len()];
            passive.read_exact(&mut found).unwrap();
            passive.write_all(&found).unwrap();
        });
        active.write_all(&sent).unwrap();
        let mut back = vec![0; sent.len()];
        active.read_exact(&mut back).unwrap();
        assert_same(&back, &sent);
    });
}

#[test]
fn a_half_closed_stream_carries_the_other_direction() {
    let (mut active, mut passive) = streams();
    active.write_all(b"question").unwrap();
    active.shutdown(Shutdown::Write).unwrap();
    assert_eq!(
        active.write(b"x").unwrap_err().kind(),
        ErrorKind::BrokenPipe
    );
    let mut question = String::new();
    passive.read_to_string(&mut question).unwrap();
    passive.write_all(b"answer").unwrap();
    drop(passive);
    let mut answer = String::new();
    active.read_to_string(&mut answer).unwrap();
    assert_eq!((&question[..], &answer[..]), ("question", "answer"));
}

#[test]
fn data_written_before_a_drop_arrives() {
    let (mut active, mut passive) = streams();
    let sent = pattern(100_000, 4);
    active.write_all(&sent[..60_000]).unwrap();
    drop(active);
    let mut found = Vec::new();
    passive.read_to_end(&mut found).unwrap();
    assert_same(&found, &sent[..60_000]);
    assert_eq!(
        passive.write(b"x").unwrap_err().kind(),
        ErrorKind::BrokenPipe
    );
}

#[test]
fn a_drop_of_a_nonblocking_stream_delivers_too() {
    let (active, mut passive) = streams();
    active.set_nonblocking(true).unwrap();
    (&active).write_all(b"last words").unwrap();
    drop(active);
    let mut found = Vec::new();
    passive.read_to_end(&mut found).unwrap();
    assert_eq!(found, b"last words");
}

#[test]
fn a_clone_keeps_the_stream_open() {
    let (active, mut passive) = streams();
    let clone = active.try_clone().unwrap();
    drop(active);
    (&clone).write_all(b"still").unwrap();
    let mut found = [0; 5];
    passive.read_exact(&mut found).unwrap();
    assert_eq!(&found, b"still");
}

#[test]
fn a_read_waits_as_long_as_its_timeout_and_then_would_block() {
    let (mut active, passive) = streams();
    let zero = active.set_read_timeout(Some(Duration::ZERO)).unwrap_err();
    assert_eq!(zero.kind(), ErrorKind::InvalidInput);
    let timeout = Duration::from_millis(50);
    active.set_read_timeout(Some(timeout)).unwrap();
    assert_eq!(active.read_timeout().unwrap(), Some(timeout));
    let started = Instant::now();
    assert_eq!(
        active.read(&mut [0]).unwrap_err().kind(),
        ErrorKind::WouldBlock
    );
    assert!(started.elapsed() >= timeout);
    drop(passive);
}

#[test]
fn a_write_that_nobody_reads_waits_as_long_as_its_timeout() {
    let (mut active, passive) = streams();
    let (timeout, started) = (Duration::from_millis(50), Instant::now());
    active.set_write_timeout(Some(timeout)).unwrap();
    let error = active.write_all(&[7; 10_000_000]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    assert!(started.elapsed() >= timeout);
    drop(passive);
}

#[test]
fn peeking_takes_nothing() {
    let (mut active, mut passive) = streams();
    active.write_all(b"chart").unwrap();
    let mut found = [0; 9];
    assert!(passive.peek(&mut found).unwrap() > 0);
    passive.read_exact(&mut found[..5]).unwrap();
    assert_eq!(&found[..5], b"chart");
}

#[test]
fn a_reader_goes_on_when_another_thread_shuts_reading_down() {
    let (active, _passive) = streams();
    thread::scope(|scope| {
        let reader = scope.spawn(|| (&active).read(&mut [0; 8]).unwrap());
        // It sleeps by then, or finds the end at once: either way it returns.
        thread::sleep(Duration::from_millis(20));
        active.shutdown(Shutdown::Read).unwrap();
        assert_eq!(reader.join().unwrap(), 0);
    });
}

#[test]
fn a_stream_has_the_addresses_of_both_ends() {
    let (active, passive) = streams();
    assert_eq!(active.peer_addr().unwrap(), passive.local_addr().unwrap());
    assert_eq!(active.local_addr().unwrap(), passive.peer_addr().unwrap());
}

#[test]
fn a_name_is_tried_at_each_of_its_addresses() {
    let (listener, address) = stream_listener();
    thread::scope(|scope| {
        let name = format!("localhost:{}", address.port());
        let connecting = scope.spawn(move || Stream::connect_with(&name, &stream_options()));
        let (passive, peer) = listener.accept_within(PATIENCE).unwrap();
        let active = connecting.join().unwrap().unwrap();
        assert_eq!(active.local_addr().unwrap(), peer);
        assert_eq!(passive.peer_addr().unwrap(), peer);
    });
}

#[test]
fn connecting_where_nobody_listens_is_refused() {
    let (listener, address) = stream_listener();
    drop(listener);
    let error = Stream::connect_to(address, &stream_options()).unwrap_err();
    assert!(matches!(error.cause, Cause::Rejected { .. }), "{error}");
}

#[test]
fn a_request_of_another_protocol_is_rejected_and_the_listener_goes_on() {
    let (listener, address) = stream_listener();
    thread::scope(|scope| {
        let accepting = scope.spawn(|| listener.accept_within(PATIENCE).unwrap());
        let refused = connector().private_data(*b"hello").connect_to(address);
        let error = refused.unwrap_err();
        assert!(matches!(error.cause, Cause::Rejected { .. }));
        for part in ["rsockets", "portolan::Stream", &address.to_string()] {
            assert!(error.to_string().contains(part), "{error}");
        }
        assert!(error.context.local.is_some(), "{error:?}");
        let stream = Stream::connect_to(address, &stream_options()).unwrap();
        let (passive, _) = accepting.join().unwrap();
        assert_eq!(stream.local_addr().unwrap(), passive.peer_addr().unwrap());
    });
}

#[test]
fn a_listener_of_another_protocol_is_recognized() {
    let listener = listener("127.0.0.1:0");
    let address = listener.local_addr().unwrap();
    thread::scope(|scope| {
        let accepting = scope.spawn(|| {
            let incoming = listener.accept_within(PATIENCE).unwrap();
            incoming.accept_with(&options())
        });
        let error = Stream::connect_to(address, &stream_options()).unwrap_err();
        for part in ["rsocket", "StreamListener", &address.to_string()] {
            assert!(error.to_string().contains(part), "{error}");
        }
        assert!(error.context.local.is_some(), "{error:?}");
        drop(accepting.join().unwrap());
    });
}

#[test]
fn mapped_memory_is_written_before_the_message_that_announces_it() {
    let writer_options = stream_options().iomaps(2);
    let (mut active, mut passive) = streams_with(&writer_options, stream_options());
    let memory = SharedMemory::new(passive.pd(), 100_000, Access::REMOTE_WRITE).unwrap();
    let remote = memory.remote();
    let offered = Iomap {
        offset: 1 << 40,
        memory: Sge {
            addr: remote.addr,
            key: remote.rkey,
            length: remote.length as u32,
        },
    };
    let entry = passive.map(offered).unwrap();
    passive.write_all(b"mapped").unwrap();
    active.read_exact(&mut [0; 6]).unwrap();
    let bytes = pattern(90_000, 5);
    let mut written = 0;
    while written < bytes.len() {
        let at = (1 << 40) + 10_000 + written as u64;
        written += active.write_mapped(&bytes[written..], at).unwrap().unwrap();
    }
    assert_eq!(active.write_mapped(b"x", 7).unwrap(), None);
    active.write_all(b"written").unwrap();
    passive.read_exact(&mut [0; 7]).unwrap();
    let mut found = vec![0; 90_000];
    memory.load(10_000, &mut found);
    assert_same(&found, &bytes);
    passive.unmap(entry);
    assert_eq!(passive.map(offered), Some(entry));
}

#[test]
fn keepalives_go_out_on_an_idle_stream_and_leave_it_alone() {
    let port = free_port();
    let provider = start(port);
    let listener = StreamListener::new(
        listener_on(provider.clone(), "127.0.0.1:0"),
        stream_options(),
    );
    let address = listener.local_addr().unwrap();
    let options = stream_options().provider(provider);
    let (mut active, mut passive) = thread::scope(|scope| {
        let active = scope.spawn(|| Stream::connect_to(address, &options).unwrap());
        let (passive, _) = listener.accept_within(PATIENCE).unwrap();
        (active.join().unwrap(), passive)
    });
    let sent_packets = || {
        let mut group = StackConfig::default().group;
        group.port = port;
        group.name_prefix = GROUP_PREFIX.into();
        let seen = survey(&group, PATIENCE).unwrap().expect("a group");
        seen.members[0].report.as_ref().unwrap().counters["sent_packets"]
    };
    // Messages and acknowledgements.
    let sent_in = |time| {
        let before = sent_packets();
        thread::sleep(time);
        sent_packets() - before
    };
    let idle = sent_in(Duration::from_millis(300));
    assert!(idle < 10, "{idle}");
    active.set_keepalive(Some(Duration::from_millis(5)));
    eventually("keepalives are sent", || {
        sent_in(Duration::from_millis(300)) >= 20
    });
    // The shortest is a millisecond; the longest never comes.
    active.set_keepalive(Some(Duration::ZERO));
    let began = Instant::now();
    let often = sent_in(Duration::from_millis(300));
    // Two packets each time: the message and its acknowledgement.
    assert!(
        u128::from(often) < 100 + 3 * began.elapsed().as_millis(),
        "{often}"
    );
    active.set_keepalive(Some(Duration::MAX));
    passive.set_keepalive(None);
    active.write_all(b"alive").unwrap();
    let mut found = [0; 5];
    passive.read_exact(&mut found).unwrap();
    assert_eq!(&found, b"alive");
    active.set_keepalive(None);
    eventually("keepalives end", || {
        sent_in(Duration::from_millis(300)) < 10
    });
}

#[test]
fn a_read_returns_all_that_is_there_while_a_larger_buffer_replaces_the_first() {
    let (mut active, mut passive) = streams();
    active.set_nonblocking(true).unwrap();
    passive.set_nonblocking(true).unwrap();
    let data = pattern(1 << 20, 3);
    let mut into = vec![0; 8 << 20];
    let mut largest = 0;
    for _ in 0..40 {
        let mut sent = 0;
        eventually("there is room", || active.ready().writable);
        while sent < into.len()
            && let Ok(length) = active.write(&data)
        {
            sent += length;
        }
        eventually("all that was sent is there", || {
            passive.ready().unread_bytes as usize == sent
        });
        let received_bytes = passive.ready().received_bytes;
        // Room for a part, so that the next data is in both buffers.
        let part = passive.read(&mut into[..sent / 3]).unwrap();
        let more = active.write(&data).unwrap_or(0);
        let left = sent - part + more;
        eventually("more is there", || {
            passive.ready().unread_bytes as usize == left
        });
        // What was read meanwhile still counts.
        let since = passive.ready().received_bytes - received_bytes;
        assert_eq!(since as usize, more);
        assert_eq!(passive.read(&mut into).unwrap(), left);
        assert_eq!(
            passive.read(&mut into).unwrap_err().kind(),
            ErrorKind::WouldBlock
        );
        largest = largest.max(left);
    }
    // It has grown: the first one has 128 KiB.
    assert!(largest > 200 << 10, "{largest}");
}

#[test]
fn a_shutdown_before_the_connection_is_confirmed_reaches_the_peer_without_another_call() {
    let (listener, address) = stream_listener();
    listener.set_nonblocking(true).unwrap();
    let socket = Socket::new_on(provider()).unwrap();
    let mut connecting = socket.connect(address, &stream_options()).unwrap();
    let mut accepted = None;
    eventually("the request arrives", || {
        assert!(connecting.try_finish().unwrap().is_none());
        accepted = listener.accept().ok();
        accepted.is_some()
    });
    // The client has not looked at the answer.
    let (passive, _) = accepted.unwrap();
    passive.shutdown(Shutdown::Write).unwrap();
    let mut active = connecting.finish().unwrap();
    active.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(active.read(&mut [0]).unwrap(), 0);
    drop(passive);
}

#[test]
fn closing_returns_when_the_peer_has_the_data() {
    let (active, mut passive) = streams();
    (&active).write_all(b"the last words").unwrap();
    active.close(PATIENCE).unwrap();
    let mut found = String::new();
    passive.read_to_string(&mut found).unwrap();
    assert_eq!(found, "the last words");
    passive.close(PATIENCE).unwrap();

    // The peer's device confirms what the peer's program has not read.
    let (active, mut passive) = streams();
    let mut sent = 0;
    while let Ok(length) = active.try_write(&[7; 65_536]) {
        sent += length;
    }
    assert!(sent > 0);
    active.close(PATIENCE).unwrap();
    let mut found = Vec::new();
    passive.read_to_end(&mut found).unwrap();
    assert_eq!(found.len(), sent);
}

/// Writes until the peer has taken `expected` bytes, and for a while longer. Returns the number of bytes.
fn fill(mut stream: &Stream, expected: usize) -> usize {
    let mut total = 0;
    let (started, mut last) = (Instant::now(), Instant::now());
    while last.elapsed() < Duration::from_millis(300)
        || total < expected && started.elapsed() < PATIENCE
    {
        match stream.write(&[7; 1000]) {
            Ok(written) => (total, last) = (total + written, Instant::now()),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
                thread::sleep(Duration::from_millis(1));
            }
        }
    }
    total
}

#[test]
fn a_write_has_the_peers_receive_buffer_and_then_each_half_that_the_peer_has_read() {
    let (active, passive) = streams();
    let half = stream_options().receive_buffer as usize / 2;
    active.set_nonblocking(true).unwrap();
    let read = |bytes| (&passive).read_exact(&mut vec![0; bytes]).unwrap();
    // The peer grants the second half when it hears that it is connected, or with its first read.
    (&active).write_all(&[7]).unwrap();
    read(1);
    let rest = 2 * half - 1;
    assert_eq!(fill(&active, rest), rest);
    read(half - 2);
    assert_eq!(fill(&active, 0), 0);
    read(1);
    assert_eq!(fill(&active, half), half);
}

#[test]
fn a_listener_with_wrong_options_tells_its_program() {
    let (listener, address) = stream_listener();
    listener.set_options(stream_options().keepalive(Duration::ZERO));
    thread::scope(|scope| {
        let client = scope.spawn(|| Stream::connect_to(address, &stream_options()));
        let error = listener.accept_within(PATIENCE).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert!(client.join().unwrap().is_err());
    });
}

#[test]
fn a_connect_whose_deadline_has_passed_fails_at_once() {
    let (_listener, address) = stream_listener();
    for timeout in [Duration::ZERO, Duration::from_nanos(1)] {
        let error = Stream::connect_to(address, &stream_options().timeout(timeout)).unwrap_err();
        let (after_ms, retries) = (0, 0);
        assert_eq!(
            error.cause,
            Cause::TimedOut { after_ms, retries },
            "{error}"
        );
    }
}

#[test]
fn a_connect_continues_after_an_event_that_the_program_has_written() {
    let (listener, address) = stream_listener();
    let socket = Socket::new_on(provider()).unwrap();
    let connecting = socket.connect(address, &stream_options()).unwrap();
    connecting.id().write_event(0, 7).unwrap();
    thread::scope(|scope| {
        let accepting = scope.spawn(|| listener.accept_within(PATIENCE));
        connecting.finish().unwrap();
        accepting.join().unwrap().unwrap();
    });
}
