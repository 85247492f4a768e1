//! How a task waits for a stream: the runtime watches the stream's descriptors.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Wake, Waker, ready};

use ::tokio::io::unix::AsyncFd;
use ::tokio::runtime::Handle;
use ::tokio::task::coop::poll_proceed;
use portolan_provider::{Result, Step};
use portolan_threads::lock::Mutex;

use super::core::{Direction, Shared, Wait};
use super::error::io_error;
use super::poller::Poller;
use super::stream::Stream;
use super::waiters::{Waiters, Waiting};
use crate::tasks::runtime::{self, Waited, watch};

/// Times that a task looks in one call. Mostly it looks twice.
const TURNS_MAX: u32 = 16;

/// A stream whose descriptors the runtime watches.
#[derive(Debug)]
pub(super) struct Watched {
    /// Set if the stream waits for the device itself. Dropped before the stream, after which another stream may have the
    /// same descriptor watched.
    device: OnceLock<WatchedDevice>,
    /// Locked while a task makes `device`: the runtime watches a descriptor once.
    makes_device: Mutex<()>,
    fd: AsyncFd<runtime::Watched<SignalFd>>,
    /// The waiting tasks, by direction. One of them polls the descriptors for both.
    tasks: Arc<Tasks>,
    /// By direction: tasks that share the stream and wait until it is ready.
    waiters: [Arc<Waiters>; 2],
    pub(super) stream: Stream,
}

#[derive(Debug)]
struct WatchedDevice {
    /// What other processes ring.
    fd: AsyncFd<runtime::Watched<DeviceFd>>,
    poller: Poller,
}

#[derive(Debug, Default)]
struct Tasks(Mutex<[Option<Waker>; 2]>);

impl Tasks {
    /// Whether the runtime wakes this task when it finds a descriptor readable.
    fn wakes(&self, direction: Direction, waker: &Waker) -> bool {
        let known = &self.0.lock()[direction as usize];
        known.as_ref().is_some_and(|known| known.will_wake(waker))
    }
}

impl Wake for Tasks {
    fn wake(self: Arc<Self>) {
        let tasks = std::mem::take(&mut *self.0.lock());
        tasks.into_iter().flatten().for_each(Waker::wake);
    }
}

impl Watched {
    pub(super) fn new(stream: Stream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        let fd = watch(SignalFd(stream.core().clone()), Step::Watch).map_err(io_error)?;
        let watched = Self {
            device: OnceLock::new(),
            makes_device: Mutex::default(),
            fd,
            tasks: Arc::default(),
            waiters: Default::default(),
            stream,
        };
        watched.wait_for_device();
        Ok(watched)
    }

    /// Waits for the device, too, unless another stream does.
    fn wait_for_device(&self) {
        if self.device.get().is_some() {
            return;
        }
        let _makes = self.makes_device.lock();
        if self.device.get().is_some() {
            return;
        }
        let core = self.stream.core();
        let Some(fd) = core.wait_for_device() else {
            return;
        };
        let of_device = DeviceFd(core.clone(), fd.as_raw_fd());
        match (Handle::try_current(), watch(of_device, Step::Watch)) {
            (Ok(runtime), Ok(fd)) => {
                let poller = Poller::start(&runtime, core);
                // Nobody else sets it, see the lock.
                let _ = self.device.set(WatchedDevice { fd, poller });
            }
            // For example while the runtime shuts down.
            _ => core.leave_device(),
        }
    }

    /// Waits until a direction is ready. Several tasks may wait.
    pub(super) async fn ready(&self, direction: Direction) -> io::Result<()> {
        let waiting = Waiting::among(&self.waiters[direction as usize]);
        let mut look = |stream: &Stream, wait| match stream.core().is_ready(direction, wait) {
            true => Ok(()),
            false => Err(io::ErrorKind::WouldBlock.into()),
        };
        std::future::poll_fn(|context| {
            let turn = ready!(poll_proceed(context));
            let done = waiting.poll(context, |all| self.poll_now(all, direction, &mut look));
            if done.is_ready() {
                turn.made_progress();
            }
            done
        })
        .await
    }

