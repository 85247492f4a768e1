//! Why a result is what it is: each decision as data that prints as a sentence.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use portolan_provider::{Address, Cause};
use portolan_wire::addr::PortSpace;

use crate::hints::{Family, QpType};
use crate::lookups::DeviceChoice;
use crate::route::Route;

/// The tables that Linux's default rules look into: local and main (`rt_tables`).
const DEFAULT_TABLES: [u32; 2] = [255, 254];

/// The decisions that led to a result, in the order in which they were taken.
#[derive(Clone, Debug)]
pub struct Explain(Reasons);

#[derive(Clone, Debug)]
enum Reasons {
    Listed {
        own: Vec<Decision>,
        common: Arc<Common>,
    },
    Numeric(NumericReasons),
}

/// How many decisions hold for all results, before those of each.
pub(crate) const BEFORE: usize = 3;

/// The decisions common to all results of a resolution.
#[derive(Clone, Debug, Default)]
pub(crate) struct Common {
    /// The common decisions before a result's own.
    pub(crate) before: [Option<Decision>; BEFORE],
    /// The common decisions after a result's own.
    pub(crate) behind: Vec<Decision>,
}

/// The decisions for a numeric address without routes. The list is built only when read: such
/// lookups are frequent, and their reasons are rarely read.
#[derive(Clone, Debug)]
pub(crate) struct NumericReasons {
    /// [`Decision::Service`].
    pub(crate) service: Decision,
    /// The family that was ignored because RAI_FAMILY is missing.
    pub(crate) unused_family: Option<Family>,
    /// The given source.
    pub(crate) pinned: Option<Address>,
    /// Whether there is a destination, whose route was not looked up.
    pub(crate) has_destination: bool,
}

impl Explain {
    pub(crate) fn listed(own: Vec<Decision>, common: Arc<Common>) -> Self {
        Self(Reasons::Listed { own, common })
    }

    pub(crate) fn numeric(reasons: NumericReasons) -> Self {
        Self(Reasons::Numeric(reasons))
    }

    /// The decisions in order; the list is built on demand.
    pub fn decisions(&self) -> Cow<'_, [Decision]> {
        match &self.0 {
            Reasons::Listed { own, common } => {
                let Common { before, behind } = &**common;
                let before = before.iter().flatten();
                Cow::Owned(before.chain(own).chain(behind).cloned().collect())
            }
            Reasons::Numeric(reasons) => Cow::Owned(reasons.decisions()),
        }
    }
}

impl NumericReasons {
    fn decisions(&self) -> Vec<Decision> {
        let place = Decision::Order {
            position: 1,
            of: 1,
            rule: None,
        };
        let decisions = [
            Some(self.service.clone()),
            self.unused_family.map(Decision::FamilyUnused),
            Some(Decision::Numeric),
            self.pinned.map(Decision::SourcePinned),
            self.has_destination.then_some(Decision::RouteNotAsked),
            Some(place),
        ];
        decisions.into_iter().flatten().collect()
    }
}

impl Default for Explain {
    /// No decisions.
    fn default() -> Self {
        Self::listed(Vec::new(), Arc::default())
    }
}

impl PartialEq for Explain {
    fn eq(&self, other: &Self) -> bool {
        self.decisions() == other.decisions()
    }
}

impl Eq for Explain {}

/// A decision.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Decision {
    /// Queue pair type and port space.
    Service {
        /// Queue pair type.
        qp_type: QpType,
        /// Port space.
        port_space: PortSpace,
        /// Whether hints gave the type; otherwise it follows from the port space, or is RC.
        qp_type_given: bool,
        /// Whether hints gave the port space; otherwise it follows from the type.
        port_space_given: bool,
    },
    /// The requested family was ignored, because RAI_FAMILY is not set.
    FamilyUnused(Family),
    /// The text was a numeric address.
    Numeric,
    /// The system's resolver was used.
    Resolver {
        /// Number of addresses that it returned.
        addresses: usize,
        /// The canonical name.
        canonical_name: Option<String>,
    },
    /// Without a node, the resolver's address for this machine was used (loopback; wildcard for
    /// listening).
    ThisMachine,
    /// The address comes from a field of the hints.
    FromHints(&'static str),
    /// A field of the hints was ignored.
    HintUnused {
        /// The field.
        field: &'static str,
        /// Why.
        why: &'static str,
    },
    /// A destination was skipped.
    Skipped {
        /// The destination.
        address: Address,
        /// Why.
        why: String,
    },
    /// More destinations were skipped than are listed.
    SkippedMore {
        /// How many more.
        count: usize,
    },
    /// The kernel's routing decided.
    Route(Route),
    /// The route was not looked up (RAI_NOROUTE).
    RouteNotAsked,
    /// There is no route, and so no source.
    NoRoute(Cause),
    /// Why no route was looked up.
    RouteMeaningless(&'static str),
    /// The source was given.
    SourcePinned(Address),
    /// The RDMA device of the source.
    Device(DeviceChoice),
    /// The source that routing selected was left out, because no RDMA device has it.
    SourceLeftOut {
        /// The source.
        source: IpAddr,
        /// What was searched.
        why: String,
    },
    /// No RDMA device has the given source, or the address to listen at.
    NoDevice {
        /// The address.
        source: IpAddr,
        /// What was searched.
        why: String,
    },
    /// RDMA devices were not searched.
    DevicesUnknown,
    /// The transport needs no path: RoCE is routed by IP.
    NoPathNeeded,
    /// InfiniBand paths.
    Paths {
        /// Number of paths found.
        found: usize,
        /// Number of paths that match hints.ai_route.
        kept: usize,
    },
    /// No path is available.
    NoPath(Cause),
    /// The subnet administrator's record.
    ServiceRecord {
        /// Service id.
        id: u64,
    },
    /// The position in the list.
    Order {
        /// Position, from 1.
        position: usize,
        /// Length of the list.
        of: usize,
        /// The rule that placed the result after the previous one; `None` for the first.
        rule: Option<OrderRule>,
    },
}

/// Why one result follows another (RFC 6724 section 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OrderRule {
    /// Rule 1: destinations without a route or source come last.
    Unusable,
    /// Rule 2: its scope differs from that of the given source.
    MatchingScope,
    /// Rule 5: its label differs from that of the given source.
    MatchingLabel,
    /// Rule 6: its precedence is lower.
    Precedence,
    /// Rule 8: its scope is larger.
    SmallerScope,
    /// Rule 9: it shares a shorter prefix with the given source.
    LongestPrefix,
    /// The resolver's order, which is RFC 6724's with the machine's policy table (`gai.conf(5)`).
    Resolver,
}

