//! One error type for every provider. It has the step, the cause, both addresses and the
//! device; `errno` is derived from it here and nowhere else.

pub mod errno;
mod kind;
mod port_sharing;
mod private_data;
mod step;

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use portolan_wire::addr::Gid;
use portolan_wire::cm::{RejectReason, SidrStatus};

use crate::address::Address;
use crate::holder::Holder;

use errno::OsError;
use port_sharing::{Distrusts, NotTrusted, PortHolder, WhySilent};
pub use private_data::PrivateData;
pub use step::Step;

/// The result of a provider's command. With two parameters it is the standard library's.
///
/// Where the compiler cannot infer the error, as at the end of an async block, write `Ok::<_, portolan::Error>(value)`.
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// Why a step failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Cause {
    /// An argument is invalid.
    #[error("{what}: expected {expected}, found {found}")]
    InvalidArgument {
        /// The argument.
        what: &'static str,
        /// The valid values.
        expected: String,
        /// The value given.
        found: String,
    },
    /// The object's state does not permit the step.
    #[error("expected {expected}, found {found}")]
    InvalidState {
        /// The permitted states.
        expected: &'static str,
        /// The current state.
        found: &'static str,
    },
    /// The id, queue or other object does not exist.
    #[error("{0} does not exist")]
    NoSuchObject(&'static str),
    /// A local port is in use.
    #[error("address is in use{}", .holder.as_ref().map(|h| alloc::format!(" by {h}")).unwrap_or_default())]
    AddressInUse {
        /// The holder of the port, if known.
        holder: Option<String>,
    },
    /// All ephemeral ports, from which port 0 selects, are in use.
    #[error("all ports from {first} to {last} are in use")]
    PortsExhausted {
        /// First ephemeral port.
        first: u16,
        /// Last ephemeral port.
        last: u16,
    },
    /// No interface of this machine has the local address.
    #[error("no network interface has this address")]
    AddressNotAvailable,
    /// The id has not joined the group.
    #[error("the id is not a member of group {0}")]
    NotJoined(core::net::IpAddr),
    /// Binding a port below 1024 requires a privilege that this process lacks.
    #[error("port {port} is privileged: it needs CAP_NET_BIND_SERVICE")]
    PrivilegedPort {
        /// The requested port.
        port: u16,
    },
    /// A controlled Q_Key (highest bit set) requires a privilege that this process lacks (IBTA
    /// 3.5.3).
    #[error("Q_Key {qkey:#010x} is controlled: it needs CAP_NET_RAW")]
    ControlledQKey {
        /// The requested Q_Key.
        qkey: u32,
    },
    /// No RDMA device serves the address.
    #[error("no RDMA device serves it: {why}")]
    NoDevice {
        /// What was searched.
        why: String,
    },
    /// The RDMA device was removed, together with its network interface.
    #[error("the RDMA device was removed")]
    DeviceRemoved,
    /// A shared library that the provider needs is unusable.
    #[error("{library} cannot be used: {why}")]
    UnusableLibrary {
        /// Its name.
        library: String,
        /// Why it is unusable.
        why: String,
    },
    /// There is no route to the destination.
    #[error("no route to the destination")]
    NetworkUnreachable,
    /// The destination's link-layer address could not be found.
    #[error("the host does not answer on its link (ARP or neighbour discovery failed)")]
    HostUnreachable,
    /// The name or service is not known.
    #[error("{0}")]
    NameNotKnown(String),
    /// The name server failed temporarily.
    #[error("{0}; try again later")]
    NameTemporaryFailure(String),
    /// A deadline passed.
    #[error("timed out{}{}", if *.after_ms > 0 { alloc::format!(" after {after_ms} ms") } else { String::new() }, if *.retries > 0 { alloc::format!(" ({} retries)", .retries) } else { String::new() })]
    TimedOut {
        /// How long the step waited, in milliseconds; 0 if that is not known.
        after_ms: u64,
        /// Number of retransmissions.
        retries: u32,
    },
    /// The peer rejected the connection.
    #[error("rejected by the peer, reason {reason}{}", .private_data.clause())]
    Rejected {
        /// IBTA reject reason (12.6.7.2).
        reason: RejectReason,
        /// The peer's private data, zero-padded as on the wire.
        private_data: PrivateData,
    },
    /// The peer refused the service id resolution.
    #[error("service resolution failed, status {0}")]
    SidrRefused(SidrStatus),
    /// The peer ended the connection, or withdrew its request for one.
    #[error("the peer closed the connection")]
    Disconnected,
    /// This side ended the connection: it was closed, disconnected or dropped, or its id was.
    #[error("this end closed or dropped the connection")]
    Closed,
    /// The connection ended because the peer process died.
    #[error("the process at the other end died")]
    PeerDied,
    /// Newer connection requests displaced this one before the peer confirmed it.
    #[error("the peer did not confirm the connection before newer requests took its place")]
    Displaced,
    /// The connection ended because the peer did not answer keepalives; see the connection's
    /// options.
    #[error("the peer was silent for {after_ms} ms")]
    PeerSilent {
        /// How long the peer was silent, in milliseconds.
        after_ms: u64,
    },
    /// A limit was reached; nothing was lost.
    #[error("the limit of {limit} {what} is reached")]
    LimitReached {
        /// What is limited.
        what: &'static str,
        /// The limit.
        limit: u64,
    },
    /// The object is in use by others and cannot be destroyed.
    #[error("the {what} is in use by {count} {by}")]
    InUse {
        /// The object.
        what: &'static str,
        /// Which objects use it.
        by: &'static str,
        /// Number of those objects.
        count: u64,
    },
    /// Nothing is available; try again when the descriptor is readable.
    #[error("would block")]
    WouldBlock,
    /// The memory is not mapped, or not with the requested rights.
    #[error("memory {addr:#x}+{len} is not mapped with the requested rights")]
    BadMemory {
        /// First byte.
        addr: u64,
        /// Length, in bytes.
        len: u64,
    },
    /// A write exceeds the peer's memory that it targets; nothing was sent.
    #[error(
        "a write of {length} bytes does not fit into the {available} bytes of the peer's memory at {addr:#x}"
    )]
    BeyondRemoteMemory {
        /// Start of the write in the peer's memory.
        addr: u64,
        /// Length of the offered memory from there on, in bytes.
        available: u64,
        /// Length of the write, in bytes.
        length: u64,
    },
    /// The peer's memory was not offered with the right that a request needs; nothing was sent.
    #[error(
        "{what} needs the right {needed} to the peer's {length} bytes at {addr:#x}, which are offered with {granted}"
    )]
    RemoteRightMissing {
        /// The request: "a write", "a read" or "an atomic".
        what: &'static str,
        /// The right that it needs.
        needed: crate::verbs::Access,
        /// The rights that the offer names.
        granted: crate::verbs::Access,
        /// Start of the offered memory.
        addr: u64,
        /// Length of the offered memory, in bytes.
        length: u64,
    },
    /// The peer has no receive posted for a message, which waits for one; nothing is lost.
    #[error("the peer has had no receive posted for {for_ms} ms: the message waits for one")]
    PeerNotReady {
        /// How long the message has waited, in milliseconds.
        for_ms: u64,
    },
    /// A work request completed with an error.
    #[error("work request failed: {0}")]
    WorkFailed(crate::verbs::WcStatus),
    /// The connection ended because this side refused a request of the peer for good.
    #[error("a request of the peer was refused: {0}")]
    PeerRequestRefused(crate::verbs::Refusal),
    /// UDP port 4791 belongs to a program other than Portolan, such as the kernel's rdma_rxe.
    #[error("UDP port {port} is held by {}", PortHolder(.holder.as_deref()))]
    PortOwnedElsewhere {
        /// The UDP port.
        port: u16,
        /// The process that holds the port; `None` if no such process is visible.
        holder: Option<Box<Holder>>,
    },
    /// The group of processes that shares the UDP port refused this one.
    #[error("the processes sharing UDP port 4791 refused this one: {0}")]
    GroupRefused(String),
    /// An untrusted user's process holds the name by which processes share the UDP port.
    #[error("{holder} {}", NotTrusted { holder, own_uid: *.own_uid, listens: *.listens })]
    GroupNotTrusted {
        /// The process that holds the name.
        holder: Box<Holder>,
        /// This process's effective user.
        own_uid: u32,
        /// Whether that process acts as the leader of a group.
        listens: bool,
    },
    /// The leader of the processes that share the UDP port does not trust this process's user.
    #[error("{leader} {}", Distrusts { own_uid: *.own_uid, seen_uid: *.seen_uid })]
    GroupDistrusts {
        /// The leader.
        leader: Box<Holder>,
        /// This process's effective user.
        own_uid: u32,
        /// The same user as the leader sees it; the number differs across user namespaces.
        seen_uid: u32,
    },
    /// All places for processes that share the UDP port are taken, some of them by untrusted users.
    #[error(
        "{taken} of the {places} places of processes that share UDP port 4791 are held by users who \
         are not trusted, one of them by {holder}; end those, or run in another network namespace"
    )]
    GroupPlacesTaken {
        /// One of the untrusted processes.
        holder: Box<Holder>,
        /// Number of places held by untrusted users.
        taken: usize,
        /// Total number of places.
        places: usize,
    },
    /// The leader of the processes that share the UDP port does not answer.
    #[error(
        "process {pid}, which leads those that share UDP port 4791, does not answer within \
         {after_ms} ms{}", WhySilent { stopped: *.stopped, open_files: *.open_files }
    )]
    GroupSilent {
        /// Its process id in this PID namespace.
        pid: u32,
        /// Whether it is stopped.
        stopped: bool,
        /// Its limit of open files, if it has reached it.
        open_files: Option<u64>,
        /// How long this process waited, in milliseconds.
        after_ms: u64,
    },
    /// The limit of open files of this process or its user is reached.
    #[error(
        "{call}: {}. The hard limit of open files (RLIMIT_NOFILE) is {limit}, and it bounds {bounded}: raise it \
         (`ulimit -Hn`, or LimitNOFILE= of a service)",
        OsError(*.errno)
    )]
    DescriptorLimit {
        /// The system call.
        call: &'static str,
        /// Its errno: `EMFILE`, or `ETOOMANYREFS` when passing descriptors.
        errno: i32,
        /// The hard limit; the soft limit was already raised to it.
        limit: u64,
        /// What the limit counts.
        bounded: &'static str,
    },
    /// The provider does not support the feature.
    #[error("{0} is not supported here")]
    Unsupported(&'static str),
    /// A system call failed.
    #[error("{call}: {}", OsError(*.errno))]
    Os {
        /// The system call.
        call: &'static str,
        /// Its errno.
        errno: i32,
    },
}

