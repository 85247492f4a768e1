//! Datagrams from an asker to the service that answered. Some may be lost or arrive twice. Each
//! that is received must be what was sent, at the right queue pair with the right key, and name its
//! sender.

use std::net::{IpAddr, SocketAddr};

use portolan_provider::address::{gid_to_ip, ip_to_gid};
use portolan_provider::cm::UdParam;
use portolan_provider::verbs::{
    Access, QpCap, QpInit, QpState, QpType, RecvWr, SendData, SendFlags, SendOp, SendWr, Sge,
    WcStatus, WorkCompletion,
};
use portolan_roce::engine::{Destination, Path, QpConfig, QpLimits, Queue, QueuePair};
use portolan_wire::rocev2::Packet;
use portolan_wire::{QKey, Qpn};

use super::private_data;
use crate::simulator::AgentKey;
use crate::simulator::datagrams::{DATAGRAM_LEN_MAX, DatagramSlot, GRH_LEN, RECEIVES};
use crate::simulator::device::INLINE_BYTES_MAX;
use crate::simulator::device::PD;
use crate::simulator::failure::{Violation, ensure, violation};
use crate::simulator::host::Host;
use crate::simulator::oracle::Told;
use crate::simulator::packet::{Datagram, ROCE_PORT};
use crate::simulator::world::World;

/// Datagrams that each asker sends.
const DATAGRAMS: u32 = 6;

/// Every n-th datagram has a key that is not the receiver's.
const WRONG_KEY_INTERVAL: u32 = 3;

/// Bytes of a datagram beyond those that identify it.
fn extra_of(number: u32) -> usize {
    (number as usize * 41) % (DATAGRAM_LEN_MAX - 8)
}

fn has_wrong_key(number: u32) -> bool {
    number % WRONG_KEY_INTERVAL == WRONG_KEY_INTERVAL - 1
}

/// The 40 bytes in front of the data, in place of the network header.
fn network_header(from: IpAddr, to: IpAddr) -> [u8; GRH_LEN] {
    let mut header = [0; GRH_LEN];
    header[8..24].copy_from_slice(&ip_to_gid(from).0);
    header[24..].copy_from_slice(&ip_to_gid(to).0);
    header
}

