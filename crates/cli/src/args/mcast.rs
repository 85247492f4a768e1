//! Arguments of `mcast`.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::time::Duration;

use clap::{Args, Subcommand};
use portolan::resolve::resolve;

use super::values::seconds;

/// mckey's default number of messages, and their default size.
const DEFAULT_COUNT: u64 = 10;
const DEFAULT_SIZE: u32 = 100;
/// The longest packet's payload (IBTA 9.7.1, path MTU).
const MAX_SIZE: i64 = 4096;

#[derive(Debug, Clone, Args)]
pub(crate) struct McastArgs {
    #[command(subcommand)]
    pub(crate) what: McastCommand,
}

#[derive(Debug, Clone, Subcommand)]
pub(crate) enum McastCommand {
    /// Receive the datagrams of a group, as `mckey` does
    ///
    /// Ends when interrupted, after --count datagrams, or after --timeout seconds.
    Join(McastJoinArgs),
    /// Send to a group, as `mckey -s` does
    Send(McastSendArgs),
}

#[derive(Debug, Clone, Args)]
pub(crate) struct McastJoinArgs {
    #[command(flatten)]
    pub(crate) group: GroupArgs,
    /// End after this many datagrams
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    /// End after this many seconds; fail if --count datagrams have not arrived by then
    #[arg(long, short = 'W', value_name = "SECONDS", value_parser = seconds)]
    pub(crate) timeout: Option<Duration>,
    /// Print only the summary
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct McastSendArgs {
    #[command(flatten)]
    pub(crate) group: GroupArgs,
    /// Datagrams to send
    #[arg(long, short, value_name = "N", default_value_t = DEFAULT_COUNT,
          value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: u64,
    /// Bytes of data, at most what one packet holds
    #[arg(long, short, value_name = "BYTES", default_value_t = DEFAULT_SIZE,
          value_parser = clap::value_parser!(u32).range(1..=MAX_SIZE))]
    pub(crate) size: u32,
    /// Seconds between two datagrams
    #[arg(long, short, value_name = "SECONDS", default_value = "0", value_parser = seconds)]
    pub(crate) interval: Duration,
    /// Join as a send-only member
    #[arg(long)]
    pub(crate) send_only: bool,
}

/// The group and the interface.
#[derive(Debug, Clone, Args)]
pub(crate) struct GroupArgs {
    /// Address of the group, such as 239.1.2.3 or ff15::1. The kernel's devices refuse IPv6 groups
    #[arg(value_name = "GROUP", value_parser = group)]
    pub(crate) group: SocketAddr,
    /// Local address, whose interface is used (default: chosen by routing)
    #[arg(long, short, value_name = "ADDR", value_parser = address)]
    pub(crate) bind: Option<SocketAddr>,
}

/// A numeric address, with a zone if the text has one.
pub(super) fn address(text: &str) -> Result<SocketAddr, String> {
    let (ip, zone) = text
        .split_once('%')
        .map_or((text, None), |(ip, zone)| (ip, Some(zone)));
    let ip: IpAddr = ip
        .parse()
        .map_err(|_| "an IP address expected".to_owned())?;
    match (ip, zone) {
        (ip, None) => Ok(SocketAddr::new(ip, 0)),
        (IpAddr::V4(_), Some(_)) => Err("an IPv4 address has no zone".to_owned()),
        (IpAddr::V6(ip), Some(_)) => {
            // The resolver knows the names of interfaces.
            let resolved = resolve(&format!("[{text}]:0")).map_err(|error| error.to_string())?;
            let scope = resolved.iter().find_map(|resolved| match resolved.addr {
                SocketAddr::V6(addr) => Some(addr.scope_id()),
                SocketAddr::V4(_) => None,
            });
            Ok(SocketAddrV6::new(ip, 0, 0, scope.unwrap_or_default()).into())
        }
    }
}

/// The address of a multicast group.
fn group(text: &str) -> Result<SocketAddr, String> {
    let address = address(text)?;
    match address.ip().is_multicast() {
        true => Ok(address),
        false => Err("the address of a multicast group expected".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_distinguished_from_hosts_in_both_families() {
        assert_eq!(group("239.1.2.3").unwrap().to_string(), "239.1.2.3:0");
        assert_eq!(group("ff15::1").unwrap().to_string(), "[ff15::1]:0");
        for wrong in [
            "192.168.7.1",
            "fd07::1",
            "all-hosts",
            "239.1.2.3%lo",
            "",
            "ff02::1%nowhere",
        ] {
            assert!(group(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_zone_is_the_number_of_its_interface() {
        let SocketAddr::V6(address) = group("ff02::1234%lo").unwrap() else {
            panic!("an IPv6 group must be accepted");
        };
        assert_ne!(address.scope_id(), 0);
    }
}