/// Where an error happened: both endpoints and the device, as far as known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Context {
    /// Local address.
    pub local: Option<Address>,
    /// Remote address.
    pub remote: Option<Address>,
    /// RDMA device name.
    pub device: Option<String>,
    /// Source GID.
    pub gid: Option<Gid>,
    /// The connection's `receive_size` in bytes, if a longer message broke it.
    pub receive_size: Option<usize>,
    /// Errors of earlier attempts, oldest first, if several were made; this error is from the last one. Each has those
    /// before it attached, too.
    pub earlier: Vec<Error>,
}

/// An error of a provider or of the library: step, cause and context.
///
/// `Display` prints one line: step, cause, addresses and device. [`source`](core::error::Error::source) is the attempt
/// before this one, if there were several; `{:#}` and `Debug` print those, too. It converts into
/// a `std::io::Error`, whose `get_ref` and a downcast get it back.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Error {
    /// The failed step.
    pub step: Step,
    /// Why it failed.
    pub cause: Cause,
    /// Both addresses and the device, as far as known.
    pub context: Box<Context>,
}

impl Error {
    /// Creates an error without context.
    pub fn new(step: Step, cause: Cause) -> Self {
        Self {
            step,
            cause,
            context: Box::default(),
        }
    }

    /// The same error as one of another step.
    #[must_use]
    pub fn at(mut self, step: Step) -> Self {
        self.step = step;
        self
    }

