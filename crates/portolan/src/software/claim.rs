//! Port claims: a member's requests to the group's coordinator and its answers, as bytes.
//!
//! One table per host decides which process has which port, so that conflicts are detected between all processes that
//! share UDP port 4791. The owner names its claim, so repeating a request has no effect.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

use portolan_port_sharing::Block;
use portolan_provider::Cause;
use portolan_provider::address::{gid_to_ip, ip_to_gid};
use portolan_wire::addr::{Gid, PortSpace};

/// A member's name for a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct ClaimId(pub(super) u32);

/// The address and options of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PortClaim {
    pub(super) port_space: PortSpace,
    pub(super) address: SocketAddr,
    pub(super) reuse_addr: bool,
    pub(super) af_only: bool,
    pub(super) listening: bool,
}

/// A request to the coordinator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// Take the port, or a free one if it is 0. Repeat it with `listening` to listen.
    Claim(ClaimId, PortClaim),
    /// Release these claims.
    Release(Vec<ClaimId>),
}

/// Maximum of claims in one release. It keeps the request far below the size limit.
pub(super) const RELEASES_MAX: usize = 256;

/// The coordinator's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Response {
    /// The claim has this port.
    Granted { port: u16 },
    /// Refused with a positive errno. Contains the holder if another one has the port.
    Refused { errno: i32, holder: String },
}

const OP_CLAIM: u8 = 1;
const OP_RELEASE: u8 = 2;
const FLAG_REUSE: u8 = 1;
const FLAG_AF_ONLY: u8 = 2;
const FLAG_LISTENING: u8 = 4;
const CLAIM_LEN: usize = 1 + 4 + 2 + 1 + 1 + 16 + 2 + 4;
/// Maximum length of a holder's name, bytes.
const HOLDER_LEN_MAX: usize = 64;

impl Request {
    pub(super) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Release(claims) => {
                let mut bytes = vec![OP_RELEASE];
                bytes.extend(claims.iter().flat_map(|ClaimId(id)| id.to_be_bytes()));
                bytes
            }
            Self::Claim(ClaimId(id), claim) => {
                let flags = [
                    (claim.reuse_addr, FLAG_REUSE),
                    (claim.af_only, FLAG_AF_ONLY),
                    (claim.listening, FLAG_LISTENING),
                ];
                let flags = flags
                    .iter()
                    .filter(|(set, _)| *set)
                    .fold(0, |all, (_, bit)| all | bit);
                let mut bytes = Vec::with_capacity(CLAIM_LEN);
                bytes.push(OP_CLAIM);
                bytes.extend_from_slice(&id.to_be_bytes());
                bytes.extend_from_slice(&claim.port_space.value().to_be_bytes());
                bytes.push(flags);
                bytes.push(if claim.address.is_ipv4() { 4 } else { 6 });
                bytes.extend_from_slice(&ip_to_gid(claim.address.ip()).0);
                bytes.extend_from_slice(&claim.address.port().to_be_bytes());
                let zone = match claim.address {
                    SocketAddr::V4(_) => 0,
                    SocketAddr::V6(v6) => v6.scope_id(),
                };
                bytes.extend_from_slice(&zone.to_be_bytes());
                bytes
            }
        }
    }

    /// Returns `None` for bytes that are not a request.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (op, rest) = bytes.split_first()?;
        if *op == OP_RELEASE {
            let (claims, odd) = rest.as_chunks::<4>();
            let whole = odd.is_empty() && (1..=RELEASES_MAX).contains(&claims.len());
            let claims = claims.iter().map(|id| ClaimId(u32::from_be_bytes(*id)));
            return whole.then(|| Self::Release(claims.collect()));
        }
        let (id, rest) = rest.split_first_chunk::<4>()?;
        let id = ClaimId(u32::from_be_bytes(*id));
        match *op {
            OP_CLAIM if bytes.len() == CLAIM_LEN => {
                let (port_space, rest) = rest.split_first_chunk::<2>()?;
                let ([flags, family], rest) = rest.split_first_chunk::<2>()?;
                let (gid, rest) = rest.split_first_chunk::<16>()?;
                let (port, rest) = rest.split_first_chunk::<2>()?;
                let (zone, _) = rest.split_first_chunk::<4>()?;
                let (port, zone) = (u16::from_be_bytes(*port), u32::from_be_bytes(*zone));
                let address = match family {
                    4 => match gid_to_ip(Gid(*gid)) {
                        IpAddr::V4(ip) => SocketAddr::from((ip, port)),
                        IpAddr::V6(_) => return None,
                    },
                    6 => SocketAddrV6::new(Ipv6Addr::from(*gid), port, 0, zone).into(),
                    _ => return None,
                };
                let claim = PortClaim {
                    port_space: PortSpace::from_value(u16::from_be_bytes(*port_space))?,
                    address,
                    reuse_addr: flags & FLAG_REUSE != 0,
                    af_only: flags & FLAG_AF_ONLY != 0,
                    listening: flags & FLAG_LISTENING != 0,
                };
                Some(Self::Claim(id, claim))
            }
            _ => None,
        }
    }
}

