//! Work requests and the memory they use.

use portolan_provider::verbs::{RemoteAddr, SendFlags, SendOp, Sge};

use crate::simulator::content::Content;
use crate::simulator::failure::{Violation, violation};
use crate::simulator::oracle::{Arena, EndpointIndex, Posted, Target, packets};
use crate::simulator::plan::{Flaw, Kind};
use crate::simulator::rng::Rng;
use crate::simulator::world::World;

/// Largest gap between two pieces, so that they are not always contiguous.
const GAP_BYTES_MAX: u64 = 16;

/// A request that is ready to post, with the oracle's record of it.
pub(super) struct Prepared {
    pub(super) op: SendOp,
    pub(super) sges: Vec<Sge>,
    pub(super) flags: SendFlags,
    pub(super) posted: Posted,
}

/// Pieces of a region with `len` bytes in total.
pub(super) struct Pieces {
    pub(super) sges: Vec<Sge>,
    pub(super) target: Target,
    /// Initial content of these bytes.
    pub(super) content: Content,
}

impl Arena {
    /// Allocates `len` bytes. Returns their offset.
    fn take(&mut self, len: u32, rng: &mut Rng) -> Result<u32, Violation> {
        let offset = self.used + rng.below(GAP_BYTES_MAX) as u32;
        self.used = offset + len;
        match self.used <= self.len {
            true => Ok(offset),
            false => Err(violation!(
                "the plan asks for more memory than it registers"
            )),
        }
    }

    /// Allocates `len` bytes in `count` pieces, whose order in memory is not that of the message.
    pub(super) fn take_pieces(
        &mut self,
        len: u32,
        count: u32,
        rng: &mut Rng,
    ) -> Result<Pieces, Violation> {
        let mut lens = Vec::new();
        let mut left = len;
        for _ in 1..count {
            let part = rng.between(0, left.into()) as u32;
            lens.push(part);
            left -= part;
        }
        lens.push(left);
        let mut places = vec![(0, 0); lens.len()];
        for (place, len) in places.iter_mut().zip(&lens).rev() {
            *place = (self.take(*len, rng)?, *len);
        }
        let (mut sges, mut target) = (Vec::new(), Target::default());
        let mut content = Content::default();
        for (offset, length) in places {
            let addr = self.iova + u64::from(offset);
            sges.push(Sge {
                addr,
                length,
                lkey: self.key,
            });
            target.push(self.addr + u64::from(offset), length);
            content.push(self.noise.after(offset as usize), length);
        }
        Ok(Pieces {
            sges,
            target,
            content,
        })
    }
}

impl World {
    /// Prepares planned request `at` of an endpoint.
    pub(super) fn prepare(
        &mut self,
        index: EndpointIndex,
        at: usize,
    ) -> Result<Prepared, Violation> {
        let wr_id = self.next_wr_id();
        let endpoint = &self.oracle.endpoints[index];
        let workload = &self.plan.conversations[endpoint.conversation].workloads;
        let workload = &workload[endpoint.side as usize];
        let plan = workload.ops[at];
        let is_signaled = plan.is_signaled || workload.signals_all;
        let peer = endpoint
            .peer
            .ok_or_else(|| violation!("endpoint {index} has no peer"))?;
        let own = &mut self.oracle.endpoints[index].arenas;
        let arena = match plan.kind {
            Kind::Read => &mut own.incoming,
            Kind::Send | Kind::Write => &mut own.outgoing,
        };
        let count = if plan.is_inline { 1 } else { plan.pieces };
        let Pieces {
            mut sges,
            target: local,
            mut content,
        } = arena.take_pieces(plan.len, count, &mut self.rng)?;
        if plan.flaw == Some(Flaw::LocalKey) {
            sges.iter_mut().for_each(|sge| sge.lkey ^= 0x5555_5555);
        }
        let peers = &mut self.oracle.endpoints[peer].arenas;
        let (mut arena, mut other) = (peers.target, peers.source);
        let mut remote = None;
        let mut offset = 0;
        match plan.kind {
            Kind::Send => {}
            Kind::Write => {
                offset = peers.target.take(plan.len, &mut self.rng)?;
                let mut target = Target::default();
                target.push(arena.addr + u64::from(offset), plan.len);
                remote = Some(target);
            }
            Kind::Read => {
                std::mem::swap(&mut arena, &mut other);
                offset = self.rng.between(0, (arena.len - plan.len).into()) as u32;
                content = Content::default();
                content.push(arena.noise.after(offset as usize), plan.len);
            }
        }
        let mut place = RemoteAddr {
            addr: arena.iova + u64::from(offset),
            rkey: arena.key,
        };
        match plan.flaw {
            Some(Flaw::RemoteRange) if plan.kind == Kind::Read => {
                // A request that is split into several may be refused only in the last part.
                offset = arena.len.saturating_sub(plan.len) + 1;
                place.addr = arena.iova + u64::from(offset);
                content = Content::default();
                content.push(arena.noise.after(offset as usize), arena.len - offset);
            }
            Some(Flaw::RemoteKey) => place.rkey ^= 0x3333_3333,
            Some(Flaw::RemoteRange) => {
                place.addr = arena.iova + u64::from(arena.len.saturating_sub(plan.len)) + 1;
            }
            Some(Flaw::RemoteRight) => {
                place = RemoteAddr {
                    addr: other.iova,
                    rkey: other.key,
                }
            }
            _ => {}
        }
        let op = match (plan.kind, plan.immediate) {
            (Kind::Send, None) => SendOp::Send,
            (Kind::Send, Some(immediate)) => SendOp::SendWithImm(immediate),
            (Kind::Write, None) => SendOp::RdmaWrite(place),
            (Kind::Write, Some(immediate)) => SendOp::RdmaWriteWithImm(place, immediate),
            (Kind::Read, _) => SendOp::RdmaRead(place),
        };
        let endpoint = &self.oracle.endpoints[index];
        let mtu = self.hosts[endpoint.host].slots.get(&endpoint.qpn.value());
        let mtu = mtu.map_or(1, |slot| slot.mtu.bytes() as u32);
        let begin = endpoint.sends.last().map_or(0, |posted| posted.packets.end);
        let end = begin + packets(plan.len, mtu);
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, plan.is_signaled);
        flags.set(SendFlags::FENCE, plan.is_fenced);
        flags.set(SendFlags::SOLICITED, plan.is_solicited);
        let posted = Posted {
            wr_id,
            plan,
            is_signaled,
            content,
            local,
            remote,
            status: None,
            packets: begin..end,
        };
        Ok(Prepared {
            op,
            sges,
            flags,
            posted,
        })
    }
}
