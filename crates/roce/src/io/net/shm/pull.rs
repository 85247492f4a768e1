//! Writes to memory that the other process's program owns: a record in the ring asks that process to copy the bytes out
//! of this process's memory, and a record in the other ring answers.
//!
//! The asking process shows in its ring's file that it still waits. It withdraws that before it uses the memory for
//! something else, so a process that was stopped does not copy later.

#![allow(unsafe_code, reason = "atomics in memory that processes share")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use portolan_wire::Qpn;

use super::mapping::Mapping;
use super::program_memory::{Process, Testimony, WhyUnreadable};
use super::ring::{Broken, Reader, Writer};
use super::ring_layout::{Kind, MARK_LEN, RING_AT, RING_LEN, record_len};

/// Words of a record.
pub(super) const WORDS: usize = 24;
/// Length of a record.
const LEN: usize = 4 * WORDS;
/// Maximum of pieces of memory in one request. Requests of more use packets.
pub(crate) const PULL_PIECES_MAX: usize = 4;
/// Requests of one process to another that may wait at the same time.
pub(super) const SLOTS: usize = 64;
/// Offset of the numbers of waiting requests in a ring's file, in the writer's page.
const SLOTS_AT: usize = 2048;
/// Offset of what the file's process tells about its witness.
const TESTIMONY_AT: usize = 512;
/// The high byte of a record's second word.
const ASK: u32 = 1 << 24;
const ANSWER: u32 = 2 << 24;
/// Queue pair numbers.
const LOW: u32 = 0x00FF_FFFF;

/// A record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pull {
    /// The queue pair that it is for, and the tag of the connection.
    pub(crate) dest_qp: Qpn,
    pub(crate) tag: u32,
    /// The number of the request among those of the asking process.
    pub(crate) id: u64,
    pub(crate) kind: PullKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PullKind {
    Ask(Ask),
    Answer(Answer),
}

/// A request to copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ask {
    /// Where it shows that it waits.
    pub(crate) slot: u32,
    /// The target memory.
    pub(crate) rkey: u32,
    pub(crate) addr: u64,
    pub(crate) len: u32,
    /// The memory of the asking process, which has `len` bytes. Empty pieces are at the end.
    pub(crate) pieces: [(u64, u32); PULL_PIECES_MAX],
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Done,
    /// Packets decide.
    Refused,
    /// The process cannot read the asking one's memory: there is no use in asking again.
    Unreadable(WhyUnreadable),
}

/// The process that writes a ring, as its reader sees it.
#[derive(Debug)]
pub(crate) struct Asker {
    ring: Arc<Mapping>,
    /// `None` if it is not trusted with memory.
    process: Option<Process>,
}

impl Pull {
    pub(super) fn emit(&self) -> [u32; WORDS] {
        let mut words = [0; WORDS];
        words[1] = self.dest_qp.value();
        words[2] = self.tag;
        [words[4], words[5]] = halves(self.id);
        match &self.kind {
            PullKind::Ask(ask) => {
                words[1] |= ASK;
                words[3] = ask.slot;
                words[6] = ask.rkey;
                words[7] = ask.len;
                [words[8], words[9]] = halves(ask.addr);
                for (at, (addr, len)) in (12..).step_by(3).zip(ask.pieces) {
                    [words[at], words[at + 1]] = halves(addr);
                    words[at + 2] = len;
                }
            }
            PullKind::Answer(answer) => {
                words[1] |= ANSWER;
                words[10] = match answer {
                    Answer::Done => 0,
                    Answer::Refused => 1,
                    Answer::Unreadable(why) => 1 + u32::from(why.number()),
                };
            }
        }
        words
    }

    /// Parses a record. `None` if no process writes it.
    pub(super) fn parse(words: &[u32; WORDS]) -> Option<Self> {
        let kind = match words[1] & !LOW {
            ASK => {
                let mut at = 12;
                let pieces = [(); PULL_PIECES_MAX].map(|()| {
                    let piece = (whole(words[at], words[at + 1]), words[at + 2]);
                    at += 3;
                    piece
                });
                let total: u64 = pieces.iter().map(|(_, len)| u64::from(*len)).sum();
                let (slot, len) = (words[3], words[7]);
                if total != u64::from(len) || len == 0 || slot as usize >= SLOTS {
                    return None;
                }
                PullKind::Ask(Ask {
                    slot,
                    rkey: words[6],
                    addr: whole(words[8], words[9]),
                    len,
                    pieces,
                })
            }
            ANSWER => PullKind::Answer(match words[10] {
                0 => Answer::Done,
                1 => Answer::Refused,
                number => {
                    let number = u8::try_from(number - 1).ok()?;
                    Answer::Unreadable(WhyUnreadable::of_number(number)?)
                }
            }),
            _ => return None,
        };
        Some(Self {
            dest_qp: Qpn::new(words[1] & LOW),
            tag: words[2],
            id: whole(words[4], words[5]),
            kind,
        })
    }
}

fn halves(value: u64) -> [u32; 2] {
    [value as u32, (value >> 32) as u32]
}

