//! Settings of a group, and the bounds that are not settings.

use std::time::Duration;

use portolan_provider::{Error, Result, Step};

use super::trust::Trust;

/// The UDP port of RoCEv2 (IBTA annex A17).
pub const ROCE_PORT: u16 = 4791;

/// Largest UDP payload the group forwards, bytes: the largest path MTU (4096) with every transport
/// header and trailer.
pub const DATAGRAM_BYTES_MAX: usize = 4352;
/// Largest payload of a request or of its response, bytes.
pub const REQUEST_BYTES_MAX: usize = 4096;
/// Requests of one process that may wait for the coordinator's answer.
pub const REQUESTS_MAX: usize = 1024;
/// Registrations that one process may replay to a new coordinator.
pub const REPLAYS_MAX: usize = 65_536;
/// Parts of at most [`REQUEST_BYTES_MAX`] bytes that a report to an observer may have.
pub const REPORT_PARTS_MAX: usize = 512;
/// Connections to the coordinator that only look at the group.
pub(super) const OBSERVERS_MAX: usize = 8;
/// How long one of them may last.
pub(super) const OBSERVER_TIMEOUT: Duration = Duration::from_secs(30);
/// Forwarded datagrams that may wait for [`PortGroup::process`](super::PortGroup::process).
pub(super) const INBOX_DATAGRAMS_MAX: usize = 4096;
/// Connections to the coordinator that have not said hello yet.
pub(super) const STRANGERS_MAX: usize = 64;
/// Time a connection has to say hello.
pub(super) const HELLO_TIMEOUT: Duration = Duration::from_secs(1);
/// Time a member waits for the coordinator's welcome before it tries again.
pub(super) const WELCOME_TIMEOUT: Duration = Duration::from_millis(500);
/// Time a new coordinator waits for the others to come back and register everything again before it answers new
/// requests: a process whose name is still held lives, and may have claimed the same. Those that are found
/// dead are not waited for.
pub(super) const REPLAY_GRACE: Duration = Duration::from_secs(2);
/// Time between attempts to clear a block whose process left the group but still lives.
pub(super) const RETIRE_INTERVAL: Duration = Duration::from_millis(100);
/// First and longest pause between attempts to reach or to become the coordinator.
pub(super) const BACKOFF_MIN: Duration = Duration::from_millis(1);
/// See [`BACKOFF_MIN`].
pub(super) const BACKOFF_MAX: Duration = Duration::from_millis(50);
/// Descriptors looked at in one turn.
pub(super) const EVENTS_PER_TURN: usize = 64;
/// Messages read from one connection in one turn.
pub(super) const MESSAGES_PER_TURN: usize = 64;
/// Connections accepted in one turn.
pub(super) const ACCEPTS_PER_TURN: usize = 16;
/// Batches of datagrams read from one of block 0's sockets in one turn.
pub(super) const BATCHES_PER_TURN: usize = 8;
/// Batches read from one of them before a death is reported: the last datagrams of the dead may be among them.
pub(super) const BATCHES_BEFORE_DEATH: usize = 256;
/// Datagrams that a new coordinator keeps for members on their way back to it.
pub(super) const KEPT_DATAGRAMS_MAX: usize = 256;
/// Socket buffer of a connection between a member and the coordinator, bytes (as far as `wmem_max` allows).
pub(super) const CONNECTION_BUFFER_BYTES: usize = 4 << 20;
/// Longest [`GroupConfig::name_prefix`]: the name has to fit into `sun_path` (108 bytes).
const NAME_PREFIX_BYTES_MAX: usize = 80;

/// How a process takes part in sharing a UDP port.
#[derive(Clone, Debug)]
pub struct GroupConfig {
    /// The UDP port, 4791 unless a test needs another.
    pub port: u16,
    /// Which other users' processes may be in the same group.
    pub trust: Trust,
    /// How long [`PortGroup::join`](super::PortGroup::join) tries.
    pub join_timeout: Duration,
    /// How long the port may be taken with no answer at the group's name before it is held to
    /// be somebody else's. An election is over in a few milliseconds.
    pub foreign_port_patience: Duration,
    /// First part of the abstract socket names, at most 80 bytes. Groups are apart if it differs.
    pub name_prefix: String,
    /// Receive buffer asked for on each UDP socket in use, bytes. Without CAP_NET_ADMIN the kernel
    /// gives no more than `net.core.rmem_max`.
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
