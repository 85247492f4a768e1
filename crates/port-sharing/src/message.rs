//! Messages between members and the coordinator: one message per SEQPACKET record.
//!
//! Integers are big-endian. A message begins with its type. Only [`Message::Hello`] and the answers to it contain the
//! protocol's version; after a welcome both ends use the same version.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use super::block::{Block, BlockSet};
use super::config::{DATAGRAM_BYTES_MAX, REQUEST_BYTES_MAX};
use super::datagram::Datagram;

/// Version of this protocol, and of the contents that its users put into requests, datagrams and reports. A process of
/// another version is refused with both version numbers, because a changed message must not be misread.
///
/// 2: observers, surveys and reports; one request releases several claims; members learn of deaths.
/// 3: replays are answered.
pub(super) const VERSION: u8 = 3;

/// Maximum header before a payload: type, block, and the addresses of an IPv6 datagram.
const HEADER_BYTES_MAX: usize = 64;

/// Largest message, bytes.
pub(super) const MESSAGE_BYTES_MAX: usize = {
    let payload_max = if DATAGRAM_BYTES_MAX > REQUEST_BYTES_MAX {
        DATAGRAM_BYTES_MAX
    } else {
        REQUEST_BYTES_MAX
    };
    HEADER_BYTES_MAX + payload_max
};

/// Begins a hello, so that a process that connected by mistake does not look like a member.
const MAGIC: [u8; 4] = *b"PRTL";

const HELLO: u8 = 1;
const WELCOME: u8 = 2;
const REFUSED: u8 = 3;
const LATER: u8 = 4;
const REQUEST: u8 = 5;
const REPLAY: u8 = 6;
const REPLAYS_DONE: u8 = 7;
const RESPONSE: u8 = 8;
const RESPONSE_LATER: u8 = 9;
const DATAGRAM: u8 = 10;
const PEER_DEATH: u8 = 11;
const OBSERVE: u8 = 12;
const ROSTER: u8 = 13;
const SURVEY: u8 = 14;
const REPORT: u8 = 15;
const REPLAYED: u8 = 16;

/// A message between a member and the coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message<'a> {
    /// First message to the coordinator: asks for a block, or for the block that it kept after a coordinator died.
    Hello {
        /// The sender's protocol version.
        version: u8,
        /// The block of a returning member.
        rejoin: Option<Block>,
    },
    /// From the coordinator: accepted. For a newcomer it carries descriptors: the descriptor store, the block's name,
    /// and the block's sockets.
    Welcome {
        /// The member's block.
        block: Block,
    },
    /// From the coordinator: not accepted; the connection closes.
    Refused(Refusal),
    /// From the coordinator: connect again after this many milliseconds. The connection closes.
    Later {
        /// Milliseconds.
        after_ms: u16,
    },
    /// To the coordinator: a request for one [`Response`](Self::Response).
    Request {
        /// Number of the request on this connection.
        id: u64,
        /// In the requester's own format.
        payload: &'a [u8],
    },
    /// To a new coordinator: a registration made with the old one. Expects one [`Replayed`](Self::Replayed).
    Replay {
        /// In the requester's own format.
        payload: &'a [u8],
    },
    /// From the coordinator: the answer to a replay, in the order of the replays.
    Replayed {
        /// The answer, in the requester's own format.
        payload: &'a [u8],
    },
    /// To a new coordinator: everything has been replayed.
    ReplaysDone,
    /// From the coordinator: the answer.
    Response {
        /// The request's.
        id: u64,
        /// The answer, in the requester's own format.
        payload: &'a [u8],
    },
    /// From the coordinator: too early. Send the request again after this many milliseconds.
    ResponseLater {
        /// The request's.
        id: u64,
        /// Milliseconds.
        after_ms: u16,
    },
    /// A datagram for `block`, to or from the coordinator.
    Datagram {
        /// The receiver.
        block: Block,
        /// The datagram.
        datagram: Datagram<'a>,
    },
    /// From the coordinator: the processes of these blocks are dead.
    PeerDeath {
        /// The blocks, which were not reassigned since.
        blocks: BlockSet,
    },
    /// First message to the coordinator: asks for information about all members, without a block.
    Observe {
        /// The sender's protocol version.
        version: u8,
    },
    /// From the coordinator to an observer: a member. One for each member, before any report.
    Roster {
        /// Its block.
        block: Block,
        /// Its process id, as the coordinator sees it.
        pid: u32,
        /// Its effective user.
        uid: u32,
    },
    /// From the coordinator: an observer asks for this member's report.
    Survey {
        /// Number of the survey.
        id: u64,
    },
    /// A member's report, to the coordinator and from there to the observer. For block 0 it is the coordinator's, which
    /// ends the roster.
    Report {
        /// The survey.
        survey: u64,
        /// The block of the reporting process.
        block: Block,
        /// Whether this is the last part.
        last: bool,
        /// The part's contents, in the format of the group's users.
        payload: &'a [u8],
    },
}

