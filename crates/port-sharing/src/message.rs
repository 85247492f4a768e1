//! Messages between members and the coordinator: one message per SEQPACKET record.
//!
//! Integers are big-endian. A message begins with its type. Only [`Message::Hello`] and the answers to it contain the
//! protocol's version; after a welcome both ends use the same version.

use std::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6};

use super::block::{Block, BlockSet};
use super::config::{DATAGRAM_BYTES_MAX, REQUEST_BYTES_MAX};
use super::datagram::Datagram;

/// Version of this protocol, and of the contents that its users put into requests, datagrams and reports. A process of
/// another version is refused with both version numbers, because a changed message must not be misread.
///
/// 2: observers, surveys and reports; one request releases several claims; members learn of deaths.
/// 3: replays are answered.
/// 4: a claimed link-local address has its zone.
pub(super) const VERSION: u8 = 4;

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

/// Declares the messages: the type of each, and its fields in the order of their bytes. Hellos have a prefix.
macro_rules! messages {
    ($(
        $(#[$doc:meta])*
        $name:ident = $kind:literal $(after $prefix:ident)? {
            $($(#[$field_doc:meta])* $field:ident: $type:ty,)*
        }
    )*) => {
        /// A message between a member and the coordinator.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Message<'a> {
            $($(#[$doc])* $name { $($(#[$field_doc])* $field: $type,)* },)*
        }

        impl<'a> Message<'a> {
            /// Appends the message's bytes.
            pub(super) fn encode(&self, out: &mut Vec<u8>) {
                match *self {
                    $(Self::$name { $($field,)* } => {
                        out.push($kind);
                        $(out.extend_from_slice(&$prefix);)?
                        $($field.put(out);)*
                    })*
                }
            }

            /// Decodes a message, which must fill `bytes` exactly.
            pub(super) fn decode(bytes: &'a [u8]) -> Result<Self, Malformed> {
                let mut r = Reader { bytes, offset: 0 };
                let message = match r.u8("kind")? {
                    $($kind => {
                        $(r.prefix($prefix)?;)?
                        Self::$name { $($field: Field::take(&mut r, stringify!($field))?,)* }
                    })*
                    _ => return Err(r.malformed("kind")),
                };
                r.end()?;
                Ok(message)
            }
        }
    };
}

messages! {
    /// First message to the coordinator: asks for a block, or for the block that it kept after a coordinator died.
    Hello = 1 after MAGIC {
        /// The sender's protocol version.
        version: u8,
        /// The block of a returning member.
        rejoin: Option<Block>,
    }
    /// From the coordinator: accepted. For a newcomer it carries descriptors: the descriptor store, the block's name,
    /// and the block's sockets.
    Welcome = 2 {
        /// The member's block.
        block: Block,
    }
    /// From the coordinator: not accepted; the connection closes.
    Refused = 3 {
        /// The reason.
        refusal: Refusal,
    }
    /// From the coordinator: connect again after this many milliseconds. The connection closes.
    Later = 4 {
        /// Milliseconds.
        after_ms: u16,
    }
    /// To the coordinator: a request for one [`Response`](Self::Response).
    Request = 5 {
        /// Number of the request on this connection.
        id: u64,
        /// In the requester's own format.
        payload: &'a [u8],
    }
    /// To a new coordinator: a registration made with the old one. Expects one [`Replayed`](Self::Replayed).
    Replay = 6 {
        /// In the requester's own format.
        payload: &'a [u8],
    }
    /// To a new coordinator: everything has been replayed.
    ReplaysDone = 7 {}
    /// From the coordinator: the answer.
    Response = 8 {
        /// The request's.
        id: u64,
        /// The answer, in the requester's own format.
        payload: &'a [u8],
    }
    /// From the coordinator: too early. Send the request again after this many milliseconds.
    ResponseLater = 9 {
        /// The request's.
        id: u64,
        /// Milliseconds.
        after_ms: u16,
    }
    /// A datagram for `block`, to or from the coordinator.
    Datagram = 10 {
        /// The receiver.
        block: Block,
        /// The datagram.
        datagram: Datagram<'a>,
    }
    /// From the coordinator: the processes of these blocks are dead.
    PeerDeath = 11 {
        /// The blocks, which were not reassigned since.
        blocks: BlockSet,
    }
    /// First message to the coordinator: asks for information about all members, without a block.
    Observe = 12 after MAGIC {
        /// The sender's protocol version.
        version: u8,
    }
    /// From the coordinator to an observer: a member. One for each member, before any report.
    Roster = 13 {
        /// Its block.
        block: Block,
        /// Its process id, as the coordinator sees it.
        pid: u32,
        /// Its effective user.
        uid: u32,
    }
    /// From the coordinator: an observer asks for this member's report.
    Survey = 14 {
        /// Number of the survey.
        id: u64,
    }
    /// A member's report, to the coordinator and from there to the observer. For block 0 it is the coordinator's, which
    /// ends the roster.
    Report = 15 {
        /// The survey.
        survey: u64,
        /// The block of the reporting process.
        block: Block,
        /// Whether this is the last part.
        last: bool,
        /// The part's contents, in the format of the group's users.
        payload: &'a [u8],
    }
    /// From the coordinator: the answer to a replay, in the order of the replays.
    Replayed = 16 {
        /// The answer, in the requester's own format.
        payload: &'a [u8],
    }
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

/// A field of a message.
trait Field<'a>: Sized {
    fn put(self, out: &mut Vec<u8>);

    /// Errors name the field `expected`, or what it must be.
    fn take(r: &mut Reader<'a>, expected: &'static str) -> Result<Self, Malformed>;
}

macro_rules! numbers {
    ($($type:ty),*) => { $(
        impl Field<'_> for $type {
            fn put(self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_be_bytes());
            }

            fn take(r: &mut Reader<'_>, expected: &'static str) -> Result<Self, Malformed> {
                r.take(expected).map(Self::from_be_bytes)
            }
        }
    )* };
}

numbers!(u8, u16, u32, u64, u128);

impl Field<'_> for bool {
    fn put(self, out: &mut Vec<u8>) {
        out.push(self.into());
    }

    fn take(r: &mut Reader<'_>, expected: &'static str) -> Result<Self, Malformed> {
        match r.u8(expected)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(r.malformed("0 or 1")),
        }
    }
}

