//! The traits of a provider: rdma_cm commands on an event channel, and verbs. They are sealed: programs call them, but only
//! Portolan's crates implement them, so that they can get further methods.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use portolan_wire::addr::{Gid, Qpn};
use portolan_wire::cm::RejectReason;

use crate::address::ip_to_gid;
use crate::cm::{
    CmEvent, ConnParam, Ece, EventType, IdAddresses, IdNumber, IdOption, JoinKind,
    MembershipNumber, PathRecord, Service, UserId,
};
use crate::error::{Cause, Error, Result, Step};
use crate::sealed::Sealed;
use crate::verbs::{
    Access, Ah, AhAttr, AsyncEvent, Counter, Cqn, DeviceAttr, GidEntry, Instance, MrRange, MwBind,
    MwType, PortAttr, QpAttr, QpAttrMask, QpInit, QpState, RecvWr, Refusal, SendFlags, SendWr,
    SrqAttr, Srqn, WorkCompletion,
};

pub use crate::waiting::{Attendance, CompChannel, DeviceWait, Notify, SleepAt};

/// A provider: devices, and event channels that carry the rdma_cm's commands.
pub trait Provider: Sealed + Send + Sync + std::fmt::Debug {
    /// `"software"` or `"kernel"`.
    fn name(&self) -> &'static str;
    /// The current devices, by index.
    fn devices(&self) -> Result<Vec<Arc<dyn Device>>>;
    /// The device with this number ([`Device::index`]); `None` if there is none.
    fn device(&self, index: u32) -> Result<Option<Arc<dyn Device>>> {
        let mut devices = self.devices()?.into_iter();
        Ok(devices.find(|device| device.index() == index))
    }
    /// Opens an event channel (`open("/dev/infiniband/rdma_cm")`).
    fn open_channel(&self) -> Result<Arc<dyn CmChannel>>;
    /// Opens an event channel without a descriptor of its own: it calls `notify` when it gets its first event, and its
    /// descriptor is that of `notify`. `None` if the provider has no such channels.
    fn open_calling_channel(
        &self,
        _notify: &Arc<dyn Notify>,
    ) -> Result<Option<Arc<dyn CmChannel>>> {
        Ok(None)
    }
    /// The device and GID index that serve a local IP address.
    fn device_of(&self, ip: IpAddr) -> Result<(Arc<dyn Device>, u32)>;
}