    /// Retries `call` until it does not block, or registers the task to be woken when it may not.
    ///
    /// The task does not poll: others would wait for it. Its [`Poller`] does. While nothing has arrived, further calls change
    /// nothing and make no system call. A task whose calls find all ready lets others run now and then, as tokio's own
    /// streams do.
    pub(super) fn poll<T>(
        &self,
        context: &mut Context<'_>,
        direction: Direction,
        mut call: impl FnMut(&Stream, Wait) -> io::Result<T>,
    ) -> Poll<io::Result<T>> {
        let turn = ready!(poll_proceed(context));
        let done = self.poll_now(context, direction, &mut call);
        if done.is_ready() {
            turn.made_progress();
        }
        done
    }

    fn poll_now<T>(
        &self,
        context: &mut Context<'_>,
        direction: Direction,
        call: &mut impl FnMut(&Stream, Wait) -> io::Result<T>,
    ) -> Poll<io::Result<T>> {
        let core = self.stream.core();
        if self.tasks.wakes(direction, context.waker())
            && core.still_waits(direction, context.waker())
        {
            return Poll::Pending;
        }
        let mut is_prepared = false;
        for _ in 0..TURNS_MAX {
            // It need not be woken for what it finds itself.
            core.come(direction, context.waker());
            match call(&self.stream, Wait::Look) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return Poll::Ready(done),
            }
            let was_rung = self.was_rung(context, direction)?;
            if !was_rung && core.waits(direction, context.waker(), is_prepared) {
                if let Some(device) = self.device.get() {
                    device.poller.task_waits();
                }
                return Poll::Pending;
            }
            self.wait_for_device();
            match call(&self.stream, Wait::Glance) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return Poll::Ready(done),
            }
            core.prepare_for(direction);
            is_prepared = true;
        }
        // Much arrives that is not for this task. Others get a turn.
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// Whether the descriptor has become readable since the last call. If not, the task will be woken when it does.
    fn was_rung(&self, context: &mut Context<'_>, direction: Direction) -> io::Result<bool> {
        self.tasks.0.lock()[direction as usize] = Some(context.waker().clone());
        let both = Waker::from(self.tasks.clone());
        let mut both = Context::from_waker(&both);
        let mut was_rung = false;
        if let Some(device) = self.device.get()
            && let Poll::Ready(guard) = device.fd.poll_read_ready(&mut both)
        {
            guard?.clear_ready();
            was_rung = true;
        }
        // The runtime keeps one waker for a descriptor's readers. It serves both directions here.
        if let Poll::Ready(guard) = self.fd.poll_read_ready(&mut both) {
            guard?.clear_ready();
            was_rung = true;
        }
        Ok(was_rung)
    }

    /// Waits until all sent data has reached the peer or never will. Several tasks may wait.
    pub(super) async fn flushed(&self) -> io::Result<()> {
        let waiting = Waiting::among(&self.waiters[Direction::Write as usize]);
        std::future::poll_fn(|context| waiting.poll(context, |all| self.poll_flushed(all))).await
    }

    fn poll_flushed(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let core = self.stream.core();
        loop {
            if core.is_flushed() || core.is_flushed_or_wakes(context.waker()) {
                return Poll::Ready(Ok(()));
            }
            if !self.was_rung(context, Direction::Write)? {
                return Poll::Pending;
            }
        }
    }
}

#[derive(Debug)]
struct SignalFd(Shared);

impl Waited for SignalFd {
    fn number(&self) -> Result<RawFd> {
        self.0.made_signal().map(|fd| fd.as_raw_fd())
    }
}

/// What other processes ring for a stream that waits for the device. The stream keeps it open.
#[derive(Debug)]
struct DeviceFd(#[expect(dead_code, reason = "keeps it open")] Shared, RawFd);

impl Waited for DeviceFd {
    fn number(&self) -> Result<RawFd> {
        Ok(self.1)
    }
}
