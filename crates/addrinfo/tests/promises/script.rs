//! Look-ups that answer from a script and record the queries.

use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};

use portolan_addrinfo::lookups::{
    DeviceAnswer, DeviceChoice, DeviceQuestion, LinkLayer, NameQuestion, PathQuestion,
};
use portolan_addrinfo::names::{Family as NameFamily, Reason, SocketType};
use portolan_addrinfo::{
    AddrInfo, AddrInfoError, Eai, Hints, Lookups, NameError, NameResult, PathData, Query, Route,
    RouteKind, get_addrinfo_with, resolve,
};
use portolan_provider::address::ip_to_gid;
use portolan_provider::{Address, Cause};
use portolan_wire::Gid;

/// A host with addresses of both families.
pub(crate) const HOST: &str = "host.example";
/// The canonical name of `HOST`.
pub(crate) const CANONICAL: &str = "canonical.example";
/// A host with one IPv4 address.
pub(crate) const HOST_V4: &str = "v4.example";
/// A host with two IPv6 addresses. The second has the label of `SOURCE_V6`.
pub(crate) const HOST_V6: &str = "v6.example";
/// A service that exists only for connections, and its port.
pub(crate) const SERVICE: &str = "rdma";
pub(crate) const PORT: u16 = 7471;
/// An address without a route.
pub(crate) const UNREACHABLE: &str = "203.0.113.9";

/// The source addresses chosen by routing.
pub(crate) const SOURCE_V4: &str = "10.0.0.1";
pub(crate) const SOURCE_V6: &str = "fd00::1";

/// The GID of this host's fabric port, with the default subnet prefix that most ports have.
pub(crate) const PORT_GID: Gid = Gid([0xFE, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 1]);

/// The answers to give.
pub(crate) struct Script {
    /// The resolver's error for any other name.
    pub(crate) names: Eai,
    /// The link layer of the devices. `None` means that no address has a device.
    pub(crate) devices: Option<LinkLayer>,
    /// The paths of the fabric, or why it cannot be queried.
    pub(crate) paths: Result<Vec<PathData>, Cause>,
    asked: RefCell<Vec<&'static str>>,
}

impl Script {
    /// An Ethernet network with RDMA devices.
    pub(crate) fn ethernet() -> Self {
        Self {
            names: Eai::NoName,
            devices: Some(LinkLayer::Ethernet),
            paths: Err(Cause::Unsupported("paths over Ethernet")),
            asked: RefCell::default(),
        }
    }

    /// An InfiniBand fabric with these paths.
    pub(crate) fn infiniband(paths: Vec<PathData>) -> Self {
        Self {
            devices: Some(LinkLayer::InfiniBand),
            paths: Ok(paths),
            ..Self::ethernet()
        }
    }

    /// A resolver that fails in this way.
    pub(crate) fn failing(code: Eai) -> Self {
        Self {
            names: code,
            ..Self::ethernet()
        }
    }

    /// The kinds of queries, in order.
    pub(crate) fn asked(&self) -> Vec<&'static str> {
        self.asked.borrow().clone()
    }

    pub(crate) fn resolve(
        &self,
        node: Option<&str>,
        service: Option<&str>,
        hints: &Hints,
    ) -> Result<Vec<AddrInfo>, AddrInfoError> {
        get_addrinfo_with(self, node, service, Some(hints))
    }

    /// The results for a node and [`PORT`].
    #[track_caller]
    pub(crate) fn found(&self, node: &str, hints: &Hints) -> Vec<AddrInfo> {
        self.resolve(Some(node), Some("7471"), hints).unwrap()
    }

    fn note(&self, question: &'static str) {
        self.asked.borrow_mut().push(question);
    }

    fn addresses(&self, node: &str) -> Result<Vec<IpAddr>, Eai> {
        let texts: &[&str] = match node {
            HOST => &["fd00::2", "10.0.0.2", "10.0.0.3"],
            HOST_V4 => &["10.0.0.2"],
            HOST_V6 => &["2001:db8::2", "fd00::2"],
            _ => return Err(self.names),
        };
        Ok(texts.iter().map(|text| ip(text)).collect())
    }
}

