//! The group's descriptor: which thread waits for it, and the delivery of the datagrams that arrive by it.
//!
//! Connections are established by these datagrams. A thread that waits for an event of the connection manager waits for
//! the descriptor itself, and handles what arrives, so that no other thread has to wake it. Only one thread does this at
//! a time. While none does, the progress thread does.

use std::marker::PhantomData;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use portolan_port_sharing::{Datagram, PortGroup};
use portolan_provider::{Cause, Error, Result, Step};
use portolan_threads::spin::Spin;
use portolan_wire::icrc::Identification;
use portolan_wire::mad::MAD_LEN;
use portolan_wire::{Psn, Qpn};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::io::gsi::{self, Gsi, MAD_PACKET_LEN, MadOptions, ReceivedMad};
use crate::io::host::Host;
use crate::io::host::drive::Answer;
use crate::io::net::arrived::{Arrived, IpFields, Unchecked};
use crate::io::net::path::Path;
use crate::io::net::receive;
use crate::io::net::send_batch::SendBatch;
use crate::io::net::tap::{Direction, TappedPacket};
use crate::io::net::transmit::{HOP_LIMIT_DEFAULT, Room};
use crate::io::polling::progress::Progress;
use crate::io::verbs::devices::Devices;

/// The events that a thread waits for.
pub trait EventWaiter {
    /// The thread begins to wait: the next event gives it a [`Nudge`](crate::io::Nudge). `false` if there is an event.
    fn begin(&self) -> bool;
    /// The thread has stopped waiting.
    fn end(&self);
    /// A descriptor that is readable while there is an event.
    ///
    /// # Errors
    /// `Os` if the process has no descriptor left.
    fn descriptor(&self) -> Result<BorrowedFd<'_>>;
}

/// While it exists, its thread waits for the group, and the progress thread does not. Dropping it changes that.
#[derive(Debug)]
pub struct Attendance<'a> {
    progress: &'a Progress,
    group: &'a PortGroup,
    /// The thread already attended, so dropping this changes nothing.
    is_nested: bool,
    /// The thread that attends must be the one that drops it, so it cannot be sent.
    _thread: PhantomData<*const ()>,
}

impl Drop for Attendance<'_> {
    fn drop(&mut self) {
        if !self.is_nested {
            // Datagrams that this thread has not taken wake the progress thread at once.
            self.progress.watch_group(self.group, true);
            self.progress.attendant.leave();
        }
    }
}

/// Delivers what arrives by the group.
#[derive(Debug)]
pub(crate) struct Management {
    host: Arc<Host>,
    devices: Arc<Devices>,
    gsi: Arc<dyn Gsi>,
    spin: Spin,
}

impl Management {
    pub(crate) fn new(host: &Arc<Host>, devices: &Arc<Devices>, gsi: Arc<dyn Gsi>) -> Self {
        Self {
            host: Arc::clone(host),
            devices: Arc::clone(devices),
            gsi,
            spin: Spin::default(),
        }
    }

    /// Waits until `waiter` has an event or `timeout` has passed. May return early. If no other thread does, it also
    /// waits for the group, and handles what arrives.
    ///
    /// # Errors
    /// Those of poll(2), except `EINTR`, and of the waiter's descriptor.
    pub(crate) fn wait(&self, waiter: &dyn EventWaiter, timeout: Option<Duration>) -> Result<()> {
        let Some(_attendance) = self.attend() else {
            return sleep(&[waiter.descriptor()?], timeout).map(drop);
        };
        if !waiter.begin() {
            return Ok(());
        }
        let nudge = self.host.progress.attendant.nudge();
        let slept = self.poll_and_sleep(&[self.host.group.as_fd(), nudge.as_fd()], timeout);
        waiter.end();
        let [has_arrived, is_nudged] = slept?;
        if is_nudged {
            nudge.take();
        }
        if has_arrived {
            self.serve_in_place();
        }
        Ok(())
    }

