//! Tries several addresses of one name concurrently, as `connection::race` does, without blocking the task.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use ::tokio::io::unix::AsyncFd;
use ::tokio::task::JoinHandle;
use portolan_provider::{Cause, Error, Result, Step};

use super::runtime::{Watched, of_ended_task, reached, runtime, runtime_error, watch};
use crate::cm::EventChannel;
use crate::connection::{ATTEMPT_DELAY, Attempt, Failures};
use crate::deadline;

/// How long after the deadline a start may report why it is late. It may block in a system call.
const START_GRACE: Duration = Duration::from_secs(1);

/// An attempt that waits for its events.
struct Running<A> {
    /// Deregistered before the attempt's channel is closed.
    events: AsyncFd<Watched<EventChannel>>,
    attempt: A,
}

/// Starts an attempt at each address in turn, each shortly after the previous one or as soon as that fails; returns the
/// first success. Dropping the future abandons the attempts.
///
/// `start` may block: it requests a port from the group of processes, which may first have to elect its coordinator.
pub(super) async fn race<A>(
    start: impl Fn(SocketAddr, Instant) -> Result<A> + Send + Sync + 'static,
    name: &str,
    addresses: Vec<SocketAddr>,
    deadline: Instant,
) -> Result<A::Prize>
where
    A: Attempt + Send + 'static,
{
    let runtime = runtime(Step::Connect)?;
    let start = Arc::new(start);
    let mut waiting = VecDeque::from(addresses);
    let mut starting: Option<(SocketAddr, JoinHandle<Result<A>>)> = None;
    let mut running: Vec<Running<A>> = Vec::new();
    let mut failed = Failures::of(name);
    let mut next_start = Instant::now();
    loop {
        let before = running.len();
        if let Some(prize) = advance(&mut running, &mut failed) {
            return Ok(prize);
        }
        if running.len() < before {
            next_start = Instant::now();
        }
        if deadline::left(deadline).is_zero() {
            waiting
                .drain(..)
                .for_each(|address| failed.add_untried(address));
            for attempt in running.drain(..) {
                let (after_ms, retries) = (0, 0);
                let late = Error::new(Step::Event, Cause::TimedOut { after_ms, retries });
                failed.add(attempt.attempt.steps().explain(late));
            }
            if let Some(address) = starting.as_ref().map(|(address, _)| *address) {
                failed.add(why_late(&mut starting, address, deadline).await);
            }
            return Err(failed.into_error());
        }
        let is_idle = starting.is_none() && running.is_empty();
        if is_idle || (starting.is_none() && Instant::now() >= next_start) {
            if let Some(address) = waiting.pop_front() {
                next_start = Instant::now() + ATTEMPT_DELAY;
                let start = Arc::clone(&start);
                let begin = move || start(address, deadline);
                starting = Some((address, runtime.spawn_blocking(begin)));
            } else if is_idle {
                return Err(failed.into_error());
            }
        }
        // An address waits for the start before it, too, however long that takes.
        let until = match starting.is_some() || waiting.is_empty() {
            true => deadline,
            false => deadline.min(next_start),
        };
        ::tokio::select! {
            begun = begun(&mut starting) => {
                let address = starting.take().map(|(address, _)| address.into());
                match begun {
                    Ok(attempt) => {
                        let events = attempt.steps().events.clone();
                        let events = watch(events, Step::Connect)?;
                        running.push(Running { events, attempt });
                    }
                    Err(error) => {
                        failed.add(error.between(None, address));
                        next_start = Instant::now();
                    }
                }
            }
            looked = any_ready(&mut running) => looked?,
            looked = reached(Some(until), Step::Connect) => looked?,
        }
    }
}

/// Why an attempt had not started at the deadline. It ends by the same deadline and knows what kept it, such as a process
/// that does not answer.
async fn why_late<A>(
    starting: &mut Option<(SocketAddr, JoinHandle<Result<A>>)>,
    address: SocketAddr,
    deadline: Instant,
) -> Error {
    let reason = ::tokio::select! {
        begun = begun(starting) => begun.err(),
        _ = reached(Some(deadline + START_GRACE), Step::Connect) => None,
    };
    let reason = reason.unwrap_or_else(|| deadline::passed(Step::Connect));
    reason.between(None, Some(address.into()))
}

