//! rdma_getaddrinfo(3) for callers that must not block: the process's [`Pool`] runs blocking
//! lookups within a deadline.

use std::sync::Arc;
use std::time::Duration;

use portolan_provider::Error;

use crate::addrinfo::AddrInfo;
use crate::error::{AddrInfoError, Problem};
use crate::hints::Hints;
use crate::lookups::{Lookups, Question, Waiting};
use crate::names::pool::{Pending, Pool, Unanswered};
use crate::plan::Plan;

/// The result of a background lookup.
pub type Outcome = Result<Vec<AddrInfo>, AddrInfoError>;

/// Starts to find the addresses of a node, a service or hints, as
/// [`get_addrinfo_with`](crate::get_addrinfo_with) does.
///
/// Never blocks: a thread of [`Pool::shared`] runs the lookups that [may
/// block](Question::may_block), or one of [`Pool::shared_for_files`] if the name is in `/etc/hosts`. The caller's
/// thread runs the others, which suffice for numeric text.
///
/// `done` is called once with the outcome. If nothing blocks, that is before this returns, and the
/// result is `None`. Otherwise a pool thread calls it within `deadline`, with `EAI_AGAIN` if the
/// deadline passes. Dropping the [`Pending`] cancels the lookup: a question that is being answered goes on, and no other
/// is asked.
///
/// # Errors
/// `done` is dropped without a call if the query is invalid, as in [`Plan::new`], or the pool
/// refuses it, as in [`Pool::submit`].
pub fn start_addrinfo(
    mut lookups: impl Lookups + Send + 'static,
    node: Option<&str>,
    service: Option<&str>,
    hints: Option<&Hints>,
    deadline: Duration,
    done: impl FnOnce(Outcome) + Send + 'static,
) -> Result<Option<Pending>, Error> {
    let mut plan = Plan::new(node, service, hints)?;
    drive(&mut plan, &lookups, |question| !question.may_block());
    if plan.question().is_none() {
        done(plan.finish());
        return Ok(None);
    }
    let is_local = matches!(plan.question(), Some(Question::Names(names)) if names.is_local());
    let after_ms = deadline.as_millis() as u64;
    let unanswered = |problem| AddrInfoError::new(node, service, problem);
    let (late, panicked) = (
        unanswered(Problem::Deadline { after_ms }),
        unanswered(Problem::Defect),
    );
    let token = Arc::new(());
    let waiting = Waiting::while_alive(&token);
    lookups.set_waiting(waiting.clone());
    let work = move || {
        drive(&mut plan, &lookups, |_| !waiting.is_over());
        plan.finish()
    };
    let pool = match is_local {
        true => Pool::shared_for_files(),
        false => Pool::shared(),
    };
    let pool = pool.map_err(failed)?;
    let pending = pool.submit(deadline, work, move |ran| {
        drop(token);
        done(ran.unwrap_or_else(|why| match why {
            Unanswered::Expired | Unanswered::Stopped => Err(late),
            Unanswered::Panicked => Err(panicked),
        }));
    });
    pending.map(Some).map_err(failed)
}

fn failed(cause: portolan_provider::Cause) -> Error {
    Error::new(portolan_provider::Step::ResolveName, cause)
}

