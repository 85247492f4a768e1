//! A queue pair for datagrams, as the I/O of the real device drives it.

use std::net::IpAddr;
use std::time::Duration;

use portolan_provider::verbs::{WcStatus, WorkCompletion};
use portolan_roce::engine::{MemoryTable, Payload, QueuePair};
use portolan_wire::eth::GrhRepr;

use super::AgentKey;
use super::device::PACKET_BYTES_MAX;
use super::failure::{Violation, ensure, violation};
use super::oracle::Arena;
use super::packet::assemble;
use super::ram::Ram;

/// Bytes in front of the data in a receive.
pub(super) const GRH_LEN: usize = GrhRepr::LEN;

/// The longest datagram of these runs.
pub(super) const DATAGRAM_LEN_MAX: usize = 128;

/// Receives posted at the same time.
pub(super) const RECEIVES: u32 = 4;

#[derive(Debug)]
pub(super) struct DatagramSlot {
    pub(super) qp: QueuePair,
    pub(super) agent: AgentKey,
    /// The receives, in sequence. A work request's number is its index.
    pub(super) arena: Arena,
    /// Sends that completed.
    sent: u64,
}

impl DatagramSlot {
    pub(super) fn new(qp: QueuePair, agent: AgentKey, arena: Arena) -> Self {
        Self {
            qp,
            agent,
            arena,
            sent: 0,
        }
    }

    /// The address of a receive.
    pub(super) fn place(&self, wr_id: u64) -> u64 {
        self.arena.addr + wr_id * (GRH_LEN + DATAGRAM_LEN_MAX) as u64
    }

    /// A send completed. It must be the next one and successful.
    pub(super) fn sent(&mut self, wc: &WorkCompletion) -> Result<(), Violation> {
        ensure!(
            (wc.wr_id, wc.status) == (self.sent, WcStatus::Success),
            "after {} datagrams, one completed with {wc:?}",
            self.sent
        );
        self.sent += 1;
        Ok(())
    }

    /// The next packet to send, without its ICRC, and its destination.
    pub(super) fn next_packet(
        &mut self,
        now: Duration,
        memory: &MemoryTable,
        ram: &Ram,
    ) -> Result<Option<(IpAddr, Vec<u8>)>, Violation> {
        let Some(transmit) = self.qp.poll_transmit(now, memory, PACKET_BYTES_MAX) else {
            return Ok(None);
        };
        let path = transmit
            .path
            .ok_or_else(|| violation!("a datagram without a destination"))?;
        let bytes = match transmit.payload {
            Payload::Inline(bytes) => assemble(&transmit.headers, &[bytes])?,
            Payload::Segments(segments) => {
                let parts = segments
                    .iter()
                    .map(|part| ram.read(part.addr, part.len as usize));
                assemble(&transmit.headers, &parts.collect::<Result<Vec<_>, _>>()?)?
            }
        };
        Ok(Some((path.remote.ip(), bytes)))
    }
}