/// Handles the attempts' events; returns the first success.
fn advance<A: Attempt>(running: &mut Vec<Running<A>>, failed: &mut Failures) -> Option<A::Prize> {
    let mut at = 0;
    while let Some(each) = running.get_mut(at) {
        match each.attempt.take_events() {
            Ok(Some(prize)) => return Some(prize),
            Ok(None) => at += 1,
            Err(error) => {
                running.remove(at);
                failed.add(error);
            }
        }
    }
    None
}

/// Waits until the attempt that is being started has started; forever without one.
async fn begun<A>(starting: &mut Option<(SocketAddr, JoinHandle<Result<A>>)>) -> Result<A> {
    match starting {
        Some((_, start)) => start
            .await
            .unwrap_or_else(|ended| Err(of_ended_task(ended, Step::Connect))),
        None => std::future::pending().await,
    }
}

/// Waits until an attempt may have an event. Readiness is cleared before the events are taken, so none is missed.
async fn any_ready<A>(running: &mut [Running<A>]) -> Result<()> {
    poll_fn(|context| {
        for each in running.iter() {
            if let Poll::Ready(guard) = each.events.poll_read_ready(context) {
                guard.map_err(runtime_error)?.clear_ready();
                return Poll::Ready(Ok(()));
            }
        }
        Poll::Pending
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::pin::pin;
    use std::thread::sleep;

    use portolan_threads::lock::Mutex;

    use super::*;
    use crate::cm::Event;
    use crate::connection::Steps;

    /// An attempt that never starts.
    enum Never {}

    impl Attempt for Never {
        type Prize = ();

        fn steps(&self) -> &Steps {
            match *self {}
        }

        fn take_step(&mut self, _: &Event) -> Result<Option<()>> {
            match *self {}
        }
    }

    fn two_addresses() -> Vec<SocketAddr> {
        [1, 2]
            .map(|port| (Ipv4Addr::LOCALHOST, port).into())
            .to_vec()
    }

    const FAILURE: Cause = Cause::NoSuchObject("what the test starts");

    fn failure() -> Result<Never> {
        Err(Error::new(Step::Connect, FAILURE))
    }

    #[tokio::test]
    async fn a_race_sleeps_while_an_attempt_is_being_started() {
        let start = |_, _| {
            sleep(2 * ATTEMPT_DELAY);
            failure()
        };
        let deadline = deadline::after(Duration::from_secs(60));
        let mut racing = pin!(race(start, "two", two_addresses(), deadline));
        let mut polls = 0;
        let error = poll_fn(|context| {
            polls += 1;
            racing.as_mut().poll(context)
        });
        assert_eq!(error.await.unwrap_err().cause, FAILURE);
        // One for each start and its end, and a few for the runtime's own.
        assert!(polls < 20, "{polls} polls");
    }

    #[tokio::test]
    async fn at_the_deadline_the_reason_why_an_attempt_did_not_start_is_the_last_error() {
        // When the last start ended.
        let ended = Arc::new(Mutex::new(Instant::now()));
        let error = loop {
            let ends = Arc::clone(&ended);
            let start = move |_, deadline| {
                sleep(deadline::left(deadline));
                *ends.lock() = Instant::now();
                failure()
            };
            let deadline = deadline::after(ATTEMPT_DELAY / 2);
            let outcome = race(start, "two", two_addresses(), deadline).await;
            // On a busy machine a start may end too late.
            if *ended.lock() < deadline + START_GRACE / 2 {
                break outcome.unwrap_err();
            }
        };
        assert_eq!(error.cause, FAILURE, "{error:#}");
        let [untried] = &error.context.earlier[..] else {
            panic!("{error:#}")
        };
        assert!(matches!(untried.cause, Cause::TimedOut { .. }), "{error:#}");
    }
}
