//! Datagram sockets of `rsocket(7)`.

mod announcements;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use portolan_provider::traits::{Device, Provider};
use portolan_provider::{Result, Step};
use portolan_rsocket::datagram::{Announcement, source_header, split_source};
use portolan_threads::fork::ForkGuard;
use portolan_threads::lock::{Mutex, MutexGuard};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};

use self::announcements::{Newcomer, Resolving};
use super::queues::Queues;
use super::socket::{UDP, wait_for};
use super::{Destination, Options};
use crate::bell::{make_bell, ring, silence};
use crate::cm::{CmId, EventChannel};
use crate::connection::{Attempt, Steps};
use crate::deadline;
use crate::ready_set::ReadySet;

/// Maximum of known peers. Sending to further peers fails, and they go on sending by UDP.
const PEERS_MAX: usize = 4096;
/// Maximum of datagrams queued here. More wait in the queue pairs and the UDP socket, or are dropped there.
const ARRIVED_MAX: usize = 256;
/// Time limit for resolving an address.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a waiting call sleeps before it checks again in any case.
const RECHECK: Duration = Duration::from_secs(1);
/// How long dropping a socket waits for its datagrams to be sent.
const DROP_WAIT: Duration = Duration::from_secs(1);

/// A datagram socket that talks to other `rsocket(7)` programs, with an interface like `UdpSocket`.
///
/// Its addresses are UDP addresses. It has a UD queue pair for each local address that it sends from. The first
/// datagrams to a peer go over UDP, with the queue pair's number before the data. The peer answers with its own number,
/// and later datagrams go between the queue pairs.
///
/// A socket has no thread: its calls read both the UDP socket and the queue pairs. A datagram is lost if the receiver
/// has no room for it.
///
/// ```
/// use portolan::datagram::{Options, Rsocket};
/// use portolan::provider::software_provider;
///
/// let open = || Rsocket::new_on(software_provider()?, false, Options::default());
/// let (server, client) = (open()?, open()?);
/// server.bind("127.0.0.1:0".parse()?)?;
/// client.connect(server.local_addr()?)?;
/// client.send(b"ahoy", true)?;
///
/// let (peeks, waits) = (false, true);
/// let mut bytes = [0; 64];
/// let (length, sender) = server.receive_from(&mut bytes, peeks, waits)?;
/// assert_eq!(&bytes[..length], b"ahoy");
/// assert_eq!(sender, client.local_addr()?);
/// server.send_to(b"aye", sender, true)?;
/// let (length, _) = client.receive_from(&mut bytes, peeks, waits)?;
/// assert_eq!(&bytes[..length], b"aye");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Rsocket {
    udp: UdpSocket,
    provider: Arc<dyn Provider>,
    /// Of queue pairs that are created later.
    options: Mutex<Options>,
    ready: ReadySet,
    /// In `ready`: readable while [`State::rings`].
    bell: OwnedFd,
    state: Mutex<State>,
    owner: ForkGuard,
}

#[derive(Debug, Default)]
struct State {
    locals: Vec<Local>,
    peers: HashMap<SocketAddr, Peer>,
    connected: Option<SocketAddr>,
    arrived: VecDeque<(SocketAddr, Vec<u8>)>,
    newcomers: Vec<Newcomer>,
    /// A caller may wait by the descriptor.
    is_awaited: bool,
    /// Datagrams are queued here that the queue pairs and the UDP socket do not show any more.
    rings: bool,
}

/// A local address and its queue pair.
#[derive(Debug)]
struct Local {
    addr: SocketAddr,
    queues: Queues,
    _id: CmId,
    _events: EventChannel,
}

#[derive(Debug)]
struct Peer {
    /// The index of the local address that it is reached from.
    local: usize,
    /// Its queue pair; `None` until it has announced one.
    known: Option<Destination>,
}

