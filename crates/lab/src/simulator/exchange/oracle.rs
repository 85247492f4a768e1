//! Invariants: each atomic is executed once; each message arrives whole in one receive, never
//! twice.

use std::collections::BTreeMap;

use portolan_provider::verbs::{QpState, QpType, WcOpcode, WcStatus, WorkCompletion};
use portolan_roce::engine::{AtomicKind, AtomicOperation};
use portolan_wire::Qpn;

use super::plan::WORDS;
use crate::simulator::content::Noise;
use crate::simulator::datagrams::GRH_LEN;
use crate::simulator::failure::{Violation, ensure, violation};
use crate::simulator::plan::Class;
use crate::simulator::report::Tally;

/// An end of the exchange, as an index.
pub(super) type EndIndex = usize;

/// A request that was posted.
#[derive(Debug)]
pub(super) struct Posted {
    pub(super) what: What,
    pub(super) status: Option<WcStatus>,
}

#[derive(Debug)]
pub(super) enum What {
    /// How often each end received it.
    Message {
        noise: Noise,
        len: u32,
        received: BTreeMap<EndIndex, u32>,
    },
    Atomic {
        kind: AtomicKind,
        word: usize,
        /// Address that the original value is returned to.
        result_addr: u64,
        /// The word's value when the atomic was executed.
        original: Option<u64>,
    },
}

/// A posted receive, of the server or of a member of the group.
#[derive(Debug)]
pub(super) struct Receive {
    pub(super) addr: u64,
    pub(super) len: u32,
    /// The queue pair that wrote to it.
    taken_by: Option<EndIndex>,
    is_done: bool,
}

impl Receive {
    pub(super) fn new(addr: u64, len: u32) -> Self {
        Self {
            addr,
            len,
            taken_by: None,
            is_done: false,
        }
    }
}

#[derive(Debug)]
pub(super) struct Seen {
    pub(super) qp_type: QpType,
    pub(super) qpn: Qpn,
    /// The peer of a connection. A datagram queue pair has none.
    pub(super) peer: Option<EndIndex>,
    pub(super) posted: Vec<Posted>,
    completed: usize,
    /// Messages of the peer that arrived or were skipped.
    heard: usize,
}

impl Seen {
    pub(super) fn new(qp_type: QpType, qpn: Qpn, peer: Option<EndIndex>) -> Self {
        Self {
            qp_type,
            qpn,
            peer,
            posted: Vec::new(),
            completed: 0,
            heard: 0,
        }
    }
}

#[derive(Debug)]
pub(super) struct Oracle {
    pub(super) class: Class,
    pub(super) ends: Vec<Seen>,
    /// Receives by host and work request.
    pub(super) receives: BTreeMap<(usize, u64), Receive>,
    pub(super) words: [u64; WORDS],
    pub(super) words_addr: u64,
}

impl Oracle {
    /// A peer's bytes are placed in a host's memory. They must go to a waiting receive that no
    /// other queue pair writes to.
    pub(super) fn placed(
        &mut self,
        host: usize,
        end: EndIndex,
        addr: u64,
        len: usize,
    ) -> Result<(), Violation> {
        let mut receives = self.receives.range_mut((host, 0)..=(host, u64::MAX));
        let found = receives.find(|(_, receive)| {
            (receive.addr..=receive.addr + u64::from(receive.len)).contains(&addr)
                && addr + len as u64 <= receive.addr + u64::from(receive.len)
        });
        let Some(((_, wr_id), receive)) = found else {
            return Err(violation!(
                "end {end} places {len} bytes in no receive, at {addr:#x}"
            ));
        };
        ensure!(
            !receive.is_done,
            "end {end} writes to receive {wr_id}, which is done"
        );
        let taken_by = *receive.taken_by.get_or_insert(end);
        ensure!(
            taken_by == end,
            "receive {wr_id} is end {taken_by}'s, and end {end} writes to it"
        );
        Ok(())
    }