impl World {
    /// Creates a datagram queue pair for an id, ready to send and to receive.
    pub(super) fn create_datagram_slot(
        &mut self,
        host: usize,
        key: AgentKey,
        number: usize,
    ) -> Result<Qpn, Violation> {
        let machine = &mut self.hosts[host];
        let (id, qpn) = (machine.agent(key)?.id, Qpn::new(machine.draw_qpn()));
        let depth = RECEIVES.max(DATAGRAMS);
        let cap = QpCap {
            max_send_wr: depth,
            max_recv_wr: depth,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: INLINE_BYTES_MAX,
        };
        let init = QpInit {
            qp_type: QpType::Ud,
            cap,
            sq_sig_all: true,
        };
        let config = QpConfig {
            qpn,
            pd: PD,
            init,
            limits: QpLimits::default(),
            flow: self.plan.flow,
        };
        let fail = |error: portolan_provider::Error| violation!("question {number}: {error}");
        let mut qp = QueuePair::new(config).map_err(fail)?;
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            let (attr, mask) = machine.cm.init_qp_attr(id, state).map_err(fail)?;
            qp.modify(&attr, mask).map_err(fail)?;
        }
        let receive_len = GRH_LEN + DATAGRAM_LEN_MAX;
        let arena =
            machine.register(receive_len * RECEIVES as usize, false, Access::LOCAL_WRITE)?;
        let mut slot = DatagramSlot::new(qp, key, arena);
        for place in 0..RECEIVES {
            slot.post(place.into())?;
        }
        machine.datagram_slots.insert(qpn.value(), slot);
        Ok(qpn)
    }

    /// The asker knows the service's queue pair and sends to it.
    pub(super) fn send_datagrams(
        &mut self,
        host: usize,
        key: AgentKey,
        number: usize,
        to: &UdParam,
    ) -> Result<(), Violation> {
        let qpn = self.create_datagram_slot(host, key, number)?;
        self.inquiries[number].sender = Some((host, qpn));
        let machine = &mut self.hosts[host];
        let path = Path {
            local: machine.addr,
            remote: SocketAddr::new(gid_to_ip(to.ah_attr.dgid), ROCE_PORT),
            interface: 0,
            traffic_class: to.ah_attr.traffic_class,
            hop_limit: to.ah_attr.hop_limit,
        };
        let slot = machine.datagram_slots.get_mut(&qpn.value());
        let slot = slot.ok_or_else(|| violation!("queue pair {qpn} is gone"))?;
        for datagram in 0..DATAGRAMS {
            let qkey = match has_wrong_key(datagram) {
                true => QKey(to.qkey.0 ^ 1),
                false => to.qkey,
            };
            let content = private_data::compose(number, datagram as usize, extra_of(datagram));
            let wr = SendWr {
                wr_id: datagram.into(),
                op: SendOp::Send,
                data: SendData::Inline(&content),
                flags: SendFlags::SIGNALED,
                ud: None,
                srq: None,
            };
            let destination = Destination {
                path,
                qpn: to.qp_num,
                qkey,
            };
            let posted = slot.qp.post_datagram(&wr, destination);
            posted.map_err(|error| violation!("question {number}: {error}"))?;
            self.tally.count("datagram sent");
        }
        self.drain_datagrams(host, qpn.value())
    }

    /// A packet arrives at a datagram queue pair.
    pub(in crate::simulator) fn take_datagram(
        &mut self,
        host: usize,
        datagram: &Datagram,
        packet: &Packet<'_>,
    ) -> Result<(), Violation> {
        let (now, qpn) = (self.now, packet.bth().dest_qp.value());
        let Host {
            datagram_slots,
            memory,
            ram,
            ..
        } = &mut self.hosts[host];
        let Some(slot) = datagram_slots.get_mut(&qpn) else {
            return Ok(());
        };
        slot.qp.handle_packet(now, memory, packet);
        let header = network_header(datagram.source.ip(), datagram.destination.ip());
        while let Some(placement) = slot.qp.poll_grh_placement() {
            let bytes = header.get(placement.source_range);
            let bytes = bytes.ok_or_else(|| violation!("placement beyond the header"))?;
            ram.write(placement.addr, bytes)?;
        }
        while let Some(placement) = slot.qp.poll_placement() {
            let bytes = placement.bytes(packet.payload());
            let bytes = bytes.ok_or_else(|| violation!("placement beyond the payload"))?;
            ram.write(placement.addr, bytes)?;
        }
        self.drain_datagrams(host, qpn)
    }

    /// Takes all outputs of a datagram queue pair.
    fn drain_datagrams(&mut self, host: usize, qpn: u32) -> Result<(), Violation> {
        loop {
            let now = self.now;
            let Host {
                datagram_slots,
                memory,
                ram,
                ..
            } = &mut self.hosts[host];
            let Some(slot) = datagram_slots.get_mut(&qpn) else {
                return Ok(());
            };
            if let Some(completion) = slot.qp.poll_completion() {
                match completion.queue {
                    Queue::Send => slot.sent(&completion.wc)?,
                    Queue::Receive | Queue::Shared(_) => {
                        self.datagram_received(host, qpn, &completion.wc)?
                    }
                }
            } else if let Some(event) = slot.qp.poll_async_event() {
                return Err(violation!("queue pair {qpn:#x} raised {event:?}"));
            } else if let Some((to, packet)) = slot.next_packet(now, memory, ram)? {
                self.send(host, to, qpn, packet)?;
            } else {
                return Ok(());
            }
        }
    }

    /// A datagram was received. It must have been sent to this queue pair, with its key.
    fn datagram_received(
        &mut self,
        host: usize,
        qpn: u32,
        wc: &WorkCompletion,
    ) -> Result<(), Violation> {
        let machine = &self.hosts[host];
        let slot = machine.datagram_slots.get(&qpn);
        let slot = slot.ok_or_else(|| violation!("queue pair {qpn:#x} is gone"))?;
        ensure!(
            wc.status == WcStatus::Success && wc.has_grh,
            "a datagram completed with {wc:?}"
        );
        let area = machine
            .ram
            .read(slot.place(wc.wr_id), wc.byte_len as usize)?;
        let (header, content) = area
            .split_first_chunk::<GRH_LEN>()
            .ok_or_else(|| violation!("a datagram without room for its header: {wc:?}"))?;
        let (number, datagram) = private_data::names(content)?;
        let inquiry = self.inquiries.get(number);
        let inquiry = inquiry.ok_or_else(|| violation!("a datagram that was never sent"))?;
        let is_told =
            |told: &Told| matches!(told, Told::Served { qpn: told, .. } if told.value() == qpn);
        ensure!(
            inquiry.told.iter().any(is_told),
            "a datagram of question {number} came to queue pair {qpn:#x}"
        );
        let sender = inquiry.sender;
        let (from, sender) = sender.ok_or_else(|| violation!("a datagram without a sender"))?;
        ensure!(
            wc.src_qp == sender && !has_wrong_key(datagram as u32),
            "datagram {datagram} of question {number} came from {}, or with a wrong key",
            wc.src_qp
        );
        let sent = private_data::compose(number, datagram, extra_of(datagram as u32));
        ensure!(
            content == &sent[..],
            "datagram {datagram} of question {number} is not what was sent"
        );
        let expected = network_header(self.hosts[from].addr, self.hosts[host].addr);
        ensure!(
            *header == expected,
            "datagram {datagram} of question {number} stands behind the header {header:02x?}"
        );
        self.tally.count("datagram received");
        let slot = self.hosts[host].datagram_slots.get_mut(&qpn);
        slot.map_or(Ok(()), |slot| slot.post(wc.wr_id))
    }

    /// Destroys an id's datagram queue pairs.
    pub(super) fn remove_datagram_slots(&mut self, host: usize, key: AgentKey) {
        let machine = &mut self.hosts[host];
        let slots = machine.datagram_slots.iter();
        let own: Vec<u32> = slots
            .filter(|(_, slot)| slot.agent == key)
            .map(|(qpn, _)| *qpn)
            .collect();
        for qpn in own {
            if let Some(slot) = machine.datagram_slots.remove(&qpn) {
                self.tally.datagram_slot(slot.qp.counters());
                machine.deregister(&slot.arena);
            }
        }
    }
}

impl DatagramSlot {
    /// Posts the receive with index `place`.
    fn post(&mut self, place: u64) -> Result<(), Violation> {
        let length = (GRH_LEN + DATAGRAM_LEN_MAX) as u32;
        let sge = Sge {
            addr: self.arena.iova + place * u64::from(length),
            length,
            lkey: self.arena.key,
        };
        let wr = RecvWr {
            wr_id: place,
            sges: &[sge],
        };
        let posted = self.qp.post_recv(&wr);
        posted.map_err(|error| violation!("a receive was not posted: {error}"))
    }
}
