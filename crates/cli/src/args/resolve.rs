//! Arguments of `resolve`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use portolan::provider::address::{Address, SockaddrIb};
use portolan::resolve::{Family, Flags, Hints, QpType, parse_endpoint};
use portolan::wire::addr::PortSpace;

use super::mcast::address;
use super::values::seconds;

/// The query, and its hints of rdma_getaddrinfo(3).
#[derive(Debug, Clone, Args)]
pub(crate) struct ResolveArgs {
    /// Host: a name, an IPv4 or IPv6 address, or with --family ib a GID; - for none
    #[arg(value_name = "NODE",
          required_unless_present_any = ["target", "targets_from", "source", "destination"])]
    pub(crate) node: Option<String>,
    /// Service: its name, or a port number
    #[arg(value_name = "SERVICE")]
    pub(crate) service: Option<String>,
    /// Another target; may be given several times
    #[arg(long, value_name = "HOST:PORT", value_parser = endpoint_text)]
    pub(crate) target: Vec<String>,
    /// File of targets, one HOST:PORT or HOST per line; - for standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) targets_from: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) hints: HintArgs,
    /// Explain each result: rule, route, device and GID, and what was skipped and why
    #[arg(long)]
    pub(crate) explain: bool,
    /// Seconds that each target has
    #[arg(long, short = 'W', value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    pub(crate) timeout: Duration,
}

