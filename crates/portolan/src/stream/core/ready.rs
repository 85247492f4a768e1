//! What can be done with a stream without waiting.

use portolan_rsocket::Phase;

use super::State;

/// What of a stream has ended: [`Ready::read_closed`], [`Ready::hung_up`], [`Ready::failed`].
type Ends = [bool; 3];

/// The direction that a caller waits for; [`Ready`] has an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Data, or the end of the peer's direction.
    Read = 0,
    /// Room for data.
    Write = 1,
}

/// What can be done without waiting.
///
/// ```
/// # use std::io::Write;
/// use portolan::stream::Direction;
/// # let listener = portolan::StreamListener::bind("127.0.0.1:0")?;
/// # let address = listener.local_addr()?.to_string();
/// # let client = std::thread::spawn(move || portolan::Stream::connect(&address));
/// # let (mut server, _) = listener.accept()?;
/// # let client = client.join().unwrap()?;
///
/// assert!(client.ready().is(Direction::Write));
/// assert!(!client.ready().is(Direction::Read), "nothing has arrived");
/// server.write_all(b"ahoy")?;
/// while !client.ready().readable {
///     std::thread::yield_now(); // or wait for the descriptor
/// }
/// let ready = client.ready();
/// assert_eq!((ready.unread_bytes, ready.read_closed, ready.failed), (4, false, false));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ready {
    /// Data, the end of the peer's direction, or an error can be read.
    pub readable: bool,
    /// Data can be written, or an error is reported.
    pub writable: bool,
    /// Both directions have ended, and everything was read.
    pub hung_up: bool,
    /// The stream broke.
    pub failed: bool,
    /// The peer has ended its direction. Data that it sent before may still be unread.
    pub read_closed: bool,
    /// Number of received bytes that are not read yet.
    pub unread_bytes: u32,
    /// Number of bytes that were received in all, whether they are read or not. It tells an event loop whether anything
    /// has arrived since it last looked, also while another thread reads.
    pub received_bytes: u64,
}

impl Ready {
    pub(super) fn of(state: &State) -> Self {
        let endpoint = &state.endpoint;
        let phase = endpoint.phase();
        Self {
            readable: endpoint.unread_bytes() > 0 || endpoint.is_read_closed(),
            writable: state.is_established && endpoint.can_send() || endpoint.is_write_closed(),
            hung_up: phase == Phase::Disconnected && endpoint.unread_bytes() == 0,
            failed: phase == Phase::Failed,
            read_closed: endpoint.is_read_closed(),
            unread_bytes: endpoint.unread_bytes(),
            received_bytes: endpoint.received_bytes(),
        }
    }

    fn ends(self) -> Ends {
        [self.read_closed, self.hung_up, self.failed]
    }

    /// Whether a direction is ready.
    pub fn is(self, direction: Direction) -> bool {
        match direction {
            Direction::Read => self.readable,
            Direction::Write => self.writable,
        }
    }
}

/// The waits of threads and of an event loop by the descriptor, with the ends of the stream that each has seen. Every wait
/// hears of a further end, because poll(2) reports `POLLHUP` and `POLLERR` unasked.
#[derive(Debug, Default)]
pub(super) struct Waits {
    /// What an event loop has seen.
    wanted: Option<Ends>,
    /// The directions that each thread waits for, if any, and what it has seen.
    threads: Vec<([bool; 2], Ends)>,
}

impl Waits {
    /// An event loop has seen this, and waits.
    pub(super) fn want(&mut self, seen: Ready) {
        self.wanted = Some(seen.ends());
    }

    /// The event loop looks for itself, or is gone.
    pub(super) fn forget_wanted(&mut self) {
        self.wanted = None;
    }

    /// A thread has seen this, and waits.
    pub(super) fn begin(&mut self, directions: [bool; 2], seen: Ready) {
        self.threads.push((directions, seen.ends()));
    }

    /// Such a thread waits no longer.
    pub(super) fn end(&mut self, directions: [bool; 2], seen: Ready) {
        let ended = (directions, seen.ends());
        if let Some(at) = self.threads.iter().position(|thread| *thread == ended) {
            self.threads.swap_remove(at);
        }
    }

    /// Whether threads wait.
    pub(super) fn has_threads(&self) -> bool {
        !self.threads.is_empty()
    }

    /// Whether a thread waits for this direction.
    pub(super) fn has_thread_for(&self, direction: Direction) -> bool {
        let mut threads = self.threads.iter();
        threads.any(|(directions, _)| directions[direction as usize])
    }

    /// Whether there is no wait.
    pub(super) fn is_empty(&self) -> bool {
        self.wanted.is_none() && !self.has_threads()
    }

    /// Whether a wait has seen other ends than those of `now`.
    pub(super) fn has_news(&self, now: Ready) -> bool {
        let now = now.ends();
        let threads = self.threads.iter().map(|(_, seen)| seen);
        self.wanted.iter().chain(threads).any(|seen| *seen != now)
    }
}