impl Rsocket {
    /// Creates a socket on a provider, for IPv6 or for IPv4.
    ///
    /// # Errors
    /// The process has reached its limit of descriptors.
    pub fn new_on(
        provider: Arc<dyn Provider>,
        is_ipv6: bool,
        options: Options,
    ) -> io::Result<Self> {
        let family = match is_ipv6 {
            true => AddressFamily::INET6,
            false => AddressFamily::INET,
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let udp = UdpSocket::from(socket_with(family, SocketType::DGRAM, flags, None)?);
        let ready = ReadySet::new(Step::CreateQp)?;
        ready.add(&udp, Step::CreateQp)?;
        let bell = make_bell(Step::CreateQp)?;
        ready.add(&bell, Step::CreateQp)?;
        Ok(Self {
            udp,
            provider,
            options: Mutex::new(options),
            ready,
            bell,
            state: Mutex::default(),
            owner: ForkGuard::new(),
        })
    }

    /// Sets the sizes of the queues that the socket creates from now on: those of its first peer, and of each further local
    /// address. Larger queues than the device supports become as large as it supports.
    pub fn set_options(&self, options: Options) {
        *self.options.lock() = options;
    }

    /// Binds the socket. Port 0 selects a free port.
    ///
    /// # Errors
    /// The address is in use or belongs to no interface, or the socket is already bound.
    pub fn bind(&self, local: SocketAddr) -> io::Result<()> {
        Ok(bind(&self.udp, &local)?)
    }

    /// Sets the peer for [`Rsocket::send`]. UDP datagrams from other peers are dropped.
    ///
    /// # Errors
    /// The peer has no route, or the route has no device.
    pub fn connect(&self, peer: SocketAddr) -> io::Result<()> {
        self.bind_somewhere(peer)?;
        self.udp.connect(peer)?;
        let mut state = self.state.lock();
        self.local_towards(&mut state, peer)?;
        state.connected = Some(peer);
        Ok(())
    }

    /// The local address.
    ///
    /// # Errors
    /// As for `UdpSocket`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.udp.local_addr()
    }

    /// The peer of [`Rsocket::connect`].
    ///
    /// # Errors
    /// `NotConnected`.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        let connected = self.state.lock().connected;
        connected.ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// The UDP socket. Its descriptor identifies the socket, and the socket's options are set on it.
    pub fn udp(&self) -> &UdpSocket {
        &self.udp
    }

    /// Sends to the peer of [`Rsocket::connect`]. If the send queue is full and `waits` is set, it waits for room.
    ///
    /// # Errors
    /// `NotConnected`, or as for [`Rsocket::send_to`].
    pub fn send(&self, data: &[u8], waits: bool) -> io::Result<usize> {
        self.send_to(data, self.peer_addr()?, waits)
    }

