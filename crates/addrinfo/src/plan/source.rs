//! Completes a candidate: route, source, device and paths, where applicable.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use portolan_provider::address::{SockaddrIb, ip_to_gid};
use portolan_provider::{Address, Cause};
use portolan_wire::addr::PortSpace;

use super::candidate::{Candidate, Fabric, ip_of};
use super::{Plan, Stage};
use crate::error::Problem;
use crate::explain::Decision;
use crate::hints::Flags;
use crate::lookups::{
    DeviceAnswer, DeviceChoice, DeviceQuestion, LinkLayer, PathQuestion, Question, ServiceRecord,
};
use crate::path::PathData;
use crate::route::{self, Query, Route};

/// The first step for a candidate.
enum First {
    Ask(Query),
    AskDevice(DeviceQuestion),
    AskFabric(DeviceQuestion),
    AskPaths(PathQuestion),
    Nothing(Option<Decision>),
}

impl Plan {
    /// Processes the candidates from `at` on until one has a question.
    pub(super) fn look_at(&mut self, at: usize) {
        for at in at..self.candidates.len() {
            match self.first_step(at) {
                First::Ask(query) => return self.ask(Stage::Route(at), Question::Route(query)),
                First::AskDevice(question) => {
                    return self.ask(Stage::Device(at), Question::Device(question));
                }
                First::AskFabric(question) => {
                    return self.ask(Stage::Fabric(at), Question::Device(question));
                }
                First::AskPaths(question) => {
                    return self.ask(Stage::Paths(at), Question::Paths(question));
                }
                First::Nothing(decision) => self.candidates[at].decisions.extend(decision),
            }
        }
        self.stage = Stage::Done;
    }

    fn first_step(&self, at: usize) -> First {
        let candidate = &self.candidates[at];
        if self.settled.is_without_routes() {
            return First::Nothing(without_route(candidate));
        }
        let Some(destination) = candidate.dst else {
            return local_step(candidate);
        };
        if let (Fabric::Port(port), Some(source)) = (&candidate.fabric, candidate.src) {
            return First::AskPaths(PathQuestion {
                device: port.clone(),
                source,
                destination,
                wanted: self.settled.route.clone(),
            });
        }
        if candidate.has_device {
            // The zone of a GID named the device.
            return First::Nothing(None);
        }
        if let (Address::Ib(to), Fabric::Unasked) = (&destination, &candidate.fabric) {
            let source = candidate.src.filter(|_| candidate.is_pinned);
            return First::AskFabric(DeviceQuestion::TowardsGid {
                gid: to.gid,
                source: source.map(|source| source.gid()),
            });
        }
        let ip = ip_of(&destination);
        let pinned = candidate.src.filter(|_| candidate.is_pinned);
        let source = pinned.as_ref().map(ip_of);
        let scopes = [Some(destination), candidate.src];
        let interface_index = scopes.into_iter().flatten().find_map(scope);
        if destination.inet().is_none() && route::is_link_local(ip) {
            let why = "a link-local GID needs its device: write GID%DEVICE";
            return First::Nothing(Some(Decision::RouteMeaningless(why)));
        }
        First::Ask(Query {
            destination: ip,
            interface_index,
            source,
        })
    }

    pub(super) fn take_zone(&mut self, answer: DeviceAnswer) -> Result<(), Problem> {
        let Some(candidate) = self.candidates.first_mut() else {
            return Ok(());
        };
        let name = candidate.zone.take().unwrap_or_default();
        match answer {
            DeviceAnswer::Found(device) => {
                candidate.enter_zone(device.index.into());
                if let Some(Address::Ib(to)) = candidate.dst {
                    let source = ib_source(&to, &device, self.settled.port_space, 0);
                    candidate.src = Some(source);
                }
                if device.link_layer == LinkLayer::InfiniBand {
                    candidate.fabric = Fabric::Port(device.clone());
                }
                candidate.decisions.push(Decision::Device(device));
                candidate.has_device = true;
            }
            // An index is usable even if the caller knows no devices.
            DeviceAnswer::Unknown => match name.parse() {
                Ok(index) => candidate.enter_zone(index),
                Err(_) => {
                    let why = "devices are not known here".into();
                    return Err(Problem::NoSuchDevice { name, why });
                }
            },
            DeviceAnswer::None { why } => return Err(Problem::NoSuchDevice { name, why }),
        }
        self.leave_out_unusable();
        self.look_at(0);
        Ok(())
    }

