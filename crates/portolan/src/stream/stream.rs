//! Streams.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use portolan_provider::traits::{DeviceWait, Pd};
use portolan_rsocket::{Close, Iomap, Phase};

use super::core::{Core, Direction, Ready, Shared, Wait};
use super::linger;
use super::options::KEEPALIVE_MIN;
use crate::cm::CmId;
use crate::deadline;

/// A byte stream over a reliable connection, like a `TcpStream`.
///
/// A write copies the data to the send buffer and sends it to the peer's receive buffer at once. So **a write blocks while the
/// peer's receive buffer is full**, even if the send buffer is empty. The peer grants its buffer in halves: the first one on
/// connecting, the second one when it first reads, and each again when it has read that many bytes. With the defaults, 65,536
/// bytes can be written before the peer reads, and then 131,072 can be unread. A `write_all` of more waits for the peer. For
/// more room, the peer sets [`receive_buffer`](super::StreamOptions::receive_buffer). Buffers that often are full
/// [grow](super::StreamOptions::grows).
///
/// A write also waits for 2 KiB of free send buffer, and if as many messages are unread as the peer's
/// [`receive_queue`](super::StreamOptions::receive_queue) has.
///
/// Dropping the last clone ends both directions after delivering the written data.
///
/// If both ends are in one process, a stream is several times slower than between two processes
/// ([why, and how slow](super#speed-on-one-host)).
///
/// **This process delivers the data, not the kernel.** A program that writes, drops the stream and exits loses what the
/// peer has not received yet. Before it exits, it calls [`deliver_dropped`](super::deliver_dropped), or waits for the
/// peer's end of the stream ([`Stream::shutdown`], then read until the end):
///
/// ```
/// # use std::io::{Read, Write};
/// # use std::time::Duration;
/// # let listener = portolan::StreamListener::bind("127.0.0.1:0")?;
/// # let address = listener.local_addr()?.to_string();
/// # let server = std::thread::spawn(move || -> std::io::Result<usize> {
/// #     let mut read = Vec::new();
/// #     listener.accept()?.0.read_to_end(&mut read)
/// # });
/// let mut stream = portolan::Stream::connect(&address)?;
/// stream.write_all(b"the last words")?;
/// drop(stream);
/// portolan::stream::deliver_dropped(Duration::from_secs(10));
/// # assert_eq!(server.join().unwrap()?, 14);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Stream {
    handle: Arc<Handle>,
}

/// The owners of a stream. Dropping the last one ends the stream.
#[derive(Debug)]
struct Handle(Shared);

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.leave_device();
        let is_blocking = !self.0.nonblocking.load(Ordering::Relaxed);
        linger::end(self.0.clone(), is_blocking);
    }
}

impl Stream {
    pub(super) fn new(core: Core) -> Self {
        let core = Arc::new(core);
        linger::look_after(&core);
        let handle = Arc::new(Handle(core));
        Self { handle }
    }

