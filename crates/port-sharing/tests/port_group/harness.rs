//! A member with a progress thread, and a coordinator service that records who claimed what.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixDatagram};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use portolan_port_sharing::{
    Block, CoordinatorService, Datagram, GroupConfig, MemberService, PortGroup, Route,
};
use portolan_provider::Result;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{RecvFlags, recv};

/// Time limit for anything that should take milliseconds.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
/// Longer than an election on a slow machine, and shorter than a failed one.
pub(crate) const ELECTION_MAX: Duration = Duration::from_secs(8);
/// Time limit of a request.
pub(crate) const ASK: Duration = Duration::from_secs(10);

/// Ports for tests: below the kernel's ephemeral ports, and different from other tests' ports.
const PORTS: std::ops::Range<u16> = 5_400..9_800;

/// A group for this test: an unused port, with its own names.
pub(crate) fn config() -> GroupConfig {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let step = std::process::id() * 61 + NEXT.fetch_add(1, Ordering::Relaxed) * 17;
        let port = PORTS.start + (step % u32::from(PORTS.end - PORTS.start)) as u16;
        let is_free = |ip: IpAddr| UdpSocket::bind((ip, port)).is_ok();
        if reserve(port)
            && is_free(Ipv4Addr::UNSPECIFIED.into())
            && is_free(Ipv6Addr::UNSPECIFIED.into())
        {
            return config_on(port);
        }
    }
}

/// Reserves a port among concurrent test runs for the lifetime of this process.
fn reserve(port: u16) -> bool {
    let name = format!("portolan-test-port/{port}");
    let address = UnixAddr::from_abstract_name(name).unwrap();
    // Left open on purpose; the kernel frees the name when the process ends.
    UnixDatagram::bind_addr(&address)
        .map(std::mem::forget)
        .is_ok()
}

/// Settings of the same group for another process.
pub(crate) fn config_on(port: u16) -> GroupConfig {
    GroupConfig {
        port,
        name_prefix: "portolan-test".into(),
        // Tests run in parallel on few cores.
        join_timeout: PATIENCE,
        ..GroupConfig::default()
    }
}

/// Stands for every process in a management datagram.
pub(crate) const EVERYONE: u8 = 200;
/// Stands for the coordinator's own process in a management datagram, also while members are missing.
pub(crate) const HERE: u8 = 254;

/// A coordinator service that gives each name to the first claimant.
///
/// Requests: `claim NAME` returns `yours` or `taken by BLOCK`; `owner NAME` returns the block or `nobody`;
/// `echo TEXT` returns `TEXT`. The first byte after a management datagram's headers is the block it is for: 0
/// means a service without a listener, [`HERE`] the coordinator's own process, [`EVERYONE`] every process.
#[derive(Debug, Default)]
pub(crate) struct Names {
    owners: BTreeMap<String, Block>,
}

impl CoordinatorService for Names {
    fn reset(&mut self) {
        self.owners.clear();
    }

    fn request(&mut self, member: Block, payload: &[u8]) -> Vec<u8> {
        let text = String::from_utf8_lossy(payload).into_owned();
        let (verb, name) = text.split_once(' ').unwrap_or((&text, ""));
        let answer = match (verb, self.owners.get(name)) {
            ("claim", Some(owner)) if *owner != member => format!("taken by {owner}"),
            ("claim", _) => {
                self.owners.insert(name.to_owned(), member);
                "yours".to_owned()
            }
            ("owner", Some(owner)) => owner.to_string(),
            ("owner", None) => "nobody".to_owned(),
            ("echo", _) => name.to_owned(),
            _ => "what?".to_owned(),
        };
        answer.into_bytes()
    }

    fn report(&self) -> Vec<Vec<u8>> {
        vec![b"the coordinator".to_vec()]
    }

    fn member_left(&mut self, member: Block) {
        self.owners.retain(|_, owner| *owner != member);
    }