/// An event channel and the commands of the rdma_cm on it; one method for each command of
/// `enum rdma_ucm_cmd` (`rdma_user_cm.h`). Dropping it destroys its ids.
pub trait CmChannel: Sealed + Send + Sync + std::fmt::Debug {
    /// The channel's descriptor, readable while an event is queued. Use it for poll and epoll, and
    /// to set `O_NONBLOCK` (fcntl(2)), which `wait_event` honors.
    fn as_fd(&self) -> BorrowedFd<'_>;
    /// As `as_fd`, for a provider that creates the descriptor at its first use.
    ///
    /// # Errors
    /// `Os` if the process has no descriptor left.
    fn descriptor(&self) -> Result<BorrowedFd<'_>> {
        Ok(self.as_fd())
    }
    /// The calling thread will wait for an event within a few microseconds, and then handles what brings it. A hint,
    /// valid until the result is dropped; the thread must not wait for anything else meanwhile.
    fn attend(&self) -> Option<Box<dyn Attendance + '_>> {
        None
    }
    /// Takes the next event; `WouldBlock` when there is none.
    fn take_event(&self) -> Result<CmEvent>;
    /// Whether [`take_event`](Self::take_event) may find an event or an error, for callers that look often. Takes no lock and
    /// makes no system call.
    fn may_have_event(&self) -> bool {
        true
    }
    /// Waits for an event. With a `timeout` it fails with `TimedOut` when that passes; without one
    /// it waits forever, unless the descriptor is non-blocking (`WouldBlock`).
    fn wait_event(&self, timeout: Option<Duration>) -> Result<CmEvent>;
    /// Waits without a limit until an event is available, and does not take it. May return early.
    ///
    /// # Errors
    /// `WouldBlock` if the descriptor is non-blocking; `Os` with `EINTR` after a signal handler
    /// without `SA_RESTART` (sigaction(2)) ran.
    fn await_event(&self) -> Result<()>;

    /// CREATE_ID.
    fn create_id(&self, uid: UserId, service: Service) -> Result<IdNumber>;
    /// DESTROY_ID: returns the number of events reported for the id. Never waits.
    fn destroy_id(&self, id: IdNumber) -> Result<u32>;
    /// BIND: port 0 selects a free port.
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
    /// SET_OPTION of a route that the program has found: whole `struct ib_path_rec_data`s. Ends in `RouteResolved` or
    /// `RouteError`.
    fn set_route(&self, _id: IdNumber, _paths: &[u8]) -> Result<()> {
        Err(Error::new(
            Step::ResolveRoute,
            Cause::Unsupported("a route of the program's"),
        ))
    }
    /// QUERY for addresses and GIDs.
    fn addresses(&self, id: IdNumber) -> Result<IdAddresses>;
    /// The number of the id's device, without the addresses.
    fn device_index(&self, id: IdNumber) -> Result<Option<u32>> {
        Ok(self.addresses(id)?.device_index)
    }
    /// QUERY for paths.
    fn paths(&self, id: IdNumber) -> Result<Vec<PathRecord>>;
    /// LISTEN.
    fn listen(&self, id: IdNumber, backlog: i32) -> Result<()>;
    /// CONNECT.
    fn connect(&self, id: IdNumber, param: &ConnParam, ece: Ece) -> Result<()>;
    /// ACCEPT with parameters: answers a connection request. Events of the child carry `uid` from
    /// then on.
    fn accept(&self, id: IdNumber, uid: UserId, param: &ConnParam, ece: Ece) -> Result<()>;
    /// ACCEPT without parameters: completes an active connection by RTU (`rdma_establish(3)`).
    fn establish(&self, id: IdNumber) -> Result<()>;
    /// REJECT.
    fn reject(&self, id: IdNumber, reason: RejectReason, private_data: &[u8]) -> Result<()>;
    /// DISCONNECT.
    fn disconnect(&self, id: IdNumber) -> Result<()>;
    /// INIT_QP_ATTR: the attributes that take a queue pair to `state`.
    fn init_qp_attr(&self, id: IdNumber, state: QpState) -> Result<(QpAttr, QpAttrMask)>;
    /// MIGRATE_ID: moves an id of `from` to this channel with its queued events, in order. Returns
    /// the number of the id's events that `from` had already reported.
    fn migrate_id(&self, from: &dyn CmChannel, id: IdNumber) -> Result<u32>;
    /// SET_OPTION.
    fn set_option(&self, id: IdNumber, option: IdOption) -> Result<()>;
    /// NOTIFY: a queue pair saw data before the connection was established.
    fn notify_established(&self, id: IdNumber) -> Result<()>;
    /// JOIN_MCAST: ends in `MulticastJoin` or `MulticastError`, which carry `uid`. The port of
    /// `group` is ignored.
    fn join_multicast(
        &self,
        id: IdNumber,
        uid: UserId,
        group: SocketAddr,
        kind: JoinKind,
    ) -> Result<MembershipNumber>;
    /// LEAVE_MCAST: returns the number of the membership's events already reported; queued ones are
    /// dropped.
    fn leave_multicast(&self, id: IdNumber, membership: MembershipNumber) -> Result<u32>;
    /// WRITE_CM_EVENT: queues an event for the id.
    ///
    /// `User` is the application's. `AddrinfoResolved` and `AddrinfoError` report that the
    /// library's name lookup ended; the kernel carries them as its event 19. Others fail with
    /// `InvalidArgument`.
    fn write_event(&self, id: IdNumber, event: EventType, status: i32, arg: u64) -> Result<()>;
    /// Checks whether [`CmChannel::write_event`] can work for the id: older kernels lack the
    /// command, and a request that is not accepted yet has no owner.
    ///
    /// # Errors
    /// `Unsupported`, `InvalidState`.
    fn check_write_event(&self, id: IdNumber) -> Result<()>;
    /// For the provider's own downcasts.
    fn as_any(&self) -> &dyn std::any::Any;
}

