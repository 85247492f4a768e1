//! What a provider implements: rdma_cm commands on an event channel, and verbs.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use portolan_wire::addr::{Gid, Qpn};
use portolan_wire::cm::RejectReason;

use crate::cm::{
    CmEvent, ConnParam, Ece, EventType, IdAddresses, IdNumber, IdOption, JoinKind,
    MembershipNumber, PathRecord, Service, UserId,
};
use crate::error::{Cause, Error, Result, Step};
use crate::verbs::{
    Access, Ah, AhAttr, AsyncEvent, Counter, Cqn, DeviceAttr, GidEntry, MwBind, MwType, PortAttr,
    QpAttr, QpAttrMask, QpInit, QpState, RecvWr, SendFlags, SendWr, SrqAttr, Srqn, WorkCompletion,
};

/// A provider: devices, and event channels that carry the rdma_cm's commands.
pub trait Provider: Send + Sync + std::fmt::Debug {
    /// `"software"` or `"kernel"`.
    fn name(&self) -> &'static str;
    /// The devices there are now, by index.
    fn devices(&self) -> Result<Vec<Arc<dyn Device>>>;
    /// The device with this number ([`Device::index`]); `None` if there is none.
    fn device(&self, index: u32) -> Result<Option<Arc<dyn Device>>> {
        let mut devices = self.devices()?.into_iter();
        Ok(devices.find(|device| device.index() == index))
    }
    /// Opens an event channel (`open("/dev/infiniband/rdma_cm")`).
    fn open_channel(&self) -> Result<Arc<dyn CmChannel>>;
    /// The device and GID index that serve a local IP address.
    fn device_of(&self, ip: IpAddr) -> Result<(Arc<dyn Device>, u32)>;
}

/// An event channel and the commands of the rdma_cm on it; one method for each command of
/// `enum rdma_ucm_cmd` (`rdma_user_cm.h`). Dropping it destroys its ids.
pub trait CmChannel: Send + Sync + std::fmt::Debug {
    /// Readable while an event waits; for poll and epoll, and for `O_NONBLOCK` (fcntl(2)), which
    /// `wait_event` heeds.
    fn as_fd(&self) -> BorrowedFd<'_>;
    /// Takes the next event; `WouldBlock` when there is none.
    fn take_event(&self) -> Result<CmEvent>;
    /// Waits for an event, until `timeout` if there is one (`TimedOut`). Without one it waits for as
    /// long as it takes, unless the descriptor is non-blocking (`WouldBlock`).
    fn wait_event(&self, timeout: Option<Duration>) -> Result<CmEvent>;
    /// Waits until an event is there to be taken, for as long as it takes, and takes none. May return early.
    ///
    /// # Errors
    /// `WouldBlock` if the descriptor is non-blocking; `Os` with `EINTR` where the handler of a signal ran that
    /// does not restart system calls (`SA_RESTART` of sigaction(2)).
    fn await_event(&self) -> Result<()>;

