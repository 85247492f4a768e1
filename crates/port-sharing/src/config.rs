//! Settings of a group, and its fixed limits.

use std::time::Duration;

use portolan_provider::{Error, Result, Step};

use super::trust::Trust;

/// The UDP port of RoCEv2 (IBTA annex A17).
pub const ROCE_PORT: u16 = 4791;

/// Largest UDP payload that the group forwards, in bytes: the largest path MTU (4096) plus all transport headers and
/// trailers.
pub const DATAGRAM_BYTES_MAX: usize = 4352;
/// Maximum payload of a request or response, in bytes.
pub const REQUEST_BYTES_MAX: usize = 4096;
/// Maximum number of requests of one process without an answer.
pub const REQUESTS_MAX: usize = 1024;
/// Maximum number of registrations that one process replays to a new coordinator.
pub const REPLAYS_MAX: usize = 65_536;
/// Maximum number of parts, of at most [`REQUEST_BYTES_MAX`] bytes each, in a report to an observer.
pub const REPORT_PARTS_MAX: usize = 512;
/// Maximum number of observers' connections to the coordinator.
pub(super) const OBSERVERS_MAX: usize = 8;
/// Maximum lifetime of an observer's connection.
pub(super) const OBSERVER_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum number of forwarded datagrams that wait for [`PortGroup::process`](super::PortGroup::process).
pub(super) const INBOX_DATAGRAMS_MAX: usize = 4096;
/// Maximum number of connections to the coordinator without a hello.
pub(super) const STRANGERS_MAX: usize = 64;
/// Time a connection has to say hello.
pub(super) const HELLO_TIMEOUT: Duration = Duration::from_secs(1);
/// Time that a member waits for the coordinator's welcome before it retries.
pub(super) const WELCOME_TIMEOUT: Duration = Duration::from_millis(500);
/// Time that a new coordinator waits for members to reconnect and replay their registrations. Until then it answers no
/// new requests: a process whose name is still held is alive, and may have registered the same resource. The
/// coordinator does not wait for processes that it finds dead.
pub(super) const REPLAY_GRACE: Duration = Duration::from_secs(2);
/// How long a new coordinator drops requests to services without a registered listener, instead of refusing them, while a
/// living process has not registered again. The sender repeats a request, but takes a refusal as final. This is longer than
/// the grace period, because a process may wait long for a processor.
pub(super) const RETURN_TIME_MAX: Duration = Duration::from_secs(10);
/// Interval between attempts to retire a block whose process left the group but is still alive.
pub(super) const RETIRE_INTERVAL: Duration = Duration::from_millis(100);
/// Minimum and maximum pause between attempts to reach or become the coordinator.
pub(super) const BACKOFF_MIN: Duration = Duration::from_millis(1);
/// See [`BACKOFF_MIN`].
pub(super) const BACKOFF_MAX: Duration = Duration::from_millis(50);
/// Maximum number of ready descriptors handled in one turn.
pub(super) const EVENTS_PER_TURN: usize = 64;
/// Maximum number of messages read from one connection in one turn.
pub(super) const MESSAGES_PER_TURN: usize = 64;
/// Maximum number of connections accepted in one turn.
pub(super) const ACCEPTS_PER_TURN: usize = 16;
/// Maximum number of batches read from one of block 0's sockets in one turn.
pub(super) const BATCHES_PER_TURN: usize = 8;
/// Maximum number of batches read from each of those sockets before a death is reported. They may contain the last
/// datagrams of the dead process.
pub(super) const BATCHES_BEFORE_DEATH: usize = 256;
/// Maximum number of datagrams that a new coordinator keeps for members that have not reconnected yet.
pub(super) const KEPT_DATAGRAMS_MAX: usize = 256;
/// Socket buffer of a connection between a member and the coordinator, in bytes (limited by `wmem_max`).
pub(super) const CONNECTION_BUFFER_BYTES: usize = 4 << 20;
/// Maximum length of [`GroupConfig::name_prefix`]: the name must fit into `sun_path` (108 bytes).
const NAME_PREFIX_BYTES_MAX: usize = 80;

/// How a process shares a UDP port.
#[derive(Clone, Debug)]
pub struct GroupConfig {
    /// The UDP port: 4791, except in tests.
    pub port: u16,
    /// Which other users' processes may join the same group.
    pub trust: Trust,
    /// How long [`PortGroup::join`](super::PortGroup::join) tries.
    pub join_timeout: Duration,
    /// How long the port may be in use while nothing answers under the group's name. After that the port counts as
    /// owned by another program. An election takes a few milliseconds.
    pub foreign_port_patience: Duration,
    /// Prefix of the abstract socket names, at most 80 bytes. Different prefixes make separate groups.
    pub name_prefix: String,
    /// Requested receive buffer of each UDP socket in use, in bytes. Without CAP_NET_ADMIN the kernel limits it to
    /// `net.core.rmem_max`.
    pub receive_buffer_bytes: usize,
}

impl Default for GroupConfig {
    fn default() -> Self {
        Self {
            port: ROCE_PORT,
            trust: Trust::SameUser,
            join_timeout: Duration::from_secs(5),
            foreign_port_patience: Duration::from_millis(500),
            name_prefix: "portolan".into(),
            receive_buffer_bytes: 4 << 20,
        }
    }
}

impl GroupConfig {
    /// Refuses settings that cannot work.
    pub(super) fn check(&self) -> Result<()> {
        if self.port == 0 {
            return Err(Error::invalid(
                Step::OpenDevice,
                "UDP port",
                "1 to 65535",
                0,
            ));
        }
        let bytes = self.name_prefix.len();
        if bytes == 0 || bytes > NAME_PREFIX_BYTES_MAX {
            let expected = format!("1 to {NAME_PREFIX_BYTES_MAX} bytes");
            return Err(Error::invalid(
                Step::OpenDevice,
                "group name prefix",
                expected,
                bytes,
            ));
        }
        if i32::try_from(self.receive_buffer_bytes).is_err() {
            let (what, found) = ("receive buffer", self.receive_buffer_bytes);
            return Err(Error::invalid(
                Step::OpenDevice,
                what,
                "at most 2^31 - 1 bytes",
                found,
            ));
        }
        Ok(())
    }
}
