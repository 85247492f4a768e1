//! Options of a stream.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use portolan_provider::cm::ConnParam;
use portolan_provider::traits::{Device, Provider};
use portolan_provider::verbs::DeviceAttr;
use portolan_provider::{Cause, Error, Result, Step};
use portolan_rsocket::{Config, IOMAPS_MAX, QUEUE_MAX, Signalling};

use crate::setters::setters;

/// How many times larger a larger buffer is.
const GROWTH: u32 = 4;
/// Length of a message on devices where messages are sends, bytes.
pub(super) const MESSAGE_BYTES: u32 = 4;

/// Sizes and limits of a stream. Each side chooses its own; the defaults are those of `rsocket(7)`.
///
/// ```
/// use portolan::StreamOptions;
/// use std::time::Duration;
///
/// let options = StreamOptions::default().receive_buffer(1 << 20).keepalive(Duration::from_secs(30));
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StreamOptions {
    /// Size of the send buffer, in bytes. See [`grows`](Self::grows). Default: 131,072.
    pub send_buffer: u32,
    /// Size of the receive buffer, in bytes. The peer writes at most half of it at a time, and at most half of it before this
    /// side first reads. See [`grows`](Self::grows). Default: 131,072.
    pub receive_buffer: u32,
    /// Whether a buffer that has limited the rate eight times is replaced by one of four times its size. Only on software
    /// devices, as kernel devices pin memory. All larger buffers of a process take at most 256 MiB. Default: true.
    pub grows: bool,
    /// Number of work requests of the send queue. Default: 384.
    pub send_queue: u16,
    /// Number of work requests of the receive queue. The peer may send this many messages before this side reads some.
    /// Default: 384.
    pub receive_queue: u16,
    /// Number of bytes up to which data is sent inline. Default: 64.
    pub inline: u32,
    /// Number of pieces of memory that the peer may map for direct writes by this side. Default: 0.
    pub iomaps: u16,
    /// Deadline for the whole connect, from name resolution to establishment. With zero, a connect fails at once with
    /// `TimedOut`. Default: 10 s.
    pub timeout: Duration,
    /// Interval at which an idle stream checks that its peer is alive; `None` (the default) for never.
    pub keepalive: Option<Duration>,
    /// Local address of a connect; `None`: the route selects it.
    pub source: Option<SocketAddr>,
    /// Route of a connect that the program has found; `None`: the connect resolves it. See
    /// [`CmId::set_route`](crate::cm::CmId::set_route).
    pub route: Option<Arc<[u8]>>,
    /// Provider of a connect; `None`: the route selects it ([`crate::provider::towards`]).
    pub provider: Option<Arc<dyn Provider>>,
}

impl Default for StreamOptions {
    fn default() -> Self {
        let config = Config::default();
        Self {
            send_buffer: config.send_buffer,
            receive_buffer: config.receive_buffer,
            grows: true,
            send_queue: config.send_queue,
            receive_queue: config.receive_queue,
            inline: config.inline,
            iomaps: config.iomaps,
            timeout: Duration::from_secs(10),
            keepalive: None,
            source: None,
            route: None,
            provider: None,
        }
    }
}

setters! {
    StreamOptions {
        send_buffer: u32,
        receive_buffer: u32,
        grows: bool,
        send_queue: u16,
        receive_queue: u16,
        inline: u32,
        iomaps: u16,
        timeout: Duration,
        keepalive: impl Into<Option<Duration>>,
        source: impl Into<Option<SocketAddr>>,
        route: impl Into<Option<Arc<[u8]>>>,
        provider: Arc<dyn Provider>,
    }
}

impl StreamOptions {
    /// The configuration of an endpoint on a device, within its limits.
    pub(super) fn config(&self, device: &dyn Device, limits: &DeviceAttr) -> Config {
        let signalling = match device.is_iwarp() {
            true => Signalling::Sends,
            false => Signalling::Immediate,
        };
        let queue = |wanted: u16| {
            let most = limits.max_qp_wr.min(limits.max_cqe).min(QUEUE_MAX.into());
            wanted.min(most as u16)
        };
        let least = match signalling {
            Signalling::Sends => MESSAGE_BYTES,
            Signalling::Immediate => 0,
        };
        let grown = |bytes: u32| match self.grows {
            true => bytes.saturating_mul(GROWTH),
            false => 0,
        };
        Config {
            send_buffer: self.send_buffer,
            receive_buffer: self.receive_buffer,
            grown_send_buffer: grown(self.send_buffer),
            grown_receive_buffer: grown(self.receive_buffer),
            send_queue: queue(self.send_queue),
            receive_queue: queue(self.receive_queue),
            inline: self.inline.min(limits.max_inline_data).max(least),
            iomaps: self.iomaps.min(IOMAPS_MAX),
            signalling,
            ..Config::default()
        }
        .fitted()
    }

    pub(super) fn check(&self) -> Result<()> {
        let is_valid = self
            .keepalive
            .is_none_or(|interval| interval >= KEEPALIVE_MIN);
        is_valid.then_some(()).ok_or_else(|| {
            let (expected, found) = (format!("{KEEPALIVE_MIN:?} or more"), self.keepalive);
            Error::invalid(
                Step::CreateQp,
                "keepalive",
                expected,
                format_args!("{found:?}"),
            )
        })
    }
}

/// Retries of packets, and of messages that find no receive: the maximum. For the latter it means forever.
const RETRIES: u8 = 7;
/// Minimum interval between keepalives.
pub(super) const KEEPALIVE_MIN: Duration = Duration::from_millis(1);

/// The error for a device that cannot send messages in the way that its type requires.
pub(super) fn no_messages() -> Error {
    Error::new(
        Step::CreateQp,
        Cause::Unsupported("a device without inline sends"),
    )
}

/// Parameters of connections, without private data.
pub(super) fn conn_param() -> ConnParam {
    ConnParam {
        flow_control: true,
        retry_count: RETRIES,
        rnr_retry_count: RETRIES,
        ..ConnParam::default()
    }
}
