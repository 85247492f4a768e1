//! A simulated machine: the engines of one process, composed as in the library, with its own memory
//! and ports.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use portolan_cm::{BoundDevice, Cm, MadPath, State};
use portolan_provider::cm::IdNumber;
use portolan_provider::verbs::Access;
use portolan_roce::engine::{MemoryTable, Region};
use portolan_wire::Gid;

use super::AgentKey;
use super::channels::Channels;
use super::content::Noise;
use super::datagrams::DatagramSlot;
use super::device::{PD, Slot};
use super::failure::{Violation, violation};
use super::groups::{Join, Sockets};
use super::oracle::{Arena, EndpointIndex, Lateness, Life};
use super::plan::{HostPlan, Side};
use super::port_group::Claim;
use super::ram::Ram;
use super::rng::Rng;

/// Limit on the regions of one machine.
const REGIONS_MAX: usize = 1024;

/// Packets that a socket's buffer holds while its program is stalled.
const SOCKET_PACKETS_MAX: usize = 40;

/// An id as its program sees it.
#[derive(Debug)]
pub(super) struct Agent {
    pub(super) id: IdNumber,
    pub(super) role: Role,
    pub(super) life: Life,
    pub(super) endpoint: Option<EndpointIndex>,
    /// The address that the id holds. A child has none.
    pub(super) claim: Option<Claim>,
    /// Index of the next planned request and receive to post.
    pub(super) next_op: usize,
    pub(super) next_receive: usize,
    /// Whether the program has begun to post.
    pub(super) is_talking: bool,
    pub(super) will_disconnect: bool,
}

