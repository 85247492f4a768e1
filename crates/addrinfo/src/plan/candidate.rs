//! A candidate: an address that may become a result.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use portolan_provider::Address;
use portolan_provider::address::SockaddrIb;

use super::settle::Settled;
use crate::addrinfo::AddrInfo;
use crate::error::Problem;
use crate::explain::{Common, Decision, Explain};
use crate::hints::{Family, Flags};
use crate::lookups::{DeviceChoice, DeviceQuestion};
use crate::path::PathData;
use crate::route;

/// An address, and the route found so far.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    /// The destination; `None` for listening, and if hints give only a source.
    pub(super) dst: Option<Address>,
    /// The source; for listening, the requested address.
    pub(super) src: Option<Address>,
    /// Whether the source is given, so that routing does not select it. A wildcard only gives the port of the source
    /// that is selected.
    pub(super) is_pinned: bool,
    /// Canonical name of the requested node.
    pub(super) canonical_name: Option<String>,
    /// The device that a GID's zone names, not looked up yet.
    pub(super) zone: Option<String>,
    /// Whether the source's device is known.
    pub(super) has_device: bool,
    /// The state of the InfiniBand path lookup.
    pub(super) fabric: Fabric,
    pub(super) route: Vec<PathData>,
    pub(super) decisions: Vec<Decision>,
    /// Whether there is a route, if known.
    pub(super) is_usable: bool,
}

/// What is known about the InfiniBand path to a GID.
#[derive(Clone, Debug, Default)]
pub(super) enum Fabric {
    /// Nothing has been looked up.
    #[default]
    Unasked,
    /// This port reaches the GID; its paths are not looked up yet.
    Port(DeviceChoice),
    /// The lookups are complete.
    Settled,
}

/// Usual number of decisions of a result with lookups.
pub(super) const DECISIONS: usize = 8;
/// Maximum length of an IPv4 address as text.
const IPV4_TEXT: usize = 15;

impl Candidate {
    pub(super) fn new(dst: Option<Address>, src: Option<Address>, origin: Decision) -> Self {
        let mut candidate = Self::blank(dst, src);
        candidate.decisions.push(origin);
        candidate
    }

    /// Creates a candidate for an address of a name.
    pub(super) fn of_name(settled: &Settled, address: SocketAddr, name: Option<String>) -> Self {
        let address = Some(Address::Inet(address));
        let (dst, src) = match settled.is_passive() {
            true => (None, address),
            false => (address, None),
        };
        Self {
            canonical_name: name,
            ..Self::blank(dst, src)
        }
    }

    fn blank(dst: Option<Address>, src: Option<Address>) -> Self {
        Self {
            dst,
            src,
            is_pinned: false,
            canonical_name: None,
            zone: None,
            has_device: false,
            fabric: Fabric::Unasked,
            route: Vec::new(),
            decisions: Vec::new(),
            is_usable: true,
        }
    }

    /// The requested address: the destination or, for listening, the source.
    pub(super) fn asked_for(&self) -> Option<Address> {
        self.dst.or(self.src)
    }

    pub(super) fn is_ib(&self) -> bool {
        matches!(self.asked_for(), Some(Address::Ib(_)))
    }

    fn asked_for_mut(&mut self) -> Option<&mut Address> {
        self.dst.as_mut().or(self.src.as_mut())
    }

    /// Fixes the source, which routing would otherwise select.
    pub(super) fn pin(&mut self, source: Address) {
        self.src = Some(source);
        self.is_pinned = true;
    }

    /// Sets the port of the requested address.
    pub(super) fn set_port(&mut self, settled: &Settled, port: u16) {
        if let Some(address) = self.asked_for_mut() {
            set_port(address, settled, port);
        }
    }

    /// Sets the whole service id; does nothing for an internet address.
    pub(super) fn set_service_id(&mut self, id: u64) {
        if let Some(Address::Ib(ib)) = self.asked_for_mut() {
            (ib.sid, ib.sid_mask) = (id, u64::MAX);
        }
    }

    /// The device lookup that must come first.
    pub(super) fn zone_question(&self) -> Option<DeviceQuestion> {
        let name = self.zone.clone()?;
        Some(DeviceQuestion::Named { name })
    }

