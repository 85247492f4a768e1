//! The stack: all software devices of a process.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;

use portolan_provider::{Cause, Error, Result, Step};
use portolan_wire::mad::MAD_LEN;
use portolan_wire::{Psn, Qpn};

use super::clock::Clock;
use super::config::StackConfig;
use super::counters::{Counters, Monitor};
use super::device::SoftDevice;
use super::fork::ForkGuard;
use super::group::{Block, Group, GroupStatus, HubService, MemberService};
use super::gsi::{self, Gsi, MAD_PACKET_LEN, MadOptions};
use super::heard::Heard;
use super::hotplug::Readings;
use super::interface_monitor::InterfaceMonitor;
use super::multicast::{GroupKey, GroupMembership, Multicast};
use super::owed::Owed;
use super::path::Path;
use super::progress::Progress;
use super::receive::Receiver;
use super::send_batch::SendBatch;
use super::shared::{Gauges, Shared};
use super::table::QpTable;
use super::tap::Tap;
use super::timers::Timers;
use super::transmit::{Room, Transmitter};
use super::{receive_batch, thread};
use crate::engine::MemoryTable;

/// How long [`Stack::refresh`] waits for the progress thread.
const REFRESH_TIMEOUT: Duration = Duration::from_secs(1);

/// How many objects of the software devices there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Objects {
    /// Protection domains.
    pub protection_domains: u32,
    /// Completion queues.
    pub completion_queues: u32,
    /// Queue pairs.
    pub queue_pairs: u32,
    /// Memory regions.
    pub memory_regions: u32,
    /// Address handles.
    pub address_handles: u32,
    /// Memory windows.
    pub memory_windows: u32,
    /// Shared receive queues.
    pub shared_receive_queues: u32,
}

/// All software devices of this process, and the thread behind them. A process wants one; it keeps it
/// for as long as it runs.
///
/// Dropping it ends the thread and leaves the group of processes that share the UDP port: devices, queue
/// pairs and regions that are left stay valid, but nothing arrives any more. Who was connected with them
/// is told as of a process that died.
#[derive(Debug)]
pub struct Stack {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Stack {
    /// Joins the processes that share the UDP port, or founds their group, and starts the progress
    /// thread. `gsi` gets the management datagrams for this process; `hub` and `member` are its part
    /// in the group.
    ///
    /// # Errors
    /// `PortOwnedElsewhere` if the UDP port is held by something else, `GroupRefused` if the group
    /// does not trust this process, `LimitReached` if it is full, `InvalidArgument` for settings that
    /// cannot work, `Os` if the system refuses a descriptor or a thread.
    pub fn start(
        config: StackConfig,
        gsi: Arc<dyn Gsi>,
        hub: Box<dyn HubService>,
        member: Arc<dyn MemberService>,
    ) -> Result<Arc<Self>> {
        Self::start_with(config, hub, member, |_| Ok(gsi))
    }

    /// As [`start`](Self::start), for a `gsi`, a `hub` or a `member` that need the stack themselves:
    /// `prepare` is given it when its block and its devices are known and before its thread may call
    /// any of them, and gives the first.
    ///
    /// # Errors
    /// As for [`start`](Self::start), and those of `prepare`.
    pub fn start_with(
        config: StackConfig,
        hub: Box<dyn HubService>,
        member: Arc<dyn MemberService>,
        prepare: impl FnOnce(&Arc<Self>) -> Result<Arc<dyn Gsi>>,
    ) -> Result<Arc<Self>> {
        config.check()?;
        let fork = Arc::new(ForkGuard::new()?);
        let transmitter = Transmitter::open(&config)?;
        let group = Group::join(config.group.clone(), hub, member)?;
        for socket in group.sockets() {
            receive_batch::prepare(std::os::fd::AsFd::as_fd(socket), socket.family().into())
                .map_err(|error| {
                    let errno = error.raw_os_error().unwrap_or(0);
                    Error::new(
                        Step::OpenDevice,
                        Cause::Os {
                            call: "setsockopt",
                            errno,
                        },
                    )
                })?;
        }
        // Before the first reading: no change may fall in between.
        let interfaces = InterfaceMonitor::open()?;
        let progress = Progress::new(&group, &transmitter, &interfaces)?;
        let monitor = Monitor::default();
        monitor.tap.set(config.tap.clone());
        let shared = Arc::new(Shared {
            clock: Clock::start(),
            fork,
            monitor,
            gauges: Gauges::new(&config.limits),
            transmitter,
            receiver: Mutex::new(Receiver::new()),
            qps: QpTable::new(group.block().index()),
            memory: RwLock::new(MemoryTable::new(config.limits.max_mr as usize)),
            timers: Timers::new(),
            owed: Owed::default(),
            heard: Heard::default(),
            multicast: Multicast::new(&config.limits),
            progress,
            devices: RwLock::default(),
            readings: Readings::default(),
            gsi_psn: 0.into(),
            group,
            config,
        });
        let thread = Mutex::default();
        let stack = Arc::new(Self { shared, thread });
        stack.shared.follow_interfaces(&BTreeSet::new())?;
        let gsi = prepare(&stack)?;
        let started = thread::start(&stack.shared, gsi, interfaces)?;
        *stack.thread() = Some(started);
        Ok(stack)
    }

