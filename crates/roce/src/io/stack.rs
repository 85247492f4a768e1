//! The stack: all software devices of a process.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use portolan_provider::{Cause, Error, Result, Step};
use portolan_threads::biased;
use portolan_threads::lock::{Mutex, MutexGuard, RwLock};
use portolan_wire::Qpn;
use portolan_wire::mad::MAD_LEN;

use crate::engine::MemoryTable;
use crate::io::config::StackConfig;
use crate::io::gsi::{Gsi, MadOptions};
use crate::io::host::device::GID_TABLE_LEN;
use crate::io::host::entry::Entry;
use crate::io::host::membership::MulticastMembership;
use crate::io::host::multicast::{MulticastGroups, MulticastKey};
use crate::io::host::qp_table::QpTable;
use crate::io::host::readings::Readings;
use crate::io::host::way::Way;
use crate::io::host::{Gauges, Host, Receiver};
use crate::io::management::{self, Attendance, EventWaiter, Management};
use crate::io::net::counters::{Counters, Monitor};
use crate::io::net::interface_monitor::InterfaceMonitor;
use crate::io::net::receive_batch;
use crate::io::net::shm::links::{LinkServer, Links};
use crate::io::net::tap::Tap;
use crate::io::net::transmit::Transmitter;
use crate::io::polling::attendance::Nudge;
use crate::io::polling::clock::Clock;
use crate::io::polling::deadlines::Deadlines;
use crate::io::polling::noted::Noted;
use crate::io::polling::progress::Progress;
use crate::io::thread;
use crate::io::verbs::device::SoftDevice;
use crate::io::verbs::devices::Devices;
use portolan_port_sharing::{Block, CoordinatorService, GroupStatus, MemberService, PortGroup};

/// Number of objects of the software devices.
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

/// All software devices of this process, and their progress thread. A process needs one, for as long as it runs.
///
/// Dropping it ends the thread and leaves the group of processes that share the UDP port. Remaining devices, queue
/// pairs and regions stay valid but receive nothing. Connected peers are notified as if the process had died.
#[derive(Debug)]
pub struct Stack {
    host: Arc<Host>,
    devices: Arc<Devices>,
    /// Set once, before the thread runs.
    management: OnceLock<Arc<Management>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Stack {
    /// Joins the processes that share the UDP port, or creates their group, and starts the progress thread.
    ///
    /// `gsi` receives the management datagrams for this process. `coordinator` and `member` are its callbacks in the
    /// group.
    ///
    /// # Errors
    /// `PortOwnedElsewhere` if another program holds the UDP port, `GroupRefused` if the group does not trust this
    /// process, `LimitReached` if the group is full, `InvalidArgument` for invalid settings, `Os` if the system
    /// refuses a descriptor or a thread.
    pub fn start(
        config: StackConfig,
        gsi: Arc<dyn Gsi>,
        coordinator: Box<dyn CoordinatorService>,
        member: Arc<dyn MemberService>,
    ) -> Result<Arc<Self>> {
        Self::start_with(config, coordinator, member, |_| Ok(gsi))
    }

    /// As [`start`](Self::start), for a `gsi`, `coordinator` or `member` that needs the stack itself.
    ///
    /// `prepare` gets the stack once its block and devices are known, before its thread calls any of them, and
    /// returns the `gsi`.
    ///
    /// # Errors
    /// Those of [`start`](Self::start) and of `prepare`.
    pub fn start_with(
        config: StackConfig,
        coordinator: Box<dyn CoordinatorService>,
        member: Arc<dyn MemberService>,
        prepare: impl FnOnce(&Arc<Self>) -> Result<Arc<dyn Gsi>>,
    ) -> Result<Arc<Self>> {
        config.check()?;
        let entry = Arc::new(Entry::new());
        let transmitter = Transmitter::open(config.send_sockets, config.send_buffer_bytes)?;
        let group = PortGroup::join(config.group.clone(), coordinator, member)?;
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
        // Open this before the first reading, so that no change is missed.
        let interfaces = InterfaceMonitor::open()?;
        let (links, server) = link(&config, &group);
        let progress = Progress::new(&group, &transmitter, &interfaces, links.as_ref())?;
        let monitor = Monitor::default();
        let host = Arc::new(Host {
            clock: Clock::start(),
            entry,
            monitor,
            gauges: Gauges::new(&config.limits),
            transmitter,
            links,
            receiver: biased::Mutex::new(Receiver::new(config.group.port)),
            recent_gone: AtomicBool::new(false),
            qps: QpTable::new(group.block().index()),
            memory: biased::RwLock::new(MemoryTable::new(config.limits.max_mr as usize)),
            deadlines: Deadlines::new(),
            deferred_acks: Noted::default(),
            deferred_at_ns: AtomicU64::new(0),
            link_wanted_until_ns: AtomicU64::new(0),
            copying: Noted::default(),
            pulling: Mutex::default(),
            comm_est: Noted::default(),
            multicast: MulticastGroups::new(&config.limits),
            progress,
            devices: RwLock::default(),
            readings: Readings::default(),
            gsi_psn: 0.into(),
            group,
            config,
        });
        host.set_tap(host.config.tap.clone());
        let thread = Mutex::default();
        let devices = Arc::new(Devices::new(Arc::clone(&host)));
        let stack = Arc::new(Self {
            host,
            devices,
            management: OnceLock::new(),
            thread,
        });
        stack.host.follow_interfaces(&BTreeSet::new())?;
        let gsi = prepare(&stack)?;
        let management = Management::new(&stack.host, &stack.devices, gsi);
        let management = stack.management.get_or_init(|| Arc::new(management));
        let management = Arc::clone(management);
        let started = thread::start(&stack.host, &stack.devices, management, interfaces, server)?;
        *stack.thread() = Some(started);
        Ok(stack)
    }

    /// The current devices.
    pub fn devices(&self) -> Vec<Arc<SoftDevice>> {
        let devices = self.host.devices.read();
        let devices = devices.iter().map(|device| self.devices.handle(device));
        devices.collect()
    }

    /// The device that has a local address, and the address's slot in its GID table.
    ///
    /// `interface` is Linux's index. It selects the device of a link-local address, which several devices may have.
    /// With 0, such an address is found only if exactly one device has it.
    pub fn device_of(&self, ip: IpAddr, interface: u32) -> Option<(Arc<SoftDevice>, u32)> {
        let (device, index) = self.host.device_of(ip, interface)?;
        Some((self.devices.handle(&device), index))
    }

    /// Explains that no device has a local address because its device's GID table is full. `None` if that is not the
    /// reason.
    pub fn why_left_out(&self, ip: IpAddr) -> Option<String> {
        let ip = ip.to_canonical();
        let devices = self.host.devices.read();
        let device = devices.iter().find(|device| device.leaves_out(ip))?;
        let name = device.name();
        Some(format!(
            "device {name} leaves {ip} out: a GID table has room for {GID_TABLE_LEN} addresses of an interface"
        ))
    }

    /// Reads the machine's interfaces and waits until it is done.
    ///
    /// Changes are noticed without this, a few hundredths of a second later. Call it right after a change. On the
    /// progress thread itself it does nothing.
    ///
    /// # Errors
    /// `TimedOut` if the progress thread does not run for a second; `Unsupported` in a forked child.
    pub fn refresh(&self) -> Result<()> {
        self.host.entry.check(Step::OpenDevice)?;
        let current = std::thread::current().id();
        let is_progress = |thread: &JoinHandle<()>| thread.thread().id() == current;
        if self.thread().as_ref().is_some_and(is_progress) {
            return Ok(());
        }
        self.host.refresh_interfaces()
    }

    /// Whether the device with an index is in [`devices`](Self::devices).
    pub fn has_device(&self, index: u32) -> bool {
        let devices = self.host.devices.read();
        devices.iter().any(|device| device.interface() == index)
    }

    /// Sends a management datagram to QP1 of `remote`.
    ///
    /// The port of `remote` is ignored; the scope counts if the address is link-local. Success does not mean that the
    /// datagram arrives.
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
        management::send_mad(&self.host, local, remote, options, mad)
    }

