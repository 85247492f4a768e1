//! Options of a connection.

use std::time::Duration;

use portolan_provider::cm::{ConnParam, Ece};
use portolan_provider::verbs::{QpCap, QpInit};
use portolan_provider::{Cause, Error, Result, Step};

use super::transport::Transport;
use crate::domain::Domain;
use crate::setters::setters;
use crate::work::{Depths, Keepalive, SharedReceiveQueue};

/// Maximum size of each of the connection's own receives, in bytes.
const RECEIVE_SIZE_MAX_BYTES: usize = 1 << 30;

/// Maximum of retry counts, which have three bits.
const RETRIES_MAX: u8 = 7;

/// Sizes and limits of a connection. Each side sets its own.
///
/// Set what differs from the defaults:
///
/// ```
/// use portolan::Options;
/// use std::time::Duration;
///
/// let options = Options::default().receive_size(1 << 20).timeout(Duration::from_secs(3));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// Maximum number of posted sends, writes and reads. Default: 64.
    pub send_depth: u32,
    /// Number of receives that the connection keeps posted for [`super::Connection::receive`].
    /// Default: 16. With 0, the program posts every receive itself, and `receive` only waits for the end of the connection.
    ///
    /// The device's limit (16,384 on software devices) applies to `receive_depth` and `posted_receives` together.
    pub receive_depth: u32,
    /// Size of each of those receives, in bytes: the longest message that the peer may send. The peer does not learn this
    /// size; see [`super::Connection::send`]. At most 2^30. Default: 4096.
    ///
    /// A longer message breaks the connection. This side's receives end with `WorkFailed(LocLenErr)`, and the error's text
    /// has the `receive_size`. The peer's send ends with `WorkFailed(RemInvReqErr)`, without a size.
    /// On an unreliable connection ([`Transport::Uc`](super::Transport::Uc)) the message is dropped, and the connection
    /// continues.
    pub receive_size: usize,
    /// Maximum number of messages that the program may hold before the peer waits. Default: 1024.
    ///
    /// If the program holds `receive_depth` messages or more, the connection posts additional receives, and frees them
    /// when the program drops the messages. At the limit the peer's next message waits, the connection logs one
    /// warning, and the peer can learn the reason ([`Transfer::delay`](crate::Transfer::delay)).
    pub held_messages: u32,
    /// Receives that several connections share; `None` for receives of the connection's own. `receive_depth`,
    /// `receive_size`, `held_messages` and `posted_receives` have no meaning with it.
    /// Default: `None`.
    pub shared_receives: Option<SharedReceiveQueue>,
    /// Maximum number of bytes that [`super::Connection::send_inline`] and [`super::Connection::write_inline`] take.
    /// Devices support few bytes, and some none. Default: 0, so that these calls fail.
    pub inline: u32,
    /// Maximum number of buffers in a gather list ([`Gather`](crate::Gather)). Default: 4.
    pub gather: u32,
    /// The domain whose memory the peer may access; `None` (the default) for the one that all connections of
    /// the device share.
    pub domain: Option<Domain>,
    /// Maximum number of additional receives that the caller posts. They count with `receive_depth` against the device's
    /// limit. Default: 64.
    pub posted_receives: u32,
    /// Maximum number of concurrent RDMA reads and atomics by the peer. Default: 16.
    pub responder_resources: u8,
    /// Maximum number of concurrent RDMA reads and atomics by this side. Default: 16.
    pub initiator_depth: u8,
    /// Number of retransmissions of an unacknowledged packet (0 to 7). Default: 7.
    pub retry_count: u8,
    /// How often the peer retries a message that finds no posted receive here (0 to 7; 7, the default, means
    /// forever), as in `rdma_connect(3)` and `rdma_accept(3)`. Then its connection ends with
    /// `WorkFailed(RnrRetryExcErr)`.
    pub rnr_retry_count: u8,
    /// Private data of the request or reply: at most 56 bytes in a request, 196 in a reply.
    /// Default: none.
    pub private_data: Vec<u8>,
    /// Deadline for the whole connect or accept. With zero, both fail at once with `TimedOut`, and the peer of an accept
    /// receives a reject. Default: 10 s.
    pub timeout: Duration,
    /// Keepalive of a silent peer; `None` (the default) sends nothing.
    pub keepalive: Option<Keepalive>,
    /// Type of service of the packets of both sides (IPv6: traffic class), for switches that have priorities; as
    /// `RDMA_OPTION_ID_TOS`. The connecting side chooses it: it has no meaning in an accept. The kernel's devices derive
    /// the service level from it. Default: `None`, which the kernel may configure (`default_roce_tos`); 0 on software
    /// devices.
    ///
    /// An IPv6 destination also chooses the flow label:
    /// [`SocketAddrV6::flowinfo`](std::net::SocketAddrV6::flowinfo), in network byte order as in C.
    pub type_of_service: Option<u8>,
    /// Vendor options to send with the request or reply (enhanced connection establishment, `rdma_set_local_ece(3)`).
    /// The peer's program reads them ([`Incoming::ece`](super::Incoming::ece), [`Connection::peer_ece`](super::Connection::peer_ece));
    /// the connection itself does not change. Default: zeros, which say that there are none.
    pub ece: Ece,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            send_depth: 64,
            receive_depth: 16,
            receive_size: 4096,
            held_messages: 1024,
            shared_receives: None,
            inline: 0,
            gather: 4,
            domain: None,
            posted_receives: 64,
            responder_resources: 16,
            initiator_depth: 16,
            retry_count: 7,
            rnr_retry_count: 7,
            private_data: Vec::new(),
            timeout: Duration::from_secs(10),
            keepalive: None,
            type_of_service: None,
            ece: Ece::default(),
        }
    }
}