impl Agent {
    pub(super) fn new(id: IdNumber, role: Role, life: Life, claim: Option<Claim>) -> Self {
        Self {
            id,
            role,
            life,
            endpoint: None,
            claim,
            next_op: 0,
            next_receive: 0,
            is_talking: false,
            will_disconnect: false,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Listener {
        listener: usize,
    },
    Talker {
        conversation: usize,
        side: Side,
    },
    /// Listens for questions.
    Service {
        service: usize,
    },
    /// Asks a question, or was asked it.
    Party {
        inquiry: usize,
        side: Side,
    },
    /// Belongs to multicast groups.
    Member {
        member: usize,
    },
}

#[derive(Debug)]
pub(super) struct Host {
    pub(super) addr: IpAddr,
    /// Index of its port group: processes that share its address and UDP port.
    pub(super) group: usize,
    /// High byte of its queue pair numbers and communication ids.
    pub(super) block: u8,
    pub(super) device: BoundDevice,
    /// How often it started. Tasks planned before a crash are void after it.
    pub(super) boot: u32,
    pub(super) is_up: bool,
    /// It does nothing until this time.
    pub(super) stalled_until: Duration,
    /// Total time of its stalls.
    pub(super) stalled_for: Duration,
    /// Number of its stalls.
    stalls: u32,
    /// Packets that wait in its socket until the stall ends.
    socket_packets: usize,
    pub(super) cm: Cm,
    pub(super) memory: MemoryTable,
    pub(super) ram: Ram,
    pub(super) slots: BTreeMap<u32, Slot>,
    /// Queue pairs for datagrams.
    pub(super) datagram_slots: BTreeMap<u32, DatagramSlot>,
    pub(super) agents: BTreeMap<AgentKey, Agent>,
    pub(super) sockets: Sockets,
    /// Memberships by their programs' names.
    pub(super) joins: BTreeMap<AgentKey, Join>,
    /// Events that the program has not taken.
    pub(super) channels: Channels,
    /// How often an id moves to another channel after an event, per thousand.
    pub(super) migrates_permille: u32,
    pub(super) rng: Rng,
    /// Queue pair numbers to allocate first.
    pub(super) qpns_to_reuse: Vec<u32>,
    /// Every queue pair number allocated so far.
    pub(super) qpns_used: Vec<u32>,
    pub(super) reaction_us_max: u64,
    pub(super) burst_packets_max: u32,
    ip_id: u16,
    mad_psn: u32,
}

impl Host {
    pub(super) fn new(
        block: u8,
        plan: &HostPlan,
        cm: &portolan_cm::Config,
        boot: u32,
        mut rng: Rng,
    ) -> Self {
        let cm = portolan_cm::Config {
            comm_id_block: block,
            ..cm.clone()
        };
        let device = BoundDevice {
            device_index: 0,
            port_num: 1,
            sgid_index: 0,
            sgid: Gid::from_ip(plan.addr),
            node_guid: 0x0200_0000_0000_0001 + plan.group as u64,
            mtu: plan.mtu,
            ack_delay_exp: plan.ack_delay_exp,
        };
        Self {
            addr: plan.addr,
            group: plan.group,
            block,
            device,
            boot,
            is_up: true,
            stalled_until: Duration::ZERO,
            stalled_for: Duration::ZERO,
            stalls: 0,
            socket_packets: 0,
            cm: Cm::new(cm, rng.seed_32()),
            memory: MemoryTable::new(REGIONS_MAX),
            ram: Ram::new(),
            slots: BTreeMap::new(),
            datagram_slots: BTreeMap::new(),
            agents: BTreeMap::new(),
            sockets: Sockets::default(),
            joins: BTreeMap::new(),
            channels: Channels::default(),
            migrates_permille: plan.migrates_permille,
            qpns_to_reuse: Vec::new(),
            qpns_used: Vec::new(),
            reaction_us_max: plan.reaction_us_max,
            burst_packets_max: plan.burst_packets_max,
            ip_id: rng.next_u32() as u16,
            mad_psn: rng.next_u32(),
            rng,
        }
    }

    pub(super) fn socket_addr(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.addr, port)
    }

    pub(super) fn is_stalled(&self, now: Duration) -> bool {
        now < self.stalled_until
    }

    pub(super) fn lateness(&self) -> Lateness {
        Lateness {
            total: self.stalled_for,
            stalls: self.stalls,
        }
    }

    pub(super) fn stall(&mut self, now: Duration, lasts: Duration) {
        let until = self.stalled_until.max(now + lasts);
        self.stalled_for += until - self.stalled_until.max(now);
        self.stalled_until = until;
        self.stalls += 1;
        self.socket_packets = 0;
    }

    /// Takes a place in the socket's buffer, if one is left.
    pub(super) fn has_socket_room(&mut self) -> bool {
        self.socket_packets += 1;
        self.socket_packets <= SOCKET_PACKETS_MAX
    }

    /// The wildcard address of its family.
    pub(super) fn wildcard(&self, port: u16) -> SocketAddr {
        let mut wildcard = portolan_provider::address::unspecified_like(self.socket_addr(0));
        wildcard.set_port(port);
        wildcard
    }

    /// The return path of a message from `remote`.
    pub(super) fn path_from(&self, remote: IpAddr) -> MadPath {
        MadPath {
            local: self.addr,
            remote,
            scope_id: 0,
            device: self.device,
            lids: None,
        }
    }

    /// The IP identification of the next datagram. The simulator chooses it, so the receiver knows
    /// it; on a connected socket, Linux chooses it.
    pub(super) fn next_ip_id(&mut self) -> u16 {
        self.ip_id = self.ip_id.wrapping_add(1);
        self.ip_id
    }

    pub(super) fn next_mad_psn(&mut self) -> u32 {
        self.mad_psn = self.mad_psn.wrapping_add(1);
        self.mad_psn
    }

    pub(super) fn reaction(&mut self) -> Duration {
        self.rng.micros(0, self.reaction_us_max)
    }

    /// An unused queue pair number of its block. After a crash, the numbers used before come first.
    pub(super) fn draw_qpn(&mut self) -> u32 {
        let qpn = match self.qpns_to_reuse.pop() {
            Some(qpn) => qpn,
            None => loop {
                let qpn = u32::from(self.block) << 16 | self.rng.below(1 << 16) as u32;
                if !self.qpns_used.contains(&qpn) {
                    break qpn;
                }
            },
        };
        self.qpns_used.push(qpn);
        qpn
    }

    pub(super) fn agent(&self, key: AgentKey) -> Result<&Agent, Violation> {
        self.agents
            .get(&key)
            .ok_or_else(|| violation!("agent {key} is gone"))
    }

    pub(super) fn agent_mut(&mut self, key: AgentKey) -> Result<&mut Agent, Violation> {
        self.agents
            .get_mut(&key)
            .ok_or_else(|| violation!("agent {key} is gone"))
    }

    /// Whether the engine is in time-wait with an id.
    pub(super) fn in_timewait(&self, id: IdNumber) -> bool {
        self.cm.state(id) == Ok(State::Timewait)
    }

    /// Allocates and registers memory, filled with noise if given.
    pub(super) fn register(
        &mut self,
        len: usize,
        is_filled: bool,
        access: Access,
    ) -> Result<Arena, Violation> {
        let noise = Noise::draw(&mut self.rng);
        let bytes = if is_filled {
            noise.bytes(len).to_vec()
        } else {
            vec![0; len]
        };
        let addr = self.ram.allocate(bytes, &mut self.rng);
        // Half of the regions have an IOVA that differs from their address.
        let iova = if self.rng.percent(50) {
            addr
        } else {
            self.rng.next_u64() >> 1
        };
        let region = Region {
            pd: PD,
            iova,
            addr,
            length: len as u64,
            access,
        };
        let key = self.rng.next_u32();
        self.memory
            .insert(key, region)
            .map_err(|error| violation!("memory was not registered: {error}"))?;
        Ok(Arena {
            addr,
            iova,
            key,
            len: len as u32,
            noise,
            used: 0,
            is_revoked: false,
        })
    }

    /// Undoes [`register`](Self::register): any later access is a violation.
    pub(super) fn deregister(&mut self, arena: &Arena) {
        self.memory.remove(arena.key);
        self.ram.free(arena.addr);
    }
}