    fn route(&mut self, datagram: &Datagram<'_>) -> Route {
        match datagram.payload.get(HEADERS_BYTES) {
            Some(0) => Route::Unregistered,
            Some(&HERE) => Route::Local,
            Some(&EVERYONE) => Route::Everyone,
            Some(index) => Block::new(*index).map_or(Route::Drop, Route::Member),
            None => Route::Drop,
        }
    }
}

/// A member's claims, to be replayed, and the deaths that it learned of.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    pub(crate) held: Mutex<Vec<Vec<u8>>>,
    pub(crate) dead: Mutex<Vec<Block>>,
    /// Claims that a new coordinator did not grant again.
    pub(crate) lost: Mutex<Vec<String>>,
    /// Whether every callback must panic.
    pub(crate) panics: AtomicBool,
}

impl Claims {
    fn may_panic(&self) {
        assert!(
            !self.panics.load(Ordering::Relaxed),
            "a panic requested by the test"
        );
    }
}

impl MemberService for Claims {
    fn replay(&self) -> Vec<Vec<u8>> {
        self.may_panic();
        self.held.lock().unwrap().clone()
    }

    fn report(&self) -> Vec<Vec<u8>> {
        self.may_panic();
        vec![b"a ".to_vec(), b"member".to_vec()]
    }

    fn replayed(&self, request: &[u8], answer: &[u8]) {
        self.may_panic();
        if answer != b"yours" {
            let request = String::from_utf8_lossy(request);
            self.lost.lock().unwrap().push(request.into_owned());
        }
    }

    fn peer_death(&self, blocks: &[Block]) {
        self.may_panic();
        self.dead.lock().unwrap().extend_from_slice(blocks);
    }
}

/// A delivered datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Delivered {
    pub(crate) source: SocketAddr,
    pub(crate) destination: IpAddr,
    pub(crate) interface: u32,
    pub(crate) payload: Vec<u8>,
}

/// A member with the thread that drives it.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) group: Arc<PortGroup>,
    pub(crate) claims: Arc<Claims>,
    pub(crate) delivered: Arc<Mutex<Vec<Delivered>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Member {
    pub(crate) fn join(config: &GroupConfig) -> Result<Self> {
        let claims = Arc::new(Claims::default());
        let group = PortGroup::join(
            config.clone(),
            Box::new(Names::default()),
            Arc::clone(&claims) as _,
        )?;
        let group = Arc::new(group);
        let delivered = Arc::new(Mutex::new(Vec::new()));
        let stop = Arc::new(AtomicBool::new(false));
        let thread = {
            let (group, delivered, stop) = (
                Arc::clone(&group),
                Arc::clone(&delivered),
                Arc::clone(&stop),
            );
            std::thread::spawn(move || drive(&group, &delivered, &stop))
        };
        Ok(Self {
            group,
            claims,
            delivered,
            stop,
            thread: Some(thread),
        })
    }

    pub(crate) fn is_coordinator(&self) -> bool {
        self.group.status().is_coordinator
    }

    /// Asks the coordinator.
    pub(crate) fn ask(&self, question: &str) -> String {
        let answer = self
            .group
            .request(question.as_bytes(), ASK)
            .expect("an answer");
        String::from_utf8(answer).unwrap()
    }

    /// Claims a name permanently: the claim is replayed to later coordinators.
    pub(crate) fn claim(&self, name: &str) -> String {
        let answer = self.ask(&format!("claim {name}"));
        if answer == "yours" {
            self.claims
                .held
                .lock()
                .unwrap()
                .push(format!("claim {name}").into_bytes());
        }
        answer
    }

    /// Whether it learned that no living process has this block.
    pub(crate) fn knows_dead(&self, block: u8) -> bool {
        let dead = self.claims.dead.lock().unwrap();
        dead.iter().any(|dead| dead.index() == block)
    }

    /// The payloads waiting on the block's sockets.
    pub(crate) fn read_block(&self) -> Vec<Vec<u8>> {
        let mut payloads = Vec::new();
        for socket in self.group.sockets() {
            let mut buffer = [0; 2048];
            while let Ok((bytes, _)) = recv(socket, &mut buffer, RecvFlags::DONTWAIT) {
                payloads.push(buffer[..bytes].to_vec());
            }
        }
        payloads
    }

    pub(crate) fn delivered(&self) -> Vec<Delivered> {
        self.delivered.lock().unwrap().clone()
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has already been reported.
            let _ = thread.join();
        }
    }
}

