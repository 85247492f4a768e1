//! Receives that several connections share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use portolan_provider::traits::{Pd, Srq};
use portolan_provider::verbs::{RecvWr, SrqAttr};
use portolan_provider::{Error, Result, Step};
use portolan_threads::lock::Mutex;
use slab::Slab;

use super::pieces::Gather;
use crate::sys::Buffer;

/// A bit in a work request's number: the receive belongs to a shared receive queue.
pub(super) const SHARED: u64 = 1 << 61;

/// Receives that several connections share (a shared receive queue, SRQ), instead of receives of each connection.
///
/// Pass it in [`Options::shared_receives`](crate::Options::shared_receives). Idle connections then cost no receives:
/// 10,000 of them can share 256 buffers. A clone is the same queue.
///
/// * There are never more than `depth` buffers for each device (and each [`Domain`](crate::Domain)) of its
///   connections. They exist from its first connection on a device until the queue and its last connection are
///   dropped.
/// * A message occupies a buffer from its arrival until the program drops it or takes it out
///   ([`Message::into_buffer`](crate::Message::into_buffer)). If all are occupied, the peers of all connections wait
///   (on unreliable connections their messages are lost), and a log message reports that once. So a program must
///   receive from all its connections as messages arrive, not from one after the other.
/// * Unread messages of a dropped connection are freed.
/// * A sender can learn that its message waits ([`Transfer::delay`](crate::Transfer::delay)).
///
/// ```
/// use portolan::{Connector, Listener, Options, SharedReceiveQueue};
///
/// let listener = Listener::bind("127.0.0.1:0")?;
/// let address = listener.local_addr()?;
/// let clients = std::thread::spawn(move || {
///     let connect = |_| Connector::new().connect_to(address);
///     (0..3).map(connect).collect::<Result<Vec<_>, _>>()
/// });
/// let receives = SharedReceiveQueue::new(256, 4096); // 1 MiB for all connections
/// let options = Options::default().shared_receives(receives.clone());
/// let connections = (0..3).map(|_| listener.accept()?.accept_with(&options));
/// let connections = connections.collect::<Result<Vec<_>, _>>()?;
/// let clients = clients.join().unwrap()?;
/// clients[2].send(b"ahoy".to_vec())?;
/// assert_eq!(&connections[2].receive()?[..], b"ahoy");
/// assert_eq!(receives.posted(), 256);
/// # Ok::<(), portolan::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct SharedReceiveQueue {
    shape: Shape,
    /// One for each protection domain.
    pools: Arc<Mutex<Vec<Arc<Pool>>>>,
}

#[derive(Clone, Copy, Debug)]
struct Shape {
    depth: u32,
    size: usize,
}

/// The receives of one protection domain.
#[derive(Debug)]
pub(crate) struct Pool {
    depth: u32,
    srq: Arc<dyn Srq>,
    pd: Arc<dyn Pd>,
    posted: Mutex<Slab<Gather>>,
    has_told_empty: AtomicBool,
}

impl SharedReceiveQueue {
    /// Creates a queue of `depth` receives of `size` bytes each. `size` limits the length of messages.
    ///
    /// The buffers are allocated with the first connection on a device, which fails if the device does not support so
    /// many.
    pub fn new(depth: u32, size: usize) -> Self {
        Self {
            shape: Shape { depth, size },
            pools: Arc::default(),
        }
    }

    /// Number of receives that wait for messages now, on all devices.
    pub fn posted(&self) -> usize {
        let pools = self.pools.lock();
        pools.iter().map(|pool| pool.posted.lock().len()).sum()
    }

    pub(crate) fn depth(&self) -> u32 {
        self.shape.depth
    }

    pub(crate) fn size(&self) -> usize {
        self.shape.size
    }

    /// The receives in a protection domain; creates them at the first use.
    pub(crate) fn pool(&self, pd: &Arc<dyn Pd>) -> Result<Arc<Pool>> {
        let mut pools = self.pools.lock();
        let is_on = |pool: &&Arc<Pool>| std::ptr::addr_eq(Arc::as_ptr(&pool.pd), Arc::as_ptr(pd));
        if let Some(pool) = pools.iter().find(is_on) {
            return Ok(pool.clone());
        }
        // Domains of single connections come and go.
        pools.retain(|pool| Arc::strong_count(pool) > 1);
        let pool = Arc::new(Pool::filled(pd, self.shape)?);
        pools.push(pool.clone());
        Ok(pool)
    }
}

/// Clones are equal.
impl PartialEq for SharedReceiveQueue {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.pools, &other.pools)
    }
}

impl Eq for SharedReceiveQueue {}

impl Pool {
    fn filled(pd: &Arc<dyn Pd>, shape: Shape) -> Result<Self> {
        let attr = SrqAttr {
            max_wr: shape.depth,
            max_sge: 1,
            srq_limit: 0,
        };
        let pool = Self {
            depth: shape.depth,
            srq: pd.create_srq(&attr)?,
            pd: pd.clone(),
            posted: Mutex::new(Slab::with_capacity(shape.depth as usize)),
            has_told_empty: AtomicBool::new(false),
        };
        for _ in 0..shape.depth {
            pool.post(Gather::from(Buffer::new(pd, shape.size)?))?;
        }
        Ok(pool)
    }

    pub(crate) fn depth(&self) -> u32 {
        self.depth
    }

    pub(crate) fn srq(&self) -> &Arc<dyn Srq> {
        &self.srq
    }

    /// Posts a receive into the whole buffer, which is freed if this fails.
    pub(super) fn post(&self, pieces: Gather) -> Result<()> {
        let sges = pieces.sges(&self.pd, 0..pieces.len(), 1)?;
        let key = self.posted.lock().insert(pieces);
        let wr_id = key as u64 | SHARED;
        let sges = sges.as_slice();
        let posted = self.srq.post_recv(&RecvWr { wr_id, sges });
        if posted.is_err() {
            // Free the buffer after unlocking, because freeing calls the device.
            let unused = self.posted.lock().try_remove(key);
            drop(unused);
        }
        posted
    }

    /// Takes the buffer of a completed receive.
    pub(super) fn take(&self, wr_id: u64) -> Option<Gather> {
        let mut posted = self.posted.lock();
        let taken = posted.try_remove(usize::try_from(wr_id & !SHARED).ok()?);
        let is_empty = posted.is_empty();
        drop(posted);
        if is_empty && self.depth > 1 && !self.has_told_empty.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "all {} receives of a shared receive queue are occupied by messages: the next messages of all its \
                 connections wait until one is dropped or taken out (Message::into_buffer)",
                self.depth
            );
        }
        taken
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // First the queue, so that no posted buffer is in use when the table frees them. No queue pair uses it any
        // more: each of them belongs to a connection that refers to this.
        let _ = self.srq.destroy();
    }
}

/// The error of a receive that the program posts to a connection without receives of its own.
pub(crate) fn no_own_receives() -> Error {
    let what = "posting a receive to a connection with shared receives";
    Error::new(
        Step::PostReceive,
        portolan_provider::Cause::Unsupported(what),
    )
}
