//! Validates and completes hints.

use portolan_provider::Address;
use portolan_wire::addr::PortSpace;

use crate::error::{CONNECT_DATA_MAX, Problem};
use crate::explain::{BEFORE, Decision};
use crate::hints::{Family, Flags, Hints, QpType};
use crate::names::{self, NameOptions, SocketType};
use crate::path::{PathData, ROUTE_RECORDS_MAX};

/// Validated hints.
#[derive(Clone, Debug)]
pub(super) struct Settled {
    pub(super) flags: Flags,
    /// The requested family; `None` if RAI_FAMILY is not set.
    pub(super) family: Option<Family>,
    pub(super) qp_type: QpType,
    pub(super) port_space: PortSpace,
    pub(super) src_addr: Option<Address>,
    pub(super) dst_addr: Option<Address>,
    pub(super) route: Vec<PathData>,
    pub(super) connect: Vec<u8>,
    /// The origin of the addresses, if common to all results.
    pub(super) origin: Option<Decision>,
    /// Whether hints gave the queue pair type and the port space.
    given: (bool, bool),
    /// The family in hints without RAI_FAMILY.
    pub(super) unused_family: Option<Family>,
}

impl Settled {
    pub(super) fn of(hints: Option<&Hints>) -> Result<Self, Problem> {
        let nothing = Hints::default();
        let hints = hints.unwrap_or(&nothing);
        let unknown = hints.flags.bits() & !Flags::all().bits();
        if unknown != 0 {
            return Err(Problem::UnknownFlags { unknown });
        }
        if hints.flags.contains(Flags::SA | Flags::DNS) {
            return Err(Problem::SaAndDns);
        }
        check_sizes(hints)?;
        let family = hints.family.filter(|_| hints.flags.contains(Flags::FAMILY));
        check_families(hints, family)?;
        let (qp_type, port_space) = service(hints.qp_type, hints.port_space)?;
        Ok(Self {
            flags: hints.flags,
            family,
            qp_type,
            port_space,
            src_addr: hints.src_addr,
            dst_addr: hints.dst_addr,
            route: hints.route.clone(),
            connect: hints.connect.clone(),
            origin: None,
            given: (hints.qp_type.is_some(), hints.port_space.is_some()),
            unused_family: hints.family.filter(|_| family.is_none()),
        })
    }

    /// The decisions common to all results.
    pub(super) fn decisions(&mut self) -> [Option<Decision>; BEFORE] {
        let unused = self.unused_family.map(Decision::FamilyUnused);
        [Some(self.service()), unused, self.origin.take()]
    }

    /// How queue pair type and port space were chosen.
    pub(super) fn service(&self) -> Decision {
        let (qp_type_given, port_space_given) = self.given;
        Decision::Service {
            qp_type: self.qp_type,
            port_space: self.port_space,
            qp_type_given,
            port_space_given,
        }
    }

    pub(super) fn is_passive(&self) -> bool {
        self.flags.contains(Flags::PASSIVE)
    }

    pub(super) fn is_without_routes(&self) -> bool {
        self.flags.contains(Flags::NOROUTE)
    }

    /// The options for resolving names. The canonical name is always requested, because results
    /// have a field for it.
    pub(super) fn name_options(&self) -> NameOptions {
        NameOptions {
            passive: self.is_passive(),
            numeric_host: self.flags.contains(Flags::NUMERICHOST),
            family: match self.family {
                Some(Family::Inet) => Some(names::Family::V4),
                Some(Family::Inet6) => Some(names::Family::V6),
                Some(Family::Ib) | None => None,
            },
            socket_type: match self.qp_type {
                QpType::Ud => SocketType::Datagram,
                _ => SocketType::Stream,
            },
            canonical_name: true,
            configured_only: false,
        }
    }
}

