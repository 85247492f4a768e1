//! One error type for every provider. It says the step, the cause, both addresses and the
//! device; `errno` is derived from it here and nowhere else.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use portolan_wire::addr::Gid;
use portolan_wire::cm::{RejectReason, SidrStatus};

use crate::address::Address;

/// The result of a provider's command.
pub type Result<T> = core::result::Result<T, Error>;

/// What was being done when an error arose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each variant is the command of its name")]
pub enum Step {
    OpenDevice,
    OpenChannel,
    CreateId,
    DestroyId,
    Bind,
    ResolveName,
    ResolveAddress,
    ResolveRoute,
    Listen,
    Connect,
    Accept,
    Reject,
    Disconnect,
    Query,
    SetOption,
    InitQpAttr,
    Notify,
    JoinMulticast,
    LeaveMulticast,
    Event,
    AllocPd,
    RegisterMemory,
    CreateCq,
    CreateQp,
    ModifyQp,
    CreateAh,
    AttachMulticast,
    DetachMulticast,
    CreateSrq,
    ModifySrq,
    AllocMw,
    BindMw,
    ResizeCq,
    PostSend,
    PostReceive,
    PollCq,
    Transfer,
}

impl Step {
    /// Whether it is one of the verbs, rather than a command of the rdma_cm.
    const fn is_verb(self) -> bool {
        matches!(
            self,
            Self::OpenDevice
                | Self::AllocPd
                | Self::RegisterMemory
                | Self::CreateCq
                | Self::CreateQp
                | Self::ModifyQp
                | Self::CreateAh
                | Self::AttachMulticast
                | Self::DetachMulticast
                | Self::CreateSrq
                | Self::ModifySrq
                | Self::AllocMw
                | Self::BindMw
                | Self::ResizeCq
                | Self::PostSend
                | Self::PostReceive
                | Self::PollCq
        )
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OpenDevice => "open device",
            Self::OpenChannel => "open event channel",
            Self::CreateId => "create id",
            Self::DestroyId => "destroy id",
            Self::Bind => "bind",
            Self::ResolveName => "resolve name",
            Self::ResolveAddress => "resolve address",
            Self::ResolveRoute => "resolve route",
            Self::Listen => "listen",
            Self::Connect => "connect",
            Self::Accept => "accept",
            Self::Reject => "reject",
            Self::Disconnect => "disconnect",
            Self::Query => "query",
            Self::SetOption => "set option",
            Self::InitQpAttr => "initialize queue pair attributes",
            Self::Notify => "notify",
            Self::JoinMulticast => "join multicast",
            Self::LeaveMulticast => "leave multicast",
            Self::Event => "take event",
            Self::AllocPd => "allocate protection domain",
            Self::RegisterMemory => "register memory",
            Self::CreateCq => "create completion queue",
            Self::CreateQp => "create queue pair",
            Self::ModifyQp => "modify queue pair",
            Self::CreateAh => "create address handle",
            Self::AttachMulticast => "attach to multicast group",
            Self::DetachMulticast => "detach from multicast group",
            Self::CreateSrq => "create shared receive queue",
            Self::ModifySrq => "modify shared receive queue",
            Self::AllocMw => "allocate memory window",
            Self::BindMw => "bind memory window",
            Self::ResizeCq => "resize completion queue",
            Self::PostSend => "post send",
            Self::PostReceive => "post receive",
            Self::PollCq => "poll completion queue",
            Self::Transfer => "transfer",
        })
    }
}

