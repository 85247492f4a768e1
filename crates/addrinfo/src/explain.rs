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

/// The decisions that the results of a resolution share.
#[derive(Clone, Debug, Default)]
pub(crate) struct Common {
    /// Those before a result's own.
    pub(crate) before: [Option<Decision>; BEFORE],
    /// Those behind them.
    pub(crate) behind: Vec<Decision>,
}

/// Why a numeric address without routes is what it is. Put into a list when somebody looks at it: those who
/// resolve numbers ask often, and for no reasons.
#[derive(Clone, Debug)]
pub(crate) struct NumericReasons {
    /// [`Decision::Service`].
    pub(crate) service: Decision,
    /// The family that RAI_FAMILY was missing for.
    pub(crate) unused_family: Option<Family>,
    /// The source that was given.
    pub(crate) pinned: Option<Address>,
    /// Whether there is a destination, to which no route was looked up.
    pub(crate) has_destination: bool,
}

impl Explain {
    pub(crate) fn listed(own: Vec<Decision>, common: Arc<Common>) -> Self {
        Self(Reasons::Listed { own, common })
    }

    pub(crate) fn numeric(reasons: NumericReasons) -> Self {
        Self(Reasons::Numeric(reasons))
    }

    /// One after the other; put together when they are asked for.
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

/// One decision.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Decision {
    /// Queue pair type and port space.
    Service {
        /// Queue pair type.
        qp_type: QpType,
        /// Port space.
        port_space: PortSpace,
        /// Whether hints gave the type; else it is the port space's, or RC.
        qp_type_given: bool,
        /// Whether hints gave the port space; else it is the type's.
        port_space_given: bool,
    },
    /// The family asked for is not looked at, for RAI_FAMILY is not set.
    FamilyUnused(Family),
    /// The text was the address.
    Numeric,
    /// The system's resolver was asked.
    Resolver {
        /// How many addresses it gave.
        addresses: usize,
        /// The canonical name.
        canonical_name: Option<String>,
    },
    /// There is no node: the resolver's address for this machine (loopback; wildcard for listening).
    ThisMachine,
    /// A field of the hints gave the address.
    FromHints(&'static str),
    /// A field of the hints says nothing here.
    HintUnused {
        /// The field.
        field: &'static str,
        /// Why.
        why: &'static str,
    },
    /// A destination was left out.
    Skipped {
        /// The destination.
        address: Address,
        /// Why.
        why: String,
    },
    /// More destinations were left out than are listed.
    SkippedMore {
        /// How many more.
        count: usize,
    },
    /// The kernel's routing decided.
    Route(Route),
    /// RAI_NOROUTE: nothing was looked up.
    RouteNotAsked,
    /// There is no route, and so no source.
    NoRoute(Cause),
    /// Why no route was looked up.
    RouteMeaningless(&'static str),
    /// The source was given.
    SourcePinned(Address),
    /// The RDMA device of the source.
    Device(DeviceChoice),
    /// No RDMA device has the source that routing chose, which is therefore left out.
    SourceLeftOut {
        /// The source.
        source: IpAddr,
        /// What was looked at.
        why: String,
    },
    /// No RDMA device has the source that was given, or the address to listen at.
    NoDevice {
        /// The address.
        source: IpAddr,
        /// What was looked at.
        why: String,
    },
    /// RDMA devices were not looked at.
    DevicesUnknown,
    /// The transport needs no path: RoCE finds its way by IP.
    NoPathNeeded,
    /// Paths of InfiniBand.
    Paths {
        /// How many there are.
        found: usize,
        /// How many of them meet hints.ai_route.
        kept: usize,
    },
    /// No path could be had.
    NoPath(Cause),
    /// The subnet administrator's record.
    ServiceRecord {
        /// Service id.
        id: u64,
    },
    /// The place in the list.
    Order {
        /// From 1.
        position: usize,
        /// Length of the list.
        of: usize,
        /// The rule that decided against the one before; none for the first.
        rule: Option<OrderRule>,
    },
}

/// Why a result comes after another (RFC 6724 section 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OrderRule {
    /// Rule 1: destinations without a route or source come last.
    Unusable,
    /// Rule 2: its scope is not that of the source that was given.
    MatchingScope,
    /// Rule 5: its label is not that of the source that was given.
    MatchingLabel,
    /// Rule 6: its precedence is lower.
    Precedence,
    /// Rule 8: its scope is larger.
    SmallerScope,
    /// Rule 9: it has less in common with the source that was given.
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
            Self::LongestPrefix => "the given source has less in common with it (RFC 6724 rule 9)",
            Self::Resolver => "the resolver says so (RFC 6724 with gai.conf)",
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
                let origin = |given| if given { "asked for" } else { "by default" };
                write!(
                    f,
                    "queue pair type {qp_type} {}, port space {port_space} {}",
                    origin(*qp_type_given),
                    origin(*port_space_given)
                )
            }
            Self::FamilyUnused(family) => {
                write!(f, "{family} of the hints says nothing without RAI_FAMILY")
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
            Self::HintUnused { field, why } => write!(f, "hints.{field} says nothing: {why}"),
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
            Self::NoPathNeeded => f.write_str("no path record: RoCE finds its way by IP"),
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
    /// A decision a line.
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
