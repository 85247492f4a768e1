//! A member of the group that speaks the protocol of links by hand (`crates/roce/src/io/net/shm`).

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use portolan_port_sharing::{
    Block, GroupConfig, LinkMessage, MemberLink, MemberLinks, PortGroup, PrivateFd,
};
use portolan_wire::Qpn;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

use crate::harness::*;
use crate::until_some;

/// First byte of each message.
const VERSION: u8 = 10;
/// Second byte of a message that wakes the other process.
const RING: u8 = 2;
/// Bytes of a head page, and of a ring's file.
const HEAD_PAGE_LEN: usize = 20_480;
const RING_FILE_LEN: usize = RECORDS_AT + (256 << 10);
/// Offsets in a ring's file: announcements, the places of waiting requests, and the records.
const HAZARDS_AT: u64 = 1024;
const SLOTS_AT: u64 = 2048;
const RECORDS_AT: usize = 4096;
/// The mark of a record about a write that is pulled, in the first lap, and the record's length.
const PULL: u32 = 4;
const PULL_LEN: u64 = 128;
/// The announcement of a copy of what a request asks for: this bit, and the request's number.
const PULLS: u64 = 1 << 62;

/// Creates a memory file that is sealed against shrinking.
fn memory_file(bytes: &[u8]) -> File {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = File::from(memfd_create("offered", flags).unwrap());
    file.write_all_at(bytes, 0).unwrap();
    fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
    file
}

pub struct Member {
    group: PortGroup,
    links: MemberLinks,
}

/// A link from another process.
pub struct Called {
    /// `None` once this process has ended it.
    link: Option<MemberLink>,
    /// First two bytes of the hello.
    pub hello: [u8; 2],
    ring: File,
    _bell: UnixStream,
}

/// A link to another process.
pub struct Calling {
    link: MemberLink,
    ring: File,
    written: u64,
}

/// A request to copy.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    pub slot: u32,
    pub id: u64,
}

impl Member {
    pub fn join(config: &GroupConfig) -> Self {
        let nobody = Arc::new(Nobody);
        let group = PortGroup::join(config.clone(), Box::new(Nobody), nobody).unwrap();
        let links = group.link_members().unwrap();
        Self { group, links }
    }

    pub fn block(&self) -> Block {
        self.group.block()
    }

    pub fn first_qpn(&self) -> u32 {
        self.block().first_qpn()
    }

    /// Accepts a call, and offers a table of rights.
    pub fn accept(&self, table: &[u8]) -> Called {
        let link = until_some("a call", || self.links.accept().unwrap());
        let (hello, files) = until_some("its ring", || receive(&link));
        let ring = File::from(files[0].as_fd().try_clone_to_owned().unwrap());
        let head_page = memory_file(&[0; HEAD_PAGE_LEN]);
        let rights = memory_file(table);
        let (bell, own_end) = UnixStream::pair().unwrap();
        let files = [head_page.as_fd(), bell.as_fd(), rights.as_fd()];
        link.send(&[hello[0], 0], &files).unwrap();
        Called {
            link: Some(link),
            hello: [hello[0], hello[1]],
            ring,
            _bell: own_end,
        }
    }

    /// Calls itself until no more calls may wait.
    pub fn fill_backlog(&self) -> Vec<MemberLink> {
        std::iter::from_fn(|| self.links.call(self.block()).ok().flatten()).collect()
    }

    /// Accepts calls that wait, and closes them.
    pub fn accept_all(&self, waiting: Vec<MemberLink>) {
        for _ in waiting {
            until_some("a call", || self.links.accept().unwrap());
        }
    }

    /// Calls the process with a block as the one with the block `from`. `None` if that process closes the connection.
    pub fn call(&self, block: Block, from: Block) -> Option<Calling> {
        // Too many calls may wait to be accepted.
        let link = until_some("a connection", || self.links.call(block).unwrap_or(None));
        let ring = memory_file(&vec![0; RING_FILE_LEN]);
        link.send(&[VERSION, from.index()], &[ring.as_fd()]).ok()?;
        let is_up = until_some("an answer", || {
            let mut buffer = [0; 8];
            match link.receive(&mut buffer) {
                Ok(LinkMessage::Nothing) => None,
                Ok(LinkMessage::Message(..)) => Some(true),
                Ok(LinkMessage::Closed) | Err(_) => Some(false),
            }
        });
        is_up.then_some(Calling {
            link,
            ring,
            written: 0,
        })
    }
}

/// Receives a message, if there is one.
fn receive(link: &MemberLink) -> Option<(Vec<u8>, Vec<PrivateFd>)> {
    let mut buffer = [0; 8];
    match link.receive(&mut buffer).unwrap() {
        LinkMessage::Message(len, files) => Some((buffer[..len].to_vec(), files)),
        LinkMessage::Nothing => None,
        LinkMessage::Closed => panic!("the link ended"),
    }
}

fn word(file: &File, at: u64) -> u32 {
    let mut bytes = [0; 4];
    file.read_exact_at(&mut bytes, at).unwrap();
    u32::from_ne_bytes(bytes)
}

fn long(file: &File, at: u64) -> u64 {
    u64::from(word(file, at + 4)) << 32 | u64::from(word(file, at))
}

impl Called {
    /// The next message, if there is one.
    pub fn receive(&self) -> Option<Vec<u8>> {
        receive(self.link.as_ref()?).map(|(message, _)| message)
    }

    pub fn end(&mut self) {
        self.link = None;
    }

    /// The mark of the first record.
    pub fn first_mark(&self) -> u32 {
        word(&self.ring, RECORDS_AT as u64)
    }

    /// What the ring's file tells about its process's witness.
    pub fn testimony(&self) -> Vec<u8> {
        let mut bytes = vec![0; 24];
        self.ring.read_exact_at(&mut bytes, 512).unwrap();
        bytes
    }

    /// The request in the ring's first record.
    pub fn asked(&self) -> Asked {
        let at = RECORDS_AT as u64;
        until_some("a request to copy", || {
            (word(&self.ring, at) == PULL).then_some(())
        });
        Asked {
            slot: word(&self.ring, at + 8 + 4 * 3),
            id: long(&self.ring, at + 8 + 4 * 4),
        }
    }

    /// Whether the other process shows that it still waits.
    pub fn waits(&self, asked: Asked) -> bool {
        long(&self.ring, SLOTS_AT + 8 * u64::from(asked.slot)) == asked.id
    }
}

impl Calling {
    /// Announces a copy of what a request asks for, or ends that.
    pub fn announce(&self, copied: Option<Asked>) {
        let word = copied.map_or(0, |asked| PULLS | asked.id);
        self.ring
            .write_all_at(&word.to_ne_bytes(), HAZARDS_AT)
            .unwrap();
    }

    /// Writes a record: the copy that a queue pair asked for is done.
    pub fn answer_done(&mut self, qpn: Qpn, tag: u32, asked: Asked) {
        const ANSWER: u32 = 2 << 24;
        let mut words = [0; 24];
        words[1] = ANSWER | qpn.value();
        words[2] = tag;
        (words[4], words[5]) = (asked.id as u32, (asked.id >> 32) as u32);
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let at = RECORDS_AT as u64 + self.written;
        self.ring.write_all_at(&bytes, at + 8).unwrap();
        self.ring.write_all_at(&PULL.to_ne_bytes(), at).unwrap();
        self.written += PULL_LEN;
        self.link.send(&[VERSION, RING], &[]).unwrap();
    }
}