    /// The server executes an atomic. Returns the new value of the word.
    pub(super) fn executed(
        &mut self,
        end: EndIndex,
        operation: &AtomicOperation,
    ) -> Result<u64, Violation> {
        let client = self.ends[end].peer;
        let client =
            client.ok_or_else(|| violation!("end {end} has no peer that could ask for atomics"))?;
        let word = operation.addr.wrapping_sub(self.words_addr) / 8;
        let word = word as usize;
        ensure!(word < WORDS, "an atomic at {:#x}", operation.addr);
        let current = self.words[word];
        let mut before_is_done = true;
        for (number, posted) in self.ends[client].posted.iter_mut().enumerate() {
            let What::Atomic {
                kind,
                word: wanted,
                original,
                ..
            } = &mut posted.what
            else {
                continue;
            };
            if *kind != operation.kind {
                before_is_done &= original.is_some();
                continue;
            }
            ensure!(*wanted == word, "{kind:?} on word {word}, not {wanted}");
            ensure!(
                original.is_none(),
                "request {number} of end {client} is executed twice"
            );
            ensure!(
                before_is_done,
                "request {number} of end {client} overtakes an earlier one"
            );
            *original = Some(current);
            let after = operation.kind.apply(current);
            self.words[word] = after;
            return Ok(after);
        }
        Err(violation!(
            "end {end} executes {:?}, which was never posted",
            operation.kind
        ))
    }

    /// A send, an atomic or a datagram completed.
    pub(super) fn send_completed(
        &mut self,
        end: EndIndex,
        wc: &WorkCompletion,
        state: QpState,
        read: impl Fn(u64) -> Result<u64, Violation>,
    ) -> Result<(), Violation> {
        let class = self.class;
        let seen = &mut self.ends[end];
        let at = seen.completed;
        ensure!(
            wc.wr_id == at as u64,
            "end {end}: {} completes, expected {at}",
            wc.wr_id
        );
        seen.completed += 1;
        let posted = seen.posted.get_mut(at);
        let posted = posted.ok_or_else(|| violation!("end {end}: {at} was not posted"))?;
        posted.status = Some(wc.status);
        if wc.status != WcStatus::Success {
            ensure!(
                state == QpState::Err
                    && (class == Class::Chaos || wc.status == WcStatus::WrFlushErr),
                "end {end}: {at} ends with {}, in {state}",
                wc.status
            );
            return Ok(());
        }
        match &posted.what {
            What::Message { received, .. } => ensure!(
                wc.opcode == WcOpcode::Send && (seen.qp_type != QpType::Rc || !received.is_empty()),
                "end {end}: {at} is acknowledged but was not received: {wc:?}"
            ),
            What::Atomic {
                original,
                result_addr,
                kind,
                ..
            } => {
                let found = read(*result_addr)?;
                ensure!(
                    *original == Some(found) && wc.byte_len == 8,
                    "end {end}: {kind:?} returned {found:#x}, expected {original:x?}"
                );
            }
        }
        Ok(())
    }