/// A progress thread.
fn drive(group: &PortGroup, delivered: &Mutex<Vec<Delivered>>, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let look = Duration::from_millis(5);
        let wait = group.next_timeout().map_or(look, |next| next.min(look));
        poll(
            &mut [PollFd::from_borrowed_fd(group.as_fd(), PollFlags::IN)],
            Some(&wait.try_into().unwrap()),
        )
        .expect("poll");
        group.process(&mut |datagram| {
            delivered.lock().unwrap().push(Delivered {
                source: datagram.source,
                destination: datagram.destination,
                interface: datagram.interface,
                payload: datagram.payload.to_vec(),
            });
        });
    }
}

/// Bytes of the base and datagram transport headers.
const HEADERS_BYTES: usize = 20;

/// A datagram of the size of a RoCEv2 packet. Only its destination QPN and its body are meaningful.
pub(crate) fn packet(qpn: u32, body: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x64, 0, 0xff, 0xff, 0];
    packet.extend_from_slice(&qpn.to_be_bytes()[1..]);
    packet.resize(HEADERS_BYTES, 0);
    packet.extend_from_slice(body);
    packet.extend_from_slice(b"ICRC");
    packet
}

/// The body of a [`packet`].
pub(crate) fn body(packet: &[u8]) -> &[u8] {
    &packet[HEADERS_BYTES..packet.len() - 4]
}

/// Loopback's two addresses with this port.
pub(crate) fn loopbacks(port: u16) -> [SocketAddr; 2] {
    [
        (Ipv4Addr::LOCALHOST, port).into(),
        (Ipv6Addr::LOCALHOST, port).into(),
    ]
}

/// A socket that can send to `target`.
pub(crate) fn sender_to(target: SocketAddr) -> UdpSocket {
    let any: IpAddr = match target {
        SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    };
    let socket = UdpSocket::bind((any, 0)).unwrap();
    socket.connect(target).unwrap();
    socket
}

/// Waits until `done` returns true. On failure it prints `what`.
pub(crate) fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(
            Instant::now() < deadline,
            "{what} did not happen within {PATIENCE:?}"
        );
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Whether a name of the group exists in this network namespace.
pub(crate) fn name_exists(config: &GroupConfig) -> bool {
    let name = format!("@{}/{}", config.name_prefix, config.port);
    let names = std::fs::read_to_string("/proc/net/unix").unwrap();
    names.lines().any(|line| {
        line.rsplit(' ')
            .next()
            .is_some_and(|n| n == name || n.starts_with(&format!("{name}/")))
    })
}

/// Whether a UDP socket is bound to the port in this network namespace.
pub(crate) fn port_is_bound(port: u16) -> bool {
    let needle = format!(":{port:04X} ");
    ["/proc/net/udp", "/proc/net/udp6"].iter().any(|table| {
        let table = std::fs::read_to_string(table).unwrap_or_default();
        table.lines().skip(1).any(|line| {
            line.split_whitespace()
                .nth(1)
                .is_some_and(|local| format!("{local} ").ends_with(&needle))
        })
    })
}

/// Number of open descriptors of this process.
pub(crate) fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Index of the member that is the coordinator.
pub(crate) fn the_coordinator(members: &[Member]) -> usize {
    let mut found = None;
    eventually("an election", || {
        let coordinators: Vec<_> = (0..members.len())
            .filter(|i| members[*i].is_coordinator())
            .collect();
        assert!(
            coordinators.len() <= 1,
            "two coordinators: {coordinators:?}"
        );
        found = coordinators.first().copied();
        found.is_some()
    });
    found.unwrap()
}

/// Polls a descriptor for reading.
pub(crate) fn readable(fd: impl AsFd, limit: Duration) -> bool {
    let limit = limit.try_into().unwrap();
    poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&limit)).expect("poll") > 0
}