    /// Joins an IP multicast group on a device's interface by IGMP or MLD, until the membership is dropped.
    ///
    /// A connection manager does this for `rdma_join_multicast(3)` unless its member only sends. The group's
    /// datagrams go to the queue pairs attached to it
    /// ([`Qp::attach_mcast`](portolan_provider::traits::Qp::attach_mcast) joins, too). Memberships are counted: the
    /// last one of this process leaves the group.
    ///
    /// # Errors
    /// `InvalidArgument` if `group` is not a multicast address; `LimitReached`; `AddressInUse` if processes of
    /// another user share the port; `Os` if the interface cannot join.
    pub fn join_group(&self, device: &SoftDevice, group: IpAddr) -> Result<MulticastMembership> {
        self.host.entry.check(Step::JoinMulticast)?;
        let group = group.to_canonical();
        if !group.is_multicast() {
            let (what, expected) = ("group", "the address of a multicast group");
            return Err(Error::invalid(Step::JoinMulticast, what, expected, group));
        }
        let interface = device.core().interface();
        self.host.join_group(MulticastKey { interface, group })
    }

    /// Sends a request to the group's coordinator, which may be this process, and waits for the answer.
    ///
    /// # Errors
    /// `TimedOut` if no coordinator answers in time, `LimitReached` if too many requests wait.
    pub fn group_request(&self, payload: &[u8], timeout: Duration) -> Result<Vec<u8>> {
        self.host.entry.check(Step::Bind)?;
        self.host.group.request(payload, timeout)
    }

    /// Sends a notice to the group's coordinator, which does not answer ([`PortGroup::tell`]).
    ///
    /// # Errors
    /// `LimitReached` if too many requests wait.
    pub fn group_tell(&self, payload: &[u8]) -> Result<()> {
        self.host.group.tell(payload)
    }

    /// The number of coordinators after the first one (see [`PortGroup::epoch`]).
    pub fn group_epoch(&self) -> u64 {
        self.host.group.epoch()
    }