setters! {
    Options {
        send_depth: u32,
        receive_depth: u32,
        receive_size: usize,
        held_messages: u32,
        shared_receives: impl Into<Option<SharedReceiveQueue>>,
        inline: u32,
        gather: u32,
        domain: impl Into<Option<Domain>>,
        posted_receives: u32,
        responder_resources: u8,
        initiator_depth: u8,
        retry_count: u8,
        rnr_retry_count: u8,
        private_data: impl Into<Vec<u8>>,
        timeout: Duration,
        keepalive: impl Into<Option<Keepalive>>,
        type_of_service: impl Into<Option<u8>>,
        ece: Ece,
    }
}

impl Options {
    pub(super) fn conn_param(&self, transport: Transport) -> ConnParam {
        let (responder_resources, initiator_depth) = match transport {
            Transport::Rc => (self.responder_resources, self.initiator_depth),
            Transport::Uc => (0, 0),
        };
        ConnParam {
            private_data: self.private_data.clone().into_boxed_slice(),
            responder_resources,
            initiator_depth,
            flow_control: true,
            retry_count: self.retry_count,
            rnr_retry_count: self.rnr_retry_count,
            ..ConnParam::default()
        }
    }

    /// Maximum posted work of each kind.
    pub(super) fn depths(&self) -> Depths {
        Depths {
            sends: self.send_depth,
            ring: self.receive_depth,
            by_hand: self.posted_receives,
            gather: self.gather.max(1),
            inline: self.inline,
        }
    }

    /// Names the options of which a limit of the device consists, instead of the verbs' name.
    pub(super) fn explain_limit(&self, mut error: Error) -> Error {
        if let Cause::InvalidArgument { what, .. } = &mut error.cause {
            *what = match *what {
                "max_send_wr" if self.keepalive.is_some() => "send_depth and one for the keepalive",
                "max_send_wr" => "send_depth",
                "max_recv_wr" => "receive_depth and posted_receives together",
                "max_send_sge" => "gather",
                "max_inline_data" => "inline",
                other => other,
            };
        }
        error
    }

    pub(super) fn qp_init(&self, transport: Transport) -> Result<QpInit> {
        let receives = match &self.shared_receives {
            Some(shared) => Some(shared.depth()),
            None => self.receive_depth.checked_add(self.posted_receives),
        };
        let max_recv_wr = receives.filter(|sum| *sum > 0).ok_or_else(|| {
            let (what, expected) = ("receives", format_args!("1 to {}", u32::MAX));
            let found = u64::from(self.receive_depth) + u64::from(self.posted_receives);
            match self.shared_receives {
                Some(_) => Error::invalid(Step::CreateQp, what, expected, 0),
                None => Error::invalid(Step::CreateQp, what, expected, found),
            }
        })?;
        for (what, count) in [
            ("retry_count", self.retry_count),
            ("rnr_retry_count", self.rnr_retry_count),
        ] {
            if count > RETRIES_MAX {
                return Err(Error::invalid(Step::CreateQp, what, "0 to 7", count));
            }
        }
        if self.send_depth == 0 {
            return Err(Error::invalid(Step::CreateQp, "send_depth", "1 or more", 0));
        }
        let (depth, size) = match &self.shared_receives {
            Some(shared) => (shared.depth(), shared.size()),
            None => (self.receive_depth, self.receive_size),
        };
        if depth > 0 && !(1..=RECEIVE_SIZE_MAX_BYTES).contains(&size) {
            let expected = format!("1 to {RECEIVE_SIZE_MAX_BYTES}");
            return Err(Error::invalid(
                Step::CreateQp,
                "receive_size",
                expected,
                size,
            ));
        }
        if self.keepalive.is_some() && transport == Transport::Uc {
            // Nothing acknowledges a probe.
            let (what, expected) = ("keepalive of an unreliable connection", "none");
            return Err(Error::invalid(Step::CreateQp, what, expected, "one"));
        }
        if let Some(keepalive) = self.keepalive {
            for (what, time) in [
                ("keepalive interval", keepalive.interval),
                ("keepalive timeout", keepalive.timeout),
            ] {
                if !Keepalive::RANGE.contains(&time) {
                    let (expected, found) = ("1 ms to a day", format_args!("{time:?}"));
                    return Err(Error::invalid(Step::CreateQp, what, expected, found));
                }
            }
        }
        // A keepalive probe takes none of the caller's places.
        let questions = u32::from(self.keepalive.is_some());
        let cap = QpCap {
            max_send_wr: self.send_depth.saturating_add(questions),
            max_recv_wr: match self.shared_receives {
                Some(_) => 0,
                None => max_recv_wr,
            },
            max_send_sge: self.gather.max(1),
            max_recv_sge: 1,
            max_inline_data: self.inline,
        };
        Ok(QpInit {
            qp_type: transport.qp_type(),
            cap,
            sq_sig_all: false,
        })
    }
}
