//! The sockets that packets are sent from, and their queues while they are full.

mod open_ring;
mod socket;
mod waiting;

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::SystemTime;

use portolan_provider::{Cause, Error, Result, Step};
use portolan_threads::biased;
use portolan_threads::lock::{Mutex, MutexGuard};
use portolan_wire::Qpn;
use portolan_wire::icrc;
use socket2::{Domain, Protocol, Socket, Type};

use crate::io::net::counters::{Monitor, RingTraffic};
use crate::io::net::path::Path;
use crate::io::net::send_batch::{Run, SendBatch, send_one};
use crate::io::net::shm::bell::Doorbell;
use crate::io::net::shm::cursor::Sleepers;
use crate::io::net::shm::peer_memory::PeerMemory;
use crate::io::net::shm::ring::{Broken, Record, RecordHead, Writer, Written};
use crate::io::net::sockopt::{IpVersion, set_int};
use crate::io::net::tap::{Direction, TappedPacket, with_icrc};
use portolan_port_sharing::room::{self, with_room};

pub(crate) use open_ring::OpenRing;
pub(crate) use socket::HOP_LIMIT_DEFAULT;
use socket::{Refusal, SOURCE_PORT_MIN, bind_to_random_port, errno_of, os_error, prepare};
pub(crate) use waiting::Turn;
use waiting::Waiting;

/// All send sockets.
#[derive(Debug)]
pub(crate) struct Transmitter {
    v4: Vec<SendSocket>,
    /// Empty if the system has no IPv6.
    v6: Vec<SendSocket>,
}

/// A queue pair's registration with a socket or ring that was full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Registered(u32);

/// Whether a socket has room for more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    Left,
    /// Has become full, and keeps what it could not send. The caller asks epoll to report when there is room, or wakes the
    /// progress thread, which tries to write to the ring once more.
    JustFilled,
    Full,
}

impl Transmitter {
    /// Opens `sockets` sockets of each IP version.
    pub(crate) fn open(sockets: usize, buffer_bytes: usize) -> Result<Self> {
        let open = |version| -> Result<Vec<SendSocket>> {
            (0..sockets)
                .map(|_| SendSocket::open(version, buffer_bytes))
                .collect()
        };
        let v6 = match open(IpVersion::V6) {
            Ok(sockets) => sockets,
            Err(error) if is_no_ipv6(&error) => Vec::new(),
            Err(error) => return Err(error),
        };
        Ok(Self {
            v4: open(IpVersion::V4)?,
            v6,
        })
    }

    /// The socket that a queue pair sends from. It never changes, so the packets stay in order.
    pub(crate) fn socket(&self, version: IpVersion, qpn: Qpn) -> Option<&SendSocket> {
        let sockets = self.of_version(version);
        sockets.get(qpn.value() as usize % sockets.len().max(1))
    }

    /// The UDP source port of packets through memory.
    pub(crate) fn link_port(&self) -> u16 {
        self.v4.first().map_or(SOURCE_PORT_MIN, SendSocket::port)
    }

    /// All sockets with their tokens.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &SendSocket)> {
        (0..).zip(self.v4.iter().chain(&self.v6))
    }

    /// The socket of a token of [`iter`](Self::iter).
    pub(crate) fn by_token(&self, token: u64) -> Option<&SendSocket> {
        let index = usize::try_from(token).ok()?;
        self.v4.iter().chain(&self.v6).nth(index)
    }

    /// The token of a socket of this transmitter.
    pub(crate) fn token(&self, socket: &SendSocket) -> Option<u64> {
        self.iter()
            .find(|(_, other)| std::ptr::eq(*other, socket))
            .map(|(token, _)| token)
    }

    fn of_version(&self, version: IpVersion) -> &[SendSocket] {
        match version {
            IpVersion::V4 => &self.v4,
            IpVersion::V6 => &self.v6,
        }
    }
}

fn is_no_ipv6(error: &Error) -> bool {
    matches!(
        error.cause,
        Cause::Os {
            errno: libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL,
            ..
        }
    )
}

/// An unconnected socket on a random source port. A connected socket would number its IPv4 packets, and the ICRC
/// covers that number.
#[derive(Debug)]
pub(crate) struct SendSocket {
    outlet: Outlet,
    port: u16,
    /// The other end of the ring is gone.
    closed: AtomicBool,
    /// The reader of the ring has made no room for long.
    stalled: AtomicBool,
    /// How often the queue pairs that wait were taken to be resumed.
    rounds: AtomicU32,
    /// Whether the kernel segments datagrams. Set to false for good if a device cannot.
    segments: AtomicBool,
    /// Whether `waiting` has packets; read without its lock.
    full: AtomicBool,
    waiting: Mutex<Waiting>,
    /// What was sent in the short form. The ring's lock protects it.
    sent: RingTraffic,
}