    /// Sends a datagram. The first datagram to a peer waits until the peer's address is resolved. If the send queue is
    /// full and `waits` is set, it waits for room.
    ///
    /// # Errors
    /// `EMSGSIZE` if the datagram does not fit into a packet; `WouldBlock` if the send queue is full and `waits` is
    /// false; an error of resolving the peer's address.
    pub fn send_to(&self, data: &[u8], to: SocketAddr, waits: bool) -> io::Result<usize> {
        self.bind_somewhere(to)?;
        loop {
            let mut state = self.hold();
            let index = self.local_towards(&mut state, to)?;
            if state
                .peers
                .get(&to)
                .is_some_and(|peer| peer.known.is_none())
            {
                // The peer's answer may have arrived.
                self.take_udp(&mut state);
            }
            let State { locals, peers, .. } = &mut *state;
            let Local { addr, queues, .. } = &mut locals[index];
            let header = source_header(*addr);
            if header.bytes().len() + data.len() > queues.mtu() {
                return Err(io::Error::from_raw_os_error(
                    rustix::io::Errno::MSGSIZE.raw_os_error(),
                ));
            }
            let Some(destination) = peers.get(&to).and_then(|peer| peer.known.as_ref()) else {
                let announcement = announcement(queues, *addr, true);
                let frame = [announcement.encode().bytes(), data].concat();
                self.udp.send_to(&frame, to)?;
                return Ok(data.len());
            };
            let frame = [header.bytes(), data].concat();
            if queues.send(destination, &frame, None)? {
                return Ok(data.len());
            }
            if !waits {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            if !queues.arm_for_sends()? {
                // Only for room: datagrams that have arrived do not end it.
                let channel = queues.channel().clone();
                drop(state);
                wait_for(&[channel.as_fd()], deadline::after(RECHECK))?;
            }
        }
    }

    /// Receives a datagram. Returns the number of bytes that fit, and the sender. The other bytes are lost.
    ///
    /// With `peeks` the datagram stays queued, and the next call returns it again. With `waits` the call waits for a
    /// datagram if none has arrived.
    ///
    /// # Errors
    /// `WouldBlock` if no datagram has arrived and `waits` is false; the device was removed.
    pub fn receive_from(
        &self,
        into: &mut [u8],
        peeks: bool,
        waits: bool,
    ) -> io::Result<(usize, SocketAddr)> {
        loop {
            let mut state = self.hold();
            self.look(&mut state)?;
            if let Some((source, data)) = state.arrived.front() {
                let length = data.len().min(into.len());
                into[..length].copy_from_slice(&data[..length]);
                let source = *source;
                if !peeks {
                    state.arrived.pop_front();
                }
                return Ok((length, source));
            }
            if !waits {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            if !arm(&mut state)? {
                state.is_awaited = true;
                drop(state);
                self.wait()?;
            }
        }
    }

    /// Whether a datagram can be received. If not, the socket's descriptor (`AsFd`) becomes readable when one may have
    /// arrived, and stays so while one can be received, whichever call has found it.
    ///
    /// # Errors
    /// The device was removed.
    pub fn is_readable(&self) -> io::Result<bool> {
        let mut state = self.hold();
        state.is_awaited = true;
        loop {
            self.look(&mut state)?;
            if !state.arrived.is_empty() {
                return Ok(true);
            }
            if !arm(&mut state)? {
                return Ok(false);
            }
        }
    }

    fn hold(&self) -> Held<'_> {
        Held {
            state: self.state.lock(),
            socket: self,
        }
    }

    fn wait(&self) -> Result<()> {
        wait_for(&[self.ready.as_fd()], deadline::after(RECHECK))
    }

    /// Binds an unbound socket to a free port, which its headers contain.
    fn bind_somewhere(&self, peer: SocketAddr) -> io::Result<()> {
        if self.udp.local_addr()?.port() != 0 {
            return Ok(());
        }
        self.bind(SocketAddr::new(unspecified_like(peer), 0))
    }

    /// The index of the local address for a peer. Creates its queue pair at the first use.
    fn local_towards(&self, state: &mut State, peer: SocketAddr) -> io::Result<usize> {
        if let Some(known) = state.peers.get(&peer) {
            return Ok(known.local);
        }
        if state.peers.len() >= PEERS_MAX {
            return Err(io::Error::other(format!("{PEERS_MAX} peers are known")));
        }
        let addr = self.source_towards(peer)?;
        let known = state.locals.iter().position(|local| local.addr == addr);
        let local = match known {
            Some(local) => local,
            None => {
                let opened = self.open(addr, peer)?;
                let queues = opened.queues.descriptor()?;
                self.ready.add(queues, Step::CreateQp)?;
                state.locals.push(opened);
                state.locals.len() - 1
            }
        };
        let known = None;
        state.peers.insert(peer, Peer { local, known });
        Ok(local)
    }

    /// The source address that UDP would use for a peer.
    fn source_towards(&self, peer: SocketAddr) -> io::Result<SocketAddr> {
        let own = self.udp.local_addr()?;
        if !own.ip().is_unspecified() {
            return Ok(own);
        }
        let probe = UdpSocket::bind((unspecified_like(peer), 0))?;
        probe.connect(peer)?;
        Ok(SocketAddr::new(probe.local_addr()?.ip(), own.port()))
    }

    fn open(&self, addr: SocketAddr, peer: SocketAddr) -> Result<Local> {
        let (id, events) = self.resolve(addr, peer)?;
        let options = self.options_on(&*id.device()?)?;
        Ok(Local {
            addr,
            queues: Queues::new(&id, &options)?,
            _id: id,
            _events: events,
        })
    }

    /// The options within the limits of a device.
    fn options_on(&self, device: &dyn Device) -> Result<Options> {
        let limits = device.attr()?;
        let mut options = self.options.lock().clone();
        // One completion queue has both.
        let most = limits.max_qp_wr.min(limits.max_cqe / 2);
        options.send_depth = options.send_depth.min(most);
        options.receive_depth = options.receive_depth.min(most);
        Ok(options)
    }

    /// Creates an id and resolves a peer's address with it.
    fn resolve(&self, source: SocketAddr, peer: SocketAddr) -> Result<(CmId, EventChannel)> {
        self.begin(source, peer)?.finish()
    }

    fn begin(&self, source: SocketAddr, peer: SocketAddr) -> Result<Resolving> {
        let events = EventChannel::open_on(self.provider.clone())?;
        let id = CmId::with_service(&events, UDP)?;
        let deadline = deadline::after(RESOLVE_TIMEOUT);
        let steps = Steps::start(id, events, Some(source), peer, deadline)?;
        Ok(Resolving { steps })
    }

    /// Takes the datagrams that have arrived at the UDP socket and the queue pairs.
    fn look(&self, state: &mut State) -> Result<()> {
        self.take_udp(state);
        let State {
            locals, arrived, ..
        } = state;
        for local in locals {
            while arrived.len() < ARRIVED_MAX
                && let Some(datagram) = local.queues.receive()?
            {
                if let Some((source, data)) = split_source(&datagram.data) {
                    arrived.push_back((source, data.to_vec()));
                }
            }
        }
        Ok(())
    }
}

/// The locked state during a call. When the call ends, the bell rings if datagrams are still queued here.
struct Held<'a> {
    state: MutexGuard<'a, State>,
    socket: &'a Rsocket,
}