    /// Applies the hints' source. Returns the source if it is pinned to an address; fails if the address cannot match
    /// the request.
    pub(super) fn fit(&mut self, settled: &Settled) -> Result<Option<Address>, Problem> {
        let mut pinned = None;
        let source = settled.src_addr.filter(|_| self.dst.is_some());
        if let (Some(source), Some(address)) = (source, self.dst) {
            let expected = Family::of(&source);
            if Family::of(&address) != expected {
                let found = 1;
                return Err(Problem::NoneOfFamily { expected, found });
            }
            if !is_wildcard(&source) {
                pinned = Some(source);
                self.pin(source);
            } else if let Some(chosen) = &mut self.src {
                set_port(chosen, settled, source.port());
            } else {
                self.src = Some(source);
            }
        }
        let link = self.src.and_then(|source| scope_of(&source));
        match self.asked_for_mut() {
            Some(Address::Inet(SocketAddr::V6(v6)))
                if v6.scope_id() == 0 && route::is_link_local((*v6.ip()).into()) =>
            {
                let Some(link) = link else {
                    let address = *v6.ip();
                    return Err(Problem::NoZone { address });
                };
                v6.set_scope_id(link);
            }
            _ => {}
        }
        Ok(pinned)
    }

    /// The result, with the common decisions.
    pub(super) fn result(mut self, settled: &Settled, common: &Arc<Common>) -> AddrInfo {
        let own = std::mem::take(&mut self.decisions);
        self.explained(settled, Explain::listed(own, Arc::clone(common)))
    }

    /// The result, with its decisions.
    pub(super) fn explained(self, settled: &Settled, explain: Explain) -> AddrInfo {
        let Self {
            dst,
            src,
            canonical_name,
            route,
            ..
        } = self;
        let asked_for = dst.or(src);
        let (src_name, dst_name) = match dst {
            Some(_) => (None, canonical_name),
            None => (canonical_name, None),
        };
        let src_canonname = src_name.or_else(|| src.map(as_name));
        let dst_canonname = dst_name.or_else(|| dst.map(as_name));
        AddrInfo {
            flags: settled.flags & (Flags::PASSIVE | Flags::SA),
            family: asked_for.as_ref().map_or(Family::Inet, Family::of),
            qp_type: settled.qp_type,
            port_space: settled.port_space,
            src_addr: src,
            dst_addr: dst,
            src_canonname,
            dst_canonname,
            route,
            connect: settled.connect.clone(),
            explain,
        }
    }
}

fn set_port(address: &mut Address, settled: &Settled, port: u16) {
    match address {
        Address::Inet(address) => address.set_port(port),
        Address::Ib(ib) => (ib.sid, ib.sid_mask) = SockaddrIb::service(settled.port_space, port),
    }
}

/// Whether the address is a wildcard: it leaves the choice of the address to routing.
pub(super) fn is_wildcard(address: &Address) -> bool {
    ip_of(address).is_unspecified()
}

/// The interface of a scoped address.
fn scope_of(address: &Address) -> Option<u32> {
    match address {
        Address::Inet(SocketAddr::V6(v6)) => Some(v6.scope_id()).filter(|scope| *scope != 0),
        _ => None,
    }
}

/// The canonical name of an address without a name: its text, as in getaddrinfo(3).
fn as_name(address: Address) -> String {
    match address {
        Address::Inet(SocketAddr::V6(v6)) if v6.scope_id() != 0 => {
            format!("{}%{}", v6.ip(), v6.scope_id())
        }
        Address::Inet(SocketAddr::V4(v4)) => ipv4_text(v4.ip().octets()),
        Address::Inet(inet) => inet.ip().to_string(),
        Address::Ib(ib) => ib.gid.to_string(),
    }
}

/// Formats dotted decimal much faster than `fmt` does.
fn ipv4_text(octets: [u8; 4]) -> String {
    let mut text = [0; IPV4_TEXT];
    let mut length = 0;
    let mut push = |byte| {
        text[length] = byte;
        length += 1;
    };
    for (at, octet) in octets.into_iter().enumerate() {
        if at > 0 {
            push(b'.');
        }
        if octet >= 100 {
            push(b'0' + octet / 100);
        }
        if octet >= 10 {
            push(b'0' + octet / 10 % 10);
        }
        push(b'0' + octet % 10);
    }
    String::from_utf8_lossy(&text[..length]).into_owned()
}

/// A candidate for a node that is a numeric address.
pub(super) fn numeric(settled: &mut Settled, address: SocketAddr, node: Option<&str>) -> Candidate {
    settled.origin = Some(Decision::Numeric);
    Candidate::of_name(settled, address, node.map(Into::into))
}

/// The IP address that routing uses for an address: IPv4 if it is mapped. A RoCE GID is one, too (IBTA annex A17).
pub(super) fn ip_of(address: &Address) -> IpAddr {
    match address {
        Address::Inet(inet) => inet.ip().to_canonical(),
        Address::Ib(ib) => ib.gid.to_ip(),
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_ipv4_address_has_its_usual_text_form(address: Ipv4Addr) {
            prop_assert_eq!(ipv4_text(address.octets()), address.to_string());
        }
    }
}