    /// Polls, because most answers arrive sooner than a sleeping thread could be woken, and then sleeps.
    fn poll_and_sleep<const N: usize>(
        &self,
        fds: &[BorrowedFd<'_>; N],
        timeout: Option<Duration>,
    ) -> Result<[bool; N]> {
        if timeout != Some(Duration::ZERO) {
            let mut polling = self.spin.start();
            while self.spin.goes_on(&mut polling) {
                let readable = sleep(fds, Some(Duration::ZERO))?;
                if readable.contains(&true) {
                    return Ok(readable);
                }
                // The peer may need this processor.
                std::thread::yield_now();
            }
        }
        sleep(fds, timeout)
    }

    /// The calling thread waits for the group instead of the progress thread, until the result is dropped. `None` if
    /// another thread does.
    pub(crate) fn attend(&self) -> Option<Attendance<'_>> {
        let Host {
            progress, group, ..
        } = &*self.host;
        let is_new = progress.attendant.enter()?;
        if is_new {
            progress.watch_group(group, false);
        }
        Some(Attendance {
            progress,
            group,
            is_nested: !is_new,
            _thread: PhantomData,
        })
    }

    /// Runs the group in a thread that is not the progress thread.
    fn serve_in_place(&self) {
        let host = &self.host;
        let _watch = host.watch_for_panics();
        if host.progress.is_reading_due() {
            // A datagram may be for an address that was just added. If it cannot be read, the datagrams for the other
            // addresses must not wait.
            let _ = host.refresh_interfaces();
        }
        let before = host.group.next_timeout();
        self.serve();
        let is_sooner = match (before, host.group.next_timeout()) {
            (Some(before), Some(after)) => after < before,
            (None, after) => after.is_some(),
            (Some(_), None) => false,
        };
        if is_sooner {
            host.progress.gsi_changed();
        }
    }

    /// Runs the group and delivers its datagrams. Returns whether there was one for QP1.
    pub(crate) fn serve(&self) -> bool {
        let mut had_mad = false;
        self.host
            .group
            .process(&mut |datagram| had_mad |= self.deliver(datagram));
        had_mad
    }

    /// Delivers a datagram. Returns whether it was for QP1.
    fn deliver(&self, datagram: Datagram<'_>) -> bool {
        let host = &self.host;
        let unchecked = Unchecked {
            source: datagram.source,
            destination: SocketAddr::new(datagram.destination, host.port()),
            ip: IpFields {
                identification: 0,
                traffic_class: datagram.traffic_class,
                hop_limit: datagram.hop_limit,
                flow_label: 0,
            },
            payload: datagram.payload,
        };
        let checked = receive::check(&unchecked, Identification::Hidden, &host.monitor);
        let Some(arrived) = checked else {
            return false;
        };
        if arrived.dest_qp() == Qpn::GSI {
            self.deliver_mad(&arrived, datagram.interface);
            return true;
        }
        match host.qps.find(arrived.dest_qp()) {
            Some(qp) => {
                host.receive(&qp, &[arrived], Answer::Now);
            }
            None => host.monitor.counters.dropped_no_queue_pair.up(),
        }
        false
    }

    fn deliver_mad(&self, arrived: &Arrived<'_>, interface: u32) {
        let host = &self.host;
        let Some((source_qp, mad)) = gsi::mad_of(&arrived.packet) else {
            return host.monitor.counters.dropped_mad.up();
        };
        let device = host.device_of(arrived.destination, interface);
        let mad = ReceivedMad {
            remote: arrived.source,
            local: arrived.destination,
            interface,
            device: device.map(|(device, _)| self.devices.handle(&device)),
            source_qp,
            traffic_class: arrived.ip.traffic_class,
            hop_limit: arrived.ip.hop_limit,
            mad,
        };
        self.call_gsi(|gsi| gsi.mad(mad));
    }

    /// Calls the connection manager. A panic is logged and caught, because every queue pair of the process depends on
    /// the progress thread.
    pub(crate) fn call_gsi<R>(&self, call: impl FnOnce(&dyn Gsi) -> R) -> Option<R> {
        let called = catch_unwind(AssertUnwindSafe(|| call(&*self.gsi)));
        called
            .inspect_err(|_| tracing::error!("the connection manager panicked"))
            .ok()
    }
}

