//! The links of this process: their creation and their end.
//!
//! A queue pair that is connected to another process of this host requests a link ([`Links::want`]). The progress
//! thread creates it: it calls the other process, passes a ring and waits for the head page. Until then packets use the
//! socket, and again if the link fails or ends; unreliable messages wait for their first link a moment.

use std::collections::{BTreeSet, HashMap};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use portolan_port_sharing::{Block, LinkMessage, MemberLink, MemberLinks};
use portolan_threads::lock::{Mutex, RwLock};
use portolan_wire::Qpn;
use rustix::io::Errno;

use crate::io::net::shm::bell::Bell;
use crate::io::net::shm::handshake::{Incoming, OwnEnd, accepted, answer, answered};
use crate::io::net::shm::head_page::{HeadPage, PLACES};
use crate::io::net::shm::memory_files::MemoryFiles;
use crate::io::net::shm::message::{FILE, RING, VERSION, file_message};
use crate::io::net::shm::rights::Rights;
use crate::io::net::shm::ring::{PendingWriter, Writer};
use crate::io::net::shm::waiter_bell::WaiterBell;
use crate::io::net::transmit::SendSocket;

/// Members accepted in one turn.
const ACCEPTS_PER_TURN: usize = 16;
/// How long after a refusal a datagram asks for a link again, and a process that was busy is called again.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// How long the first unreliable message to a process waits for the link. Longer than two processes take to create it.
pub(crate) const LINK_WAIT_MAX: Duration = Duration::from_millis(50);
/// Maximum of accepted connections. Each may have a place on the head page.
const ACCEPTED_MAX: usize = PLACES;
/// Maximum of those of users who are trusted only for the port. There are fewer members, and each opens one.
const STRANGERS_MAX: usize = PLACES / 2;
/// How long a process that has called may say nothing if others wait for its place.
const SILENCE_MAX: Duration = Duration::from_secs(2);

/// The links as all threads see them.
#[derive(Debug)]
pub(crate) struct Links {
    own: Block,
    head_page: HeadPage,
    /// Wakes the progress thread for the rings.
    bell: Bell,
    /// Wakes a thread that waits for the rings itself.
    waiter_bell: WaiterBell,
    /// The rights of other processes to access this process's memory directly, and that memory.
    rights: Rights,
    files: Arc<MemoryFiles>,
    any_asked: AtomicBool,
    outgoing: RwLock<HashMap<Block, Outgoing>>,
    wanted: Mutex<Vec<Block>>,
    /// When a link to a process was last requested.
    last_asked: Mutex<HashMap<Block, Instant>>,
    any_wanted: AtomicBool,
    /// Number of links established.
    came_up: AtomicU64,
    /// Queue pairs that wait until a link is up or refused.
    waiting: Mutex<BTreeSet<Qpn>>,
    /// Whether one has been since they were resumed.
    any_settled: AtomicBool,
    /// Packets and bytes that were sent in the short form through links that have ended.
    sent_before: Mutex<(u64, u64)>,
}

#[derive(Debug)]
enum Outgoing {
    /// Requested, or being created. Until then, datagrams wait for it; not if it was requested shortly before.
    Asked(Option<Instant>),
    Up(Arc<SendSocket>),
    /// The other process cannot or will not take part.
    Refused(Instant),
}

/// The link to a process for a datagram.
#[derive(Debug)]
pub(crate) enum ForDatagram {
    Up(Arc<SendSocket>),
    /// It is being created, and will soon be up or refused.
    Coming,
    /// It was not requested yet, or was refused a while ago: [want](Links::want) it.
    Missing,
    Unusable,
}

/// The connections behind the links. Only the progress thread uses them.
#[derive(Debug)]
pub(crate) struct LinkServer {
    members: MemberLinks,
    connections: HashMap<u64, Connection>,
    last: u64,
    /// Processes that could not be called for a moment, and when to call them again.
    busy: Vec<Block>,
    call_again_at: Option<Instant>,
}

#[derive(Debug)]
struct Connection {
    link: Arc<MemberLink>,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// Called. The ring is passed, and the head page is awaited.
    Called(Block, PendingWriter),
    /// A link to that block.
    Writing(Block, Arc<SendSocket>),
    /// Accepted. The ring is awaited since then.
    Accepted(Instant),
    /// A link to this process, with its place on the head page.
    Reading(u8),
}

