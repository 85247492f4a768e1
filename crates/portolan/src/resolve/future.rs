//! Resolution as a future for any runtime; the process's thread pool runs what blocks.

use portolan_threads::lock::Mutex;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use portolan_addrinfo::Plan;
use portolan_addrinfo::background::{Outcome, start_addrinfo};
use portolan_addrinfo::names::pool::Pending;
use portolan_provider::Result;
use portolan_provider::traits::Provider;

use super::{AddrInfo, AddrInfoError, Addresses, Machine, Request, Resolved};

/// A [`Request`] in progress, as a future. Dropping it cancels the lookup.
///
/// ```
/// use portolan::resolve::{Family, Hints, Request};
/// use std::time::Duration;
///
/// # async_io::block_on(async {
/// let request = Request::new(Some("localhost"), Some("7471"));
/// let resolving = request.hints(Hints::new().family(Family::Inet)).start(Duration::from_secs(5))?;
/// // The lookup runs already; any runtime can wait for it.
/// let mut found = resolving.await?;
/// let to = found.next().and_then(|first| first.dst_addr?.inet());
/// assert_eq!(to, Some("127.0.0.1:7471".parse().unwrap()));
/// # Ok::<(), portolan::Error>(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
#[must_use = "a future does nothing for you unless it is awaited"]
pub struct Resolving {
    slot: Arc<Mutex<Slot>>,
    /// Held for its drop; `None` if nothing had to be looked up.
    _pending: Option<Pending>,
    /// The provider whose devices are used. A cancelled lookup does not keep it alive.
    _provider: Option<Arc<dyn Provider>>,
}

/// Holds the outcome and the waker of the waiting task.
#[derive(Debug, Default)]
struct Slot {
    outcome: Option<Outcome>,
    waiter: Option<Waker>,
}

impl Request {
    /// Starts to resolve without blocking: numeric text at once, names within `timeout`, after
    /// which the outcome is `EAI_AGAIN`. An invalid request fails at once. Needs no runtime. At most eight lookups run at
    /// once; `timeout` includes the wait of the others ([`resolve`](super#names-that-need-no-server-and-slow-servers)).
    ///
    /// # Errors
    /// The lookup could not start: 16,384 are in progress, or no thread is available.
    pub fn start(&self, timeout: Duration) -> Result<Resolving> {
        let slot = Arc::new(Mutex::new(Slot::default()));
        let of_outcome = Arc::clone(&slot);
        let done = move |outcome| {
            let mut slot = of_outcome.lock();
            slot.outcome = Some(outcome);
            let waiter = slot.waiter.take();
            drop(slot);
            waiter.inspect(Waker::wake_by_ref);
        };
        let (node, service) = (self.node.as_deref(), self.service.as_deref());
        let hints = self.hints.as_ref();
        if let Err(refused) = Plan::new(node, service, hints) {
            slot.lock().outcome = Some(Err(refused));
            return Ok(Resolving {
                slot,
                _pending: None,
                _provider: None,
            });
        }
        let machine = match &self.provider {
            Some(provider) => Machine::borrowing(provider),
            None => Machine::new(),
        };
        let pending = start_addrinfo(machine, node, service, hints, timeout, done)?;
        Ok(Resolving {
            slot,
            _pending: pending,
            _provider: self.provider.clone(),
        })
    }
}

impl Future for Resolving {
    type Output = std::result::Result<Addresses, AddrInfoError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut slot = self.slot.lock();
        match slot.outcome.take() {
            Some(outcome) => Poll::Ready(outcome.map(|found| Addresses {
                found: found.into_iter(),
            })),
            None => {
                slot.waiter = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// Resolves `host:port` like [`resolve()`](super::resolve()), within `timeout` and without blocking
/// the caller's thread.
///
/// ```
/// use portolan::resolve::resolve_async;
/// use std::time::Duration;
///
/// # async_io::block_on(async {
/// let found = resolve_async("localhost:7471", Duration::from_secs(5)).await?;
/// assert!(found.iter().all(|each| each.addr.ip().is_loopback()));
/// # Ok::<(), portolan::Error>(())
/// # }).unwrap();
/// ```
///
/// # Errors
/// As for [`resolve()`](super::resolve()); also `TimedOut`.
pub async fn resolve_async(text: &str, timeout: Duration) -> Result<Vec<Resolved>> {
    let found: Vec<AddrInfo> = Request::parse(text)?.start(timeout)?.await?.collect();
    Ok(found.into_iter().filter_map(Resolved::active).collect())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};
    use std::task::Wake;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    struct Bell(Mutex<Sender<()>>);

    impl Wake for Bell {
        fn wake(self: Arc<Self>) {
            let _ = self.0.lock().send(());
        }
    }

    #[test]
    fn numbers_are_ready_at_once_and_names_wake_the_tasks_that_await_them() {
        let (ring, rung) = channel();
        let waker = Waker::from(Arc::new(Bell(Mutex::new(ring))));
        let mut cx = Context::from_waker(&waker);
        let mut number = Box::pin(resolve_async("127.0.0.1:7471", PATIENCE));
        assert!(number.as_mut().poll(&mut cx).is_ready());

        let mut name = Box::pin(resolve_async("localhost:7471", PATIENCE));
        let found = loop {
            match name.as_mut().poll(&mut cx) {
                Poll::Ready(found) => break found.expect("every machine resolves localhost"),
                Poll::Pending => rung.recv_timeout(PATIENCE).expect("woken"),
            }
        };
        assert!(found.iter().all(|each| each.addr.ip().is_loopback()));
    }

    #[test]
    fn text_that_is_not_an_endpoint_is_refused_by_the_future() {
        let mut cx = Context::from_waker(Waker::noop());
        let mut wrong = Box::pin(resolve_async("::1:7471:what", PATIENCE));
        let Poll::Ready(Err(error)) = wrong.as_mut().poll(&mut cx) else {
            panic!("it is known at once");
        };
        assert_eq!(error.errno(), 22, "{error}");
    }
}
