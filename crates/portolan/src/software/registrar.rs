//! The coordinator's port table for the host, which also decides to which process a management datagram goes.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use portolan_cm::ports::{BindOptions, BindingId, ClosedListeners, PortConfig, PortTable};
use portolan_port_sharing::{Block, CoordinatorService, Datagram, Route};
use portolan_wire::addr::{PortSpace, ServiceId};
use portolan_wire::cm::{CmMessage, RejectReason};
use portolan_wire::rocev2::Packet;

use super::claim::{ClaimId, PortClaim, Request, Response, ephemeral_ports, holder_name};
use super::survey::{self, SurveyedPort};

/// A claim of a member process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Owner {
    member: Block,
    claim: ClaimId,
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&holder_name(self.member))
    }
}

/// Answers the members' requests. It works in the process that is the coordinator.
#[derive(Debug)]
pub(super) struct Registrar {
    ports: PortTable<Owner>,
    /// The claims by member, so that all claims of a member that leaves are found.
    bindings: HashMap<Block, HashMap<ClaimId, Held>>,
    /// The listeners that have just closed. Requests for them still go to their processes, which hold them. So do those
    /// for ids that have just been bound (`Held::bound_at`).
    closed: ClosedListeners<Owner>,
    epoch: Instant,
    /// See [`portolan_cm::Config::expected_listener_memory`].
    memory: Duration,
    seed: u64,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    binding: BindingId,
    port_space: PortSpace,
    port: u16,
    listening: bool,
    /// Since the epoch.
    bound_at: Duration,
}

impl Registrar {
    /// `seed` is random. It keys the tables and spreads the ephemeral ports.
    pub(super) fn new(seed: u64, memory: Duration) -> Self {
        Self {
            ports: table(seed),
            bindings: HashMap::new(),
            closed: ClosedListeners::new(memory),
            epoch: Instant::now(),
            memory,
            seed,
        }
    }

    fn claim(&mut self, owner: Owner, claim: &PortClaim) -> Response {
        let of_member = self.bindings.get(&owner.member);
        let held = match of_member.and_then(|claims| claims.get(&owner.claim)) {
            // The member repeats its request, or asks to listen.
            Some(held) => *held,
            None => match self.bind(owner, claim) {
                Ok(held) => held,
                Err(refused) => return refused,
            },
        };
        if claim.listening && !held.listening {
            if let Err(cause) = self.ports.listen(held.binding) {
                return Response::refusal(&cause);
            }
            let listening = Held {
                listening: true,
                ..held
            };
            self.note(owner, listening);
        }
        Response::Granted { port: held.port }
    }

    fn bind(&mut self, owner: Owner, claim: &PortClaim) -> Result<Held, Response> {
        // The member has checked its own privilege for a low port. The coordinator cannot.
        let options = BindOptions {
            reuse_addr: claim.reuse_addr,
            af_only: claim.af_only,
            privileged: true,
        };
        self.seed = self
            .seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let place = (self.seed >> 32) as u32;
        let bound = self
            .ports
            .bind(owner, claim.port_space, claim.address, options, place);
        let bound = bound.map_err(|cause| Response::refusal(&cause))?;
        let held = Held {
            binding: bound.binding,
            port_space: claim.port_space,
            port: bound.port,
            listening: false,
            bound_at: self.epoch.elapsed(),
        };
        self.note(owner, held);
        Ok(held)
    }

    fn note(&mut self, owner: Owner, held: Held) {
        let of_member = self.bindings.entry(owner.member).or_default();
        of_member.insert(owner.claim, held);
    }

    fn release(&mut self, member: Block, claims: &[ClaimId]) {
        let Entry::Occupied(mut of_member) = self.bindings.entry(member) else {
            return;
        };
        for claim in claims {
            let held = of_member.get_mut().remove(claim);
            let closed = held.and_then(|held| self.ports.release(held.binding));
            if let Some(closed) = closed {
                self.closed.note(self.epoch.elapsed(), closed);
            }
        }
        if of_member.get().is_empty() {
            of_member.remove();
        }
    }
}