/// Why the coordinator does not accept a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    /// Its user is not trusted.
    #[error(
        "user {uid} is not trusted; the processes already sharing the port decide by their trust \
         setting"
    )]
    NotTrusted {
        /// The user the coordinator saw.
        uid: u32,
    },
    /// Its protocol version differs.
    #[error(
        "they use version {coordinator} of the group protocol, this process uses version {VERSION}"
    )]
    Version {
        /// The coordinator's version.
        coordinator: u8,
    },
    /// No block is free.
    #[error("all blocks of queue pair numbers are in use")]
    Full,
    /// Another process owns the block by now.
    #[error("another process has taken block {block}")]
    BlockTaken {
        /// The block.
        block: Block,
    },
}

/// A malformed message: what was expected, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed group message: expected {expected} at byte {offset} of {length}")]
pub(super) struct Malformed {
    expected: &'static str,
    offset: usize,
    length: usize,
}

impl<'a> Message<'a> {
    /// Appends the message's bytes.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        match *self {
            Self::Hello { version, rejoin } => {
                out.push(HELLO);
                out.extend_from_slice(&MAGIC);
                // Block 0 means none, because no member returns with it.
                out.extend_from_slice(&[version, rejoin.map_or(0, Block::index)]);
            }
            Self::Welcome { block } => out.extend_from_slice(&[WELCOME, block.index()]),
            Self::Refused(refusal) => {
                let (reason, detail) = match refusal {
                    Refusal::NotTrusted { uid } => (1, uid),
                    Refusal::Version { coordinator } => (2, u32::from(coordinator)),
                    Refusal::Full => (3, 0),
                    Refusal::BlockTaken { block } => (4, u32::from(block.index())),
                };
                out.extend_from_slice(&[REFUSED, reason]);
                out.extend_from_slice(&detail.to_be_bytes());
            }
            Self::Later { after_ms } => {
                out.push(LATER);
                out.extend_from_slice(&after_ms.to_be_bytes());
            }
            Self::Request { id, payload } => encode_call(out, REQUEST, id, payload),
            Self::Replay { payload } => {
                out.push(REPLAY);
                out.extend_from_slice(payload);
            }
            Self::Replayed { payload } => {
                out.push(REPLAYED);
                out.extend_from_slice(payload);
            }
            Self::ReplaysDone => out.push(REPLAYS_DONE),
            Self::Response { id, payload } => encode_call(out, RESPONSE, id, payload),
            Self::ResponseLater { id, after_ms } => {
                encode_call(out, RESPONSE_LATER, id, &after_ms.to_be_bytes());
            }
            Self::Datagram {
                block,
                ref datagram,
            } => {
                out.extend_from_slice(&[DATAGRAM, block.index()]);
                encode_datagram(out, datagram);
            }
            Self::PeerDeath { blocks } => {
                out.push(PEER_DEATH);
                out.extend_from_slice(&blocks.bits().to_be_bytes());
            }
            Self::Observe { version } => {
                out.push(OBSERVE);
                out.extend_from_slice(&MAGIC);
                out.push(version);
            }
            Self::Roster { block, pid, uid } => {
                out.extend_from_slice(&[ROSTER, block.index()]);
                out.extend_from_slice(&pid.to_be_bytes());
                out.extend_from_slice(&uid.to_be_bytes());
            }
            Self::Survey { id } => encode_call(out, SURVEY, id, &[]),
            Self::Report {
                survey,
                block,
                last,
                payload,
            } => {
                encode_call(out, REPORT, survey, &[block.index(), u8::from(last)]);
                out.extend_from_slice(payload);
            }
        }
    }

    /// Decodes a message, which must fill `bytes` exactly.
    pub(super) fn decode(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut r = Reader { bytes, offset: 0 };
        let message = match r.u8("kind")? {
            HELLO => {
                r.magic()?;
                let version = r.u8("version")?;
                let rejoin = r.block()?;
                Self::Hello {
                    version,
                    rejoin: (rejoin != Block::COORDINATOR).then_some(rejoin),
                }
            }
            WELCOME => Self::Welcome { block: r.block()? },
            REFUSED => {
                let reason = r.u8("reason")?;
                let detail = u32::from_be_bytes(r.take("detail")?);
                let refusal = match (reason, u8::try_from(detail)) {
                    (1, _) => Refusal::NotTrusted { uid: detail },
                    (2, Ok(coordinator)) => Refusal::Version { coordinator },
                    (3, _) => Refusal::Full,
                    (4, Ok(index)) => Refusal::BlockTaken {
                        block: Block::new(index).ok_or(r.malformed("block"))?,
                    },
                    _ => return Err(r.malformed("reason")),
                };
                Self::Refused(refusal)
            }
            LATER => Self::Later {
                after_ms: u16::from_be_bytes(r.take("delay")?),
            },
            REQUEST => {
                let id = u64::from_be_bytes(r.take("request id")?);
                Self::Request {
                    id,
                    payload: r.rest(REQUEST_BYTES_MAX)?,
                }
            }
            REPLAY => Self::Replay {
                payload: r.rest(REQUEST_BYTES_MAX)?,
            },
            REPLAYED => Self::Replayed {
                payload: r.rest(REQUEST_BYTES_MAX)?,
            },
            REPLAYS_DONE => Self::ReplaysDone,
            RESPONSE => {
                let id = u64::from_be_bytes(r.take("request id")?);
                Self::Response {
                    id,
                    payload: r.rest(REQUEST_BYTES_MAX)?,
                }
            }
            RESPONSE_LATER => {
                let id = u64::from_be_bytes(r.take("request id")?);
                Self::ResponseLater {
                    id,
                    after_ms: u16::from_be_bytes(r.take("delay")?),
                }
            }
            DATAGRAM => Self::Datagram {
                block: r.block()?,
                datagram: r.datagram()?,
            },
            PEER_DEATH => Self::PeerDeath {
                blocks: BlockSet::from_bits(u128::from_be_bytes(r.take("blocks")?)),
            },
            OBSERVE => {
                r.magic()?;
                Self::Observe {
                    version: r.u8("version")?,
                }
            }
            ROSTER => Self::Roster {
                block: r.block()?,
                pid: u32::from_be_bytes(r.take("process id")?),
                uid: u32::from_be_bytes(r.take("user id")?),
            },
            SURVEY => Self::Survey {
                id: u64::from_be_bytes(r.take("survey id")?),
            },
            REPORT => Self::Report {
                survey: u64::from_be_bytes(r.take("survey id")?),
                block: r.block()?,
                last: match r.u8("last or not")? {
                    0 => false,
                    1 => true,
                    _ => return Err(r.malformed("0 or 1")),
                },
                payload: r.rest(REQUEST_BYTES_MAX)?,
            },
            _ => return Err(r.malformed("kind")),
        };
        r.end()?;
        Ok(message)
    }
}