/// An RDMA device.
pub trait Device: Sealed + Send + Sync + std::fmt::Debug {
    /// Name, such as `sw_lo`.
    fn name(&self) -> &str;
    /// Number of the device, constant during its lifetime (`ibdev_index` of the kernel).
    fn index(&self) -> u32;
    /// Identifies this opening of the device. Objects created from one instance cannot be used with another.
    fn instance(&self) -> Instance;
    /// Linux interface index of its network device; 0 if there is none.
    fn interface_index(&self) -> u32;
    /// Limits and identity.
    fn attr(&self) -> Result<DeviceAttr>;
    /// State of a port, from 1.
    fn port_attr(&self, port_num: u8) -> Result<PortAttr>;
    /// The occupied entries of a port's GID table.
    fn gids(&self, port_num: u8) -> Result<Vec<GidEntry>>;
    /// The entries, on all ports, that serve a local address. Except on iWARP devices these are the entries that hold
    /// the address.
    fn gids_of(&self, ip: IpAddr) -> Result<Vec<GidEntry>> {
        let gid = ip_to_gid(ip);
        let mut found = Vec::new();
        for port_num in 1..=self.attr()?.phys_port_cnt {
            let gids = self.gids(port_num)?.into_iter();
            found.extend(gids.filter(|entry| entry.gid == gid));
        }
        Ok(found)
    }
    /// Whether the device uses iWARP (RDMA over TCP) instead of InfiniBand's protocol. The GID table of an iWARP device
    /// holds only the hardware address of its interface.
    fn is_iwarp(&self) -> bool {
        false
    }
    /// Allocates a protection domain.
    fn alloc_pd(&self) -> Result<Arc<dyn Pd>>;
    /// Creates a completion channel.
    fn create_comp_channel(&self) -> Result<Arc<dyn CompChannel>>;
    /// Creates a completion queue for at least `cqe` completions. `cookie` identifies it on
    /// `channel`.
    fn create_cq(
        &self,
        cqe: u32,
        channel: Option<&Arc<dyn CompChannel>>,
        cookie: u64,
    ) -> Result<Arc<dyn Cq>>;
    /// Creates a completion queue like [`Device::create_cq`], which calls `notify` instead of queueing an event on a
    /// channel. `None` if the device has no such queues.
    fn create_calling_cq(
        &self,
        _cqe: u32,
        _notify: &Arc<dyn Notify>,
    ) -> Result<Option<Arc<dyn Cq>>> {
        Ok(None)
    }
    /// Creates a completion queue like [`Device::create_cq`], whose completions have timestamps
    /// ([`WorkCompletion::timestamp_ns`]).
    ///
    /// # Errors
    /// `Unsupported`.
    fn create_stamping_cq(
        &self,
        _cqe: u32,
        _channel: Option<&Arc<dyn CompChannel>>,
        _cookie: u64,
    ) -> Result<Arc<dyn Cq>> {
        let cause = Cause::Unsupported("completion timestamps");
        Err(Error::new(Step::CreateCq, cause))
    }
    /// Opens an XRC domain (`ibv_open_xrcd(3)`) that other processes cannot use.
    ///
    /// # Errors
    /// `LimitReached`; `Unsupported`.
    fn open_xrcd(&self) -> Result<Arc<dyn Xrcd>> {
        let cause = Cause::Unsupported("extended reliable connections");
        Err(Error::new(Step::AllocPd, cause))
    }
    /// The device's clock, in nanoseconds since an arbitrary moment (`ibv_query_rt_values_ex(3)`). It never runs
    /// backwards.
    ///
    /// # Errors
    /// `Unsupported`.
    fn clock_ns(&self) -> Result<u64> {
        Err(Error::new(
            Step::Query,
            Cause::Unsupported("the device's clock"),
        ))
    }
    /// Takes the next asynchronous event; `None` if none is queued.
    fn take_async_event(&self) -> Result<Option<AsyncEvent>>;
    /// A descriptor that is readable while an asynchronous event is queued; for poll and epoll
    /// only.
    ///
    /// # Errors
    /// `Os` if the system cannot create the descriptor.
    fn async_fd(&self) -> Result<BorrowedFd<'_>>;
    /// The device's counters: the sums over all its queue pairs, including destroyed ones.
    fn counters(&self) -> Result<Vec<Counter>>;
    /// For the provider's own downcasts.
    fn as_any(&self) -> &dyn std::any::Any;
}