    pub(super) fn take_service_records(
        &mut self,
        answer: Result<Vec<ServiceRecord>, Cause>,
    ) -> Result<(), Problem> {
        let records = answer.map_err(Problem::Sa)?;
        if records.is_empty() {
            return Err(Problem::SaNothing);
        }
        self.settled.flags |= Flags::SA;
        // The records are destinations, whatever the hints say (as in librdmacm).
        self.settled.flags -= Flags::PASSIVE;
        self.settled.port_space = PortSpace::Ib;
        for record in records {
            let (own_sid, own_mask) = SockaddrIb::service(PortSpace::Ib, 0);
            let address = |gid, sid, sid_mask| {
                Some(Address::Ib(SockaddrIb {
                    pkey: record.pkey,
                    flowinfo: 0,
                    gid,
                    sid,
                    sid_mask,
                    scope_id: 0,
                }))
            };
            self.candidates.push(Candidate::new(
                address(record.gid, record.id, u64::MAX),
                address(record.local_gid, own_sid, own_mask),
                Decision::ServiceRecord { id: record.id },
            ));
        }
        self.stage = Stage::Done;
        Ok(())
    }

    /// Stores which InfiniBand port reaches the candidate. If none does, the address may be a RoCE GID.
    pub(super) fn take_fabric(&mut self, at: usize, answer: DeviceAnswer) {
        let port_space = self.settled.port_space;
        let candidate = &mut self.candidates[at];
        candidate.fabric = match (answer, candidate.dst) {
            (DeviceAnswer::Found(port), Some(Address::Ib(to)))
                if port.link_layer == LinkLayer::InfiniBand =>
            {
                if !candidate.is_pinned {
                    let own = candidate.src.map_or(0, |source| source.port());
                    candidate.src = Some(ib_source(&to, &port, port_space, own));
                }
                candidate.has_device = true;
                candidate.decisions.push(Decision::Device(port.clone()));
                Fabric::Port(port)
            }
            _ => Fabric::Settled,
        };
        self.look_at(at);
    }

    pub(super) fn take_route(
        &mut self,
        at: usize,
        answer: Result<Route, Cause>,
    ) -> Result<(), Problem> {
        let candidate = &mut self.candidates[at];
        // The kernel's routes never cross families, but another implementation of the lookups might
        // return such a route.
        let crosses = |route: &Route| {
            let to = candidate.dst.as_ref().map(ip_of);
            to.is_none_or(|to| to.is_ipv4() != route.source.is_ipv4())
        };
        let answer = match answer {
            Ok(route) if crosses(&route) => Err(Cause::AddressNotAvailable),
            answer => answer,
        };
        let route = match answer {
            Ok(route) => route,
            Err(cause) => {
                if let (true, Some(source_address), Cause::AddressNotAvailable) =
                    (candidate.is_pinned, candidate.src, &cause)
                {
                    return Err(Problem::Source {
                        source_address,
                        cause,
                    });
                }
                candidate.is_usable = false;
                candidate.decisions.push(Decision::NoRoute(cause));
                self.look_at(at + 1);
                return Ok(());
            }
        };
        if !candidate.is_pinned {
            let port = candidate.src.map_or(0, |source| source.port());
            candidate.src = candidate
                .dst
                .map(|to| source_towards(&to, &route, port, self.settled.port_space));
        }
        candidate.decisions.push(Decision::Route(route));
        let question = DeviceQuestion::OfAddress {
            ip: route.source,
            interface_index: route::is_link_local(route.source)
                .then(|| interface_of(&route, candidate.dst)),
            leaves_by: (!route.is_on_this_machine()).then_some(route.interface_index),
        };
        self.ask(Stage::Device(at), Question::Device(question));
        Ok(())
    }

    pub(super) fn take_device(&mut self, at: usize, answer: DeviceAnswer) {
        let candidate = &mut self.candidates[at];
        match answer {
            DeviceAnswer::Unknown => candidate.decisions.push(Decision::DevicesUnknown),
            DeviceAnswer::None { why } => candidate.leave_without_device(why),
            DeviceAnswer::Found(device) => {
                candidate.has_device = true;
                let ends = candidate.src.zip(candidate.dst);
                match ends {
                    Some((source, destination)) if device.link_layer == LinkLayer::InfiniBand => {
                        candidate.decisions.push(Decision::Device(device.clone()));
                        let question = PathQuestion {
                            device,
                            source,
                            destination,
                            wanted: self.settled.route.clone(),
                        };
                        return self.ask(Stage::Paths(at), Question::Paths(question));
                    }
                    _ => candidate.decisions.push(Decision::Device(device)),
                }
                if ends.is_some() {
                    candidate.decisions.push(Decision::NoPathNeeded);
                }
            }
        }
        self.look_at(at + 1);
    }