/// The result of serving a connection.
#[derive(Debug)]
pub(crate) enum Served {
    Nothing,
    /// The other process has written packets or made room.
    Rung,
    /// A link from another process. [`LinkServer::answer`] it once packets from its ring are read.
    Incoming(Incoming),
    /// The link with that place on the head page has ended.
    Ended(u8),
    /// The link that this process writes to has ended. These queue pairs waited for room in its ring.
    Gone(Vec<Qpn>),
}

impl Links {
    pub(crate) fn new(own: Block) -> Result<Self, Errno> {
        Ok(Self {
            own,
            head_page: HeadPage::create()?,
            bell: Bell::new()?,
            waiter_bell: WaiterBell::new()?,
            rights: Rights::create()?,
            files: Arc::new(MemoryFiles::new()),
            any_asked: AtomicBool::new(false),
            outgoing: RwLock::default(),
            wanted: Mutex::default(),
            last_asked: Mutex::default(),
            any_wanted: AtomicBool::new(false),
            came_up: AtomicU64::new(0),
            waiting: Mutex::default(),
            any_settled: AtomicBool::new(false),
            sent_before: Mutex::default(),
        })
    }

    /// Requests a link to a process, unless there is one. Returns whether the progress thread must be woken.
    pub(crate) fn want(&self, block: Block) -> bool {
        let mut outgoing = self.outgoing.write();
        if matches!(
            outgoing.get(&block),
            Some(Outgoing::Asked(_) | Outgoing::Up(_))
        ) {
            return false;
        }
        let now = Instant::now();
        let was_asked = self.last_asked.lock().insert(block, now);
        // It has refused, or its links end as soon as they are up.
        let is_again = was_asked.is_some_and(|at| now.duration_since(at) < ASK_AGAIN_AFTER * 2);
        let until = (!is_again).then(|| now + LINK_WAIT_MAX);
        outgoing.insert(block, Outgoing::Asked(until));
        self.wanted.lock().push(block);
        self.any_wanted.store(true, Ordering::Release);
        true
    }

    /// The link to a process for a datagram.
    pub(crate) fn for_datagram(&self, block: Block) -> ForDatagram {
        match self.outgoing.read().get(&block) {
            Some(Outgoing::Up(socket)) if !socket.is_closed() => {
                ForDatagram::Up(Arc::clone(socket))
            }
            Some(Outgoing::Asked(Some(until))) if Instant::now() < *until => ForDatagram::Coming,
            Some(Outgoing::Refused(at)) if at.elapsed() >= ASK_AGAIN_AFTER => ForDatagram::Missing,
            Some(_) => ForDatagram::Unusable,
            None => ForDatagram::Missing,
        }
    }

    /// Registers a queue pair that waits until a link is up or refused. The caller checks once more after this, or has a timer.
    pub(crate) fn wait(&self, qpn: Qpn) {
        self.waiting.lock().insert(qpn);
    }

    /// The queue pairs that wait, if a link is up or refused since the last call.
    pub(crate) fn take_waiting(&self) -> BTreeSet<Qpn> {
        match self.any_settled.swap(false, Ordering::AcqRel) {
            true => std::mem::take(&mut *self.waiting.lock()),
            false => BTreeSet::new(),
        }
    }

    /// The link to a process, if it is up.
    pub(crate) fn to(&self, block: Block) -> Option<Arc<SendSocket>> {
        match self.outgoing.read().get(&block) {
            Some(Outgoing::Up(socket)) => Some(Arc::clone(socket)),
            _ => None,
        }
    }

    /// Whether the other process refused a link, or could not be called.
    pub(crate) fn is_refused(&self, block: Block) -> bool {
        matches!(self.outgoing.read().get(&block), Some(Outgoing::Refused(_)))
    }

    /// Number of links established. While it is unchanged, [`to`](Self::to) returns nothing new.
    #[inline]
    pub(crate) fn came_up(&self) -> u64 {
        self.came_up.load(Ordering::Acquire)
    }

    /// The links whose rings have no room.
    pub(crate) fn full(&self) -> Vec<Arc<SendSocket>> {
        let outgoing = self.outgoing.read();
        let up = outgoing.values().filter_map(|outgoing| match outgoing {
            Outgoing::Up(socket) if socket.is_full() => Some(Arc::clone(socket)),
            _ => None,
        });
        up.collect()
    }