/// A protection domain.
pub trait Pd: Sealed + Send + Sync + std::fmt::Debug {
    /// Registers memory (`ibv_reg_mr(3)`).
    ///
    /// # Errors
    /// `BadMemory` if the range is not mapped with the rights that `access` implies.
    ///
    /// # Safety
    /// The memory stays mapped until the region is deregistered. The caller's own accesses must
    /// allow for the device: it may read the memory while the region exists. It may write the
    /// memory while receives and reads are posted, and with remote rights peers may write at any
    /// time.
    #[allow(unsafe_code, reason = "the caller must keep the memory mapped")]
    unsafe fn register(&self, addr: u64, length: u64, access: Access) -> Result<Arc<dyn Mr>>;
    /// Registers memory that work requests and peers address from `iova` on (`ibv_reg_mr_iova(3)`).
    ///
    /// # Errors
    /// As for [`Pd::register`]; `Unsupported` if the provider supports only the memory's own
    /// address.
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
        // SAFETY: the caller upholds the contract of `register`, which is the same.
        unsafe { self.register(addr, length, access) }
    }
    /// Allocates zeroed memory for a region that peers of this host can access without the help of this process. `None` if
    /// the provider does not offer this or has no more; any other memory works, too.
    fn alloc_memory(&self, _length: usize) -> Option<Arc<dyn HostMemory>> {
        None
    }
    /// Registers all of a memory from [`Pd::alloc_memory`]. Trusted peers of this host may access it directly, within the
    /// region's rights.
    ///
    /// # Errors
    /// As for [`Pd::register`].
    ///
    /// # Safety
    /// As for [`Pd::register`]. The provider keeps the memory mapped.
    #[allow(unsafe_code, reason = "as for `register`")]
    unsafe fn register_memory(
        &self,
        memory: &Arc<dyn HostMemory>,
        access: Access,
    ) -> Result<Arc<dyn Mr>> {
        // SAFETY: the caller upholds the contract of `register`, which is the same.
        unsafe { self.register(memory.addr(), memory.len() as u64, access) }
    }
    /// Changes a region's memory, its rights, or both, and moves it to this protection domain if it belongs to another
    /// (`ibv_rereg_mr(3)`). Its keys do not change. After the call, the device accesses only what the region then
    /// covers and allows.
    ///
    /// # Errors
    /// As for [`Pd::register_at`]; `InUse` while memory windows are bound to the region;
    /// `NoSuchObject` if it is deregistered; `Unsupported`. An error leaves the region unchanged.
    ///
    /// # Safety
    /// As for [`Pd::register`]. After success the caller may reuse the former memory.
    #[allow(unsafe_code, reason = "as for `register`")]
    unsafe fn reregister(
        &self,
        _mr: &Arc<dyn Mr>,
        _range: Option<MrRange>,
        _access: Option<Access>,
    ) -> Result<()> {
        let cause = Cause::Unsupported("changing a memory region");
        Err(Error::new(Step::RegisterMemory, cause))
    }
    /// Creates a queue pair in RESET. With `srq` it takes its receives from that queue and has no receive queue of its
    /// own. For `XrcRecv`, use [`Xrcd::create_qp`] instead.
    fn create_qp(
        &self,
        init: &QpInit,
        send_cq: &Arc<dyn Cq>,
        recv_cq: &Arc<dyn Cq>,
        srq: Option<&Arc<dyn Srq>>,
    ) -> Result<Arc<dyn Qp>>;
    /// Creates an address handle to a host or group, for datagrams of this protection domain's
    /// queue pairs (`ibv_create_ah(3)`). Dropping the handle destroys it; datagrams already posted
    /// are still sent.
    ///
    /// # Errors
    /// `InvalidArgument` if the source is not in the GID table or the destination is not an address
    /// of the same IP version; `LimitReached`.
    fn create_ah(&self, attr: &AhAttr) -> Result<Arc<dyn Ah>>;
    /// Allocates a memory window (`ibv_alloc_mw(3)`). It gives no access until it is bound.
    ///
    /// # Errors
    /// `LimitReached`.
    fn alloc_mw(&self, mw_type: MwType) -> Result<Arc<dyn Mw>>;
    /// Creates a shared receive queue (`ibv_create_srq(3)`).
    ///
    /// # Errors
    /// `InvalidArgument` for sizes beyond the device's; `LimitReached`.
    fn create_srq(&self, attr: &SrqAttr) -> Result<Arc<dyn Srq>>;
    /// Creates a shared receive queue for what peers send to an XRC domain (`IBV_SRQT_XRC` of
    /// `ibv_create_srq_ex(3)`). Its receives complete on `cq`.
    ///
    /// # Errors
    /// As for [`Pd::create_srq`]; `Unsupported`.
    fn create_xrc_srq(
        &self,
        _attr: &SrqAttr,
        _xrcd: &Arc<dyn Xrcd>,
        _cq: &Arc<dyn Cq>,
    ) -> Result<Arc<dyn Srq>> {
        let cause = Cause::Unsupported("extended reliable connections");
        Err(Error::new(Step::CreateSrq, cause))
    }
    /// For the provider's own downcasts.
    fn as_any(&self) -> &dyn std::any::Any;
}