impl Field<'_> for Block {
    fn put(self, out: &mut Vec<u8>) {
        out.push(self.index());
    }

    fn take(r: &mut Reader<'_>, expected: &'static str) -> Result<Self, Malformed> {
        Self::new(r.u8(expected)?).ok_or(r.malformed("block below 128"))
    }
}

/// Block 0 means none, because no member returns with it.
impl Field<'_> for Option<Block> {
    fn put(self, out: &mut Vec<u8>) {
        self.unwrap_or(Block::COORDINATOR).put(out);
    }

    fn take(r: &mut Reader<'_>, expected: &'static str) -> Result<Self, Malformed> {
        let block = Block::take(r, expected)?;
        Ok((block != Block::COORDINATOR).then_some(block))
    }
}

impl Field<'_> for BlockSet {
    fn put(self, out: &mut Vec<u8>) {
        self.bits().put(out);
    }

    fn take(r: &mut Reader<'_>, expected: &'static str) -> Result<Self, Malformed> {
        Field::take(r, expected).map(Self::from_bits)
    }
}

/// The rest of a message.
impl<'a> Field<'a> for &'a [u8] {
    fn put(self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }

    fn take(r: &mut Reader<'a>, _: &'static str) -> Result<Self, Malformed> {
        r.rest(REQUEST_BYTES_MAX)
    }
}

impl Field<'_> for Refusal {
    fn put(self, out: &mut Vec<u8>) {
        let (reason, detail) = match self {
            Self::NotTrusted { uid } => (1u8, uid),
            Self::Version { coordinator } => (2, u32::from(coordinator)),
            Self::Full => (3, 0),
            Self::BlockTaken { block } => (4, u32::from(block.index())),
        };
        reason.put(out);
        detail.put(out);
    }

    fn take(r: &mut Reader<'_>, _: &'static str) -> Result<Self, Malformed> {
        let reason = r.u8("reason")?;
        let detail = u32::take(r, "detail")?;
        Ok(match (reason, u8::try_from(detail)) {
            (1, _) => Self::NotTrusted { uid: detail },
            (2, Ok(coordinator)) => Self::Version { coordinator },
            (3, _) => Self::Full,
            (4, Ok(index)) => Self::BlockTaken {
                block: Block::new(index).ok_or(r.malformed("block"))?,
            },
            _ => return Err(r.malformed("reason")),
        })
    }
}

impl Field<'_> for IpAddr {
    fn put(self, out: &mut Vec<u8>) {
        match self {
            Self::V4(v4) => {
                out.push(4);
                out.extend_from_slice(&v4.octets());
            }
            Self::V6(v6) => {
                out.push(6);
                out.extend_from_slice(&v6.octets());
            }
        }
    }

    fn take(r: &mut Reader<'_>, _: &'static str) -> Result<Self, Malformed> {
        match r.u8("address family")? {
            4 => Ok(Self::V4(r.take::<4>("IPv4 address")?.into())),
            6 => Ok(Self::V6(r.take::<16>("IPv6 address")?.into())),
            _ => Err(r.malformed("address family 4 or 6")),
        }
    }
}

impl<'a> Field<'a> for Datagram<'a> {
    fn put(self, out: &mut Vec<u8>) {
        let scope = match self.source {
            SocketAddr::V4(_) => 0,
            SocketAddr::V6(v6) => v6.scope_id(),
        };
        self.source.ip().put(out);
        scope.put(out);
        self.source.port().put(out);
        self.destination.put(out);
        self.interface.put(out);
        self.traffic_class.put(out);
        self.hop_limit.put(out);
        self.payload.put(out);
    }

    fn take(r: &mut Reader<'a>, _: &'static str) -> Result<Self, Malformed> {
        let ip = IpAddr::take(r, "source")?;
        let scope = u32::take(r, "scope id")?;
        let port = u16::take(r, "port")?;
        Ok(Datagram {
            source: match ip {
                IpAddr::V4(v4) => SocketAddrV4::new(v4, port).into(),
                IpAddr::V6(v6) => SocketAddrV6::new(v6, port, 0, scope).into(),
            },
            destination: Field::take(r, "destination")?,
            interface: Field::take(r, "interface")?,
            traffic_class: Field::take(r, "traffic class")?,
            hop_limit: Field::take(r, "hop limit")?,
            payload: r.rest(DATAGRAM_BYTES_MAX)?,
        })
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

    fn prefix(&mut self, prefix: [u8; 4]) -> Result<(), Malformed> {
        match self.take("magic")? == prefix {
            true => Ok(()),
            false => Err(self.malformed("magic")),
        }
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