    pub(crate) fn head_page(&self) -> &HeadPage {
        &self.head_page
    }

    /// The rights of other processes to access this process's memory directly.
    pub(crate) fn rights(&self) -> &Rights {
        &self.rights
    }

    /// The memory files that other processes may map.
    pub(crate) fn files(&self) -> &Arc<MemoryFiles> {
        &self.files
    }

    /// Notes that a memory file of another process is needed. The caller wakes the progress thread, which asks for
    /// it.
    pub(crate) fn asked(&self) {
        self.any_asked.store(true, Ordering::Release);
    }

    fn own_end(&self) -> OwnEnd<'_> {
        OwnEnd {
            head_page: &self.head_page,
            rights: &self.rights,
            waiter_bell: &self.waiter_bell,
        }
    }

    /// The bell of a thread that waits for the rings itself.
    pub(crate) fn waiter_bell(&self) -> &WaiterBell {
        &self.waiter_bell
    }

    pub(crate) fn bell(&self) -> &Bell {
        &self.bell
    }

    /// Forgets the process whose ring had this place.
    fn remove_reader(&self, place: u8) {
        self.rights.remove_user(place);
    }

    /// Removes a link that has ended, unless another one has replaced it.
    fn forget(&self, block: Block, ended: &Arc<SendSocket>) {
        let mut outgoing = self.outgoing.write();
        if matches!(outgoing.get(&block), Some(Outgoing::Up(socket)) if Arc::ptr_eq(socket, ended))
        {
            outgoing.remove(&block);
            let mut before = self.sent_before.lock();
            *before = sum(*before, ended.sent());
        }
    }

    /// Packets and bytes that were sent in the short form.
    pub(crate) fn sent(&self) -> (u64, u64) {
        let outgoing = self.outgoing.read();
        let up = outgoing.values().filter_map(|outgoing| match outgoing {
            Outgoing::Up(socket) => Some(socket.sent()),
            _ => None,
        });
        up.fold(*self.sent_before.lock(), sum)
    }

    fn set(&self, block: Block, state: Outgoing) {
        let is_up = matches!(state, Outgoing::Up(_));
        self.outgoing.write().insert(block, state);
        if is_up {
            self.came_up.fetch_add(1, Ordering::Release);
        }
        self.any_settled.store(true, Ordering::Release);
    }
}

fn sum(a: (u64, u64), b: (u64, u64)) -> (u64, u64) {
    (a.0 + b.0, a.1 + b.1)
}

impl Drop for LinkServer {
    /// Ends the direct requests of this process before its connections: another process takes the end of a connection for
    /// the end of its requests.
    fn drop(&mut self) {
        for connection in self.connections.values() {
            if let Stage::Writing(_, socket) = &connection.stage {
                socket.close();
            }
        }
    }
}

impl LinkServer {
    pub(crate) fn new(members: MemberLinks) -> Self {
        Self {
            members,
            connections: HashMap::new(),
            last: 0,
            busy: Vec::new(),
            call_again_at: None,
        }
    }