    /// CREATE_ID.
    fn create_id(&self, uid: UserId, service: Service) -> Result<IdNumber>;
    /// DESTROY_ID: the number of events reported for the id. Never waits.
    fn destroy_id(&self, id: IdNumber) -> Result<u32>;
    /// BIND: port 0 takes a free one.
    fn bind(&self, id: IdNumber, local: SocketAddr) -> Result<()>;
    /// RESOLVE_ADDR: ends in `AddrResolved` or `AddrError`.
    fn resolve_addr(
        &self,
        id: IdNumber,
        source: Option<SocketAddr>,
        destination: SocketAddr,
        timeout: Duration,
    ) -> Result<()>;
    /// RESOLVE_ROUTE: ends in `RouteResolved` or `RouteError`.
    fn resolve_route(&self, id: IdNumber, timeout: Duration) -> Result<()>;
    /// QUERY for addresses and GIDs.
    fn addresses(&self, id: IdNumber) -> Result<IdAddresses>;
    /// The device's number among the addresses, for who needs no more of them.
    fn device_index(&self, id: IdNumber) -> Result<Option<u32>> {
        Ok(self.addresses(id)?.device_index)
    }
    /// QUERY for paths.
    fn paths(&self, id: IdNumber) -> Result<Vec<PathRecord>>;
    /// LISTEN.
    fn listen(&self, id: IdNumber, backlog: i32) -> Result<()>;
    /// CONNECT.
    fn connect(&self, id: IdNumber, param: &ConnParam, ece: Ece) -> Result<()>;
    /// ACCEPT with parameters: answers a connection request. `uid` is the child's name from now on.
    fn accept(&self, id: IdNumber, uid: UserId, param: &ConnParam, ece: Ece) -> Result<()>;
    /// ACCEPT without parameters: completes an active connection by RTU (`rdma_establish(3)`).
    fn establish(&self, id: IdNumber) -> Result<()>;
    /// REJECT.
    fn reject(&self, id: IdNumber, reason: RejectReason, private_data: &[u8]) -> Result<()>;
    /// DISCONNECT.
    fn disconnect(&self, id: IdNumber) -> Result<()>;
    /// INIT_QP_ATTR: what to modify a queue pair with to reach `state`.
    fn init_qp_attr(&self, id: IdNumber, state: QpState) -> Result<(QpAttr, QpAttrMask)>;
    /// MIGRATE_ID: moves an id of `from` here with its queued events, in order; the number of
    /// events that `from` had already given for it.
    fn migrate_id(&self, from: &dyn CmChannel, id: IdNumber) -> Result<u32>;
    /// SET_OPTION.
    fn set_option(&self, id: IdNumber, option: IdOption) -> Result<()>;
    /// NOTIFY: a queue pair saw data before the connection was established.
    fn notify_established(&self, id: IdNumber) -> Result<()>;
    /// JOIN_MCAST: ends in `MulticastJoin` or `MulticastError`, which bear the name `uid`. The port of
    /// `group` means nothing.
    fn join_multicast(
        &self,
        id: IdNumber,
        uid: UserId,
        group: SocketAddr,
        kind: JoinKind,
    ) -> Result<MembershipNumber>;
    /// LEAVE_MCAST: the number of events that were taken of the membership; those that wait are gone.
    fn leave_multicast(&self, id: IdNumber, membership: MembershipNumber) -> Result<u32>;
    /// WRITE_CM_EVENT: queues an event for the id. `User` is the application's; `AddrinfoResolved` and
    /// `AddrinfoError` are the library's word that a name was looked up, which the kernel carries as
    /// its event 19. Others are `InvalidArgument`.
    fn write_event(&self, id: IdNumber, event: EventType, status: i32, arg: u64) -> Result<()>;
    /// Whether [`CmChannel::write_event`] will do for the id: not every kernel has the command, and a
    /// request that is not accepted is nobody's id yet.
    ///
    /// # Errors
    /// `Unsupported`, `InvalidState`.
    fn check_write_event(&self, id: IdNumber) -> Result<()>;
    /// For the provider's own downcasts.
    fn as_any(&self) -> &dyn std::any::Any;
}

/// An RDMA device.
pub trait Device: Send + Sync + std::fmt::Debug {
    /// Name, such as `sw_lo`.
    fn name(&self) -> &str;
    /// Number of the device, the same for as long as it lives (`ibdev_index` of the kernel).
    fn index(&self) -> u32;
    /// Linux interface index of the network device behind it, 0 if there is none.
    fn interface_index(&self) -> u32;
    /// Limits and identity.
    fn attr(&self) -> Result<DeviceAttr>;
    /// State of a port, from 1.
    fn port_attr(&self, port_num: u8) -> Result<PortAttr>;
    /// The used slots of a port's GID table.
    fn gids(&self, port_num: u8) -> Result<Vec<GidEntry>>;
    /// Allocates a protection domain.
    fn alloc_pd(&self) -> Result<Arc<dyn Pd>>;
    /// Creates a completion channel.
    fn create_comp_channel(&self) -> Result<Arc<dyn CompChannel>>;
    /// Creates a completion queue for at least `cqe` completions. `cookie` names it on `channel`.
    fn create_cq(
        &self,
        cqe: u32,
        channel: Option<&Arc<dyn CompChannel>>,
        cookie: u64,
    ) -> Result<Arc<dyn Cq>>;
    /// Takes the next asynchronous event; `None` when there is none.
    fn take_async_event(&self) -> Result<Option<AsyncEvent>>;
    /// A descriptor that is readable while an asynchronous event waits; for poll and epoll only.
    ///
    /// # Errors
    /// `Os` if the system refuses a descriptor.
    fn async_fd(&self) -> Result<BorrowedFd<'_>>;
    /// What the device has counted: the sums over its queue pairs, those of the past included.
    fn counters(&self) -> Result<Vec<Counter>>;
    /// For the provider's own downcasts.
    fn as_any(&self) -> &dyn std::any::Any;
}