    /// The peer's address.
    ///
    /// # Errors
    /// `NotConnected` if the peer has no IP address.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        let remote = self.core().addresses.remote;
        remote
            .and_then(|remote| remote.inet())
            .ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// The local address.
    ///
    /// # Errors
    /// `NotConnected` if the device has no IP address.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        let local = self.core().addresses.local;
        local
            .and_then(|local| local.inet())
            .ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// Another owner of the same stream. Timeouts and the non-blocking mode are shared.
    ///
    /// # Errors
    /// None yet; as for `TcpStream`.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(self.clone())
    }

    /// Ends a direction, or both. The peer reads what was written before, then the end.
    ///
    /// # Errors
    /// `NotConnected` if the stream is over already.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        let is_over = self
            .core()
            .with_endpoint(|endpoint| match endpoint.phase() {
                Phase::Failed => true,
                Phase::Disconnected => endpoint.has_closed_write(),
                Phase::Open | Phase::Unconnected => false,
            });
        if is_over {
            return Err(io::ErrorKind::NotConnected.into());
        }
        self.core().close(match how {
            Shutdown::Read => Close::Read,
            Shutdown::Write => Close::Write,
            Shutdown::Both => Close::Both,
        });
        if self.core().has_control_waiting() {
            linger::look_after(self.core());
        }
        Ok(())
    }

    /// Reads without removing the data.
    ///
    /// # Errors
    /// As for reads.
    pub fn peek(&self, into: &mut [u8]) -> io::Result<usize> {
        self.core()
            .read(into, self.core().wait(Direction::Read), true)
    }

    /// Reads the data that has arrived, without waiting in any mode.
    ///
    /// # Errors
    /// `WouldBlock`, or as for reads.
    pub fn try_read(&self, into: &mut [u8]) -> io::Result<usize> {
        self.core().read(into, Wait::No, false)
    }

    /// Writes as much data as there is room for, without waiting in any mode.
    ///
    /// # Errors
    /// `WouldBlock`, or as for writes.
    pub fn try_write(&self, data: &[u8]) -> io::Result<usize> {
        self.core().write(data, Wait::No)
    }

    /// Peeks at the data that has arrived, without waiting in any mode.
    ///
    /// # Errors
    /// As for [`Stream::try_read`].
    pub fn try_peek(&self, into: &mut [u8]) -> io::Result<usize> {
        self.core().read(into, Wait::No, true)
    }

    /// Makes calls return `WouldBlock` instead of waiting. A read after a write may first poll for the peer's answer, for
    /// 50 µs.
    ///
    /// # Errors
    /// None yet; as for `TcpStream`.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.core()
            .nonblocking
            .store(nonblocking, Ordering::Relaxed);
        Ok(())
    }

    /// Sets how long reads wait; `None` for forever.
    ///
    /// # Errors
    /// `InvalidInput` for zero.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.set_timeout(Direction::Read, timeout)
    }

    /// Sets how long writes wait; `None` for forever.
    ///
    /// # Errors
    /// `InvalidInput` for zero.
    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.set_timeout(Direction::Write, timeout)
    }

    fn set_timeout(&self, direction: Direction, timeout: Option<Duration>) -> io::Result<()> {
        if timeout == Some(Duration::ZERO) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a timeout of zero",
            ));
        }
        self.core().set_timeout(direction, timeout);
        Ok(())
    }

    /// How long reads wait.
    ///
    /// # Errors
    /// None yet; as for `TcpStream`.
    pub fn read_timeout(&self) -> io::Result<Option<Duration>> {
        Ok(self.core().timeout(Direction::Read))
    }

    /// How long writes wait.
    ///
    /// # Errors
    /// None yet; as for `TcpStream`.
    pub fn write_timeout(&self) -> io::Result<Option<Duration>> {
        Ok(self.core().timeout(Direction::Write))
    }

    /// Checks at this interval, at least a millisecond, that the peer is alive. A peer that does not answer breaks the
    /// stream.
    pub fn set_keepalive(&self, interval: Option<Duration>) {
        let interval = interval.map(|interval| interval.max(KEEPALIVE_MIN));
        *self.core().keepalive.lock() = interval;
        linger::look_after(self.core());
    }

    /// Returns and clears the error that broke the stream.
    ///
    /// # Errors
    /// None yet; as for `TcpStream`.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        Ok(self.core().take_error())
    }

    /// What can be done without waiting.
    pub fn ready(&self) -> Ready {
        self.core().ready()
    }

    /// As [`Stream::ready`]. After this, the stream's descriptor becomes readable when another direction becomes
    /// ready, or when a direction ends, whichever directions are named. Call it before each wait for the descriptor.
    pub fn ready_or_watch(&self, read: bool, write: bool) -> Ready {
        self.core().prepare_wait([read, write])
    }

    /// As [`Stream::ready_or_watch`], for a thread that waits for these directions by the descriptor until it calls
    /// [`Stream::end_wait`]. Threads that wait for different directions need this, so that none misses what another has
    /// taken.
    #[doc(hidden)]
    pub fn begin_wait(&self, directions: [bool; 2]) -> Ready {
        self.core().begin_wait(directions)
    }

    /// Ends what [`Stream::begin_wait`] began, which returned `seen`.
    #[doc(hidden)]
    pub fn end_wait(&self, directions: [bool; 2], seen: Ready) {
        self.core().end_wait(directions, seen);
    }

    /// For a caller of poll(2), the descriptors to wait for in the place of that of [`AsFd`].
    #[doc(hidden)]
    pub fn descriptors(&self) -> super::Descriptors<'_> {
        self.core().descriptors()
    }

    /// For a caller of poll(2) that is about to sleep: what else to wait for.
    #[doc(hidden)]
    pub fn sleep_at_sockets(&self) -> Option<super::SocketSleep<'_>> {
        self.core().sleep_at_sockets()
    }

    /// As [`Stream::try_read`] or [`Stream::try_peek`], but does not prepare the descriptor for a wait.
    #[doc(hidden)]
    pub fn read_now(&self, into: &mut [u8], peeks: bool) -> io::Result<usize> {
        self.core().read(into, Wait::Glance, peeks)
    }

    /// As [`Stream::try_write`], but does not prepare the descriptor for a wait.
    #[doc(hidden)]
    pub fn write_now(&self, data: &[u8]) -> io::Result<usize> {
        self.core().write(data, Wait::Glance)
    }

    /// As [`Stream::ready_or_watch`], for a caller that drives the device itself and calls [`Stream::stop_driving`]
    /// of one stream before it sleeps. If a direction is ready, the next change is reported only with `arms`. `None`
    /// if the device does not call.
    #[doc(hidden)]
    pub fn glance(&self, directions: [bool; 2], arms: bool) -> Option<Ready> {
        self.core().glance(directions, arms)
    }

    /// Whether the peer has confirmed the connection, also if the stream has ended since.
    #[doc(hidden)]
    pub fn is_established(&self) -> bool {
        self.core().is_established()
    }

    /// Drives the device for all streams of the process.
    #[doc(hidden)]
    pub fn drive(&self) {
        self.core().drive();
    }

    /// Ends a time in which the caller drove the device. It handles packets by itself from here on.
    #[doc(hidden)]
    pub fn stop_driving(&self) {
        self.core().stop_driving();
    }

    /// Ends the stream at once, without delivering anything. For a stream that no program has used.
    #[doc(hidden)]
    pub fn abandon(self) {
        self.core().disconnect();
    }

    /// Makes the caller wait for the device itself. `None` if another one does, or if the device has nothing to wait
    /// for.
    #[doc(hidden)]
    pub fn wait_for_device(&self) -> Option<Box<dyn DeviceWait>> {
        self.core().queues().receives_cq.wait_for_device()
    }

    /// Calls `call` when the stream may have become ready. The caller holds locks of the device: the function must
    /// neither wait nor use a stream. Returns false if the device does not call; the descriptor then tells.
    #[doc(hidden)]
    pub fn set_call(&self, call: impl Fn() + Send + Sync + 'static) -> bool {
        self.core().set_call(Box::new(call))
    }

    /// Calls `call` whenever a call on this stream has found that it has advanced, with what is ready then. An event loop
    /// that waits by the descriptor for one of several users of the stream needs this: another user's calls may take what
    /// the descriptor signals. The caller holds the stream's lock: the function must neither wait nor use a stream. The
    /// first function is kept.
    #[doc(hidden)]
    pub fn on_found(&self, call: impl Fn(Ready) + Send + Sync + 'static) {
        self.core().on_found(call);
    }

    /// Waits until the peer has all written data, at most for `timeout`.
    ///
    /// # Errors
    /// `WouldBlock` when the time is over.
    pub fn wait_delivered(&self, timeout: Duration) -> io::Result<()> {
        self.core()
            .flush(Wait::Until(Some(deadline::after(timeout))))
    }

    /// The id. It does not expose its queue pair, because the safety of the buffers depends on it. Destroying it breaks
    /// the stream: reads return what has arrived and then fail.
    pub fn id(&self) -> &CmId {
        &self.core().id
    }

    /// The descriptor whose number identifies the stream: that of its [`Socket`](super::Socket). It does not report
    /// readiness.
    pub fn number(&self) -> BorrowedFd<'_> {
        self.core().events().as_fd()
    }

    /// The protection domain, to register memory that will be mapped.
    pub fn pd(&self) -> &Arc<dyn Pd> {
        &self.core().queues().pd
    }

    /// Offers registered memory to the peer, which writes to it with [`Stream::write_mapped`]. The peer learns of it
    /// when it reads data written after this call.
    ///
    /// Returns the entry for [`Stream::unmap`], or `None` if the peer's table is full.
    pub fn map(&self, iomap: Iomap) -> Option<u16> {
        self.core().with_endpoint(|endpoint| endpoint.offer(iomap))
    }

    /// Releases an entry. Deregister the memory, too: the peer keeps its key.
    pub fn unmap(&self, entry: u16) {
        self.core()
            .with_endpoint(|endpoint| endpoint.withdraw(entry));
    }

    /// Writes to the peer's memory mapped at `offset`. The bytes arrive before data written after this call. Returns
    /// `None` if nothing is mapped there.
    ///
    /// # Errors
    /// As for writes.
    pub fn write_mapped(&self, data: &[u8], offset: u64) -> io::Result<Option<usize>> {
        self.core()
            .write_direct(data, offset, self.core().wait(Direction::Write))
    }

    /// As [`Stream::write_mapped`], without waiting in any mode.
    ///
    /// # Errors
    /// `WouldBlock`, or as for writes.
    pub fn try_write_mapped(&self, data: &[u8], offset: u64) -> io::Result<Option<usize>> {
        self.core().write_direct(data, offset, Wait::No)
    }

    /// The actual sizes of the stream.
    pub fn config(&self) -> portolan_rsocket::Config {
        self.core().queues().config
    }

    pub(super) fn core(&self) -> &Shared {
        &self.handle.0
    }
}

impl AsFd for Stream {
    /// A descriptor for event loops.
    ///
    /// After a call failed with `WouldBlock`, it becomes readable once that call may succeed. It does not show which
    /// call: try every call that would have blocked. [`Stream::ready_or_watch`] shows the direction without a call.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.core().readiness()
    }
}

impl Read for &Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.core()
            .read(into, self.core().wait(Direction::Read), false)
    }
}

impl Write for &Stream {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.core().write(data, self.core().wait(Direction::Write))
    }

    /// Does nothing: data is sent as soon as it is written.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        (&*self).read(into)
    }
}

impl Write for Stream {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        (&*self).write(data)
    }

    /// Does nothing: data is sent as soon as it is written.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