    /// Fails in a forked child, because the stack belongs to its parent.
    ///
    /// # Errors
    /// `Unsupported`.
    #[inline]
    pub fn check_process(&self, step: Step) -> Result<()> {
        self.host.entry.check(step)
    }

    /// This process's block: the high byte of its queue pair numbers.
    pub fn block(&self) -> Block {
        self.host.group.block()
    }

    /// How a queue pair's packets are sent. `None` if the queue pair does not exist or is not connected.
    pub fn way_of(&self, qpn: Qpn) -> Option<Way> {
        self.host.way_of(qpn)
    }

    /// Handles the packets that have arrived, if a queue pair exists. Management datagrams can overtake them.
    pub fn take_arrived_for(&self, qpn: Qpn) {
        if self.host.qps.find(qpn).is_some() {
            self.host.take_arrived();
        }
    }

    /// Whether a completion of a queue pair may wait for the program to poll.
    pub fn may_have_unpolled(&self, qpn: Qpn) -> bool {
        let qp = self.host.qps.find(qpn);
        qp.is_some_and(|qp| qp.may_have_completions())
    }

    /// The group from this process's side.
    pub fn group_status(&self) -> GroupStatus {
        self.host.group.status()
    }

    /// Makes the progress thread call [`Gsi::next_timeout`] again.
    pub fn wake(&self) {
        self.host.progress.gsi_changed();
    }

    /// Waits until `waiter` has an event or `timeout` has passed, and may return early. `None` waits without limit.
    ///
    /// If no other thread does, the calling thread also handles the management datagrams that arrive meanwhile, and
    /// calls [`Gsi::mad`] for them. So call it without locks that [`Gsi`] takes.
    ///
    /// # Errors
    /// `Unsupported` in a forked child; `Os` for errors of poll(2), except `EINTR`, and if no descriptor is left.
    pub fn wait_for(&self, waiter: &dyn EventWaiter, timeout: Option<Duration>) -> Result<()> {
        self.host.entry.check(Step::Event)?;
        match self.management.get() {
            Some(management) => management.wait(waiter, timeout),
            None => Err(Error::new(Step::Event, Cause::WouldBlock)),
        }
    }

    /// The calling thread will call [`wait_for`](Self::wait_for) within microseconds. Until the result is dropped, the
    /// progress thread leaves management datagrams to it. `None` if they are left to another thread.
    pub fn attend(&self) -> Option<Attendance<'_>> {
        self.host.entry.check(Step::Event).ok()?;
        self.management.get()?.attend()
    }

    /// Wakes the thread in [`wait_for`](Self::wait_for).
    pub fn nudge(&self) -> Arc<Nudge> {
        Arc::clone(self.host.progress.attendant.nudge())
    }

    /// Sets a tap, which sees every packet from now on, or removes it.
    pub fn set_tap(&self, tap: Option<Arc<dyn Tap>>) {
        self.host.set_tap(tap);
    }

    /// The current number of objects.
    pub fn objects(&self) -> Objects {
        let gauges = &self.host.gauges;
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

    /// Counters since the start.
    pub fn counters(&self) -> Counters {
        let (monitor, links) = (&self.host.monitor, &self.host.links);
        let mut counters = monitor.counters.read();
        let (packets, bytes) = monitor.from_rings.read();
        counters.received_packets += packets;
        counters.received_bytes += bytes;
        counters.received_through_memory += packets;
        let (packets, bytes) = links.as_ref().map(Links::sent).unwrap_or_default();
        counters.sent_packets += packets;
        counters.sent_bytes += bytes;
        counters.sent_through_memory += packets;
        counters
    }

    fn thread(&self) -> MutexGuard<'_, Option<JoinHandle<()>>> {
        self.thread.lock()
    }
}

/// Prepares links through memory. Returns none if they are turned off or the system refuses.
fn link(config: &StackConfig, group: &PortGroup) -> (Option<Links>, Option<LinkServer>) {
    if !config.local_memory {
        return (None, None);
    }
    let members = group.link_members().inspect_err(|error| {
        tracing::warn!(%error, "no links through memory");
    });
    let links = Links::new(group.block()).map_err(|errno| {
        tracing::debug!(%errno, "no links through memory");
    });
    match (links, members) {
        (Ok(links), Ok(members)) => {
            // Who uses a link takes the same locks for each request. Asked now, the kernel has answered before the first.
            biased::prepare();
            (Some(links), Some(LinkServer::new(members)))
        }
        _ => (None, None),
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // A forked child has no such thread.
        if !self.host.entry.is_owner() {
            return;
        }
        if let Some(links) = &self.host.links {
            links.rights().set_open(false);
        }
        self.host.progress.stop();
        let thread = self.thread().take();
        if let Some(thread) = thread
            && thread.thread().id() != std::thread::current().id()
        {
            // The thread logs its own panics.
            let _ = thread.join();
        }
        // Without its thread, the rest of the stack must not stay a member of the group.
        self.host.multicast.leave_all();
        self.host.group.leave();
    }
}