/// Why a step failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Cause {
    /// An argument is out of its range.
    #[error("{what}: expected {expected}, found {found}")]
    InvalidArgument {
        /// The argument.
        what: &'static str,
        /// What it may be.
        expected: String,
        /// What it was.
        found: String,
    },
    /// The object's state does not allow the step.
    #[error("needs state {expected}, is in {found}")]
    InvalidState {
        /// The states that allow it.
        expected: &'static str,
        /// The state it is in.
        found: &'static str,
    },
    /// The id, queue or other object does not exist (any more).
    #[error("{0} does not exist")]
    NoSuchObject(&'static str),
    /// A local port is taken.
    #[error("address is in use{}", .holder.as_ref().map(|h| alloc::format!(" by {h}")).unwrap_or_default())]
    AddressInUse {
        /// Who holds it, where that is known.
        holder: Option<String>,
    },
    /// Every port that could be given for port 0 is taken.
    #[error("every port from {first} to {last} is taken")]
    PortsExhausted {
        /// First of the ephemeral ports.
        first: u16,
        /// Last of them.
        last: u16,
    },
    /// The local address is on no interface of this machine.
    #[error("no network interface has this address")]
    AddressNotAvailable,
    /// The id has not joined the group.
    #[error("the id is no member of group {0}")]
    NotJoined(core::net::IpAddr),
    /// A port below 1024 without the right to bind it.
    #[error("port {port} is privileged: it needs CAP_NET_BIND_SERVICE")]
    PrivilegedPort {
        /// The port asked for.
        port: u16,
    },
    /// A controlled Q_Key, one with the highest bit set, without the right to have it (IBTA 3.5.3).
    #[error("Q_Key {qkey:#010x} is a controlled one: it needs CAP_NET_RAW")]
    ControlledQKey {
        /// The Q_Key asked for.
        qkey: u32,
    },
    /// No RDMA device serves the address.
    #[error("no RDMA device serves it: {why}")]
    NoDevice {
        /// What was looked for.
        why: String,
    },
    /// The RDMA device is gone, with the network interface behind it.
    #[error("the RDMA device was removed")]
    DeviceRemoved,
    /// A shared library that the provider rests on cannot be used.
    #[error("{library} cannot be used: {why}")]
    UnusableLibrary {
        /// Its name.
        library: String,
        /// What is wrong with it.
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
    /// The name server failed for the moment.
    #[error("{0}; try again later")]
    NameTemporaryFailure(String),
    /// A deadline passed.
    #[error("no answer within {after_ms} ms{}", if *.retries > 0 { alloc::format!(" ({} retries)", .retries) } else { String::new() })]
    TimedOut {
        /// How long was waited, milliseconds.
        after_ms: u64,
        /// How often the message was sent again.
        retries: u32,
    },
    /// The peer rejected the connection.
    #[error("rejected by the peer, reason {reason}")]
    Rejected {
        /// IBTA reject reason (12.6.7.2).
        reason: RejectReason,
        /// The peer's private data, zero-padded as the wire carries it.
        private_data: Vec<u8>,
    },
    /// The peer's service resolution answered with a failure.
    #[error("service resolution failed, status {0}")]
    SidrRefused(SidrStatus),
    /// The connection ended while the step was under way.
    #[error("the connection is closed")]
    Disconnected,
    /// The process at the other end died, and so the connection ended.
    #[error("the process at the other end died")]
    PeerDied,
    /// The peer gave no sign of life, asked for it as the connection's options say, and so the
    /// connection ended.
    #[error("the peer has given no sign of life for {after_ms} ms")]
    PeerSilent {
        /// For how long, milliseconds.
        after_ms: u64,
    },
    /// A bound was reached; nothing was lost.
    #[error("the limit of {limit} {what} is reached")]
    LimitReached {
        /// What is bounded.
        what: &'static str,
        /// The bound.
        limit: u64,
    },
    /// The object cannot go while others rest on it.
    #[error("the {what} is in use by {count} {by}")]
    InUse {
        /// The object.
        what: &'static str,
        /// What rests on it.
        by: &'static str,
        /// How many of them.
        count: u64,
    },
    /// Nothing to take now; ask again when the descriptor is readable.
    #[error("would block")]
    WouldBlock,
    /// The memory is not mapped, or not with the rights asked for.
    #[error("memory {addr:#x}+{len} is not mapped with the rights asked for")]
    BadMemory {
        /// First byte.
        addr: u64,
        /// Bytes.
        len: u64,
    },
    /// A work request ended with an error completion.
    #[error("work request failed: {0}")]
    WorkFailed(crate::verbs::WcStatus),
    /// UDP port 4791 belongs to something that is not Portolan, such as the kernel's rdma_rxe.
    #[error(
        "UDP port {port} is held by something else (the kernel's rdma_rxe?); remove its link with \
         `rdma link del` or run in another network namespace"
    )]
    PortOwnedElsewhere {
        /// The UDP port.
        port: u16,
    },
    /// The group of processes that shares the UDP port refused this one.
    #[error("the processes sharing UDP port 4791 refused this one: {0}")]
    GroupRefused(String),
    /// The process that answers for all that share the UDP port does not.
    #[error(
        "process {pid}, which leads those that share UDP port 4791, does not answer within \
         {after_ms} ms{}", if *.stopped { ": it is stopped (SIGSTOP, a debugger)" } else { "" }
    )]
    GroupSilent {
        /// Its process id as seen from here.
        pid: u32,
        /// Whether it is stopped.
        stopped: bool,
        /// How long was waited, milliseconds.
        after_ms: u64,
    },
    /// The feature is not offered by this provider.
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

/// Prints an errno with its number; with `std`, in words too.
struct OsError(i32);

impl fmt::Display for OsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        #[cfg(feature = "std")]
        return std::io::Error::from_raw_os_error(self.0).fmt(f);
        #[cfg(not(feature = "std"))]
        write!(f, "errno {}", self.0)
    }
}

/// Where an error happened: what is known of both ends and of the device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Context {
    /// Local address.
    pub local: Option<Address>,
    /// Remote address.
    pub remote: Option<Address>,
    /// RDMA device name.
    pub device: Option<String>,
    /// Source GID.
    pub gid: Option<Gid>,
    /// What failed before, where several ways were tried; this error is the last one's.
    pub earlier: Vec<Error>,
}

/// An error of a provider or of the library: step, cause and context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// What was being done.
    pub step: Step,
    /// Why it failed.
    pub cause: Cause,
    /// Both addresses and the device, as far as they are known.
    pub context: Box<Context>,
}