/// A protection domain.
pub trait Pd: Send + Sync + std::fmt::Debug {
    /// Registers memory (`ibv_reg_mr(3)`).
    ///
    /// # Errors
    /// `BadMemory` if the range is not mapped with the rights that `access` implies.
    ///
    /// # Safety
    /// The memory stays mapped until the region is deregistered, and the caller's use of it allows
    /// for the device: it may be read whenever the region exists, and written by receives and
    /// reads while they are posted and, with remote rights, by peers at any time.
    #[allow(
        unsafe_code,
        reason = "the one promise about memory that verbs rest on"
    )]
    unsafe fn register(&self, addr: u64, length: u64, access: Access) -> Result<Arc<dyn Mr>>;
    /// Registers memory that work requests and peers find at `iova` instead of its address
    /// (`ibv_reg_mr_iova(3)`).
    ///
    /// # Errors
    /// As for [`Pd::register`]; `Unsupported` if the provider has no other address than the memory's own.
    ///
    /// # Safety
    /// As for [`Pd::register`].
    #[allow(unsafe_code, reason = "as for `register`")]
    unsafe fn register_at(
        &self,
        addr: u64,
        length: u64,
        iova: u64,
        access: Access,
    ) -> Result<Arc<dyn Mr>> {
        if addr != iova {
            let cause = Cause::Unsupported("memory at another address than its own");
            return Err(Error::new(Step::RegisterMemory, cause));
        }
        // SAFETY: as the caller promises.
        unsafe { self.register(addr, length, access) }
    }
    /// Creates a queue pair in RESET. With `srq` it draws its receives from there, and has no receive
    /// queue of its own to post to.
    fn create_qp(
        &self,
        init: &QpInit,
        send_cq: &Arc<dyn Cq>,
        recv_cq: &Arc<dyn Cq>,
        srq: Option<&Arc<dyn Srq>>,
    ) -> Result<Arc<dyn Qp>>;
    /// Creates an address handle to a host or group, for datagrams of this protection domain's queue
    /// pairs (`ibv_create_ah(3)`). Dropping it destroys it; datagrams already posted go out.
    ///
    /// # Errors
    /// `InvalidArgument` for a source that the GID table does not have, or a destination that is no
    /// address of the same IP version; `LimitReached`.
    fn create_ah(&self, attr: &AhAttr) -> Result<Arc<dyn Ah>>;
    /// Allocates a memory window, which opens nothing until it is bound (`ibv_alloc_mw(3)`).
    ///
    /// # Errors
    /// `LimitReached`.
    fn alloc_mw(&self, mw_type: MwType) -> Result<Arc<dyn Mw>>;
    /// Creates a shared receive queue (`ibv_create_srq(3)`).
    ///
    /// # Errors
    /// `InvalidArgument` for sizes beyond the device's; `LimitReached`.
    fn create_srq(&self, attr: &SrqAttr) -> Result<Arc<dyn Srq>>;
    /// For the provider's own downcasts.
    fn as_any(&self) -> &dyn std::any::Any;
}

/// A memory region. Dropping it deregisters.
pub trait Mr: Send + Sync + std::fmt::Debug {
    /// Local key.
    fn lkey(&self) -> u32;
    /// Remote key.
    fn rkey(&self) -> u32;
    /// Deregisters: when it returns, the device no longer touches the memory.
    ///
    /// # Errors
    /// `InUse` while memory windows are bound to it. Dropping it closes them.
    fn deregister(&self) -> Result<()>;
}

/// A memory window: rights of peers on a part of a region, given and taken in the order of the work
/// of a queue pair. Dropping it deallocates.
pub trait Mw: Send + Sync + std::fmt::Debug {
    /// Of type 1, the key since the last binding posted; of type 2, the key that it was allocated
    /// with, which the first binding names.
    fn rkey(&self) -> u32;
    /// Its type.
    fn mw_type(&self) -> MwType;
    /// Deallocates (`ibv_dealloc_mw(3)`): its key is no longer good for anything.
    fn deallocate(&self) -> Result<()>;
    /// For the provider's own downcasts.
    fn as_any(&self) -> &dyn std::any::Any;
}

/// A completion channel: a descriptor that says which queue has completions.
pub trait CompChannel: Send + Sync + std::fmt::Debug {
    /// Readable while an event waits.
    fn as_fd(&self) -> BorrowedFd<'_>;
    /// Takes the cookie of a queue that has completions since it was armed; `None` if none has.
    fn take_event(&self) -> Result<Option<u64>>;
    /// For the provider's own downcasts.
    fn as_any(&self) -> &dyn std::any::Any;
}

