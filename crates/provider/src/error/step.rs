//! The steps that an error can name.

use core::fmt;

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
    Receive,
    Watch,
}

impl Step {
    /// Whether it is one of the verbs, rather than a command of the rdma_cm.
    pub(super) const fn is_verb(self) -> bool {
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
            Self::Receive => "receive",
            Self::Watch => "watch descriptor",
        })
    }
}
