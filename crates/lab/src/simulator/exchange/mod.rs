//! Operations that the connecting programs do not use:
//!
//! - queue pairs of every type that share one receive queue,
//! - atomic operations of several peers on the same words,
//! - datagrams to a group.
//!
//! The queue pairs are connected without the connection manager, over a network of the run's class.
//!
//! One machine is the server: each of its queue pairs takes its receives from the shared queue. The
//! others are its clients, one queue pair each. All datagram queue pairs, the server's included,
//! are members of one group.

mod drive;
mod machine;
mod oracle;
mod plan;
mod program;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use self::machine::{End, Machine, Shared, WORD_BYTES};
use self::oracle::{EndIndex, Oracle};
use self::plan::{Plan, WORDS};
use super::datagrams::GRH_LEN;
use super::failure::{Violation, ensure, violation};
use super::network::Network;
use super::packet::Datagram;
use super::plan::Class;
use super::report::Tally;
use super::rng::Rng;
use super::trace::Trace;

/// The machine that is the server.
const SERVER: usize = 0;
/// Limit on the steps of an exchange, to detect one that does not end.
const STEPS_MAX: u64 = 300_000;
/// Offset of an exchange's host numbers in a trace, to tell them from the hosts of the main run.
const TRACED_FROM: usize = 90;

#[derive(Debug)]
pub(super) struct Exchange {
    now: Duration,
    plan: Plan,
    agenda: BTreeMap<(Duration, u64), Task>,
    next_task: u64,
    network: Network,
    machines: Vec<Machine>,
    /// Two for each client: its own and the server's. The server has one end for all datagrams.
    ends: Vec<End>,
    /// The client whose plan an end follows.
    clients: Vec<Option<usize>>,
    srq: Arc<Shared>,
    posted_receives: u64,
    /// Bytes of a receive.
    place_len: u32,
    oracle: Oracle,
    rng: Rng,
    trace: Trace,
}

#[derive(Debug)]
enum Task {
    Arrive(EndIndex, Datagram),
    Post(EndIndex),
    PostReceive,
    Fail(EndIndex),
}

impl Exchange {
    pub(super) fn new(rng: &mut Rng, class: Class, trace: Trace) -> Result<Self, Violation> {
        let plan = Plan::draw(&mut rng.fork(), class);
        let hosts = plan.clients.len() + 1;
        let place_len = (plan.mtu.bytes() * 3 + GRH_LEN) as u32;
        let srq = Shared::new(&plan)?;
        let mut exchange = Self {
            now: Duration::ZERO,
            agenda: BTreeMap::new(),
            next_task: 0,
            network: Network::new(hosts, plan.faults.clone(), rng.fork()),
            machines: Vec::new(),
            ends: Vec::new(),
            clients: Vec::new(),
            srq,
            posted_receives: 0,
            place_len,
            oracle: Oracle {
                class,
                ends: Vec::new(),
                receives: BTreeMap::new(),
                words: [0; WORDS],
                words_addr: 0,
            },
            rng: rng.fork(),
            trace,
            plan,
        };
        exchange.set_up()?;
        Ok(exchange)
    }

    /// Runs until nothing is left to do; then ends all queue pairs and checks that nothing is
    /// missing.
    pub(super) fn run(&mut self, tally: &mut Tally) -> Result<(), Violation> {
        self.settle(tally)?;
        self.oracle.check_all_came(self.plan.delivers_all())?;
        for end in 0..self.ends.len() {
            self.fail(end)?;
        }
        self.settle(tally)?;
        let (left, told) = self.srq.check()?;
        let done = self.oracle.undone(SERVER);
        ensure!(
            left == done,
            "{left} receives are left in the shared queue, and {done} are not done"
        );
        for (word, expected) in self.oracle.words.into_iter().enumerate() {
            let server = &self.machines[SERVER];
            let found = server.word(server.words_addr + (word * WORD_BYTES) as u64)?;
            ensure!(
                found == expected,
                "word {word} is {found:#x}, expected {expected:#x}"
            );
        }
        tally.add("limit event of a shared receive queue", told.into());
        self.oracle.tell(tally);
        for end in &self.ends {
            tally.queue_pair(end.qp.counters());
        }
        Ok(())
    }

    fn plan_task(&mut self, after: Duration, task: Task) {
        self.next_task += 1;
        self.agenda.insert((self.now + after, self.next_task), task);
    }

    fn settle(&mut self, tally: &mut Tally) -> Result<(), Violation> {
        for _ in 0..STEPS_MAX {
            let timers = self.ends.iter().enumerate();
            let timer = timers
                .filter_map(|(index, end)| Some((end.qp.poll_timeout()?, index)))
                .min();
            let task = self.agenda.first_key_value().map(|((at, _), _)| *at);
            match (task, timer) {
                (None, None) => return Ok(()),
                (task, Some((due, end))) if task.is_none_or(|at| due < at) => {
                    self.pass(due);
                    self.ends[end].qp.handle_timeout(self.now);
                    self.drain(end)?;
                }
                (Some(at), _) => {
                    self.pass(at);
                    if let Some((_, task)) = self.agenda.pop_first() {
                        self.carry_out(task, tally)?;
                    }
                }
                (None, Some(_)) => return Err(violation!("a due timer produced no work")),
            }
        }
        Err(violation!("the exchange does not end"))
    }

    fn pass(&mut self, to: Duration) {
        self.now = self.now.max(to);
        self.trace.set_now(self.now);
    }

    fn carry_out(&mut self, task: Task, tally: &mut Tally) -> Result<(), Violation> {
        match task {
            Task::Arrive(end, datagram) => self.arrive(end, &datagram, tally),
            Task::Post(end) => self.post_next(end),
            Task::Fail(end) => self.fail(end),
            Task::PostReceive => {
                if (self.posted_receives as usize) < self.plan.receives {
                    self.post_receive()?;
                    let pause = self.plan.receive_pause;
                    self.plan_task(pause, Task::PostReceive);
                }
                Ok(())
            }
        }
    }

    fn fail(&mut self, end: EndIndex) -> Result<(), Violation> {
        self.trace.note(TRACED_FROM + self.ends[end].host, || {
            format!("end {end} fails")
        });
        self.ends[end].fail()?;
        self.drain(end)
    }
}