/// Where packets go.
#[derive(Debug)]
enum Outlet {
    Socket(UdpSocket),
    /// A ring in memory, and the bell of its reader.
    Ring {
        writer: biased::Mutex<Writer>,
        bell: Doorbell,
        /// The reader's memory, if this process may access it.
        memory: Option<Box<PeerMemory>>,
    },
}

impl SendSocket {
    fn open(version: IpVersion, buffer_bytes: usize) -> Result<Self> {
        let domain = match version {
            IpVersion::V4 => Domain::IPV4,
            IpVersion::V6 => Domain::IPV6,
        };
        let make = || {
            Socket::new(domain, Type::DGRAM.nonblocking(), Some(Protocol::UDP))
                .map_err(|error| errno_of(&error))
        };
        let socket = with_room(make)
            .map_err(|errno| Error::new(Step::OpenDevice, room::cause("socket", errno)))?;
        let fd = socket.as_fd();
        prepare(fd, version, buffer_bytes).map_err(|error| os_error("setsockopt", &error))?;
        let port = bind_to_random_port(&socket, version)?;
        // Kernels before 4.18 do not have the option.
        let segments = set_int(fd, libc::IPPROTO_UDP, libc::UDP_SEGMENT, 0).is_ok();
        Ok(Self {
            outlet: Outlet::Socket(socket.into()),
            port,
            closed: AtomicBool::new(false),
            stalled: AtomicBool::new(false),
            rounds: AtomicU32::new(0),
            segments: AtomicBool::new(segments),
            full: AtomicBool::new(false),
            waiting: Mutex::default(),
            sent: RingTraffic::default(),
        })
    }

    /// Sends through memory, with a UDP port as the source.
    pub(crate) fn of_ring(
        writer: Writer,
        bell: Doorbell,
        memory: Option<PeerMemory>,
        port: u16,
    ) -> Self {
        Self {
            outlet: Outlet::Ring {
                writer: biased::Mutex::new(writer),
                bell,
                memory: memory.map(Box::new),
            },
            port,
            closed: AtomicBool::new(false),
            stalled: AtomicBool::new(false),
            rounds: AtomicU32::new(0),
            segments: AtomicBool::new(true),
            full: AtomicBool::new(false),
            waiting: Mutex::default(),
            sent: RingTraffic::default(),
        }
    }

    /// Packets and bytes that were sent in the short form.
    pub(crate) fn sent(&self) -> (u64, u64) {
        self.sent.read()
    }

    /// Marks the ring as ended: no packet in it arrives any more.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// Closes the ring. Returns the queue pairs that wait for room. From now on, none waits.
    pub(crate) fn abandon(&self) -> Vec<Qpn> {
        self.close();
        let mut waiting = self.lock();
        self.full.store(false, Ordering::Release);
        self.take_queue_pairs(&mut waiting)
    }

    /// Whether the other end of the ring is gone.
    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// The memory of the process at the other end of the ring, if this process may access it.
    #[inline]
    pub(crate) fn peer_memory(&self) -> Option<&PeerMemory> {
        self.peer_memory_even_if_closed()
            .filter(|_| !self.is_closed())
    }

    /// As [`peer_memory`](Self::peer_memory), but also after the link has ended.
    #[inline]
    pub(crate) fn peer_memory_even_if_closed(&self) -> Option<&PeerMemory> {
        match &self.outlet {
            Outlet::Ring { memory, .. } => memory.as_deref(),
            Outlet::Socket(_) => None,
        }
    }

    /// Whether the process at the other end of the ring and this one let each other access their memory.
    pub(crate) fn is_trusted(&self) -> bool {
        self.peer_memory_even_if_closed().is_some()
    }

    /// Whether its packets stay on this host, and need no ICRC.
    #[inline]
    pub(crate) fn is_ring(&self) -> bool {
        matches!(self.outlet, Outlet::Ring { .. })
    }