    pub(super) fn take_paths(&mut self, at: usize, answer: Result<Vec<PathData>, Cause>) {
        let wanted = &self.settled.route;
        let candidate = &mut self.candidates[at];
        candidate.fabric = Fabric::Settled;
        match answer {
            Ok(paths) => {
                let found = paths.len();
                let allowed = |path: &PathData| {
                    wanted.is_empty() || wanted.iter().any(|wanted| path.meets(wanted))
                };
                candidate.route = paths.into_iter().filter(allowed).collect();
                let kept = candidate.route.len();
                candidate.is_usable = kept > 0;
                candidate.decisions.push(Decision::Paths { found, kept });
            }
            Err(cause) => candidate.decisions.push(Decision::NoPath(cause)),
        }
        self.look_at(at + 1);
    }
}

impl Candidate {
    fn enter_zone(&mut self, scope_id: u64) {
        for address in [&mut self.dst, &mut self.src] {
            if let Some(Address::Ib(ib)) = address {
                ib.scope_id = scope_id;
            }
        }
    }

    /// The candidate's source has no device: drops it if routing chose it, keeps it if the caller gave it.
    fn leave_without_device(&mut self, why: String) {
        let Some(source) = self.src else { return };
        self.is_usable = false;
        let source_ip = ip_of(&source);
        let is_chosen = self.dst.is_some() && !self.is_pinned;
        if is_chosen {
            self.src = None;
        }
        self.decisions.push(match is_chosen {
            true => Decision::SourceLeftOut {
                source: source_ip,
                why,
            },
            false => Decision::NoDevice {
                source: source_ip,
                why,
            },
        });
    }
}

/// The decision for a lookup that RAI_NOROUTE skips.
fn without_route(candidate: &Candidate) -> Option<Decision> {
    candidate.dst.map(|_| Decision::RouteNotAsked)
}

/// For listening: the device of the address, for information only.
fn local_step(candidate: &Candidate) -> First {
    let Some(source) = candidate.src.filter(|source| !source.is_unspecified()) else {
        return First::Nothing(None);
    };
    if candidate.has_device {
        return First::Nothing(None);
    }
    First::AskDevice(DeviceQuestion::OfAddress {
        ip: ip_of(&source),
        interface_index: scope(source),
        leaves_by: None,
    })
}

fn scope(address: Address) -> Option<u32> {
    match address {
        Address::Inet(SocketAddr::V6(v6)) => Some(v6.scope_id()).filter(|scope| *scope != 0),
        _ => None,
    }
}

/// The interface of a link-local source. The route to an address of this machine leads to the loopback interface, so the
/// destination tells.
fn interface_of(route: &Route, destination: Option<Address>) -> u32 {
    let zone = destination.and_then(scope);
    match route.is_on_this_machine() {
        true => zone.unwrap_or(route.interface_index),
        false => route.interface_index,
    }
}

/// The source chosen by routing, in the destination's family.
fn source_towards(to: &Address, route: &Route, port: u16, port_space: PortSpace) -> Address {
    match (to, route.source) {
        (Address::Ib(to), source) => {
            let (sid, sid_mask) = SockaddrIb::service(port_space, port);
            Address::Ib(SockaddrIb {
                gid: ip_to_gid(source),
                sid,
                sid_mask,
                flowinfo: 0,
                ..*to
            })
        }
        (Address::Inet(_), IpAddr::V6(v6)) if route::is_link_local(v6.into()) => {
            let address = SocketAddrV6::new(v6, port, 0, interface_of(route, Some(*to)));
            Address::Inet(address.into())
        }
        // The destination is an IPv4-mapped address.
        (Address::Inet(SocketAddr::V6(_)), IpAddr::V4(v4)) => {
            Address::Inet((v4.to_ipv6_mapped(), port).into())
        }
        (Address::Inet(_), source) => Address::Inet((source, port).into()),
    }
}

/// The source on a device named in a zone.
fn ib_source(to: &SockaddrIb, device: &DeviceChoice, port_space: PortSpace, port: u16) -> Address {
    let (sid, sid_mask) = SockaddrIb::service(port_space, port);
    Address::Ib(SockaddrIb {
        gid: device.gid,
        sid,
        sid_mask,
        flowinfo: 0,
        ..*to
    })
}