    /// A receive completed at a host. Returns what it received, if anything.
    pub(super) fn receive_completed(
        &mut self,
        host: usize,
        end: EndIndex,
        wc: &WorkCompletion,
        state: QpState,
    ) -> Result<Option<Received>, Violation> {
        let wr_id = wc.wr_id;
        let receive = self.receives.get_mut(&(host, wr_id));
        let receive = receive.ok_or_else(|| violation!("receive {wr_id} was not posted"))?;
        ensure!(
            !std::mem::replace(&mut receive.is_done, true),
            "receive {wr_id} of h{host} completes twice"
        );
        let addr = receive.addr;
        if wc.status != WcStatus::Success {
            ensure!(
                wc.status == WcStatus::WrFlushErr && state == QpState::Err,
                "receive {wr_id} ends with {}, in {state}",
                wc.status
            );
            return Ok(None);
        }
        let qp_type = self.ends[end].qp_type;
        let sender = match self.ends[end].peer {
            Some(peer) => Some(peer),
            None => self.ends.iter().position(|other| other.qpn == wc.src_qp),
        };
        let sender = sender
            .ok_or_else(|| violation!("end {end} received from an unknown sender: {wc:?}"))?;
        let number = wc.imm_data.map(|imm| u32::from_be(imm) as usize);
        let number = number.ok_or_else(|| violation!("a message without its number"))?;
        let next = self.ends[end].heard;
        // Earlier messages of the sender that were not received. Atomics are not messages.
        let passed = self.ends[sender].posted.iter().take(number).skip(next);
        let missing = passed
            .filter(|posted| matches!(posted.what, What::Message { .. }))
            .count();
        // Unacknowledged messages arrive in any order, and twice if the network copies packets: a
        // receiver accepts the first packet of a message whatever its number is (IBTA 9.8.2).
        let is_calm = self.class == Class::Calm;
        let in_order = match qp_type {
            QpType::Ud => true,
            QpType::Uc => number >= next || !is_calm,
            _ => number >= next && missing == 0,
        };
        ensure!(
            in_order,
            "end {end} receives message {number}, expected {next}"
        );
        self.ends[end].heard = number + 1;
        let posted = self.ends[sender].posted.get_mut(number);
        let Some(What::Message {
            noise,
            len,
            received,
        }) = posted.map(|posted| &mut posted.what)
        else {
            return Err(violation!(
                "end {end} receives {number} of end {sender}, which is no message"
            ));
        };
        let times = received.entry(end).or_default();
        *times += 1;
        // The network makes at most one copy of a packet.
        let most = if qp_type == QpType::Rc || is_calm {
            1
        } else {
            2
        };
        ensure!(
            *times <= most,
            "end {end} receives message {number} {times} times"
        );
        let header = if qp_type == QpType::Ud {
            GRH_LEN as u32
        } else {
            0
        };
        ensure!(
            wc.byte_len == *len + header && wc.has_grh == (header > 0),
            "message {number} has {len} bytes: {wc:?}"
        );
        Ok(Some(Received {
            addr,
            header,
            noise: *noise,
            len: *len,
        }))
    }

    /// Checks at the end that nothing is missing.
    pub(super) fn check_all_came(&self, delivers_all: bool) -> Result<(), Violation> {
        let members = self.ends.iter().enumerate();
        let members: Vec<EndIndex> = members
            .filter(|(_, seen)| seen.qp_type == QpType::Ud)
            .map(|(index, _)| index)
            .collect();
        for (index, seen) in self.ends.iter().enumerate() {
            let is_sound = self.class != Class::Chaos;
            for (number, posted) in seen.posted.iter().enumerate() {
                ensure!(
                    posted.status.is_some(),
                    "end {index}: {number} does not complete"
                );
                let is_good = posted.status == Some(WcStatus::Success);
                ensure!(
                    is_good || !is_sound,
                    "end {index}: {number} ends with {:?}",
                    posted.status
                );
                let What::Message { received, .. } = &posted.what else {
                    continue;
                };
                let expected = match seen.peer {
                    Some(_) => 1,
                    None => members.len() - 1,
                };
                ensure!(
                    !delivers_all || received.len() == expected,
                    "message {number} of end {index} arrived at {received:?}, expected {expected} ends"
                );
            }
        }
        Ok(())
    }

    /// Receives of a host that have not completed.
    pub(super) fn undone(&self, host: usize) -> usize {
        let receives = self.receives.range((host, 0)..=(host, u64::MAX));
        receives.filter(|(_, receive)| !receive.is_done).count()
    }

    /// Adds the results to the tally.
    pub(super) fn tell(&self, tally: &mut Tally) {
        for seen in &self.ends {
            for posted in &seen.posted {
                match (&posted.what, seen.qp_type) {
                    (What::Atomic { original, .. }, _) if original.is_some() => {
                        tally.count("atomic carried out");
                    }
                    (What::Message { received, .. }, QpType::Uc) => {
                        tally.count(match received.is_empty() {
                            true => "message lost on an unreliable connection",
                            false => "message over an unreliable connection",
                        })
                    }
                    (What::Message { received, .. }, QpType::Ud) => {
                        tally.add("datagram to a group received", received.len() as u64);
                    }
                    _ => {}
                }
            }
        }
    }
}

/// A message in its receive.
pub(super) struct Received {
    pub(super) addr: u64,
    /// Bytes in front of the message.
    pub(super) header: u32,
    pub(super) noise: Noise,
    pub(super) len: u32,
}