/// Memory that a provider made ([`Pd::alloc_memory`]). It stays mapped while this exists.
#[allow(clippy::len_without_is_empty, reason = "it is never empty")]
pub trait HostMemory: Sealed + Send + Sync + std::fmt::Debug {
    /// Address of the first byte, a multiple of 64.
    fn addr(&self) -> u64;
    /// Bytes.
    fn len(&self) -> usize;
    /// Whether a process that was stopped in the middle of a copy may still write to it, though its region is
    /// deregistered. It is not to be used any more then.
    fn is_held(&self) -> bool;
    /// For the provider's own downcasts.
    fn as_arc_any(self: Arc<Self>) -> Arc<dyn std::any::Any + Send + Sync>;
}

/// A memory region. Dropping it deregisters the memory.
pub trait Mr: Sealed + Send + Sync + std::fmt::Debug {
    /// Local key.
    fn lkey(&self) -> u32;
    /// Remote key.
    fn rkey(&self) -> u32;
    /// Deregisters the memory: after it returns, the device does not access the memory.
    ///
    /// # Errors
    /// `InUse` while memory windows are bound to the region. Dropping the region invalidates those
    /// windows.
    fn deregister(&self) -> Result<()>;
    /// For the provider's own downcasts.
    fn as_any(&self) -> &dyn std::any::Any;
}

/// A memory window: peers' rights on part of a region, granted and revoked in the order of a queue
/// pair's work. Dropping it deallocates it.
pub trait Mw: Sealed + Send + Sync + std::fmt::Debug {
    /// The remote key. Type 1: the key since the last posted bind. Type 2: the key of the
    /// allocation, which the first bind names.
    fn rkey(&self) -> u32;
    /// Its type.
    fn mw_type(&self) -> MwType;
    /// Deallocates the window (`ibv_dealloc_mw(3)`) and invalidates its key.
    fn deallocate(&self) -> Result<()>;
    /// For the provider's own downcasts.
    fn as_any(&self) -> &dyn std::any::Any;
}