fn whole(low: u32, high: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

impl Writer {
    /// Writes a record about a write that is pulled. Returns false if there is no room.
    ///
    /// # Errors
    /// The reader violated the protocol.
    pub(crate) fn pull(&mut self, pull: &Pull) -> Result<bool, Broken> {
        let Some(place) = self.reserve(LEN, 0)? else {
            return Ok(false);
        };
        self.mapping.copy_words_in(place.header_at(), &pull.emit());
        self.end(&place, Kind::Pull);
        Ok(true)
    }
}

impl Reader {
    /// Takes the next record, if it is about a write that is pulled.
    ///
    /// # Errors
    /// The writer violated the protocol.
    pub(crate) fn pull(&mut self) -> Result<Option<Pull>, Broken> {
        let Some((at, Kind::Pull)) = self.next_record()? else {
            return Ok(None);
        };
        if at + record_len(LEN, 0) > RING_LEN {
            return Err(Broken);
        }
        let mut words = [0; WORDS];
        self.mapping
            .copy_words_out(RING_AT + at + MARK_LEN, &mut words);
        self.head += record_len(LEN, 0) as u64;
        Pull::parse(&words).map(Some).ok_or(Broken)
    }
}

impl Asker {
    /// The process that writes a ring's file. `pid` is set if it is trusted with memory.
    pub(crate) fn new(ring: &Arc<Mapping>, pid: Option<u32>) -> Self {
        Self {
            ring: Arc::clone(ring),
            process: pid.map(|pid| Process::new(pid, testimony_of(ring))),
        }
    }

    /// Whether it may access this process's memory.
    #[inline]
    pub(crate) fn is_trusted_with_memory(&self) -> bool {
        self.process.is_some()
    }

    /// Whether it still waits for a request.
    pub(crate) fn waits(&self, ask: &Ask, id: u64) -> bool {
        slot(&self.ring, ask.slot).load(Ordering::Acquire) == id
    }

    /// Copies a request's bytes out of its memory to `to`. The last bytes are written last.
    ///
    /// # Errors
    /// The answer.
    ///
    /// # Safety
    /// The memory at `to` is mapped and may be written to.
    pub(crate) unsafe fn copy(&self, ask: &Ask, to: u64) -> Result<(), Answer> {
        let Some(process) = &self.process else {
            return Err(Answer::Unreadable(WhyUnreadable::OtherUser));
        };
        let last = ask.len.min(8);
        let body = ask.len - last;
        let own = [(to, body as usize), (to + u64::from(body), last as usize)];
        let pieces = ask.pieces.map(|(addr, len)| (addr, len as usize));
        // SAFETY: the caller's promise.
        let read = unsafe { process.read(pieces.into_iter(), ask.len as usize, own.into_iter()) };
        read.map_err(|_| {
            let why = process.why_unreadable();
            why.map_or(Answer::Refused, Answer::Unreadable)
        })
    }
}

/// What the process of a ring's file tells about its witness.
pub(super) fn testimony_of(ring: &Mapping) -> &Testimony {
    // SAFETY: every ring's file has it there.
    let testimony = unsafe { ring.at(TESTIMONY_AT) };
    testimony.unwrap_or_else(|| unreachable!("a ring's file is longer"))
}

/// A number for a request, which no other request of this process has, whatever process it asks.
pub(super) fn next_id() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

/// Shows that a request waits.
pub(super) fn show(ring: &Mapping, number: u32, id: u64) {
    slot(ring, number).store(id, Ordering::Release);
}

/// Shows that a request waits no longer.
pub(super) fn hide(ring: &Mapping, number: u32) {
    slot(ring, number).store(0, Ordering::Relaxed);
    fence(Ordering::SeqCst);
}

fn slot(ring: &Mapping, number: u32) -> &AtomicU64 {
    // SAFETY: every ring's file has the numbers there.
    let slot = unsafe { ring.at(SLOTS_AT + 8 * (number as usize % SLOTS)) };
    slot.unwrap_or_else(|| unreachable!("a ring's file is longer"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pulls() -> impl Strategy<Value = Pull> {
        let answers = vec![
            Answer::Done,
            Answer::Refused,
            Answer::Unreadable(WhyUnreadable::NoPtrace),
            Answer::Unreadable(WhyUnreadable::NoWitness),
        ];
        let asks = (
            0..SLOTS as u32,
            any::<(u32, u64)>(),
            any::<[(u64, u16); PULL_PIECES_MAX]>(),
        );
        let asks = asks.prop_map(|(slot, (rkey, addr), pieces)| {
            let mut pieces = pieces.map(|(addr, len)| (addr, u32::from(len)));
            pieces[0].1 += 1;
            PullKind::Ask(Ask {
                slot,
                rkey,
                addr,
                len: pieces.iter().map(|(_, len)| len).sum(),
                pieces,
            })
        });
        let answers = proptest::sample::select(answers).prop_map(PullKind::Answer);
        let kinds = prop_oneof![asks, answers];
        (0..=LOW, any::<(u32, u64)>(), kinds).prop_map(|(dest, (tag, id), kind)| Pull {
            dest_qp: Qpn::new(dest),
            tag,
            id,
            kind,
        })
    }

    proptest! {
        #[test]
        fn a_record_survives_memory(pull in pulls()) {
            prop_assert_eq!(Pull::parse(&pull.emit()), Some(pull));
        }

        #[test]
        fn whatever_stands_in_a_ring_a_record_is_consistent(words in any::<[u32; WORDS]>()) {
            for kind in [ASK, ANSWER] {
                let mut words = words;
                words[1] = words[1] & LOW | kind;
                if let Some(pull) = Pull::parse(&words) {
                    prop_assert_eq!(Pull::parse(&pull.emit()), Some(pull));
                }
            }
        }
    }
}