    /// The devices there are now.
    pub fn devices(&self) -> Vec<Arc<SoftDevice>> {
        self.shared
            .devices
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// The device that has a local address, and the address's slot in its GID table. `interface` is
    /// Linux's index; it says which device has a link-local address, which several may have. With 0
    /// such an address is found if only one has it.
    pub fn device_of(&self, ip: IpAddr, interface: u32) -> Option<(Arc<SoftDevice>, u32)> {
        self.shared.device_of(ip, interface)
    }

    /// Has the machine's interfaces read at once, and waits for it. Changes are noticed anyway, a
    /// few hundredths of a second later: this is for who just made one. On the progress thread itself
    /// it does nothing.
    ///
    /// # Errors
    /// `TimedOut` if the progress thread is kept from it for a second; `Unsupported` in a forked
    /// child.
    pub fn refresh(&self) -> Result<()> {
        self.shared.fork.check(Step::OpenDevice)?;
        let current = std::thread::current().id();
        let is_progress = |thread: &JoinHandle<()>| thread.thread().id() == current;
        if self.thread().as_ref().is_some_and(is_progress) {
            return Ok(());
        }
        let number = self.shared.readings.ask();
        self.shared.progress.reading_asked();
        self.shared.readings.wait(number, REFRESH_TIMEOUT)
    }

    /// Whether a device is among those that [`devices`](Self::devices) gives, by its index.
    pub fn has_device(&self, index: u32) -> bool {
        let devices = self.shared.devices.read();
        let devices = devices.unwrap_or_else(PoisonError::into_inner);
        devices
            .iter()
            .any(|device| device.core().interface() == index)
    }

    /// Sends a management datagram to QP1 of `remote`, whose port is not looked at and whose scope is,
    /// if it is link-local. It is a datagram: that it was sent does not say that it arrives.
    ///
    /// # Errors
    /// `InvalidArgument` if the addresses are of different IP versions, `WouldBlock` if the send
    /// buffer is full.
    pub fn send_mad(
        &self,
        local: IpAddr,
        remote: SocketAddr,
        options: MadOptions,
        mad: &[u8; MAD_LEN],
    ) -> Result<()> {
        let shared = &self.shared;
        shared.fork.check(Step::Transfer)?;
        let mut remote = remote;
        remote.set_port(shared.port());
        let interface = match remote {
            SocketAddr::V6(v6) => v6.scope_id(),
            SocketAddr::V4(_) => 0,
        };
        let path = Path {
            local,
            remote,
            interface,
            traffic_class: options.traffic_class,
            hop_limit: options.hop_limit,
        };
        let version = path.version().ok_or_else(|| {
            let expected = format_args!("an address of the same IP version as {local}");
            Error::invalid(Step::Transfer, "destination", expected, remote.ip())
        })?;
        let no_device = || {
            let why = format!("this system has no sockets for {}", remote.ip());
            Error::new(Step::Transfer, Cause::NoDevice { why })
        };
        let socket = shared
            .transmitter
            .socket(version, Qpn::GSI)
            .ok_or_else(no_device)?;
        let flow = path.flow(socket.port()).ok_or_else(no_device)?;
        let psn = Psn::new(shared.gsi_psn.fetch_add(1, Ordering::Relaxed));
        let mut packet = [0; MAD_PACKET_LEN];
        let built = gsi::emit(psn, mad, &mut packet).is_ok()
            && portolan_wire::icrc::append(&flow, 0, &mut packet).is_ok();
        debug_assert!(built, "a packet of constant shape");
        if socket.is_full() {
            return Err(Error::new(Step::Transfer, Cause::WouldBlock));
        }
        let mut batch = SendBatch::of(&packet);
        if socket.send(&mut batch, &path, &shared.monitor) == Room::JustFilled {
            shared.progress.watch_for_room(&shared.transmitter, socket);
        }
        Ok(())
    }

    /// Joins an IP multicast group on the interface of a device, by IGMP or MLD, until the membership is
    /// dropped: what a connection manager does for `rdma_join_multicast(3)` unless its member only
    /// sends. Datagrams to the group arrive at the queue pairs that are attached to it
    /// ([`Qp::attach_mcast`](portolan_provider::traits::Qp::attach_mcast)), which makes sure of the
    /// same for itself. Memberships are counted: the group is left with the last of this process.
    ///
    /// # Errors
    /// `InvalidArgument` if `group` is not the address of a group; `LimitReached`; `AddressInUse` if
    /// the port is shared with another user's processes; `Os` if the interface cannot join.
    pub fn join_group(&self, device: &SoftDevice, group: IpAddr) -> Result<GroupMembership> {
        self.shared.fork.check(Step::JoinMulticast)?;
        let group = group.to_canonical();
        if !group.is_multicast() {
            let (what, expected) = ("group", "the address of a multicast group");
            return Err(Error::invalid(Step::JoinMulticast, what, expected, group));
        }
        let interface = device.core().interface();
        self.shared.join_group(GroupKey { interface, group })
    }

    /// Asks the group's hub, which may be this process, and waits for the answer.
    ///
    /// # Errors
    /// `TimedOut` if no hub answers in time, `LimitReached` if too many requests wait.
    pub fn group_request(&self, payload: &[u8], timeout: Duration) -> Result<Vec<u8>> {
        self.shared.fork.check(Step::Bind)?;
        self.shared.group.request(payload, timeout)
    }

    /// Tells the group's hub something, and waits for nothing ([`Group::tell`]).
    ///
    /// # Errors
    /// `LimitReached` if too many requests wait.
    pub fn group_tell(&self, payload: &[u8]) -> Result<()> {
        self.shared.group.tell(payload)
    }

    /// How many hubs this process has had after the first (see [`Group::epoch`]).
    pub fn group_epoch(&self) -> u64 {
        self.shared.group.epoch()
    }

    /// Fails in a process that was forked off since the start: the stack is its parent's.
    ///
    /// # Errors
    /// `Unsupported`.
    pub fn check_process(&self, step: Step) -> Result<()> {
        self.shared.fork.check(step)
    }

    /// This process's block: the high byte of its queue pair numbers.
    pub fn block(&self) -> Block {
        self.shared.group.block()
    }

    /// The group as this process sees it.
    pub fn group_status(&self) -> GroupStatus {
        self.shared.group.status()
    }

    /// Has the progress thread ask [`Gsi::next_timeout`] again.
    pub fn wake(&self) {
        self.shared.progress.gsi_changed();
    }

    /// Plugs in a tap that sees every packet from now on, or pulls it.
    pub fn set_tap(&self, tap: Option<Arc<dyn Tap>>) {
        self.shared.monitor.tap.set(tap);
    }

    /// How many objects there are at the moment.
    pub fn objects(&self) -> Objects {
        let gauges = &self.shared.gauges;
        Objects {
            protection_domains: gauges.pds.used(),
            completion_queues: gauges.cqs.used(),
            queue_pairs: gauges.qps.used(),
            memory_regions: gauges.mrs.used(),
            address_handles: gauges.ahs.used(),
            memory_windows: gauges.mws.used(),
            shared_receive_queues: gauges.srqs.used(),
        }
    }

    /// What was counted since the start.
    pub fn counters(&self) -> Counters {
        self.shared.monitor.counters.read()
    }

    fn thread(&self) -> MutexGuard<'_, Option<JoinHandle<()>>> {
        self.thread.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // A forked child has no such thread to wait for.
        if self.shared.fork.check(Step::OpenDevice).is_err() {
            return;
        }
        self.shared.progress.stop();
        let thread = self.thread().take();
        if let Some(thread) = thread
            && thread.thread().id() != std::thread::current().id()
        {
            // It has nothing to tell, and panics of the caller's Gsi were printed.
            let _ = thread.join();
        }
        // What is left of the stack must not hold a place in the group that nobody looks after.
        self.shared.multicast.leave_all();
        self.shared.group.leave();
        // Devices hold what they share, which holds the devices.
        let mut devices = self
            .shared
            .devices
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let devices = std::mem::take(&mut *devices);
        drop(devices);
    }
}