impl Registrar {
    /// The process that listens to a service, or was bound to its address a moment ago and may be about to listen, or
    /// listened until a moment ago. If it does not listen, it decides whether to hold the request.
    fn owner_of(&self, service: ServiceId, destination: IpAddr, zone: u32) -> Option<Owner> {
        let now = self.epoch.elapsed();
        let listening = self.ports.lookup(service, destination, zone);
        let bound = || {
            let owner = self.ports.lookup_bound(service, destination, zone)?;
            let held = self.bindings.get(&owner.member)?.get(&owner.claim)?;
            (now < held.bound_at + self.memory).then_some(owner)
        };
        let closed = || self.closed.lookup(now, service, destination, zone);
        listening.or_else(bound).or_else(closed)
    }
}

impl CoordinatorService for Registrar {
    fn reset(&mut self) {
        *self = Self::new(self.seed, self.memory);
    }

    fn request(&mut self, member: Block, payload: &[u8]) -> Vec<u8> {
        let response = match Request::decode(payload) {
            Some(Request::Claim(claim, wanted)) => self.claim(Owner { member, claim }, &wanted),
            Some(Request::Release(claims)) => {
                self.release(member, &claims);
                Response::Granted { port: 0 }
            }
            None => Response::Refused {
                errno: portolan_provider::error::errno::EINVAL,
                holder: String::new(),
            },
        };
        response.encode()
    }

    fn report(&self) -> Vec<Vec<u8>> {
        let members = self.bindings.iter();
        let held =
            members.flat_map(|(member, claims)| claims.values().map(move |held| (member, held)));
        survey::coordinator_report(held.filter_map(|(member, held)| {
            let (_, address) = self.ports.binding(held.binding)?;
            Some(SurveyedPort {
                block: member.index(),
                port_space: held.port_space,
                address,
                listening: held.listening,
            })
        }))
    }

    fn member_left(&mut self, member: Block) {
        for held in self.bindings.remove(&member).unwrap_or_default().values() {
            self.ports.release(held.binding);
        }
        self.closed.forget(|owner| owner.member == member);
    }

    fn route(&mut self, datagram: &Datagram<'_>) -> Route {
        let Ok(packet) = Packet::parse(datagram.payload) else {
            return Route::Drop;
        };
        let Ok((_, message)) = CmMessage::parse(packet.payload()) else {
            return Route::Drop;
        };
        let service = match &message {
            CmMessage::Req(req) => Some(req.service_id),
            CmMessage::SidrReq(req) => Some(req.service_id),
            _ => None,
        };
        if let Some(service) = service {
            let listener = self.owner_of(service, datagram.destination, datagram.interface);
            return listener.map_or(Route::Unregistered, |owner| Route::Member(owner.member));
        }
        // The receiver's id of the connection.
        let Some(comm_id) = message.remote_comm_id() else {
            return Route::Drop;
        };
        // A peer that gives up a request before it is answered does not know its receiver's id, and names itself
        // instead (IBTA 12.6.7.2). So each process checks whether it has the request.
        if let CmMessage::Rej(rej) = &message
            && comm_id == 0
            && rej.reason == RejectReason::TIMEOUT
        {
            return Route::Everyone;
        }
        // The high byte of a communication id is the block of its process. If no process has it, this one answers
        // that the connection does not exist.
        match u8::try_from(comm_id >> 24).ok().and_then(Block::new) {
            Some(block) if block != Block::COORDINATOR => Route::Member(block),
            _ => Route::Local,
        }
    }
}