/// Queue pair type and port space. A missing one follows from the other; the default is RC in
/// TCP's.
fn service(
    qp_type: Option<QpType>,
    port_space: Option<PortSpace>,
) -> Result<(QpType, PortSpace), Problem> {
    use PortSpace as P;
    use QpType as Q;
    let (qp_type, port_space) = match (qp_type, port_space) {
        (None, None) => (Q::Rc, P::Tcp),
        (Some(Q::Ud), None) => (Q::Ud, P::Udp),
        (Some(qp_type), None) => (qp_type, P::Tcp),
        (None, Some(port_space @ (P::Udp | P::Ipoib))) => (Q::Ud, port_space),
        (None, Some(port_space @ (P::Tcp | P::Ib))) => (Q::Rc, port_space),
        (Some(qp_type), Some(port_space)) => (qp_type, port_space),
    };
    let agree = match port_space {
        P::Tcp => qp_type != Q::Ud,
        P::Udp | P::Ipoib => qp_type == Q::Ud,
        P::Ib => true,
    };
    match agree {
        true => Ok((qp_type, port_space)),
        false => Err(Problem::Inconsistent {
            qp_type,
            port_space,
        }),
    }
}

fn check_sizes(hints: &Hints) -> Result<(), Problem> {
    let count = hints.route.len();
    if count > ROUTE_RECORDS_MAX {
        return Err(Problem::TooManyPaths { count });
    }
    let length = hints.connect.len();
    if length > CONNECT_DATA_MAX {
        return Err(Problem::ConnectTooLong { length });
    }
    Ok(())
}

/// Checks that all addresses are of one family, and of the requested one.
fn check_families(hints: &Hints, family: Option<Family>) -> Result<(), Problem> {
    check_family("ai_src_addr", hints.src_addr, family)?;
    check_family("ai_dst_addr", hints.dst_addr, family)?;
    let of_source = hints.src_addr.as_ref().map(Family::of);
    check_family("ai_dst_addr", hints.dst_addr, of_source)
}

/// Checks that an address in the hints, if any, is of the expected family, if any.
pub(super) fn check_family(
    field: &'static str,
    address: Option<Address>,
    expected: Option<Family>,
) -> Result<(), Problem> {
    match (address, expected) {
        (Some(address), Some(expected)) if Family::of(&address) != expected => {
            Err(Problem::AddressFamily {
                field,
                address,
                expected,
            })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_and_port_spaces_complete_each_other_or_conflict() {
        use PortSpace as P;
        use QpType as Q;
        let settle = |qp_type, port_space| {
            service(qp_type, port_space).map_err(|problem| problem.code().name())
        };
        let conflict = Err("EAI_QPTYPE");
        for (qp_type, port_space, expected) in [
            (None, None, Ok((Q::Rc, P::Tcp))),
            (None, Some(P::Tcp), Ok((Q::Rc, P::Tcp))),
            (None, Some(P::Udp), Ok((Q::Ud, P::Udp))),
            (None, Some(P::Ipoib), Ok((Q::Ud, P::Ipoib))),
            (None, Some(P::Ib), Ok((Q::Rc, P::Ib))),
            (Some(Q::Rc), None, Ok((Q::Rc, P::Tcp))),
            (Some(Q::Uc), None, Ok((Q::Uc, P::Tcp))),
            (Some(Q::XrcSend), None, Ok((Q::XrcSend, P::Tcp))),
            (Some(Q::XrcRecv), None, Ok((Q::XrcRecv, P::Tcp))),
            (Some(Q::Ud), None, Ok((Q::Ud, P::Udp))),
            (Some(Q::Ud), Some(P::Ib), Ok((Q::Ud, P::Ib))),
            (Some(Q::Ud), Some(P::Tcp), conflict),
            (Some(Q::Rc), Some(P::Udp), conflict),
            (Some(Q::Uc), Some(P::Udp), conflict),
            (Some(Q::XrcSend), Some(P::Ipoib), conflict),
            (Some(Q::Rc), Some(P::Ipoib), conflict),
        ] {
            assert_eq!(
                settle(qp_type, port_space),
                expected,
                "{qp_type:?} {port_space:?}"
            );
        }
    }
}
