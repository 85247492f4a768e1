//! Placements, compared with the messages they belong to.

use super::{EndpointIndex, Oracle};
use crate::simulator::failure::{Violation, ensure, violation};
use crate::simulator::plan::{Flaw, Kind};

/// Where a message's bytes are to go: pieces of memory, one after the other.
#[derive(Clone, Debug, Default)]
pub(in crate::simulator) struct Target {
    pieces: Vec<(u64, u32)>,
}

impl Target {
    pub(in crate::simulator) fn push(&mut self, addr: u64, len: u32) {
        self.pieces.push((addr, len));
    }

    pub(in crate::simulator) fn pieces(&self) -> &[(u64, u32)] {
        &self.pieces
    }

    /// The address of byte `offset`, and how many bytes are there before the next piece.
    fn at(&self, offset: u64) -> Option<(u64, u64)> {
        let mut before = 0;
        for (addr, len) in &self.pieces {
            let within = offset - before;
            if within < u64::from(*len) {
                return Some((addr + within, u64::from(*len) - within));
            }
            before += u64::from(*len);
        }
        None
    }
}

/// A place in a sequence of messages.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::simulator) struct Cursor {
    /// The message, as an index of its sender's requests.
    pub(in crate::simulator) message: usize,
    /// Bytes of it that are placed.
    pub(in crate::simulator) offset: u64,
    /// Receives that the messages before it took.
    pub(in crate::simulator) receives: usize,
}

impl Oracle {
    /// `bytes` were placed at `addr` by a request of the peer's.
    pub(in crate::simulator) fn placed_by_peer(
        &mut self,
        index: EndpointIndex,
        addr: u64,
        bytes: &[u8],
    ) -> Result<(), Violation> {
        let here = &self.endpoints[index];
        let peer = here.peer.and_then(|peer| self.endpoints.get(peer));
        let peer = peer.ok_or_else(|| violation!("endpoint {index} received from nobody"))?;
        let mut cursor = here.inbound;
        let message = loop {
            let message = peer.sends.get(cursor.message).ok_or_else(|| {
                violation!(
                    "endpoint {index} received bytes after the last message of {}",
                    peer.index
                )
            })?;
            if message.plan.kind != Kind::Read && message.len() > cursor.offset {
                break message;
            }
            cursor = message.pass(cursor);
        };
        let what = |why: &str| {
            let (of, at) = (cursor.message, cursor.offset);
            violation!(
                "endpoint {index}, byte {at} of message {of} of {}: {why}",
                peer.index
            )
        };
        let refused = [
            Flaw::LocalKey,
            Flaw::RemoteKey,
            Flaw::RemoteRange,
            Flaw::RemoteRight,
        ];
        ensure!(
            message
                .plan
                .flaw
                .is_none_or(|flaw| !refused.contains(&flaw)),
            "{}",
            what("placed though it must be refused")
        );
        let place = match message.plan.kind {
            Kind::Write => message
                .remote
                .as_ref()
                .and_then(|target| target.at(cursor.offset)),
            _ => {
                let receive = here.receives.get(cursor.receives);
                receive.and_then(|receive| receive.target.at(cursor.offset))
            }
        };
        let (expected, room) = place.ok_or_else(|| what("placed where nothing was granted"))?;
        ensure!(
            expected == addr,
            "{}",
            what(&format!("placed at {addr:#x}, not {expected:#x}"))
        );
        let len = bytes.len() as u64;
        ensure!(
            len <= room && cursor.offset + len <= message.len(),
            "{}",
            what(&format!("{len} bytes placed, beyond the end"))
        );
        ensure!(
            message.content.matches(cursor.offset, bytes),
            "{}",
            what(&format!("{len} bytes are not what was sent"))
        );
        cursor.offset += len;
        self.endpoints[index].inbound = cursor;
        Ok(())
    }

    /// `bytes` were placed at `addr` by the response to a read.
    pub(in crate::simulator) fn placed_by_read(
        &mut self,
        index: EndpointIndex,
        addr: u64,
        bytes: &[u8],
    ) -> Result<(), Violation> {
        let here = &self.endpoints[index];
        let mut cursor = here.reading;
        let read = loop {
            let read = here.sends.get(cursor.message).ok_or_else(|| {
                violation!("endpoint {index} received read data after its last read")
            })?;
            if read.plan.kind == Kind::Read && read.len() > cursor.offset {
                break read;
            }
            cursor = Cursor {
                message: cursor.message + 1,
                offset: 0,
                ..cursor
            };
        };
        let what = |why: &str| {
            violation!(
                "endpoint {index}, byte {} of read {}: {why}",
                cursor.offset,
                cursor.message
            )
        };
        ensure!(
            read.plan.flaw.is_none_or(|flaw| flaw == Flaw::RemoteRange),
            "{}",
            what("answered though it must be refused")
        );
        let place = read.local.at(cursor.offset);
        let (expected, room) = place.ok_or_else(|| what("placed where nothing was granted"))?;
        ensure!(
            expected == addr,
            "{}",
            what(&format!("placed at {addr:#x}, not {expected:#x}"))
        );
        let len = bytes.len() as u64;
        ensure!(len <= room, "{}", what("placed beyond the end"));
        ensure!(
            read.content.matches(cursor.offset, bytes),
            "{}",
            what("wrong bytes")
        );
        cursor.offset += len;
        self.endpoints[index].reading = cursor;
        Ok(())
    }

    /// Whether message `message` of endpoint `index` arrived whole, as far as its peer shows: the
    /// last byte was placed, or, without bytes, the receive it takes is complete.
    pub(super) fn has_arrived(&self, index: EndpointIndex, message: usize) -> bool {
        let endpoint = &self.endpoints[index];
        let Some(posted) = endpoint.sends.get(message) else {
            return false;
        };
        if posted.plan.kind == Kind::Read {
            return posted.len() == 0 || endpoint.reading.is_past(message, posted.len());
        }
        let Some(peer) = self.peer(index) else {
            return false;
        };
        if posted.len() > 0 && !peer.inbound.is_past(message, posted.len()) {
            return false;
        }
        let before = endpoint.sends[..message].iter();
        let receives_before = before.filter(|posted| posted.plan.takes_receive()).count();
        !posted.plan.takes_receive() || peer.receives_done > receives_before
    }
}

impl Cursor {
    /// Whether all `len` bytes of the message are placed.
    fn is_past(&self, message: usize, len: u64) -> bool {
        self.message > message || (self.message == message && self.offset >= len)
    }
}

impl super::Posted {
    /// The cursor after this message, at whose end (or whose lack of bytes) `cursor` is.
    pub(super) fn pass(&self, cursor: Cursor) -> Cursor {
        Cursor {
            message: cursor.message + 1,
            offset: 0,
            receives: cursor.receives + usize::from(self.plan.takes_receive()),
        }
    }

    pub(in crate::simulator) fn len(&self) -> u64 {
        self.plan.len.into()
    }

    pub(super) fn is_read(&self) -> bool {
        self.plan.kind == Kind::Read
    }
}