fn encode_call(out: &mut Vec<u8>, kind: u8, id: u64, payload: &[u8]) {
    out.push(kind);
    out.extend_from_slice(&id.to_be_bytes());
    out.extend_from_slice(payload);
}

fn encode_datagram(out: &mut Vec<u8>, datagram: &Datagram<'_>) {
    let Datagram {
        source,
        destination,
        interface,
        traffic_class,
        hop_limit,
        payload,
    } = *datagram;
    encode_ip(out, source.ip());
    let scope = match source {
        SocketAddr::V4(_) => 0,
        SocketAddr::V6(v6) => v6.scope_id(),
    };
    out.extend_from_slice(&scope.to_be_bytes());
    out.extend_from_slice(&source.port().to_be_bytes());
    encode_ip(out, destination);
    out.extend_from_slice(&interface.to_be_bytes());
    out.extend_from_slice(&[traffic_class, hop_limit]);
    out.extend_from_slice(payload);
}

fn encode_ip(out: &mut Vec<u8>, ip: IpAddr) {
    match ip {
        IpAddr::V4(v4) => {
            out.push(4);
            out.extend_from_slice(&v4.octets());
        }
        IpAddr::V6(v6) => {
            out.push(6);
            out.extend_from_slice(&v6.octets());
        }
    }
}