    /// Adds both addresses; keeps those already present.
    #[must_use]
    pub fn between(mut self, local: Option<Address>, remote: Option<Address>) -> Self {
        self.context.local = self.context.local.or(local);
        self.context.remote = self.context.remote.or(remote);
        self
    }

    /// Adds the device and its source GID; keeps those already present.
    #[must_use]
    pub fn on(mut self, device: &str, gid: Option<Gid>) -> Self {
        if self.context.device.is_none() {
            self.context.device = Some(device.into());
        }
        self.context.gid = self.context.gid.or(gid);
        self
    }

    /// Attaches the errors of earlier attempts, oldest first.
    #[must_use]
    pub fn after(mut self, earlier: Vec<Self>) -> Self {
        self.context.earlier.clear();
        for mut error in earlier {
            error.context.earlier.clone_from(&self.context.earlier);
            self.context.earlier.push(error);
        }
        self
    }

    /// Creates a [`Cause::InvalidArgument`] from printable values.
    pub fn invalid(
        step: Step,
        what: &'static str,
        expected: impl fmt::Display,
        found: impl fmt::Display,
    ) -> Self {
        use alloc::string::ToString;
        let (expected, found) = (expected.to_string(), found.to_string());
        Self::new(
            step,
            Cause::InvalidArgument {
                what,
                expected,
                found,
            },
        )
    }

