//! The program on one side, with checks of what its stream does.

use portolan_rsocket::{Close, Phase};

use super::super::failure::{Violation, ensure};
use super::connection::Connection;

/// What a program has done with its stream.
#[derive(Debug, Default)]
pub(super) struct Program {
    written: u64,
    read: u64,
    /// The program has ended its own direction.
    ended_write: bool,
    /// The program has ended the peer's direction.
    ended_read: bool,
    /// A write was refused: the stream is over.
    was_refused: bool,
    /// The program has reached the end of the peer's data, or has seen the failure.
    has_read_all: bool,
    was_over: bool,
    is_dead: bool,
    /// Offsets of the regions that it has mapped for its peer.
    pub(super) mapped: Vec<u64>,
}

impl Program {
    pub(super) fn is_dead(&self) -> bool {
        self.is_dead
    }

    pub(super) fn crash(&mut self) {
        self.is_dead = true;
    }

    pub(super) fn may_write(&self) -> bool {
        !self.ended_write && !self.was_refused
    }

    pub(super) fn has_read_all(&self) -> bool {
        self.has_read_all
    }

    pub(super) fn has_ended_both(&self) -> bool {
        self.ended_write && self.ended_read
    }

    pub(super) fn bytes_read(&self) -> u64 {
        self.read
    }

    pub(super) fn close(&mut self, which: Close) {
        self.ended_write |= which != Close::Read;
        self.ended_read |= which != Close::Write;
    }

    /// Writes at most `wanted` bytes, as room permits.
    pub(super) fn write(
        &mut self,
        side: usize,
        connection: &mut Connection,
        wanted: usize,
        may_be_refused: bool,
    ) -> Result<usize, Violation> {
        let end = &mut connection.sides[side];
        if end.endpoint.is_write_closed() {
            ensure!(
                self.ended_write || may_be_refused,
                "h{side}: a write is refused"
            );
            self.was_refused = true;
            return Ok(0);
        }
        ensure!(
            !self.ended_write,
            "h{side}: a write is possible after its end"
        );
        if !end.is_established() {
            return Ok(0);
        }
        let bytes: Vec<u8> = (self.written..)
            .take(wanted)
            .map(|at| byte(side, at))
            .collect();
        let mut done = 0;
        while let Some((length, post)) = end.endpoint.next_write(wanted - done) {
            ensure!(length > 0, "h{side}: a write of no bytes");
            let next = done + length as usize;
            end.post(post, &bytes[done..next])?;
            end.settle()?;
            done = next;
        }
        self.written += done as u64;
        Ok(done)
    }

    /// Reads at most `wanted` bytes and compares them with the peer's data.
    pub(super) fn read(
        &mut self,
        side: usize,
        connection: &mut Connection,
        writer: &Self,
        wanted: usize,
    ) -> Result<usize, Violation> {
        let end = &mut connection.sides[side];
        if end.endpoint.unread_bytes() == 0 {
            if !end.endpoint.is_read_closed() {
                return Ok(0);
            }
            self.has_read_all = true;
            if end.endpoint.phase() != Phase::Failed && !self.ended_read {
                ensure!(
                    writer.ended_write,
                    "h{side}: the end, which the peer has not sent"
                );
                ensure!(
                    self.read == writer.written,
                    "h{side}: the end after {} of {} bytes",
                    self.read,
                    writer.written
                );
            }
            return Ok(0);
        }
        let bytes = end.read(wanted)?;
        let expected = (self.read..).take(bytes.len()).map(|at| byte(1 - side, at));
        ensure!(
            expected.eq(bytes.iter().copied()),
            "h{side}: other bytes than were sent, from {} on",
            self.read
        );
        self.read += bytes.len() as u64;
        ensure!(
            self.read <= writer.written,
            "h{side}: more bytes than were sent"
        );
        Ok(bytes.len())
    }

    /// Checks that a stream ends only for a reason, and that an orderly end does not become a failure.
    pub(super) fn check_phase(
        &mut self,
        side: usize,
        phase: Phase,
        peer: &Self,
        has_broken_off: bool,
    ) -> Result<(), Violation> {
        let was_over = self.was_over;
        self.was_over |= phase == Phase::Disconnected;
        match phase {
            Phase::Failed => {
                ensure!(!was_over, "h{side}: an end in order became a failure");
                ensure!(has_broken_off, "h{side}: a failure without a reason");
            }
            Phase::Disconnected => {
                let sends = !self.ended_write && !peer.has_ended_both();
                let receives = !self.ended_read && !peer.ended_write;
                ensure!(
                    !sends && !receives,
                    "h{side}: the end of a stream that no program ended"
                );
            }
            Phase::Open | Phase::Unconnected => {}
        }
        Ok(())
    }
}

/// The byte at offset `at` of the data from `writer`.
fn byte(writer: usize, at: u64) -> u8 {
    (at.wrapping_mul(0x9E37_79B9).wrapping_add(writer as u64) >> 13) as u8
}