    /// The UDP source port, which the ICRC covers.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// The socket; `None` for a ring.
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.outlet {
            Outlet::Socket(socket) => Some(socket.as_fd()),
            Outlet::Ring { .. } => None,
        }
    }

    /// The ring, unless packets wait for room in it.
    #[inline(always)]
    pub(crate) fn open_ring(&self) -> Option<OpenRing<'_>> {
        let Outlet::Ring { writer, bell, .. } = &self.outlet else {
            return None;
        };
        if self.is_full() || self.is_closed() {
            return None;
        }
        Some(OpenRing::new(self, writer.lock(), bell))
    }

    /// Passes datagrams from `first` on to the kernel or to the ring. Returns how many it took, at least one.
    fn submit(
        &self,
        batch: &SendBatch,
        path: &Path,
        first: usize,
        monitor: &Monitor,
    ) -> io::Result<usize> {
        match &self.outlet {
            Outlet::Socket(socket) => {
                monitor.counters.send_calls.up();
                batch.submit(socket.as_fd(), path, first)
            }
            Outlet::Ring { writer, bell, .. } => {
                let mut writer = writer.lock();
                let mut sent = 0;
                let mut woken = Sleepers::default();
                for run in batch.runs().iter().skip(first) {
                    match self.write(&mut writer, path, run, batch.bytes(run)) {
                        Ok(sleepers) => woken = woken.or(sleepers),
                        Err(error) if sent == 0 => return Err(error),
                        Err(_) => break,
                    }
                    sent += 1;
                }
                bell.wake(woken);
                Ok(sent)
            }
        }
    }

    fn submit_one(&self, path: &Path, run: &Run, bytes: &[u8]) -> io::Result<()> {
        match &self.outlet {
            Outlet::Socket(socket) => send_one(socket.as_fd(), path, run, bytes),
            Outlet::Ring { writer, bell, .. } => {
                bell.wake(self.write(&mut writer.lock(), path, run, bytes)?);
                Ok(())
            }
        }
    }

    /// Writes a datagram to the ring. Returns who must be woken at its other end.
    fn write(
        &self,
        writer: &mut Writer,
        path: &Path,
        run: &Run,
        bytes: &[u8],
    ) -> io::Result<Sleepers> {
        let record = Record {
            head: RecordHead {
                source: SocketAddr::new(path.local, self.port),
                destination: path.remote.ip(),
                packet_len: run.packet_len,
                traffic_class: path.traffic_class,
                hop_limit: match path.hop_limit {
                    0 => HOP_LIMIT_DEFAULT,
                    set => set,
                },
            },
            payload: bytes,
        };
        match writer.write(&record) {
            Ok(Written::Done(sleepers)) => Ok(sleepers),
            Ok(Written::Full) => Err(io::ErrorKind::WouldBlock.into()),
            Err(Broken) => {
                self.close();
                Err(io::ErrorKind::ConnectionReset.into())
            }
        }
    }

    /// Whether packets of one length may share a datagram.
    pub(crate) fn coalesces(&self) -> bool {
        self.segments.load(Ordering::Relaxed)
    }

    /// Whether packets wait for room in the send buffer.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.full.load(Ordering::Acquire)
    }

    /// If the socket is full, registers a queue pair that has more to send.
    #[cold]
    pub(crate) fn defers(&self, qpn: Qpn, turn: Turn) -> Option<Registered> {
        let mut waiting = self.lock();
        let full = self.full.load(Ordering::Acquire) && !self.is_closed();
        full.then(|| {
            waiting.register(qpn, turn);
            Registered(self.rounds.load(Ordering::Relaxed))
        })
    }

    /// Whether a queue pair is still registered: it was not resumed, and is not about to be.
    pub(crate) fn has(&self, registered: Registered) -> bool {
        self.rounds.load(Ordering::Acquire) == registered.0
    }

    /// The reader of this ring has made no room since a queue pair registered long ago. Nobody waits for it until it has.
    pub(crate) fn stalls(&self, registered: Registered) {
        // Under the lock: the reader may have made room meanwhile.
        let _waiting = self.lock();
        if self.has(registered) {
            self.stalled.store(true, Ordering::Relaxed);
        }
    }

    /// Whether the ring's reader has made no room for long.
    pub(crate) fn is_stalled(&self) -> bool {
        self.stalled.load(Ordering::Relaxed)
    }

    /// Sends the staged packets and empties the batch.
    pub(crate) fn send(&self, batch: &mut SendBatch, path: &Path, monitor: &Monitor) -> Room {
        let mut first = 0;
        let mut room = Room::Left;
        if monitor.tap.is_plugged() {
            self.show(batch, path, monitor);
        }
        while let Some(run) = batch.runs().get(first).copied() {
            if self.full.load(Ordering::Acquire) {
                room = self.put_aside(batch, first, path, monitor);
                break;
            }
            match self.submit(batch, path, first, monitor) {
                Ok(sent) => {
                    for run in batch.runs().iter().skip(first).take(sent) {
                        self.count(run, monitor);
                    }
                    first += sent.max(1);
                }
                Err(error) => match Refusal::of(&error) {
                    Refusal::Interrupted => {}
                    Refusal::Full => {
                        room = self.put_aside(batch, first, path, monitor);
                        break;
                    }
                    Refusal::Segmentation if run.packets > 1 => {
                        self.send_apart(batch, &run, path, &error, monitor);
                        first += 1;
                    }
                    Refusal::Segmentation | Refusal::Packet => {
                        monitor.counters.send_refused.add(usize::from(run.packets));
                        first += 1;
                    }
                },
            }
        }
        batch.clear();
        room
    }

    fn count(&self, run: &Run, monitor: &Monitor) {
        monitor.sent(run.packets, run.len);
        if let Outlet::Ring { .. } = self.outlet {
            let packets = usize::from(run.packets);
            monitor.counters.sent_through_memory.add(packets);
        }
    }

    /// Sends the packets of a datagram that the kernel would not segment one by one. Each then has identification
    /// zero, so packets with another one get a new ICRC.
    #[cold]
    fn send_apart(
        &self,
        batch: &mut SendBatch,
        run: &Run,
        path: &Path,
        error: &io::Error,
        monitor: &Monitor,
    ) {
        let Some(flow) = path.flow(self.port) else {
            return;
        };
        let mut all_sent = true;
        for packet in batch.packets_mut(run) {
            let single = Run::single(packet.len());
            let sent = icrc::append(&flow, 0, packet).is_ok()
                && self.submit_one(path, &single, packet).is_ok();
            match sent {
                true => monitor.sent(1, packet.len()),
                false => monitor.counters.send_refused.up(),
            }
            all_sent &= sent;
        }
        // The device cannot compute checksums (udp(7), UDP_SEGMENT), and never will.
        if all_sent && error.raw_os_error() == Some(libc::EIO) {
            self.segments.store(false, Ordering::Relaxed);
        }
    }

    /// Keeps the staged packets from datagram `first` on until there is room.
    #[cold]
    fn put_aside(&self, batch: &SendBatch, first: usize, path: &Path, monitor: &Monitor) -> Room {
        monitor.counters.send_blocked.up();
        let mut waiting = self.lock();
        for run in batch.runs().iter().skip(first) {
            if !waiting.keep(path, run, batch.bytes(run)) {
                // Drop them, as the network would.
                monitor.counters.send_refused.add(usize::from(run.packets));
            }
        }
        if self.full.swap(true, Ordering::AcqRel) {
            return Room::Full;
        }
        // Under the lock: after it, another thread may find room, and then the reader must not be asked any more.
        if let Outlet::Ring { writer, .. } = &self.outlet {
            writer.lock().want_room();
        }
        Room::JustFilled
    }

    /// Sends waiting packets. Returns the queue pairs that have more to send, or `None` if the socket is still full.
    pub(crate) fn resume(&self, monitor: &Monitor) -> Option<Vec<Qpn>> {
        let mut waiting = self.lock();
        while let Some((path, run, bytes)) = waiting.oldest() {
            match self.submit_one(path, run, bytes) {
                Ok(()) => self.count(run, monitor),
                Err(error) => match Refusal::of(&error) {
                    Refusal::Interrupted => continue,
                    Refusal::Full => return None,
                    Refusal::Segmentation | Refusal::Packet => {
                        monitor.counters.send_refused.add(usize::from(run.packets));
                    }
                },
            }
            waiting.forget_oldest();
        }
        self.full.store(false, Ordering::Release);
        self.stalled.store(false, Ordering::Relaxed);
        if let Outlet::Ring { writer, .. } = &self.outlet {
            writer.lock().have_room();
        }
        Some(self.take_queue_pairs(&mut waiting))
    }

    /// Shows packets to the tap before they are sent.
    #[cold]
    fn show(&self, batch: &SendBatch, path: &Path, monitor: &Monitor) {
        let time = SystemTime::now();
        let flow = path.flow(self.port).filter(|_| self.is_ring());
        for run in batch.runs() {
            for (number, payload) in (0..).zip(batch.bytes(run).chunks(run.packet_len.max(1))) {
                let completed = flow.map(|flow| with_icrc(&flow, number, payload));
                let payload = completed.as_deref().unwrap_or(payload);
                monitor.tap.packet(&TappedPacket {
                    direction: Direction::Sent,
                    source: SocketAddr::new(path.local, self.port),
                    destination: path.remote,
                    identification: if path.local.is_ipv4() { number } else { 0 },
                    traffic_class: path.traffic_class,
                    hop_limit: path.hop_limit,
                    payload,
                    time,
                });
            }
        }
    }

    fn take_queue_pairs(&self, waiting: &mut Waiting) -> Vec<Qpn> {
        self.rounds.fetch_add(1, Ordering::Release);
        waiting.take_queue_pairs()
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock()
    }
}

#[cfg(test)]
mod tests;
