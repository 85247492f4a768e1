//! Interprets a node, a service and hints, and determines the first lookup.

mod ib;

use std::net::SocketAddr;

use portolan_provider::Address;
use portolan_provider::address::{SockaddrIb, gid_to_ip};
use portolan_wire::addr::PKey;

use super::candidate::{Candidate, is_wildcard};
use super::settle::Settled;
use crate::error::{Problem, SERVICE_NAME_MAX};
use crate::explain::Decision;
use crate::hints::{Family, Flags};
use crate::lookups::{NameQuestion, SaService};
use crate::names::{self, Reason};

/// Where to begin.
#[derive(Debug)]
pub(super) enum Start {
    /// With names.
    Names(NameQuestion),
    /// With a numeric address, which needs no lookup.
    Numeric(SocketAddr),
    /// With a known address, and possibly a service name to look up.
    Given {
        candidate: Box<Candidate>,
        port: Option<NameQuestion>,
    },
    /// At the subnet administrator.
    ServiceRecords(SaService),
}

pub(super) fn start(
    settled: &Settled,
    node: Option<&str>,
    service: Option<&str>,
) -> Result<Start, Problem> {
    if settled.flags.contains(Flags::SA) {
        return subnet_administrator(node, service);
    }
    if settled.family == Some(Family::Ib) && (node.is_some() || settled.is_passive()) {
        return ib::start(settled, node, service);
    }
    let Some(node) = node else {
        return without_node(settled, service);
    };
    names(settled, Some(node), service)
}

/// Without a node, from the hints' addresses.
fn without_node(settled: &Settled, service: Option<&str>) -> Result<Start, Problem> {
    let given = if settled.is_passive() {
        settled
            .src_addr
            .map(|address| Candidate::local(address, "ai_src_addr"))
    } else if let Some(address) = settled.dst_addr {
        Some(Candidate::remote(address, "ai_dst_addr"))
    } else if let Some(path) = settled.route.first() {
        let (dgid, sgid) = (path.record.dgid, path.record.sgid);
        let address = |gid| match settled.family {
            Some(Family::Inet | Family::Inet6) => Address::Inet((gid_to_ip(gid), 0).into()),
            Some(Family::Ib) | None => {
                let (sid, sid_mask) = SockaddrIb::service(settled.port_space, 0);
                let pkey = match path.record.pkey {
                    PKey(0) => PKey::DEFAULT,
                    pkey => pkey,
                };
                Address::Ib(SockaddrIb {
                    pkey,
                    flowinfo: 0,
                    gid,
                    sid,
                    sid_mask,
                    scope_id: 0,
                })
            }
        };
        match dgid.is_unspecified() {
            true => None,
            false => {
                let (source, destination) = (address(sgid), address(dgid));
                super::settle::check_family("ai_route", Some(destination), settled.family)?;
                let mut candidate = Candidate::remote(destination, "ai_route");
                // The GIDs of a path may represent addresses of different families.
                let fits = Family::of(&source) == Family::of(&destination);
                let is_free = settled.src_addr.as_ref().is_none_or(is_wildcard);
                if fits && !is_wildcard(&source) && is_free {
                    candidate.pin(source);
                }
                Some(candidate)
            }
        }
    } else {
        None
    };
    if let Some(candidate) = given {
        return with_service(settled, candidate, service);
    }
    match (settled.src_addr, service) {
        // This machine has no default InfiniBand address.
        (_, Some(_)) if settled.family == Some(Family::Ib) => Err(Problem::NoneOfFamily {
            expected: Family::Ib,
            found: 0,
        }),
        (_, Some(_)) => names(settled, None, service),
        (Some(address), None) => Ok(Start::Given {
            candidate: Box::new(Candidate::source_alone(address)),
            port: None,
        }),
        (None, None) => Err(Problem::Nothing),
    }
}