impl Response {
    /// The refusal for an error of the port table.
    pub(super) fn refusal(cause: &Cause) -> Self {
        let holder = match cause {
            Cause::AddressInUse {
                holder: Some(holder),
            } => holder.clone(),
            _ => String::new(),
        };
        let errno = cause.errno();
        Self::Refused { errno, holder }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let (errno, port, holder) = match self {
            Self::Granted { port } => (0, *port, ""),
            Self::Refused { errno, holder } => (*errno, 0, &holder[..]),
        };
        let ends = holder
            .char_indices()
            .map(|(at, letter)| at + letter.len_utf8());
        let fitting = ends.take_while(|end| *end <= HOLDER_LEN_MAX).last();
        let holder = &holder[..fitting.unwrap_or(0)];
        [
            &errno.to_be_bytes()[..],
            &port.to_be_bytes()[..],
            holder.as_bytes(),
        ]
        .concat()
    }

    /// Returns `None` for bytes that are not a response.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (errno, rest) = bytes.split_first_chunk::<4>()?;
        let (port, holder) = rest.split_first_chunk::<2>()?;
        match i32::from_be_bytes(*errno) {
            0 if holder.is_empty() => Some(Self::Granted {
                port: u16::from_be_bytes(*port),
            }),
            errno if errno > 0 && holder.len() <= HOLDER_LEN_MAX => Some(Self::Refused {
                errno,
                holder: str::from_utf8(holder).ok()?.to_owned(),
            }),
            _ => None,
        }
    }
}

/// The name of a process that holds a port, for errors.
pub(super) fn holder_name(member: Block) -> String {
    format!("the process with block {member}")
}

/// The kernel's range of ephemeral ports, which the rdma_cm uses, too.
pub(super) fn ephemeral_ports() -> Option<std::ops::RangeInclusive<u16>> {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok()?;
    let mut numbers = text.split_whitespace().map(|number| number.parse().ok());
    let (first, last) = (numbers.next()??, numbers.next()??);
    (first <= last).then_some(first..=last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(address: &str) -> PortClaim {
        PortClaim {
            port_space: PortSpace::Tcp,
            address: address.parse().unwrap(),
            reuse_addr: true,
            af_only: false,
            listening: true,
        }
    }

    #[test]
    fn requests_and_responses_survive_a_round_trip() {
        for address in [
            "127.0.0.1:7471",
            "[fe80::1%3]:80",
            "0.0.0.0:0",
            "[::]:65535",
        ] {
            let request = Request::Claim(ClaimId(7), claim(address));
            assert_eq!(Request::decode(&request.encode()), Some(request));
        }
        for claims in [1, RELEASES_MAX as u32] {
            let release = Request::Release((0..claims).map(ClaimId).collect());
            assert_eq!(Request::decode(&release.encode()), Some(release));
        }
        let refused = |holder: &str| Response::Refused {
            errno: 98,
            holder: holder.into(),
        };
        let granted = Response::Granted { port: 7471 };
        for response in [granted, refused(""), refused("the process with block 3")] {
            assert_eq!(Response::decode(&response.encode()), Some(response));
        }
    }

    #[test]
    fn truncated_and_garbled_requests_are_refused() {
        let good = Request::Claim(ClaimId(7), claim("127.0.0.1:7471")).encode();
        for length in 0..good.len() {
            assert_eq!(
                Request::decode(&good[..length]),
                None,
                "cut to {length} bytes"
            );
        }
        let too_many = (0..=RELEASES_MAX as u32).map(ClaimId).collect();
        for release in [Vec::new(), too_many] {
            assert_eq!(Request::decode(&Request::Release(release).encode()), None);
        }
        let mut family = good.clone();
        family[8] = 5;
        assert_eq!(Request::decode(&family), None);
        let mut mapped = Request::Claim(ClaimId(7), claim("[fe80::1]:80")).encode();
        mapped[8] = 4;
        assert_eq!(Request::decode(&mapped), None, "a v6 address claimed as v4");
    }

    #[test]
    fn responses_with_a_long_or_garbled_name_are_refused_and_never_made() {
        let endless = Response::Refused {
            errno: 98,
            holder: "ä".repeat(HOLDER_LEN_MAX),
        };
        let mut bytes = endless.encode();
        assert!(matches!(
            Response::decode(&bytes),
            Some(Response::Refused { errno: 98, holder }) if holder.len() == HOLDER_LEN_MAX
        ));
        bytes.push(b'x');
        assert_eq!(Response::decode(&bytes), None);
        bytes.truncate(6);
        bytes.push(0xff);
        assert_eq!(Response::decode(&bytes), None);
    }
}
