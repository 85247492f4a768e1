//! Reachability queries as futures, for any runtime.

use portolan_threads::lock::Mutex;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use portolan_wire::addr::Gid;

use super::{Asked, Port, Reached, Unreachable, ask};

type Outcome = Result<Reached, Unreachable>;

/// A query in progress, as a future. Dropping it cancels the query. [`start`] has an example.
#[must_use = "a future does nothing for you unless it is awaited"]
pub struct Reaching {
    slot: Arc<Mutex<Slot>>,
    /// Held for its drop.
    _asked: Asked,
}

/// Holds the outcome and the waker of the waiting task.
#[derive(Default)]
struct Slot {
    outcome: Option<Outcome>,
    waiter: Option<Waker>,
}

/// Starts a query without waiting. Needs no runtime.
///
/// ```
/// use portolan::reach::{Port, start};
/// use std::net::Ipv4Addr;
/// use std::time::Duration;
///
/// # let provider = portolan::provider::software_provider()?;
/// # let (device, _) = provider.device_of(Ipv4Addr::LOCALHOST.into())?;
/// # async_io::block_on(async {
/// // `device` has the address 127.0.0.1.
/// let port = Port::of(&*device, 1).expect("a loopback interface is up");
/// let reaching = start(&port, Ipv4Addr::LOCALHOST.into(), Duration::from_secs(5));
/// let reached = reaching.await.expect("the machine reaches itself");
/// assert_eq!(reached.source, Ipv4Addr::LOCALHOST.into());
/// # });
/// # Ok::<(), portolan::Error>(())
/// ```
pub fn start(port: &Port, gid: Gid, within: Duration) -> Reaching {
    let slot = Arc::new(Mutex::new(Slot::default()));
    let of_outcome = Arc::clone(&slot);
    let done = Box::new(move |outcome| {
        let mut slot = of_outcome.lock();
        slot.outcome = Some(outcome);
        let waiter = slot.waiter.take();
        drop(slot);
        waiter.inspect(Waker::wake_by_ref);
    });
    let asked = ask(port, gid, within, done);
    Reaching {
        slot,
        _asked: asked,
    }
}

impl Future for Reaching {
    type Output = Outcome;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        let mut slot = self.slot.lock();
        match slot.outcome.take() {
            Some(outcome) => Poll::Ready(outcome),
            None => {
                slot.waiter = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl fmt::Debug for Reaching {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reaching").finish_non_exhaustive()
    }
}