/// Reads consecutive fields, never past the end.
struct Reader<'a> {
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> Reader<'a> {
    fn malformed(&self, expected: &'static str) -> Malformed {
        Malformed {
            expected,
            offset: self.offset,
            length: self.bytes.len(),
        }
    }

    fn take<const N: usize>(&mut self, expected: &'static str) -> Result<[u8; N], Malformed> {
        let field = self
            .bytes
            .get(self.offset..)
            .and_then(|rest| rest.first_chunk::<N>());
        let field = *field.ok_or(self.malformed(expected))?;
        self.offset += N;
        Ok(field)
    }

    fn u8(&mut self, expected: &'static str) -> Result<u8, Malformed> {
        let [byte] = self.take(expected)?;
        Ok(byte)
    }

    fn magic(&mut self) -> Result<(), Malformed> {
        match self.take("magic")? {
            MAGIC => Ok(()),
            _ => Err(self.malformed("magic")),
        }
    }

    fn block(&mut self) -> Result<Block, Malformed> {
        let index = self.u8("block")?;
        Block::new(index).ok_or(self.malformed("block below 128"))
    }

    fn ip(&mut self) -> Result<IpAddr, Malformed> {
        match self.u8("address family")? {
            4 => Ok(IpAddr::V4(Ipv4Addr::from(self.take::<4>("IPv4 address")?))),
            6 => Ok(IpAddr::V6(Ipv6Addr::from(self.take::<16>("IPv6 address")?))),
            _ => Err(self.malformed("address family 4 or 6")),
        }
    }

    fn datagram(&mut self) -> Result<Datagram<'a>, Malformed> {
        let ip = self.ip()?;
        let scope = u32::from_be_bytes(self.take("scope id")?);
        let port = u16::from_be_bytes(self.take("port")?);
        let source = match ip {
            IpAddr::V4(v4) => SocketAddr::V4(SocketAddrV4::new(v4, port)),
            IpAddr::V6(v6) => SocketAddr::V6(SocketAddrV6::new(v6, port, 0, scope)),
        };
        let destination = self.ip()?;
        let interface = u32::from_be_bytes(self.take("interface")?);
        let [traffic_class, hop_limit] = self.take("traffic class and hop limit")?;
        let payload = self.rest(DATAGRAM_BYTES_MAX)?;
        Ok(Datagram {
            source,
            destination,
            interface,
            traffic_class,
            hop_limit,
            payload,
        })
    }

    fn rest(&mut self, bytes_max: usize) -> Result<&'a [u8], Malformed> {
        let rest = self.bytes.get(self.offset..).unwrap_or_default();
        if rest.len() > bytes_max {
            return Err(self.malformed("a shorter payload"));
        }
        self.offset = self.bytes.len();
        Ok(rest)
    }

    fn end(&self) -> Result<(), Malformed> {
        if self.offset == self.bytes.len() {
            Ok(())
        } else {
            Err(self.malformed("the end"))
        }
    }
}

#[cfg(test)]
#[path = "message_tests.rs"]
mod tests;