/// Sets the port of the service, if any, on a known address.
fn with_service(
    settled: &Settled,
    mut candidate: Candidate,
    service: Option<&str>,
) -> Result<Start, Problem> {
    let Some(text) = service else {
        return Ok(Start::Given {
            candidate: Box::new(candidate),
            port: None,
        });
    };
    let port = match ib::service(settled, candidate.is_ib(), text)? {
        ib::Service::Id(id) => {
            candidate.set_service_id(id);
            None
        }
        ib::Service::Port(port) => {
            candidate.set_port(settled, port);
            None
        }
        ib::Service::Name => Some(service_question(settled, text)),
    };
    Ok(Start::Given {
        candidate: Box::new(candidate),
        port,
    })
}

/// The port of a service name.
pub(super) fn service_question(settled: &Settled, name: &str) -> NameQuestion {
    let mut options = settled.name_options();
    // Any family has the port.
    options.family = None;
    NameQuestion {
        node: None,
        service: Some(name.into()),
        options,
    }
}

fn names(settled: &Settled, node: Option<&str>, service: Option<&str>) -> Result<Start, Problem> {
    let mut options = settled.name_options();
    if node.is_none() && options.family.is_none() {
        // This machine, in the family of the given source.
        options.family = match settled.src_addr.as_ref().map(Family::of) {
            Some(Family::Inet) => Some(names::Family::V4),
            Some(Family::Inet6) => Some(names::Family::V6),
            Some(Family::Ib) | None => None,
        };
    }
    let numeric = names::check(node, service, options).map_err(|reason| match reason {
        Reason::Nothing => Problem::Nothing,
        reason => Problem::Name(reason),
    })?;
    if let Some(address) = numeric {
        return Ok(Start::Numeric(address));
    }
    Ok(Start::Names(NameQuestion {
        node: node.map(Into::into),
        service: service.map(Into::into),
        options,
    }))
}

fn subnet_administrator(node: Option<&str>, service: Option<&str>) -> Result<Start, Problem> {
    if node.is_some() {
        return Err(Problem::SaNode);
    }
    let service = service.ok_or(Problem::SaNoService)?;
    SaService::parse(service).map(Start::ServiceRecords)
}

impl SaService {
    /// Parses a service as rdma_resolve_addrinfo(3) does with RAI_SA: an id in decimal, in octal after `0` or in
    /// hexadecimal after `0x` (strtoull(3), base 0); otherwise a name.
    ///
    /// # Errors
    /// A name that is empty, longer than [`SERVICE_NAME_MAX`] or contains a NUL.
    pub(crate) fn parse(text: &str) -> Result<Self, Problem> {
        let number = |digits: &str, base| {
            let plain = digits.bytes().all(|byte| byte.is_ascii_alphanumeric());
            u64::from_str_radix(digits, base).ok().filter(|_| plain)
        };
        let hexadecimal = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
        let id = match (hexadecimal, text.strip_prefix('0')) {
            (Some(digits), _) => number(digits, 16),
            (None, Some(digits)) if !digits.is_empty() => number(digits, 8),
            _ => number(text, 10),
        };
        if let Some(id) = id {
            return Ok(Self::Id(id));
        }
        let length = text.len();
        if text.contains('\0') {
            return Err(Problem::Name(Reason::EmbeddedNul("service")));
        }
        if length == 0 || length > SERVICE_NAME_MAX {
            return Err(Problem::SaServiceName { length });
        }
        Ok(Self::Name(text.into()))
    }
}

impl Candidate {
    /// An address of the hints to listen on.
    fn local(address: Address, field: &'static str) -> Self {
        Self::new(None, Some(address), Decision::FromHints(field))
    }

    /// An address of the hints to connect to.
    fn remote(address: Address, field: &'static str) -> Self {
        Self::new(Some(address), None, Decision::FromHints(field))
    }

    /// A candidate with only the hints' source.
    fn source_alone(address: Address) -> Self {
        let origin = Decision::FromHints("ai_src_addr");
        Self::new(None, Some(address), origin)
    }
}