/// A completion queue.
pub trait Cq: Sealed + Send + Sync + std::fmt::Debug {
    /// Its number, as in `CqErr`.
    fn number(&self) -> Cqn;
    /// Takes completions, oldest first, and returns their number. Also drives the software device.
    fn poll(&self, out: &mut [WorkCompletion]) -> Result<usize>;
    /// As [`Cq::poll`], but does not drive the software device.
    fn take(&self, out: &mut [WorkCompletion]) -> Result<usize> {
        self.poll(out)
    }
    /// Whether [`Cq::take`] may find a completion or an error, for callers that look often. Takes no lock and makes no system
    /// call.
    fn may_have_completions(&self) -> bool {
        true
    }
    /// Drives the software device: handles the packets that have arrived for all queues of the process. Unlike
    /// [`Cq::poll`], it never yields the processor: the caller soon sleeps if it finds nothing.
    fn drive(&self) {}
    /// Drives the software device as [`Cq::poll`] does, for a caller that polls and whose queue has no completions. If it
    /// expects an answer soon, the device may look for a fraction of a microsecond.
    fn drive_polling(&self, expects_answer: bool) {
        let _ = expects_answer;
    }
    /// Makes the caller wait for the device itself, so that no other thread is woken first. `None` if another
    /// caller does, or if the device has nothing to wait for.
    fn wait_for_device(&self) -> Option<Box<dyn DeviceWait>> {
        None
    }
    /// As [`Cq::arm`], for a caller that goes on polling this or another queue. It must call [`Cq::arm`] of one of
    /// them before it sleeps.
    fn arm_and_poll(&self) -> Result<()> {
        self.arm(false)
    }
    /// Requests one event on the channel for the next completion (`ibv_req_notify_cq(3)`). The event is raised at once if a
    /// completion has arrived since the queue was last empty or an event of it was taken. A caller that has taken an event
    /// must poll, before it arms the queue or after.
    fn arm(&self, solicited_only: bool) -> Result<()>;
    /// Maximum number of completions that it holds.
    fn capacity(&self) -> u32;
    /// Changes its capacity (`ibv_resize_cq(3)`).
    ///
    /// # Errors
    /// `InvalidArgument` if `cqe` is less than the number of queued completions or exceeds the device's limit.
    fn resize(&self, cqe: u32) -> Result<()>;
    /// For the provider's own downcasts.
    fn as_any(&self) -> &dyn std::any::Any;
}