impl fmt::Display for OrderRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unusable => "it cannot be used from here (RFC 6724 rule 1)",
            Self::MatchingScope => "its scope is not the given source's (RFC 6724 rule 2)",
            Self::MatchingLabel => "its label is not the given source's (RFC 6724 rule 5)",
            Self::Precedence => "its precedence is lower (RFC 6724 rule 6)",
            Self::SmallerScope => "its scope is larger (RFC 6724 rule 8)",
            Self::LongestPrefix => {
                "it shares a shorter prefix with the given source (RFC 6724 rule 9)"
            }
            Self::Resolver => "the resolver's order (RFC 6724 with gai.conf)",
        })
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Service {
                qp_type,
                port_space,
                qp_type_given,
                port_space_given,
            } => {
                let origin = |given| if given { "as requested" } else { "by default" };
                write!(
                    f,
                    "queue pair type {qp_type} {}, port space {port_space} {}",
                    origin(*qp_type_given),
                    origin(*port_space_given)
                )
            }
            Self::FamilyUnused(family) => {
                write!(f, "{family} of the hints has no effect without RAI_FAMILY")
            }
            Self::Numeric => f.write_str("the host is a numeric address; no resolver was asked"),
            Self::Resolver {
                addresses,
                canonical_name,
            } => {
                let plural = if *addresses == 1 { "" } else { "es" };
                write!(f, "the system's resolver gave {addresses} address{plural}")?;
                match canonical_name {
                    Some(name) => write!(f, " for {name}"),
                    None => Ok(()),
                }
            }
            Self::ThisMachine => f.write_str("no host is given: this machine"),
            Self::FromHints(field) => write!(f, "the address is that of hints.{field}"),
            Self::HintUnused { field, why } => write!(f, "hints.{field} has no effect: {why}"),
            Self::Skipped { address, why } => write!(f, "{address} left out: {why}"),
            Self::SkippedMore { count } => write!(f, "{count} more left out"),
            Self::Route(route) => {
                write!(f, "route: {route}")?;
                if DEFAULT_TABLES.contains(&route.table) {
                    Ok(())
                } else {
                    write!(f, " (a policy rule chose that table; see `ip rule`)")
                }
            }
            Self::RouteNotAsked => f.write_str("no route was looked up: RAI_NOROUTE"),
            Self::NoRoute(cause) => write!(f, "no source: {cause}"),
            Self::RouteMeaningless(why) => write!(f, "no route was looked up: {why}"),
            Self::SourcePinned(address) => write!(f, "the source is given: {address}"),
            Self::Device(device) => write!(f, "device: {device}"),
            Self::SourceLeftOut { source, why } => {
                write!(f, "source {source} left out, no RDMA device has it: {why}")
            }
            Self::NoDevice { source, why } => {
                write!(f, "no RDMA device has {source}: {why}")
            }
            Self::DevicesUnknown => f.write_str("RDMA devices were not looked at"),
            Self::NoPathNeeded => f.write_str("no path record: RoCE is routed by IP"),
            Self::Paths { found, kept } => {
                write!(f, "{kept} of {found} paths meet hints.ai_route")
            }
            Self::NoPath(cause) => write!(f, "no path record: {cause}"),
            Self::ServiceRecord { id } => {
                write!(f, "the subnet administrator has service {id:#018x}")
            }
            Self::Order { position, of, rule } => {
                write!(f, "place {position} of {of}")?;
                match rule {
                    Some(rule) => write!(f, ": {rule}"),
                    None => Ok(()),
                }
            }
        }
    }
}

impl fmt::Display for Explain {
    /// One decision per line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, decision) in self.decisions().iter().enumerate() {
            if number > 0 {
                f.write_str("\n")?;
            }
            decision.fmt(f)?;
        }
        Ok(())
    }
}