    /// Readable when [`accept`](Self::accept) has something to do.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.members.as_fd()
    }

    /// The descriptor of a connection, for epoll.
    pub(crate) fn connection(&self, number: u64) -> Option<BorrowedFd<'_>> {
        let connection = self.connections.get(&number)?;
        Some(connection.link.as_fd())
    }

    /// The time until [`call_wanted`](Self::call_wanted) calls busy processes again.
    pub(crate) fn next_call(&self) -> Option<Duration> {
        let at = self.call_again_at?;
        Some(at.saturating_duration_since(Instant::now()))
    }

    /// Calls the processes that links are requested to. Returns the numbers of the new connections.
    pub(crate) fn call_wanted(&mut self, links: &Links) -> Vec<u64> {
        let is_due = |at: &mut Instant| *at <= Instant::now();
        if self.call_again_at.take_if(is_due).is_some() {
            for block in self.busy.drain(..) {
                links.want(block);
            }
        }
        if !links.any_wanted.swap(false, Ordering::AcqRel) {
            return Vec::new();
        }
        let wanted = std::mem::take(&mut *links.wanted.lock());
        let mut numbers = Vec::new();
        for block in wanted {
            match self.call(links, block) {
                Ok(Some(connection)) => numbers.push(self.keep(connection)),
                Ok(None) => links.set(block, Outgoing::Refused(Instant::now())),
                Err(errno) => {
                    tracing::debug!(%errno, ?block, "a link through memory");
                    let now = Instant::now();
                    links.set(block, Outgoing::Refused(now));
                    // Too many calls waited there, or descriptors ran out here. A connection asks only once.
                    if !self.busy.contains(&block) {
                        self.busy.push(block);
                    }
                    self.call_again_at.get_or_insert(now + ASK_AGAIN_AFTER);
                }
            }
        }
        numbers
    }

    fn call(&self, links: &Links, block: Block) -> Result<Option<Connection>, Errno> {
        let Some(link) = self.members.call(block)? else {
            return Ok(None);
        };
        let (pending, file) = Writer::create()?;
        if link.is_trusted_with_memory() {
            links.rights.testify(pending.mapping());
        }
        link.send(&[VERSION, links.own.index()], &[file.as_fd()])?;
        let (link, stage) = (Arc::new(link), Stage::Called(block, pending));
        Ok(Some(Connection { link, stage }))
    }

    /// Asks other processes for the memory files that are needed.
    pub(crate) fn ask_for_files(&self, links: &Links) {
        if !links.any_asked.swap(false, Ordering::AcqRel) {
            return;
        }
        for connection in self.connections.values() {
            let Stage::Writing(_, socket) = &connection.stage else {
                continue;
            };
            let Some(memory) = socket.peer_memory() else {
                continue;
            };
            let mut asked = memory.take_asked();
            while let Some(number) = asked.pop() {
                let sent = connection.link.send(&file_message(number), &[]);
                if sent == Err(Errno::AGAIN) {
                    asked.push(number);
                    links.asked();
                    break;
                }
            }
            memory.ask_again(asked);
        }
    }

    /// Accepts connections. Returns their numbers, and whether the process ran out of descriptors for the pending ones.
    pub(crate) fn accept(&mut self) -> (Vec<u64>, bool) {
        let mut numbers = Vec::new();
        for _ in 0..ACCEPTS_PER_TURN {
            match self.members.accept() {
                Ok(Some(link)) => {
                    if !self.has_place_for(&link) {
                        self.forget_silent();
                    }
                    if self.has_place_for(&link) {
                        let (link, stage) = (Arc::new(link), Stage::Accepted(Instant::now()));
                        numbers.push(self.keep(Connection { link, stage }));
                    }
                }
                Ok(None) => break,
                Err(errno) => {
                    tracing::debug!(%errno, "accepting a link through memory");
                    return (numbers, true);
                }
            }
        }
        (numbers, false)
    }

    /// Closes the connections of processes that have called and then said nothing. Others may wait for their places.
    fn forget_silent(&mut self) {
        let is_silent = |connection: &Connection| matches!(connection.stage, Stage::Accepted(since) if since.elapsed() > SILENCE_MAX);
        self.connections
            .retain(|_, connection| !is_silent(connection));
    }

    fn keep(&mut self, connection: Connection) -> u64 {
        self.last += 1;
        self.connections.insert(self.last, connection);
        self.last
    }

    /// Whether one more connection may be accepted. Users who are trusted only for the port leave places to others.
    fn has_place_for(&self, link: &MemberLink) -> bool {
        let is_accepted = |connection: &&Connection| {
            matches!(connection.stage, Stage::Accepted(_) | Stage::Reading(_))
        };
        let accepted = || self.connections.values().filter(is_accepted);
        let strangers = accepted().filter(|other| !other.link.is_trusted_with_memory());
        accepted().count() < ACCEPTED_MAX
            && (link.is_trusted_with_memory() || strangers.count() < STRANGERS_MAX)
    }

    /// A place on the head page that no link uses.
    fn free_place(&self) -> u8 {
        let is_taken = |place: &u8| {
            let mut connections = self.connections.values();
            connections.any(
                |connection| matches!(connection.stage, Stage::Reading(taken) if taken == *place),
            )
        };
        (0..=u8::MAX)
            .find(|place| !is_taken(place))
            .unwrap_or_default()
    }

    /// Answers the process of a [`Served::Incoming`], which writes to its ring after this. Returns whether the link
    /// is up.
    pub(crate) fn answer(&mut self, number: u64, links: &Links) -> bool {
        let Some(Connection {
            link,
            stage: Stage::Reading(place),
        }) = self.connections.get(&number)
        else {
            return false;
        };
        let place = *place;
        let is_up = answer(&links.own_end(), link, place).is_some();
        if !is_up {
            links.remove_reader(place);
            self.connections.remove(&number);
        }
        is_up
    }

    /// Reads a connection.
    pub(crate) fn serve(&mut self, number: u64, links: &Links, port: u16) -> Served {
        let Some(mut connection) = self.connections.remove(&number) else {
            return Served::Nothing;
        };
        let mut buffer = [0; 8];
        let message = match connection.link.receive(&mut buffer) {
            Ok(LinkMessage::Nothing) => {
                self.connections.insert(number, connection);
                return Served::Nothing;
            }
            Ok(LinkMessage::Message(len, descriptors)) => {
                let bytes = buffer.get(..len).unwrap_or_default();
                Some((bytes, descriptors))
            }
            Ok(LinkMessage::Closed) => None,
            Err(errno) => {
                tracing::debug!(%errno, "a link through memory");
                None
            }
        };
        match (connection.stage, message) {
            (Stage::Accepted(_), Some((&[VERSION, block], descriptors))) => {
                let place = self.free_place();
                match accepted(
                    &links.own_end(),
                    &connection.link,
                    block,
                    place,
                    descriptors,
                ) {
                    Some(incoming) => {
                        connection.stage = Stage::Reading(place);
                        self.connections.insert(number, connection);
                        Served::Incoming(incoming)
                    }
                    None => Served::Nothing,
                }
            }
            (Stage::Called(block, pending), Some((&[VERSION, place], descriptors))) => {
                match answered(pending, &connection.link, place, descriptors, port) {
                    Some(socket) => {
                        let socket = Arc::new(socket);
                        links.set(block, Outgoing::Up(Arc::clone(&socket)));
                        connection.stage = Stage::Writing(block, socket);
                        self.connections.insert(number, connection);
                    }
                    None => links.set(block, Outgoing::Refused(Instant::now())),
                }
                Served::Nothing
            }
            (stage @ (Stage::Writing(..) | Stage::Reading(_)), Some((&[VERSION, RING], _))) => {
                connection.stage = stage;
                self.connections.insert(number, connection);
                Served::Rung
            }
            (Stage::Called(block, _), _) => {
                links.set(block, Outgoing::Refused(Instant::now()));
                Served::Nothing
            }
            (
                Stage::Writing(block, socket),
                Some((&[VERSION, FILE, ref file_number @ ..], files)),
            ) => {
                if let (Some(memory), Ok(file_number)) =
                    (socket.peer_memory(), file_number.try_into())
                    && let [file] = &*files
                    && let Err(errno) =
                        memory.add_file(u32::from_ne_bytes(file_number), file.as_fd())
                {
                    tracing::debug!(%errno, "another process's memory file");
                }
                connection.stage = Stage::Writing(block, socket);
                self.connections.insert(number, connection);
                Served::Nothing
            }
            (Stage::Reading(place), Some((&[VERSION, FILE, ref file @ ..], _)))
                if connection.link.is_trusted_with_memory() =>
            {
                let Ok(file) = file.try_into().map(u32::from_ne_bytes) else {
                    links.remove_reader(place);
                    return Served::Ended(place);
                };
                let send = |fd: BorrowedFd<'_>| connection.link.send(&file_message(file), &[fd]);
                if let Some(Err(errno)) = links.files.with_file(file, send) {
                    tracing::debug!(%errno, "handing over a memory file");
                }
                connection.stage = Stage::Reading(place);
                self.connections.insert(number, connection);
                Served::Nothing
            }
            (Stage::Writing(block, socket), _) => {
                let waited = socket.abandon();
                links.forget(block, &socket);
                Served::Gone(waited)
            }
            (Stage::Reading(place), _) => {
                links.remove_reader(place);
                Served::Ended(place)
            }
            (Stage::Accepted(_), _) => Served::Nothing,
        }
    }
}
