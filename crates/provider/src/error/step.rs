//! The steps that an error can name.

crate::enum_table! {
    /// What was being done when an error arose.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[non_exhaustive]
    #[allow(missing_docs, reason = "each variant is the command of its name")]
    pub enum Step {
        OpenDevice => "open device",
        OpenChannel => "open event channel",
        CreateId => "create id",
        DestroyId => "destroy id",
        Bind => "bind",
        ResolveName => "resolve name",
        ResolveAddress => "resolve address",
        ResolveRoute => "resolve route",
        Listen => "listen",
        Connect => "connect",
        Accept => "accept",
        Reject => "reject",
        Disconnect => "disconnect",
        Query => "query",
        SetOption => "set option",
        InitQpAttr => "initialize queue pair attributes",
        Notify => "notify",
        JoinMulticast => "join multicast",
        LeaveMulticast => "leave multicast",
        Event => "take event",
        AllocPd => "allocate protection domain",
        RegisterMemory => "register memory",
        CreateCq => "create completion queue",
        CreateQp => "create queue pair",
        ModifyQp => "modify queue pair",
        CreateAh => "create address handle",
        AttachMulticast => "attach to multicast group",
        DetachMulticast => "detach from multicast group",
        CreateSrq => "create shared receive queue",
        ModifySrq => "modify shared receive queue",
        AllocMw => "allocate memory window",
        BindMw => "bind memory window",
        ResizeCq => "resize completion queue",
        PostSend => "post send",
        PostReceive => "post receive",
        PollCq => "poll completion queue",
        Transfer => "transfer",
        Receive => "receive",
        Watch => "watch descriptor",
    }
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