/// Answers the plan's questions as long as `may_ask` permits them.
fn drive(plan: &mut Plan, lookups: &dyn Lookups, may_ask: impl Fn(&Question) -> bool) {
    while let Some(question) = plan.question().filter(|question| may_ask(question)) {
        let answer = lookups.answer(question);
        plan.answer(answer);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::channel;
    use std::thread::{self, ThreadId};

    use super::*;
    use crate::lookups::NameQuestion;
    use crate::names::{Eai, NameError, NameResult, Reason};
    use crate::route::{Query, Route};

    const PATIENCE: Duration = Duration::from_secs(30);

    /// Answers names by a closure, and records which threads query routes.
    struct Scripted<F>(F, Asked);
    type Asked = Arc<Mutex<Vec<ThreadId>>>;

    impl<F> Lookups for Scripted<F>
    where
        F: Fn(&NameQuestion) -> Result<Vec<NameResult>, NameError>,
    {
        fn names(&self, question: &NameQuestion) -> Result<Vec<NameResult>, NameError> {
            (self.0)(question)
        }

        fn route(&self, query: &Query) -> Result<Route, portolan_provider::Cause> {
            self.1.lock().expect("whole").push(thread::current().id());
            crate::route::lookup(query)
        }
    }

    #[test]
    fn numeric_text_is_answered_in_the_callers_thread_before_the_call_returns() {
        let caller = thread::current().id();
        let names = move |question: &NameQuestion| {
            assert_eq!(thread::current().id(), caller);
            crate::names::resolve(
                question.node.as_deref(),
                question.service.as_deref(),
                question.options,
            )
        };
        let asked = Asked::default();
        let lookups = Scripted(names, asked.clone());
        let (send, receive) = channel();
        let done = move |outcome: Outcome| send.send(outcome).expect("the caller waits");
        let (node, service) = (Some("127.0.0.1"), Some("7471"));
        let started = start_addrinfo(lookups, node, service, None, PATIENCE, done);
        assert!(started.expect("started").is_none());
        let found = receive.try_recv().expect("answered").expect("loopback");
        assert_eq!(found.len(), 1);
        assert_eq!(*asked.lock().expect("whole"), [caller]);
    }

    #[test]
    fn a_name_and_its_routes_are_looked_up_in_another_thread() {
        let caller = thread::current().id();
        let names = move |_: &NameQuestion| {
            assert_ne!(thread::current().id(), caller);
            crate::names::resolve(Some("127.0.0.1"), Some("1"), Default::default())
        };
        let asked = Asked::default();
        let lookups = Scripted(names, asked.clone());
        let (send, receive) = channel();
        let done = move |outcome| send.send(outcome).expect("the caller waits");
        let node = Some("host.test");
        let pending = start_addrinfo(lookups, node, None, None, PATIENCE, done);
        assert!(pending.as_ref().expect("started").is_some());
        let found = receive.recv_timeout(PATIENCE).expect("answered");
        assert_eq!(found.expect("found").len(), 1);
        assert!(!asked.lock().expect("whole").contains(&caller));
    }

    #[test]
    fn late_and_broken_answers_are_errors_with_a_code() {
        let (open, waits) = channel::<()>();
        let waits = Arc::new(Mutex::new(waits));
        let slow = move |question: &NameQuestion| {
            if question.node.as_deref() == Some("breaks.test") {
                std::panic::panic_any("on purpose");
            }
            let _ = waits.lock().expect("whole").recv();
            let reason = Reason::Resolver(Eai::NoName);
            Err(NameError::new(question.node.as_deref(), None, reason))
        };
        for (node, lasts, code) in [
            ("breaks.test", PATIENCE, Eai::System(5)),
            ("slow.test", Duration::from_millis(20), Eai::Again),
        ] {
            let (send, receive) = channel();
            let done = move |outcome: Outcome| send.send(outcome).expect("the caller waits");
            let lookups = Scripted(slow.clone(), Asked::default());
            let started = start_addrinfo(lookups, Some(node), None, None, lasts, done);
            let error = receive.recv_timeout(PATIENCE).expect("answered");
            let error = error.expect_err("late or broken");
            assert_eq!(error.code(), code, "{error}");
            assert!(error.to_string().contains(node), "{error}");
            drop(started);
        }
        drop(open);
    }

    #[test]
    fn nothing_more_is_looked_up_once_nobody_waits() {
        for is_cancelled in [true, false] {
            let (open, waits) = channel::<()>();
            let waits = Mutex::new(waits);
            let (begins, begun) = channel();
            let slow = move |_: &NameQuestion| {
                begins.send(()).expect("the test waits");
                let _ = waits.lock().expect("whole").recv();
                crate::names::resolve(Some("127.0.0.1"), Some("1"), Default::default())
            };
            let asked = Asked::default();
            let lookups = Scripted(slow, asked.clone());
            let (send, receive) = channel();
            let done = move |outcome: Outcome| send.send(outcome).expect("the caller waits");
            let lasts = match is_cancelled {
                true => PATIENCE,
                false => Duration::from_millis(200),
            };
            let pending = start_addrinfo(lookups, Some("slow.test"), None, None, lasts, done);
            let pending = pending.expect("started");
            begun.recv_timeout(PATIENCE).expect("a thread asks");
            if !is_cancelled {
                let late = receive.recv_timeout(PATIENCE).expect("answered");
                assert_eq!(late.expect_err("late").code(), Eai::Again);
            }
            drop(pending);
            drop(open);
            // The thread drops the lookups when it has ended.
            let since = std::time::Instant::now();
            while Arc::strong_count(&asked) > 1 {
                assert!(since.elapsed() < PATIENCE, "the job goes on");
                thread::sleep(Duration::from_millis(1));
            }
            let routes = asked.lock().expect("whole").len();
            assert_eq!(routes, 0, "cancelled: {is_cancelled}");
        }
    }

    #[test]
    fn a_wrong_query_is_refused_without_a_callback() {
        let called = |_: Outcome| unreachable!("no look-up was started");
        let lookups = crate::lookups::System;
        let refused = start_addrinfo(lookups, None, None, None, PATIENCE, called);
        assert_eq!(refused.expect_err("the query is refused").errno(), 22);
    }
}