/// Waits until a descriptor is readable; returns which are.
fn sleep<const N: usize>(
    fds: &[BorrowedFd<'_>; N],
    timeout: Option<Duration>,
) -> Result<[bool; N]> {
    let timeout = timeout.map(|timeout| Timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(timeout.subsec_nanos()),
    });
    let mut polled = fds.each_ref().map(|fd| PollFd::new(fd, PollFlags::IN));
    match poll(&mut polled, timeout.as_ref()) {
        Ok(_) => Ok(polled.map(|fd| !fd.revents().is_empty())),
        Err(Errno::INTR) => Ok([false; N]),
        Err(errno) => {
            let (call, errno) = ("poll", errno.raw_os_error());
            Err(Error::new(Step::Event, Cause::Os { call, errno }))
        }
    }
}

/// Sends a management datagram to QP1 of `remote` ([`Stack::send_mad`](crate::io::Stack::send_mad)).
pub(crate) fn send_mad(
    host: &Host,
    local: IpAddr,
    remote: SocketAddr,
    options: MadOptions,
    mad: &[u8; MAD_LEN],
) -> Result<()> {
    host.entry.check(Step::Transfer)?;
    let mut remote = remote;
    remote.set_port(host.port());
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
    let socket = host
        .transmitter
        .socket(version, Qpn::GSI)
        .ok_or_else(no_device)?;
    let flow = path.flow(socket.port()).ok_or_else(no_device)?;
    let psn = Psn::new(host.gsi_psn.fetch_add(1, Ordering::Relaxed));
    let mut packet = [0; MAD_PACKET_LEN];
    let built = gsi::emit(psn, mad, &mut packet).is_ok()
        && portolan_wire::icrc::append(&flow, 0, &mut packet).is_ok();
    debug_assert!(built, "a packet of constant shape");
    if host.config.local_memory && deliver_here(host, &path, socket.port(), &packet) {
        return Ok(());
    }
    if socket.is_full() {
        return Err(Error::new(Step::Transfer, Cause::WouldBlock));
    }
    let mut batch = SendBatch::of(&packet);
    if socket.send(&mut batch, &path, &host.monitor) == Room::JustFilled {
        host.progress.watch_for_room(&host.transmitter, socket);
    }
    Ok(())
}

/// Delivers a datagram to an address of this host without a socket. Returns `false` if that is not possible.
fn deliver_here(host: &Host, path: &Path, port: u16, packet: &[u8; MAD_PACKET_LEN]) -> bool {
    let Some((device, _)) = host.device_of(path.remote.ip(), path.interface) else {
        return false;
    };
    let hop_limit = match path.hop_limit {
        0 => HOP_LIMIT_DEFAULT,
        limit => limit,
    };
    // A tap sees the packet as sent before its receiver sees it.
    let time = host.monitor.tap.is_plugged().then(SystemTime::now);
    let delivered = host.group.deliver_here(Datagram {
        source: match path.local {
            IpAddr::V6(ip) => SocketAddrV6::new(ip, port, 0, path.interface).into(),
            ip => SocketAddr::new(ip, port),
        },
        destination: path.remote.ip(),
        interface: device.interface(),
        traffic_class: path.traffic_class,
        hop_limit,
        payload: packet,
    });
    if delivered {
        host.monitor.sent(1, packet.len());
        host.monitor.counters.sent_through_memory.up();
        if let Some(time) = time {
            show(host, path, port, packet, time);
        }
    }
    delivered
}

/// Shows a datagram that was delivered without a socket to the tap.
#[cold]
fn show(host: &Host, path: &Path, port: u16, packet: &[u8; MAD_PACKET_LEN], time: SystemTime) {
    host.monitor.tap.packet(&TappedPacket {
        direction: Direction::Sent,
        source: SocketAddr::new(path.local, port),
        destination: path.remote,
        identification: 0,
        traffic_class: path.traffic_class,
        hop_limit: path.hop_limit,
        payload: packet,
        time,
    });
}