fn table(seed: u64) -> PortTable<Owner> {
    let config = PortConfig::default();
    let ephemeral = ephemeral_ports().unwrap_or(config.ephemeral.clone());
    PortTable::new(
        PortConfig {
            ephemeral,
            ..config
        },
        seed,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOMENT: Duration = Duration::from_secs(60);

    const A: Block = Block::new(1).unwrap();
    const B: Block = Block::new(2).unwrap();

    fn claim(
        coordinator: &mut Registrar,
        member: Block,
        id: u32,
        address: &str,
        listening: bool,
    ) -> Response {
        let claim = PortClaim {
            port_space: PortSpace::Tcp,
            address: address.parse().unwrap(),
            reuse_addr: false,
            af_only: true,
            listening,
        };
        let answer = coordinator.request(member, &Request::Claim(ClaimId(id), claim).encode());
        Response::decode(&answer).unwrap()
    }

    fn in_use_by(member: Block) -> Response {
        let holder = holder_name(member);
        Response::Refused { errno: 98, holder }
    }

    #[test]
    fn a_port_belongs_to_one_process_until_it_leaves() {
        let mut coordinator = Registrar::new(7, MOMENT);
        let granted = Response::Granted { port: 7471 };
        assert_eq!(
            claim(&mut coordinator, A, 0, "127.0.0.1:7471", true),
            granted
        );
        assert_eq!(
            claim(&mut coordinator, B, 0, "127.0.0.1:7471", true),
            in_use_by(A)
        );
        assert_eq!(
            claim(&mut coordinator, B, 1, "0.0.0.0:7471", true),
            in_use_by(A)
        );
        assert_eq!(
            claim(&mut coordinator, B, 2, "127.0.0.2:7471", true),
            granted
        );
        coordinator.member_left(A);
        assert_eq!(
            claim(&mut coordinator, B, 3, "127.0.0.1:7471", true),
            granted
        );
    }

    #[test]
    fn a_repeated_request_counts_once() {
        let mut coordinator = Registrar::new(7, MOMENT);
        let Response::Granted { port } = claim(&mut coordinator, A, 5, "127.0.0.1:0", false) else {
            panic!("an ephemeral port is free");
        };
        let again = claim(&mut coordinator, A, 5, "127.0.0.1:0", false);
        assert_eq!(again, Response::Granted { port });
        let release = Request::Release(vec![ClaimId(5)]).encode();
        for _ in 0..2 {
            assert_eq!(
                coordinator.request(A, &release),
                Response::Granted { port: 0 }.encode()
            );
        }
        assert!(coordinator.ports.is_empty());
        assert!(
            coordinator.bindings.is_empty(),
            "nothing is kept of a member without ports"
        );
    }

    #[test]
    fn a_leaving_member_releases_everything_it_held_and_nothing_of_others() {
        let mut coordinator = Registrar::new(7, MOMENT);
        for id in 0..20 {
            for member in [A, B] {
                let address = format!("127.0.0.{}:7471", id * 2 + u32::from(member.index()));
                let granted = Response::Granted { port: 7471 };
                assert_eq!(claim(&mut coordinator, member, id, &address, true), granted);
            }
        }
        assert_eq!(coordinator.ports.len(), 40);
        coordinator.member_left(A);
        coordinator.member_left(A);
        assert_eq!(coordinator.ports.len(), 20);
        assert_eq!(
            claim(&mut coordinator, A, 0, "127.0.0.2:7471", true),
            in_use_by(B)
        );
        coordinator.member_left(B);
        assert!(coordinator.ports.is_empty() && coordinator.bindings.is_empty());
    }

    #[test]
    fn a_new_coordinator_starts_empty_and_learns_by_replay() {
        let mut coordinator = Registrar::new(7, MOMENT);
        let _ = claim(&mut coordinator, A, 0, "127.0.0.1:7471", true);
        coordinator.reset();
        assert!(coordinator.ports.is_empty());
        let replayed = claim(&mut coordinator, B, 0, "127.0.0.1:7471", true);
        assert_eq!(replayed, Response::Granted { port: 7471 });
    }

    #[test]
    fn a_request_to_a_listener_that_has_just_closed_goes_to_its_process_until_it_leaves() {
        let mut coordinator = Registrar::new(7, MOMENT);
        let service = ServiceId::from_port(PortSpace::Tcp, 7471);
        let at = |coordinator: &Registrar, ip: [u8; 4]| {
            let owner = coordinator.owner_of(service, ip.into(), 0);
            owner.map(|owner| owner.member)
        };
        let _ = claim(&mut coordinator, A, 0, "127.0.0.1:7471", true);
        let _ = claim(&mut coordinator, B, 0, "127.0.0.2:7471", false);
        for member in [A, B] {
            coordinator.release(member, &[ClaimId(0)]);
        }
        assert_eq!(at(&coordinator, [127, 0, 0, 1]), Some(A));
        assert_eq!(
            at(&coordinator, [127, 0, 0, 2]),
            None,
            "this address had no listener"
        );
        // Another process listens there now.
        let _ = claim(&mut coordinator, B, 1, "127.0.0.1:7471", true);
        assert_eq!(at(&coordinator, [127, 0, 0, 1]), Some(B));
        coordinator.release(B, &[ClaimId(1)]);
        coordinator.member_left(B);
        assert_eq!(at(&coordinator, [127, 0, 0, 1]), Some(A));
        coordinator.member_left(A);
        assert_eq!(at(&coordinator, [127, 0, 0, 1]), None);
        // With a memory of zero, nothing is remembered.
        let mut coordinator = Registrar::new(7, Duration::ZERO);
        let _ = claim(&mut coordinator, A, 0, "127.0.0.1:7471", true);
        coordinator.release(A, &[ClaimId(0)]);
        assert_eq!(at(&coordinator, [127, 0, 0, 1]), None);
    }

    #[test]
    fn a_request_to_a_bound_address_without_a_listener_goes_to_the_process_that_may_be_about_to_listen()
     {
        let mut coordinator = Registrar::new(7, MOMENT);
        let service = ServiceId::from_port(PortSpace::Tcp, 7471);
        let owner = |coordinator: &Registrar, ip: [u8; 4]| {
            let owner = coordinator.owner_of(service, ip.into(), 0);
            owner.map(|owner| owner.member)
        };
        let _ = claim(&mut coordinator, A, 0, "127.0.0.1:7471", false);
        assert_eq!(owner(&coordinator, [127, 0, 0, 1]), Some(A));
        assert_eq!(owner(&coordinator, [127, 0, 0, 2]), None);
        // A listener takes precedence.
        let _ = claim(&mut coordinator, B, 0, "127.0.0.2:7471", true);
        assert_eq!(owner(&coordinator, [127, 0, 0, 2]), Some(B));
        coordinator.release(A, &[ClaimId(0)]);
        assert_eq!(owner(&coordinator, [127, 0, 0, 1]), None);
        // So does a process that was bound after another one closed its listener.
        coordinator.release(B, &[ClaimId(0)]);
        assert_eq!(owner(&coordinator, [127, 0, 0, 2]), Some(B));
        let _ = claim(&mut coordinator, A, 1, "127.0.0.2:7471", false);
        assert_eq!(owner(&coordinator, [127, 0, 0, 2]), Some(A));
        // With a memory of zero, nothing is expected.
        let mut coordinator = Registrar::new(7, Duration::ZERO);
        let _ = claim(&mut coordinator, A, 0, "127.0.0.1:7471", false);
        assert_eq!(owner(&coordinator, [127, 0, 0, 1]), None);
    }

    #[test]
    fn garbage_is_refused_and_changes_nothing() {
        let mut coordinator = Registrar::new(7, MOMENT);
        assert_eq!(
            Response::decode(&coordinator.request(A, b"")),
            Some(Response::Refused {
                errno: 22,
                holder: String::new()
            })
        );
        assert!(coordinator.ports.is_empty());
    }
}
