//! InfiniBand addresses: a GID as the node, service ids as the service.

use portolan_provider::Address;
use portolan_provider::address::{IbText, SockaddrIb};
use portolan_wire::addr::{Gid, PortSpace};

use super::{Start, service_question};
use crate::error::Problem;
use crate::explain::Decision;
use crate::names::{self, PlannedService, Reason};
use crate::plan::candidate::Candidate;
use crate::plan::settle::Settled;

/// A service, if service ids are allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Service {
    /// A whole service id.
    Id(u64),
    /// A port.
    Port(u16),
    /// A name, whose port is in the services database.
    Name,
}

/// Uses the node's GID, or without a node the wildcard GID for listening.
pub(super) fn start(
    settled: &Settled,
    node: Option<&str>,
    service_text: Option<&str>,
) -> Result<Start, Problem> {
    let text = match node {
        Some("") => return Err(Problem::Name(Reason::EmptyNode)),
        Some(node) if node.contains('\0') => {
            return Err(Problem::Name(Reason::EmbeddedNul("host")));
        }
        Some(node) if node.len() > names::HOST_MAX => {
            let length = node.len();
            return Err(Problem::Name(Reason::NodeTooLong { length }));
        }
        Some(node) => IbText::parse(node).map_err(Problem::NotGid)?,
        None => {
            if let Some(address) = settled.src_addr {
                let origin = Decision::FromHints("ai_src_addr");
                let candidate = Candidate::new(None, Some(address), origin);
                return finish(settled, candidate, service_text);
            }
            if service_text.is_none() {
                return Err(Problem::Nothing);
            }
            WILDCARD
        }
    };
    let (own_sid, own_mask) = SockaddrIb::service(settled.port_space, 0);
    let address = SockaddrIb {
        pkey: text.pkey.unwrap_or_default(),
        flowinfo: text.flowinfo.unwrap_or_default(),
        gid: text.gid,
        sid: text.sid.unwrap_or(own_sid),
        sid_mask: text
            .sid_mask
            .unwrap_or(text.sid.map_or(own_mask, |_| u64::MAX)),
        scope_id: 0,
    };
    let address = Some(Address::Ib(address));
    let origin = match node {
        Some(_) => Decision::Numeric,
        None => Decision::ThisMachine,
    };
    let mut candidate = match settled.is_passive() {
        true => Candidate::new(None, address, origin),
        false => Candidate::new(address, None, origin),
    };
    candidate.zone = text.zone.map(Into::into);
    if text.sid.is_some() && service_text.is_some() {
        return Err(Problem::TwoServices);
    }
    finish(settled, candidate, service_text)
}

const WILDCARD: IbText<'static> = IbText {
    gid: Gid::UNSPECIFIED,
    zone: None,
    pkey: None,
    flowinfo: None,
    sid: None,
    sid_mask: None,
};

fn finish(
    settled: &Settled,
    mut candidate: Candidate,
    text: Option<&str>,
) -> Result<Start, Problem> {
    let port = match text.map(|text| service(settled, true, text)).transpose()? {
        Some(Service::Id(id)) => {
            candidate.set_service_id(id);
            None
        }
        Some(Service::Port(port)) => {
            candidate.set_port(settled, port);
            None
        }
        Some(Service::Name) => text.map(|name| service_question(settled, name)),
        None => None,
    };
    Ok(Start::Given {
        candidate: Box::new(candidate),
        port,
    })
}

/// Parses a service. A number that is not a port is a service id if those are allowed: in RDMA_PS_IB, and with an
/// InfiniBand address.
pub(super) fn service(settled: &Settled, is_ib: bool, text: &str) -> Result<Service, Problem> {
    if let Some(id) = service_id(text) {
        if let Ok(port) = u16::try_from(id)
            && !text.starts_with("0x")
        {
            return Ok(Service::Port(port));
        }
        return match is_ib && settled.port_space == PortSpace::Ib {
            true => Ok(Service::Id(id)),
            false => Err(Problem::ServiceId(id)),
        };
    }
    match names::plan_service(text).map_err(Problem::Name)? {
        PlannedService::Port(port) => Ok(Service::Port(port)),
        PlannedService::Name(_) => Ok(Service::Name),
    }
}

/// A number: decimal, or hexadecimal after `0x`.
fn service_id(text: &str) -> Option<u64> {
    let (digits, base) = match text.strip_prefix("0x") {
        Some(digits) => (digits, 16),
        None => (text, 10),
    };
    let plain = digits.bytes().all(|byte| byte.is_ascii_alphanumeric());
    u64::from_str_radix(digits, base).ok().filter(|_| plain)
}