    /// The errno (positive) that the rdma_cm or the verbs report for this error on Linux.
    pub fn errno(&self) -> i32 {
        match self.cause {
            // For a removed device, the rdma_cm reports ENXIO and uverbs EIO.
            Cause::DeviceRemoved if self.step.is_verb() => errno::EIO,
            _ => self.cause.errno(),
        }
    }
}

impl Cause {
    /// The errno (positive) for this cause on Linux.
    pub fn errno(&self) -> i32 {
        use errno::*;
        match self {
            Self::InvalidArgument { .. }
            | Self::InvalidState { .. }
            | Self::BeyondRemoteMemory { .. } => EINVAL,
            Self::NoSuchObject(_) | Self::NameNotKnown(_) => ENOENT,
            Self::AddressInUse { .. } | Self::PortOwnedElsewhere { .. } => EADDRINUSE,
            Self::AddressNotAvailable | Self::PortsExhausted { .. } | Self::NotJoined(_) => {
                EADDRNOTAVAIL
            }
            Self::PrivilegedPort { .. }
            | Self::RemoteRightMissing { .. }
            | Self::GroupRefused(_)
            | Self::GroupNotTrusted { .. }
            | Self::GroupDistrusts { .. }
            | Self::GroupPlacesTaken { .. } => EACCES,
            Self::NoDevice { .. } | Self::UnusableLibrary { .. } => ENODEV,
            Self::ControlledQKey { .. } => EPERM,
            Self::DeviceRemoved => ENXIO,
            Self::NetworkUnreachable => ENETUNREACH,
            Self::HostUnreachable => EHOSTUNREACH,
            Self::NameTemporaryFailure(_) | Self::WouldBlock | Self::PeerNotReady { .. } => EAGAIN,
            Self::TimedOut { .. } | Self::GroupSilent { .. } | Self::PeerSilent { .. } => ETIMEDOUT,
            Self::Rejected { .. } | Self::SidrRefused(_) => ECONNREFUSED,
            Self::Disconnected | Self::Closed => ENOTCONN,
            Self::InUse { .. } => EBUSY,
            Self::PeerDied => ECONNRESET,
            Self::Displaced | Self::PeerRequestRefused(_) => ECONNABORTED,
            Self::LimitReached { .. } => ENOMEM,
            Self::BadMemory { .. } => EFAULT,
            Self::WorkFailed(_) => EIO,
            Self::Unsupported(_) => EOPNOTSUPP,
            Self::Os { errno, .. } | Self::DescriptorLimit { errno, .. } => *errno,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.step, self.cause)?;
        let context = &self.context;
        let mut separator = " [";
        let mut part = |f: &mut fmt::Formatter<'_>, name: &str, value: &dyn fmt::Display| {
            let written = write!(f, "{separator}{name} {value}");
            separator = ", ";
            written
        };
        if let Some(local) = &context.local {
            part(f, "local", local)?;
        }
        if let Some(remote) = &context.remote {
            part(f, "remote", remote)?;
        }
        if let Some(device) = &context.device {
            part(f, "device", device)?;
        }
        if let Some(gid) = &context.gid {
            part(f, "gid", gid)?;
        }
        if let Some(size) = &context.receive_size {
            part(f, "receive_size", size)?;
        }
        if separator == ", " {
            f.write_str("]")?;
        }
        match context.earlier.last() {
            Some(before) if f.alternate() => write!(f, "; before that: {before:#}"),
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:#}")
    }
}

impl core::error::Error for Error {
    /// The error of the attempt before this one, if several were made. The cause is in the text already.
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        let before = self.context.earlier.last()?;
        Some(before)
    }
}