/// A completion queue.
pub trait Cq: Send + Sync + std::fmt::Debug {
    /// Its number, by which `CqErr` names it.
    fn number(&self) -> Cqn;
    /// Takes completions, oldest first; the number taken. Drives the software device.
    fn poll(&self, out: &mut [WorkCompletion]) -> Result<usize>;
    /// Asks for one event on the channel at the next completion (`ibv_req_notify_cq(3)`); an event
    /// is due at once if one came since the queue was last found empty.
    fn arm(&self, solicited_only: bool) -> Result<()>;
    /// Completions it can hold.
    fn capacity(&self) -> u32;
    /// Changes how many it can hold (`ibv_resize_cq(3)`).
    ///
    /// # Errors
    /// `InvalidArgument` for less than what waits to be polled, or more than the device offers.
    fn resize(&self, cqe: u32) -> Result<()>;
    /// For the provider's own downcasts.
    fn as_any(&self) -> &dyn std::any::Any;
}

/// A shared receive queue: receives that several queue pairs draw on. Each completes on the receive
/// completion queue of the queue pair that took it.
pub trait Srq: Send + Sync + std::fmt::Debug {
    /// Its number.
    fn number(&self) -> Srqn;
    /// Posts a receive (`ibv_post_srq_recv(3)`).
    ///
    /// # Errors
    /// `LimitReached` if it is full; `InvalidArgument` for too many pieces.
    fn post_recv(&self, wr: &RecvWr<'_>) -> Result<()>;
    /// Changes the number of receives that it holds, or arms the limit, or both
    /// (`ibv_modify_srq(3)`): once a receive is taken that leaves fewer than `srq_limit`,
    /// `SrqLimitReached` is raised and the limit is 0 again.
    ///
    /// # Errors
    /// `InvalidArgument` if more receives wait than `max_wr`, or the values are out of their ranges.
    fn modify(&self, max_wr: Option<u32>, srq_limit: Option<u32>) -> Result<()>;
    /// Sizes and limit as they are (`ibv_query_srq(3)`).
    fn query(&self) -> Result<SrqAttr>;
    /// Destroys it (`ibv_destroy_srq(3)`); receives that wait do not complete.
    ///
    /// # Errors
    /// `InUse` while a queue pair draws on it.
    fn destroy(&self) -> Result<()>;
    /// For the provider's own downcasts.
    fn as_any(&self) -> &dyn std::any::Any;
}

/// A queue pair. Dropping it destroys it.
pub trait Qp: Send + Sync + std::fmt::Debug {
    /// Its number.
    fn qpn(&self) -> Qpn;
    /// Changes attributes and state.
    fn modify(&self, attr: &QpAttr, mask: QpAttrMask) -> Result<()>;
    /// Attributes as they are.
    fn query(&self) -> Result<(QpAttr, QpInit)>;
    /// What it has counted since it was created.
    fn counters(&self) -> Result<Vec<Counter>>;
    /// Posts to the send queue.
    fn post_send(&self, wr: &SendWr<'_>) -> Result<()>;
    /// Posts the binding of a memory window of type 1 (`ibv_bind_mw(3)`); its key from then on. A
    /// length of 0 closes it.
    ///
    /// # Errors
    /// As for [`Qp::post_send`]; what is wrong with the binding itself is told by its completion.
    fn bind_mw(&self, mw: &Arc<dyn Mw>, wr_id: u64, bind: &MwBind, flags: SendFlags)
    -> Result<u32>;
    /// Posts to the receive queue.
    fn post_recv(&self, wr: &RecvWr<'_>) -> Result<()>;
    /// Attaches a UD queue pair to a multicast group of its port (`ibv_attach_mcast(3)`), given by its
    /// MGID: `::ffff:a.b.c.d` for an IPv4 group, the group itself for IPv6. It gets a copy of every
    /// datagram to the group but its own. Again attaching it changes nothing; destroying detaches.
    ///
    /// # Errors
    /// `InvalidArgument` for another type than UD, or an address that is no group's; `LimitReached`.
    fn attach_mcast(&self, gid: &Gid) -> Result<()>;
    /// Detaches it (`ibv_detach_mcast(3)`): when it returns, no datagram to the group arrives.
    ///
    /// # Errors
    /// `NoSuchObject` if it is not attached to the group.
    fn detach_mcast(&self, gid: &Gid) -> Result<()>;
    /// Destroys it: when it returns, no work of it touches memory and no completion of it comes.
    fn destroy(&self) -> Result<()>;
    /// For the provider's own downcasts.
    fn as_any(&self) -> &dyn std::any::Any;
}