/// The hints.
#[derive(Debug, Clone, Args)]
pub(crate) struct HintArgs {
    /// For listening (RAI_PASSIVE)
    #[arg(long)]
    passive: bool,
    /// Require a numeric NODE; use no name service (RAI_NUMERICHOST)
    #[arg(long)]
    numeric_host: bool,
    /// Look up no routes, and so no sources (RAI_NOROUTE)
    #[arg(long)]
    no_route: bool,
    /// Use the system's resolver; the default (RAI_DNS)
    #[arg(long)]
    dns: bool,
    /// SERVICE by InfiniBand's subnet administrator (RAI_SA)
    #[arg(long)]
    sa: bool,
    /// Only addresses of this family (RAI_FAMILY)
    #[arg(long, value_name = "FAMILY")]
    family: Option<FamilyArg>,
    /// Queue pair type
    #[arg(long, value_name = "TYPE")]
    qp_type: Option<QpTypeArg>,
    /// Port space
    #[arg(long, value_name = "SPACE")]
    port_space: Option<PortSpaceArg>,
    // As attributes, because rustdoc would read the brackets as a link.
    #[arg(
        long,
        value_name = "ADDR",
        help = "The local address: 192.168.7.1, [fe80::1%eth0]:7471, or a GID with pkey= and sid="
    )]
    source: Option<String>,
    #[arg(
        long,
        value_name = "ADDR",
        help = "The destination, if no NODE is given"
    )]
    destination: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum FamilyArg {
    Inet,
    Inet6,
    Ib,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum QpTypeArg {
    Rc,
    Ud,
    Uc,
    /// The sending side of extended reliable connections
    Xrc,
    /// Their receiving side
    XrcRecv,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum PortSpaceArg {
    Tcp,
    Udp,
    Ib,
    Ipoib,
}

impl HintArgs {
    /// The hints, if any.
    ///
    /// # Errors
    /// An invalid address.
    pub(crate) fn hints(&self) -> Result<Option<Hints>, String> {
        let mut hints = Hints::new();
        for (is_set, flag) in [
            (self.passive, Flags::PASSIVE),
            (self.numeric_host, Flags::NUMERICHOST),
            (self.no_route, Flags::NOROUTE),
            (self.dns, Flags::DNS),
            (self.sa, Flags::SA),
        ] {
            if is_set {
                hints = hints.flags(flag);
            }
        }
        if let Some(family) = self.family {
            hints = hints.family(match family {
                FamilyArg::Inet => Family::Inet,
                FamilyArg::Inet6 => Family::Inet6,
                FamilyArg::Ib => Family::Ib,
            });
        }
        if let Some(qp_type) = self.qp_type {
            hints = hints.qp_type(match qp_type {
                QpTypeArg::Rc => QpType::Rc,
                QpTypeArg::Ud => QpType::Ud,
                QpTypeArg::Uc => QpType::Uc,
                QpTypeArg::Xrc => QpType::XrcSend,
                QpTypeArg::XrcRecv => QpType::XrcRecv,
            });
        }
        if let Some(port_space) = self.port_space {
            hints = hints.port_space(match port_space {
                PortSpaceArg::Tcp => PortSpace::Tcp,
                PortSpaceArg::Udp => PortSpace::Udp,
                PortSpaceArg::Ib => PortSpace::Ib,
                PortSpaceArg::Ipoib => PortSpace::Ipoib,
            });
        }
        if let Some(source) = &self.source {
            hints = hints.src_addr(self.address("--source", source)?);
        }
        if let Some(destination) = &self.destination {
            hints = hints.dst_addr(self.address("--destination", destination)?);
        }
        Ok(Some(hints).filter(|hints| *hints != Hints::new()))
    }

    /// An address of the requested family. No name is looked up.
    fn address(&self, option: &str, text: &str) -> Result<Address, String> {
        let wrong = |why: String| format!("{option} {text}: {why}");
        if self.family == Some(FamilyArg::Ib) {
            let ib: Result<SockaddrIb, _> = text.parse();
            return ib
                .map(Address::Ib)
                .map_err(|error| wrong(error.to_string()));
        }
        inet(text).map(Address::Inet).map_err(wrong)
    }
}

/// A numeric address with a port, or with port 0.
fn inet(text: &str) -> Result<SocketAddr, String> {
    let endpoint = parse_endpoint(text).map_err(|error| error.to_string())?;
    let node = endpoint.node().ok_or("an address is missing")?;
    let mut address = address(node)?;
    if let Some(port) = endpoint.service() {
        let port: u16 = port
            .parse()
            .map_err(|_| "a port is a number from 0 to 65535".to_owned())?;
        address.set_port(port);
    }
    Ok(address)
}

/// A host with or without a service.
fn endpoint_text(text: &str) -> Result<String, String> {
    parse_endpoint(text)
        .map(|_| text.to_owned())
        .map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Command};

    fn parse(args: &[&str]) -> Result<ResolveArgs, String> {
        let args = ["portolan", "resolve"].iter().chain(args);
        match Cli::try_parse_from(args)
            .map_err(|error| error.to_string())?
            .command
        {
            Command::Resolve(args) => Ok(args),
            other => panic!("{other:?}"),
        }
    }

    fn hints(args: &[&str]) -> Result<Option<Hints>, String> {
        parse(&[&["host"], args].concat())?.hints.hints()
    }

    #[test]
    fn without_options_there_are_no_hints() {
        assert_eq!(hints(&[]), Ok(None));
    }

    #[test]
    fn each_option_is_the_hint_of_its_name() {
        let flags = "--passive --numeric-host --no-route --dns --family inet6 --qp-type ud \
                     --port-space udp --source [fe80::1%lo]:9";
        let flags: Vec<&str> = flags.split_whitespace().collect();
        let hints = hints(&flags).unwrap().unwrap();
        let expected =
            Flags::PASSIVE | Flags::NUMERICHOST | Flags::NOROUTE | Flags::DNS | Flags::FAMILY;
        assert_eq!(hints.flags, expected);
        assert_eq!(hints.family, Some(Family::Inet6));
        assert_eq!(hints.qp_type, Some(QpType::Ud));
        assert_eq!(hints.port_space, Some(PortSpace::Udp));
        let Some(Address::Inet(SocketAddr::V6(source))) = hints.src_addr else {
            panic!("{hints:?}")
        };
        assert_eq!(source.port(), 9);
        assert_ne!(source.scope_id(), 0);
        assert_eq!(hints.dst_addr, None);
    }

    #[test]
    fn addresses_of_infiniband_are_read_with_partition_and_service() {
        let text = "fe80::1%3,pkey=0x8001,sid=tcp:7471";
        let hints = hints(&["--family", "ib", "--source", text])
            .unwrap()
            .unwrap();
        let Some(Address::Ib(source)) = hints.src_addr else {
            panic!("{hints:?}")
        };
        assert_eq!(
            (source.pkey.0, source.sid, source.scope_id),
            (0x8001, 0x0106_1D2F, 3)
        );
    }

    #[test]
    fn invalid_addresses_and_an_empty_query_are_refused() {
        for source in ["host", "192.0.2.1:70000", "192.0.2.1:x", ":7471", ""] {
            assert!(hints(&["--source", source]).is_err(), "{source:?}");
        }
        assert!(parse(&[]).is_err());
        assert!(parse(&["--target", "a:b:c"]).is_err());
        assert!(parse(&["--destination", "192.0.2.1"]).is_ok());
    }
}
