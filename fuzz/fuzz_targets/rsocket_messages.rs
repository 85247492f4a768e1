//! What an rsocket's peer says: private data, messages, and its writes to the target table and iomap. An endpoint refuses it
//! or goes on; it never posts more than its queue holds or reads beyond what the peer was granted.
#![no_main]

use std::cell::RefCell;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use portolan_rsocket::{
    Close, Config, ConnData, Endpoint, LocalMemory, Phase, Signalling, Table, table_bytes,
};

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    private: &'a [u8],
    sends: bool,
    big_endian: bool,
    iomaps: u8,
    inline: u8,
    receive_buffer: u16,
    events: Vec<Event<'a>>,
}

#[derive(Arbitrary, Debug)]
enum Event<'a> {
    Message(u32),
    Table { offset: u8, bytes: &'a [u8] },
    Write(u16),
    WriteDirect { offset: u64, length: u16 },
    Read { skip: u16, length: u16 },
    Complete,
    Close(u8),
    Keepalive,
    Fail,
}

struct Memory(RefCell<Vec<u8>>);

impl Table for Memory {
    fn load(&self, offset: usize, into: &mut [u8]) {
        into.copy_from_slice(&self.0.borrow()[offset..offset + into.len()]);
    }

    fn store(&self, offset: usize, from: &[u8]) {
        self.0.borrow_mut()[offset..offset + from.len()].copy_from_slice(from);
    }
}

fuzz_target!(|input: Input<'_>| {
    let Ok(peer) = ConnData::decode(input.private) else {
        return;
    };
    assert_eq!(ConnData::decode(&peer.encode()), Ok(peer));
    let config = Config {
        iomaps: input.iomaps.into(),
        inline: input.inline.into(),
        receive_buffer: input.receive_buffer.into(),
        signalling: match input.sends {
            true => Signalling::Sends,
            false => Signalling::Immediate,
        },
        big_endian: input.big_endian,
        ..Config::default()
    };
    let mut endpoint = Endpoint::new(config, LocalMemory::default());
    let config = *endpoint.config();
    let memory = Memory(RefCell::new(vec![0; table_bytes(config.iomaps)]));
    endpoint.connected(peer);
    let mut posted = std::collections::VecDeque::new();
    for event in &input.events {
        match *event {
            Event::Message(number) => {
                let failed = endpoint.on_message(number, &memory).is_err();
                assert!(!failed || endpoint.phase() == Phase::Failed);
            }
            Event::Table { offset, bytes } => {
                let mut memory = memory.0.borrow_mut();
                let offset = usize::from(offset).min(memory.len());
                let length = bytes.len().min(memory.len() - offset);
                memory[offset..offset + length].copy_from_slice(&bytes[..length]);
            }
            Event::Write(length) => {
                if let Some((taken, post)) = endpoint.next_write(length.into()) {
                    assert!(taken > 0 && taken <= length.into());
                    posted.push_back(post.id);
                }
            }
            Event::WriteDirect { offset, length } => {
                if let Some(Some((taken, post))) =
                    endpoint.next_direct(length.into(), offset, &memory)
                {
                    assert!(taken > 0 && taken <= length.into());
                    posted.push_back(post.id);
                }
            }
            Event::Read { skip, length } => {
                let pieces = endpoint.peek(skip.into(), length.into());
                assert!(pieces.length() <= endpoint.unread_bytes());
                for (at, length) in pieces.ranges() {
                    assert!(at + length <= config.receive_buffer);
                }
                endpoint.consume(length.into());
            }
            Event::Complete => {
                if let Some(id) = posted.pop_front() {
                    endpoint.on_sent(id);
                }
            }
            Event::Close(which) => endpoint.close(match which % 3 {
                0 => Close::Read,
                1 => Close::Write,
                _ => Close::Both,
            }),
            Event::Keepalive => posted.extend(endpoint.keepalive().map(|post| post.id)),
            Event::Fail => endpoint.fail(),
        }
        while let Some(post) = endpoint.next_post() {
            posted.push_back(post.id);
        }
        assert!(posted.len() <= config.send_queue.into());
        assert!(endpoint.unread_bytes() <= config.receive_buffer);
    }
});