impl Lookups for Script {
    fn names(&self, question: &NameQuestion) -> Result<Vec<NameResult>, NameError> {
        let options = question.options;
        let failed = |code| NameError {
            node: question.node.clone(),
            service: question.service.clone(),
            reason: Reason::Resolver(code),
        };
        let port = match question.service.as_deref() {
            None => 0,
            Some(SERVICE) if options.socket_type == SocketType::Stream => PORT,
            Some(text) => text.parse().map_err(|_| failed(Eai::Service))?,
        };
        let node = match question.node.as_deref() {
            Some(node) if node.parse::<IpAddr>().is_err() && !options.numeric_host => node,
            node => {
                self.note("text");
                return resolve(node, Some(&port.to_string()), options);
            }
        };
        self.note("names");
        let fits = |ip: &IpAddr| match options.family {
            None => true,
            Some(NameFamily::V4) => ip.is_ipv4(),
            Some(NameFamily::V6) => ip.is_ipv6(),
        };
        let found = self.addresses(node).map_err(failed)?;
        let found: Vec<_> = found.into_iter().filter(fits).collect();
        if found.is_empty() {
            return Err(failed(Eai::NoName));
        }
        let name = |at| (at == 0).then(|| CANONICAL.to_owned());
        let result = |(at, ip)| NameResult {
            addr: SocketAddr::new(ip, port),
            canonical_name: name(at),
        };
        Ok(found.into_iter().enumerate().map(result).collect())
    }

    fn route(&self, query: &Query) -> Result<Route, Cause> {
        self.note("route");
        let chosen = match query.destination {
            destination if destination == ip(UNREACHABLE) => {
                return Err(Cause::NetworkUnreachable);
            }
            IpAddr::V4(_) => ip(SOURCE_V4),
            IpAddr::V6(_) => ip(SOURCE_V6),
        };
        Ok(Route {
            destination: query.destination,
            kind: RouteKind::Unicast,
            source: query.source.unwrap_or(chosen),
            interface_index: query.interface_index.unwrap_or(2),
            gateway: None,
            mtu: None,
            hop_limit: None,
            table: 254,
        })
    }

    fn device(&self, question: &DeviceQuestion) -> DeviceAnswer {
        let none = || DeviceAnswer::None {
            why: "the script has none".into(),
        };
        if let DeviceQuestion::TowardsGid { gid, source } = question {
            return match self.devices {
                Some(LinkLayer::InfiniBand) if gid.subnet_prefix() == PORT_GID.subnet_prefix() => {
                    self.note("port");
                    DeviceAnswer::Found(port(source.unwrap_or(PORT_GID)))
                }
                _ => none(),
            };
        }
        self.note("device");
        if let (Some(LinkLayer::InfiniBand), DeviceQuestion::Named { name }) =
            (self.devices, question)
            && name == "ib0"
        {
            return DeviceAnswer::Found(port(PORT_GID));
        }
        let (Some(link_layer), DeviceQuestion::OfAddress { ip, .. }) = (self.devices, question)
        else {
            return none();
        };
        DeviceAnswer::Found(DeviceChoice {
            name: "rdma0".into(),
            index: 1,
            port_num: 1,
            gid_index: 3,
            gid: ip_to_gid(*ip),
            link_layer,
            provider: String::new(),
        })
    }

    fn paths(&self, _question: &PathQuestion) -> Result<Vec<PathData>, Cause> {
        self.note("paths");
        self.paths.clone()
    }
}

/// The InfiniBand port with this GID.
fn port(gid: Gid) -> DeviceChoice {
    DeviceChoice {
        name: "ib0".into(),
        index: 4,
        port_num: 1,
        gid_index: 0,
        gid,
        link_layer: LinkLayer::InfiniBand,
        provider: String::new(),
    }
}

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// An IP address with its port.
pub(crate) fn inet(text: &str) -> Option<Address> {
    Some(Address::Inet(text.parse().unwrap()))
}

/// The destinations as text.
pub(crate) fn destinations(results: &[AddrInfo]) -> Vec<String> {
    let text = |result: &AddrInfo| result.dst_addr.map_or("-".into(), |at| at.to_string());
    results.iter().map(text).collect()
}

/// The sources as text.
pub(crate) fn sources(results: &[AddrInfo]) -> Vec<String> {
    let text = |result: &AddrInfo| result.src_addr.map_or("-".into(), |at| at.to_string());
    results.iter().map(text).collect()
}