/// A shared receive queue of several queue pairs. A receive completes on the queue of the queue pair that took it.
pub trait Srq: Sealed + Send + Sync + std::fmt::Debug {
    /// Its number.
    fn number(&self) -> Srqn;
    /// Posts a receive (`ibv_post_srq_recv(3)`).
    ///
    /// # Errors
    /// `LimitReached` if the queue is full; `InvalidArgument` for too many scatter/gather elements.
    fn post_recv(&self, wr: &RecvWr<'_>) -> Result<()>;
    /// Changes the queue's capacity, arms the limit, or both (`ibv_modify_srq(3)`). When fewer than
    /// `srq_limit` receives remain, `SrqLimitReached` is raised and the limit is reset to 0.
    ///
    /// # Errors
    /// `InvalidArgument` if more than `max_wr` receives are queued or a value is out of range.
    fn modify(&self, max_wr: Option<u32>, srq_limit: Option<u32>) -> Result<()>;
    /// The current capacity and limit (`ibv_query_srq(3)`).
    fn query(&self) -> Result<SrqAttr>;
    /// Destroys the queue (`ibv_destroy_srq(3)`); queued receives do not complete.
    ///
    /// # Errors
    /// `InUse` while a queue pair uses it.
    fn destroy(&self) -> Result<()>;
    /// For the provider's own downcasts.
    fn as_any(&self) -> &dyn std::any::Any;
}

/// An XRC domain: shared receive queues, and the queue pairs that deliver peers' messages to them (IBTA annex A14).
pub trait Xrcd: Sealed + Send + Sync + std::fmt::Debug {
    /// Creates the receiving end of an extended reliable connection (`XrcRecv`), in RESET.
    ///
    /// # Errors
    /// `LimitReached`.
    fn create_qp(&self) -> Result<Arc<dyn Qp>>;
    /// For the provider's own downcasts.
    fn as_any(&self) -> &dyn std::any::Any;
}

/// A queue pair. Dropping it destroys it.
pub trait Qp: Sealed + Send + Sync + std::fmt::Debug {
    /// Its number.
    fn qpn(&self) -> Qpn;
    /// Changes attributes and state.
    fn modify(&self, attr: &QpAttr, mask: QpAttrMask) -> Result<()>;
    /// The current attributes.
    fn query(&self) -> Result<(QpAttr, QpInit)>;
    /// Its counters since it was created.
    fn counters(&self) -> Result<Vec<Counter>>;
    /// The request of the peer that this side refused, if that put the queue pair into ERR. The software device knows
    /// it with the memory that the request named. The kernel's devices report it, without the memory, if their driver
    /// raises [`AsyncEvent::QpAccessErr`] or [`AsyncEvent::QpReqErr`]; if the program reads the device's events itself,
    /// it is known once the program has read that event.
    ///
    /// # Errors
    /// The queue pair is destroyed.
    fn refusal(&self) -> Result<Option<Refusal>> {
        Ok(None)
    }
    /// How long the peer has had no receive posted for the oldest message that it has not acknowledged ("receiver not
    /// ready", IBTA 9.7.5.2.8). The message waits and is not lost, unless the retries run out
    /// ([`ConnParam::rnr_retry_count`]). `None` if the peer has a receive, or the provider does not know: only the
    /// software device does.
    ///
    /// # Errors
    /// The queue pair is destroyed.
    fn not_ready_for(&self) -> Result<Option<Duration>> {
        Ok(None)
    }
    /// Posts to the send queue.
    fn post_send(&self, wr: &SendWr<'_>) -> Result<()>;
    /// Posts an RDMA write with immediate data and takes `data`, not the request's own, during the call, if the provider
    /// needs no copy: the software device, to another process of this host. Requests that are not complete must not
    /// write the same memory. `false`: nothing was posted. Errors are those of [`Qp::post_send`].
    fn post_taking(&self, _wr: &SendWr<'_>, _data: &[u8]) -> Result<bool> {
        Ok(false)
    }
    /// Posts several requests to the send queue, in order, with one doorbell if the provider can.
    ///
    /// # Errors
    /// As for [`Qp::post_send`], for the first refused request, with the number of requests that were posted before it.
    /// Later requests are not posted.
    fn post_sends(&self, wrs: &[SendWr<'_>]) -> core::result::Result<(), (usize, Error)> {
        for (posted, wr) in wrs.iter().enumerate() {
            self.post_send(wr).map_err(|error| (posted, error))?;
        }
        Ok(())
    }
    /// Posts a bind of a type 1 memory window (`ibv_bind_mw(3)`) and returns the window's new key. A length of 0
    /// invalidates the window.
    ///
    /// # Errors
    /// As for [`Qp::post_send`]. Errors of the bind itself are reported by its completion.
    fn bind_mw(&self, mw: &Arc<dyn Mw>, wr_id: u64, bind: &MwBind, flags: SendFlags)
    -> Result<u32>;
    /// Posts to the receive queue.
    fn post_recv(&self, wr: &RecvWr<'_>) -> Result<()>;
    /// Attaches a UD queue pair to a multicast group of its port (`ibv_attach_mcast(3)`).
    ///
    /// The group is given by its MGID and its LID, as in the event of the join. On Ethernet the MGID is `::ffff:a.b.c.d` for IPv4,
    /// the group's own address for IPv6, and the LID has no meaning. The queue pair receives a
    /// copy of each datagram to the group except its own. Attaching twice changes nothing; destroying it detaches it.
    ///
    /// # Errors
    /// `InvalidArgument` for a type other than UD or an address that is not a multicast group; `LimitReached`.
    fn attach_mcast(&self, gid: &Gid, lid: u16) -> Result<()>;
    /// Detaches it (`ibv_detach_mcast(3)`): after it returns, no datagram to the group arrives.
    ///
    /// # Errors
    /// `NoSuchObject` if it is not attached to the group.
    fn detach_mcast(&self, gid: &Gid, lid: u16) -> Result<()>;
    /// Destroys it: after it returns, its work does not access memory or produce completions.
    fn destroy(&self) -> Result<()>;
    /// For the provider's own downcasts.
    fn as_any(&self) -> &dyn std::any::Any;
}