impl Error {
    /// An error with no context yet.
    pub fn new(step: Step, cause: Cause) -> Self {
        Self {
            step,
            cause,
            context: Box::default(),
        }
    }

    /// Adds both addresses; one already present stays.
    #[must_use]
    pub fn between(mut self, local: Option<Address>, remote: Option<Address>) -> Self {
        self.context.local = self.context.local.or(local);
        self.context.remote = self.context.remote.or(remote);
        self
    }

    /// Adds the device and its source GID; those already present stay.
    #[must_use]
    pub fn on(mut self, device: &str, gid: Option<Gid>) -> Self {
        if self.context.device.is_none() {
            self.context.device = Some(device.into());
        }
        self.context.gid = self.context.gid.or(gid);
        self
    }

    /// The last of several failures, after the others.
    #[must_use]
    pub fn after(mut self, earlier: Vec<Self>) -> Self {
        self.context.earlier = earlier;
        self
    }

    /// An [`Cause::InvalidArgument`] from anything that prints.
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

    /// Whether the step merely found nothing to do.
    pub fn is_would_block(&self) -> bool {
        matches!(self.cause, Cause::WouldBlock)
    }

    /// Linux's errno for this error (positive), as the rdma_cm and the verbs report it.
    pub fn errno(&self) -> i32 {
        match self.cause {
            // The rdma_cm says ENXIO of an id whose device is gone, uverbs EIO of everything else.
            Cause::DeviceRemoved if self.step.is_verb() => errno::EIO,
            _ => self.cause.errno(),
        }
    }
}

impl Cause {
    /// Linux's errno for this cause (positive).
    pub fn errno(&self) -> i32 {
        use errno::*;
        match self {
            Self::InvalidArgument { .. } | Self::InvalidState { .. } => EINVAL,
            Self::NoSuchObject(_) | Self::NameNotKnown(_) => ENOENT,
            Self::AddressInUse { .. } | Self::PortOwnedElsewhere { .. } => EADDRINUSE,
            Self::AddressNotAvailable | Self::PortsExhausted { .. } | Self::NotJoined(_) => {
                EADDRNOTAVAIL
            }
            Self::PrivilegedPort { .. } | Self::GroupRefused(_) => EACCES,
            Self::NoDevice { .. } | Self::UnusableLibrary { .. } => ENODEV,
            Self::ControlledQKey { .. } => EPERM,
            Self::DeviceRemoved => ENXIO,
            Self::NetworkUnreachable => ENETUNREACH,
            Self::HostUnreachable => EHOSTUNREACH,
            Self::NameTemporaryFailure(_) | Self::WouldBlock => EAGAIN,
            Self::TimedOut { .. } | Self::GroupSilent { .. } | Self::PeerSilent { .. } => ETIMEDOUT,
            Self::Rejected { .. } | Self::SidrRefused(_) => ECONNREFUSED,
            Self::Disconnected => ENOTCONN,
            Self::InUse { .. } => EBUSY,
            Self::PeerDied => ECONNRESET,
            Self::LimitReached { .. } => ENOMEM,
            Self::BadMemory { .. } => EFAULT,
            Self::WorkFailed(_) => EIO,
            Self::Unsupported(_) => EOPNOTSUPP,
            Self::Os { errno, .. } => *errno,
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
        if separator == ", " {
            f.write_str("]")?;
        }
        let earlier = context.earlier.iter();
        let lead = core::iter::once("; before that: ").chain(core::iter::repeat("; "));
        for (error, lead) in earlier.zip(lead) {
            write!(f, "{lead}{error}")?;
        }
        Ok(())
    }
}

impl core::error::Error for Error {}

/// Linux's generic errno values (`include/uapi/asm-generic/errno*.h`), for crates without libc.
#[allow(missing_docs, reason = "each is the errno of its name")]
pub mod errno {
    pub const EPERM: i32 = 1;
    pub const ENOENT: i32 = 2;
    pub const EINTR: i32 = 4;
    pub const EIO: i32 = 5;
    pub const ENXIO: i32 = 6;
    pub const EAGAIN: i32 = 11;
    pub const ENOMEM: i32 = 12;
    pub const EACCES: i32 = 13;
    pub const EFAULT: i32 = 14;
    pub const EBUSY: i32 = 16;
    pub const ENODEV: i32 = 19;
    pub const EINVAL: i32 = 22;
    pub const EMFILE: i32 = 24;
    pub const ENOSYS: i32 = 38;
    pub const EPROTO: i32 = 71;
    pub const EOPNOTSUPP: i32 = 95;
    pub const EADDRINUSE: i32 = 98;
    pub const EADDRNOTAVAIL: i32 = 99;
    pub const ENETUNREACH: i32 = 101;
    pub const ECONNRESET: i32 = 104;
    pub const ENOBUFS: i32 = 105;
    pub const ENOTCONN: i32 = 107;
    pub const ETIMEDOUT: i32 = 110;
    pub const ECONNREFUSED: i32 = 111;
    pub const EHOSTUNREACH: i32 = 113;
}