impl Deref for Held<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for Held<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // A forked child shares the bell with its parent.
        if !self.socket.owner.is_owner() {
            return;
        }
        let state = &mut *self.state;
        let mut queues = state.locals.iter().map(|local| &local.queues);
        let has_any = !state.arrived.is_empty() || queues.any(Queues::has_arrived);
        let rings = has_any && state.is_awaited;
        if std::mem::replace(&mut state.rings, rings) == rings {
            return;
        }
        match rings {
            true => ring(&self.socket.bell),
            false => silence(&self.socket.bell),
        }
    }
}

impl AsFd for Rsocket {
    /// A descriptor that is readable when a check may find something new; see [`Rsocket::is_readable`].
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }
}

impl Drop for Rsocket {
    fn drop(&mut self) {
        let until: Instant = deadline::after(DROP_WAIT);
        for local in &mut self.state.lock().locals {
            // Datagrams that are not sent by then are lost.
            while let Ok(false) = local.queues.is_drained()
                && !deadline::left(until).is_zero()
                && local.queues.arm().is_ok()
                && wait_for(&[local.queues.as_fd()], until).is_ok()
            {}
        }
    }
}

/// Requests the next notifications. Returns whether something has arrived already.
fn arm(state: &mut State) -> Result<bool> {
    let mut any = false;
    for local in &mut state.locals {
        any |= local.queues.arm()?;
    }
    Ok(any)
}

fn announcement(queues: &Queues, addr: SocketAddr, has_data: bool) -> Announcement {
    Announcement {
        has_data,
        qpn: queues.qpn().value(),
        addr: addr.ip(),
    }
}

fn unspecified_like(addr: SocketAddr) -> IpAddr {
    match addr.is_ipv6() {
        true => Ipv6Addr::UNSPECIFIED.into(),
        false => Ipv4Addr::UNSPECIFIED.into(),
    }
}
