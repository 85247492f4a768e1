//! The engine on a virtual clock.

use proptest::prelude::*;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn hop(last: u8) -> NextHop {
    NextHop {
        address: [192, 0, 2, last].into(),
        interface_index: 2,
    }
}

fn address(last: u8) -> LinkAddress {
    LinkAddress::new(&[2, 0, 0, 0, 0, last]).expect("six bytes")
}

fn address_of(hop: NextHop) -> Target {
    let need = Need::Address;
    Target { hop, need }
}

fn answer_of(hop: NextHop) -> Target {
    let need = Need::Answer;
    Target { hop, need }
}

/// An engine with a clock and named waiters.
struct Bench {
    pending: Pending<&'static str>,
    now: Instant,
}

impl Bench {
    fn new() -> Self {
        Self {
            pending: Pending::new(),
            now: Instant::now(),
        }
    }

    fn add(&mut self, hop: NextHop, within: Duration, name: &'static str) -> u64 {
        self.pending
            .add(address_of(hop), self.now, within, name)
            .expect("below the limit")
    }

    fn add_for_answer(&mut self, hop: NextHop, within: Duration, name: &'static str) -> u64 {
        self.pending
            .add(answer_of(hop), self.now, within, name)
            .expect("below the limit")
    }

    fn actions(&mut self) -> Vec<Action> {
        std::iter::from_fn(|| self.pending.next_action()).collect()
    }

    /// Expects exactly one query among the actions and returns its sequence number.
    fn query(&mut self) -> u32 {
        let actions = self.actions();
        let sequences: Vec<_> = actions
            .iter()
            .filter_map(|action| match action {
                Action::Query { sequence, .. } => Some(*sequence),
                _ => None,
            })
            .collect();
        assert_eq!(sequences.len(), 1, "{actions:?}");
        sequences[0]
    }

    fn reply(&mut self, entry: Entry) {
        let sequence = self.query();
        self.pending.handle_reply(sequence, Ok(entry));
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.pending.handle_timeout(self.now);
    }

    fn finished(&mut self) -> Vec<(&'static str, Result<LinkAddress, Cause>)> {
        self.pending.take_finished()
    }

    /// Advances a hop to the phase that waits for the kernel's discovery.
    fn discover(&mut self, hop: NextHop, name: &'static str) {
        self.add(hop, 2 * SECOND, name);
        self.reply(Entry::Absent);
        self.reply(Entry::Incomplete);
        assert_eq!(self.finished(), []);
    }

    fn assert_empty(&self) {
        assert!(self.pending.is_idle());
        assert!(self.pending.waiters.is_empty());
        assert!(self.pending.queries.is_empty());
        assert_eq!(self.pending.next_timeout(), None);
    }
}

#[test]
fn a_known_address_is_given_without_a_probe() {
    let mut bench = Bench::new();
    bench.add(hop(1), SECOND, "a");
    bench.reply(Entry::Valid(address(1)));
    assert_eq!(bench.actions(), []);
    assert_eq!(bench.finished(), [("a", Ok(address(1)))]);
    bench.assert_empty();
}

#[test]
fn other_table_entries_are_probed_and_then_read_again() {
    for first in [Entry::Absent, Entry::Incomplete, Entry::Failed] {
        let mut bench = Bench::new();
        bench.add(hop(1), SECOND, "a");
        bench.reply(first);
        let actions = bench.actions();
        assert!(
            matches!(actions[..], [Action::Probe(_), Action::Query { .. }]),
            "after {first:?}: {actions:?}"
        );
    }
}

#[test]
fn an_unconfirmed_address_is_an_address_but_no_answer() {
    for unconfirmed in [Entry::Stale(address(1)), Entry::Probed(address(1))] {
        let mut bench = Bench::new();
        bench.add(hop(1), SECOND, "address");
        bench.reply(unconfirmed);
        assert_eq!(bench.finished(), [("address", Ok(address(1)))]);
        bench.add_for_answer(hop(1), SECOND, "answer");
        bench.reply(unconfirmed);
        bench.reply(Entry::Probed(address(1)));
        bench.pending.handle_change(hop(1), unconfirmed);
        assert_eq!(bench.finished(), [], "{unconfirmed:?}");
        bench
            .pending
            .handle_change(hop(1), Entry::Valid(address(1)));
        assert_eq!(bench.finished(), [("answer", Ok(address(1)))]);
        bench.assert_empty();
    }
}

#[test]
fn a_neighbour_that_no_longer_answers_is_host_unreachable() {
    let mut bench = Bench::new();
    bench.add_for_answer(hop(1), SECOND, "answer");
    bench.reply(Entry::Stale(address(1)));
    let actions = bench.actions();
    let [Action::Probe(probed), Action::Query { sequence, .. }] = actions[..] else {
        panic!("{actions:?}");
    };
    assert_eq!(probed, answer_of(hop(1)));
    let entry = Entry::Probed(address(1));
    bench.pending.handle_reply(sequence, Ok(entry));
    bench.pending.handle_change(hop(1), Entry::Failed);
    assert_eq!(bench.finished(), [("answer", Err(Cause::HostUnreachable))]);
    bench.assert_empty();
}

#[test]
fn a_probed_neighbour_that_becomes_stale_is_probed_again() {
    let mut bench = Bench::new();
    bench.add_for_answer(hop(1), 2 * SECOND, "answer");
    bench.reply(Entry::Stale(address(1)));
    bench.reply(Entry::Probed(address(1)));
    bench.pass(RECHECK_INTERVAL);
    bench.reply(Entry::Stale(address(2)));
    assert!(bench.actions().contains(&Action::Probe(answer_of(hop(1)))));
    assert_eq!(bench.finished(), []);
}

#[test]
fn a_look_up_of_an_address_does_not_wait_for_an_answer() {
    let mut bench = Bench::new();
    bench.add_for_answer(hop(1), SECOND, "answer");
    bench.reply(Entry::Stale(address(1)));
    bench.reply(Entry::Probed(address(1)));
    bench.add(hop(1), SECOND, "address");
    bench.reply(Entry::Probed(address(1)));
    assert_eq!(bench.finished(), [("address", Ok(address(1)))]);
    assert!(!bench.pending.is_idle());
}

#[test]
fn discovery_ends_with_the_announced_address() {
    let mut bench = Bench::new();
    bench.discover(hop(1), "a");
    bench
        .pending
        .handle_change(hop(2), Entry::Valid(address(2)));
    assert_eq!(bench.finished(), [], "another neighbour's");
    bench
        .pending
        .handle_change(hop(1), Entry::Valid(address(1)));
    assert_eq!(bench.finished(), [("a", Ok(address(1)))]);
    bench.assert_empty();
}

#[test]
fn discovery_that_fails_is_host_unreachable() {
    let mut bench = Bench::new();
    bench.discover(hop(1), "a");
    bench.pending.handle_change(hop(1), Entry::Failed);
    assert_eq!(bench.finished(), [("a", Err(Cause::HostUnreachable))]);
    bench.assert_empty();
}

#[test]
fn a_failure_older_than_the_probe_does_not_count() {
    let mut bench = Bench::new();
    bench.add(hop(1), SECOND, "a");
    let first = bench.query();
    bench.pending.handle_change(hop(1), Entry::Failed);
    bench.pending.handle_reply(first, Ok(Entry::Failed));
    bench.pending.handle_change(hop(1), Entry::Failed);
    bench.pending.handle_reply(first, Ok(Entry::Failed));
    assert_eq!(bench.finished(), [], "only what follows the probe counts");
    bench.reply(Entry::Failed);
    assert_eq!(bench.finished(), [("a", Err(Cause::HostUnreachable))]);
}

#[test]
fn a_change_older_than_the_first_reply_does_not_count() {
    let mut bench = Bench::new();
    bench.add(hop(1), SECOND, "a");
    bench
        .pending
        .handle_change(hop(1), Entry::Valid(address(9)));
    assert_eq!(bench.finished(), [], "the address may have changed since");
    bench.reply(Entry::Valid(address(1)));
    assert_eq!(bench.finished(), [("a", Ok(address(1)))]);
}

#[test]
fn an_interface_without_neighbours_needs_no_address() {
    let mut bench = Bench::new();
    bench.add(hop(1), SECOND, "a");
    bench.reply(Entry::Absent);
    bench.reply(Entry::Absent);
    assert_eq!(bench.actions(), [Action::ReadLink(address_of(hop(1)))]);
    bench.pending.handle_link(address_of(hop(1)), Ok(false));
    assert_eq!(bench.finished(), [("a", Ok(LinkAddress::NONE))]);
    bench.assert_empty();
}

#[test]
fn an_entry_that_the_kernel_forgot_is_probed_again_but_not_in_a_loop() {
    let mut bench = Bench::new();
    bench.add(hop(1), 2 * SECOND, "a");
    bench.reply(Entry::Absent);
    bench.reply(Entry::Absent);
    bench.actions();
    bench.pending.handle_link(address_of(hop(1)), Ok(true));
    assert_eq!(bench.actions(), [], "nothing before the recheck");
    bench.pass(RECHECK_INTERVAL);
    bench.reply(Entry::Absent);
    assert!(bench.actions().contains(&Action::Probe(address_of(hop(1)))));
}

#[test]
fn an_icmp_error_triggers_a_check_but_does_not_decide() {
    let mut bench = Bench::new();
    bench.discover(hop(1), "a");
    bench.pending.handle_icmp_error(hop(2).address);
    assert_eq!(bench.actions(), []);
    bench.pending.handle_icmp_error(hop(1).address);
    bench.pending.handle_icmp_error(hop(1).address);
    bench.reply(Entry::Incomplete);
    assert_eq!(bench.finished(), [], "a forged error changes nothing");
    bench.pending.handle_icmp_error(hop(1).address);
    bench.reply(Entry::Failed);
    assert_eq!(bench.finished(), [("a", Err(Cause::HostUnreachable))]);
}

#[test]
fn after_lost_notifications_the_table_is_read_again_soon() {
    let mut bench = Bench::new();
    bench.discover(hop(1), "a");
    bench.pending.handle_loss(bench.now);
    assert_eq!(bench.pending.next_timeout(), Some(bench.now + LOSS_DELAY));
    bench.pass(LOSS_DELAY);
    bench.reply(Entry::Valid(address(1)));
    assert_eq!(bench.finished(), [("a", Ok(address(1)))]);
}

#[test]
fn a_lost_reply_is_asked_for_again() {
    let mut bench = Bench::new();
    bench.add(hop(1), 2 * SECOND, "a");
    let lost = bench.query();
    bench.pass(RECHECK_INTERVAL);
    bench.reply(Entry::Valid(address(1)));
    assert_eq!(bench.finished(), [("a", Ok(address(1)))]);
    bench.pending.handle_reply(lost, Ok(Entry::Failed));
    bench.assert_empty();
}

#[test]
fn a_probe_that_cannot_leave_now_is_sent_later() {
    let mut bench = Bench::new();
    bench.add(hop(1), 2 * SECOND, "a");
    bench.reply(Entry::Failed);
    let query = bench.query();
    bench.pending.handle_deferral(address_of(hop(1)));
    bench.pending.handle_reply(query, Ok(Entry::Failed));
    assert_eq!(bench.finished(), [], "the failure is older than any probe");
    bench.pass(RECHECK_INTERVAL);
    bench.reply(Entry::Failed);
    assert!(bench.actions().contains(&Action::Probe(address_of(hop(1)))));
}

#[test]
fn a_refused_probe_ends_the_look_up_with_its_cause() {
    let mut bench = Bench::new();
    bench.add(hop(1), SECOND, "a");
    bench.reply(Entry::Absent);
    bench
        .pending
        .handle_refusal(address_of(hop(1)), Cause::NetworkUnreachable);
    assert_eq!(bench.finished(), [("a", Err(Cause::NetworkUnreachable))]);
    bench.assert_empty();
}

#[test]
fn waiters_on_one_next_hop_share_the_work_and_keep_their_own_deadlines() {
    let mut bench = Bench::new();
    bench.discover(hop(1), "two seconds");
    bench.add(hop(1), SECOND, "one second");
    assert_eq!(bench.actions(), [], "the work is under way");
    bench.pass(SECOND);
    let timed_out = Cause::TimedOut {
        after_ms: 1000,
        retries: 0,
    };
    assert_eq!(bench.finished(), [("one second", Err(timed_out))]);
    bench
        .pending
        .handle_change(hop(1), Entry::Valid(address(1)));
    assert_eq!(bench.finished(), [("two seconds", Ok(address(1)))]);
    bench.assert_empty();
}

#[test]
fn a_cancelled_look_up_leaves_the_others_and_nothing_behind() {
    let mut bench = Bench::new();
    let first = bench.add(hop(1), SECOND, "first");
    let second = bench.add(hop(1), SECOND, "second");
    assert_eq!(bench.pending.cancel(first), Some("first"));
    assert_eq!(bench.pending.cancel(first), None);
    assert!(!bench.pending.is_idle());
    assert_eq!(bench.pending.cancel(second), Some("second"));
    bench.assert_empty();
    assert_eq!(bench.finished(), []);
}

#[test]
fn the_limit_of_pending_look_ups_is_an_error_and_loses_nothing() {
    let mut bench = Bench::new();
    let mut last = 0;
    for _ in 0..WAITERS_MAX {
        last = bench.add(hop(1), SECOND, "kept");
    }
    let refused = bench
        .pending
        .add(address_of(hop(2)), bench.now, SECOND, "refused");
    assert!(matches!(refused, Err(Cause::LimitReached { .. })));
    bench.pending.cancel(last);
    bench.add(hop(2), SECOND, "fits now");
    bench.pass(SECOND);
    assert_eq!(bench.finished().len(), WAITERS_MAX);
    bench.assert_empty();
}

#[derive(Clone, Debug)]
enum Op {
    Add(u8, Need, u16),
    Cancel(prop::sample::Index),
    Act,
    Reply(prop::sample::Index, Entry),
    Change(u8, Entry),
    Icmp(u8),
    Link(u8, Need, bool),
    Refusal(u8, Need),
    Deferral(u8, Need),
    Loss,
    Pass(u16),
}

fn entry() -> impl Strategy<Value = Entry> {
    prop_oneof![
        Just(Entry::Absent),
        Just(Entry::Incomplete),
        Just(Entry::Failed),
        Just(Entry::Valid(address(9))),
        Just(Entry::Stale(address(9))),
        Just(Entry::Probed(address(9))),
    ]
}

fn need() -> impl Strategy<Value = Need> {
    prop_oneof![Just(Need::Address), Just(Need::Answer)]
}

fn op() -> impl Strategy<Value = Op> {
    let last = 0..4u8;
    prop_oneof![
        4 => (last.clone(), need(), 1..3000u16).prop_map(|(last, need, ms)| Op::Add(last, need, ms)),
        1 => any::<prop::sample::Index>().prop_map(Op::Cancel),
        4 => Just(Op::Act),
        4 => (any::<prop::sample::Index>(), entry()).prop_map(|(at, entry)| Op::Reply(at, entry)),
        1 => (last.clone(), entry()).prop_map(|(last, entry)| Op::Change(last, entry)),
        1 => last.clone().prop_map(Op::Icmp),
        1 => (last.clone(), need(), any::<bool>()).prop_map(|(last, need, is)| Op::Link(last, need, is)),
        1 => (last.clone(), need()).prop_map(|(last, need)| Op::Refusal(last, need)),
        1 => (last, need()).prop_map(|(last, need)| Op::Deferral(last, need)),
        1 => Just(Op::Loss),
        2 => (0..800u16).prop_map(Op::Pass),
    ]
}

proptest! {
    /// In any sequence of inputs each lookup ends exactly once and by its deadline, only pending
    /// lookups have timers, and nothing is left at the end.
    #[test]
    fn each_look_up_ends_once_and_by_its_deadline(ops in prop::collection::vec(op(), 0..120)) {
        let mut pending: Pending<usize> = Pending::new();
        let mut now = Instant::now();
        let mut deadlines: Vec<Instant> = Vec::new();
        let mut tickets: Vec<u64> = Vec::new();
        let mut ended: Vec<u32> = Vec::new();
        let mut sequences: Vec<u32> = Vec::new();
        let target = |last, need| Target { hop: hop(last), need };
        for op in ops {
            match op {
                Op::Add(last, need, ms) => {
                    let within = Duration::from_millis(ms.into());
                    let name = deadlines.len();
                    tickets.push(pending.add(target(last, need), now, within, name).expect("few"));
                    deadlines.push(now + within);
                    ended.push(0);
                }
                Op::Cancel(at) if !tickets.is_empty() => {
                    if let Some(name) = pending.cancel(*at.get(&tickets)) {
                        ended[name] += 1;
                    }
                }
                Op::Cancel(_) => {}
                Op::Act => {
                    while let Some(action) = pending.next_action() {
                        if let Action::Query { sequence, .. } = action {
                            sequences.push(sequence);
                        }
                    }
                }
                Op::Reply(at, entry) if !sequences.is_empty() => {
                    pending.handle_reply(*at.get(&sequences), Ok(entry));
                }
                Op::Reply(..) => {}
                Op::Change(last, entry) => pending.handle_change(hop(last), entry),
                Op::Icmp(last) => pending.handle_icmp_error(hop(last).address),
                Op::Link(last, need, is) => pending.handle_link(target(last, need), Ok(is)),
                Op::Refusal(last, need) => {
                    pending.handle_refusal(target(last, need), Cause::NetworkUnreachable);
                }
                Op::Deferral(last, need) => pending.handle_deferral(target(last, need)),
                Op::Loss => pending.handle_loss(now),
                Op::Pass(ms) => {
                    now += Duration::from_millis(ms.into());
                    pending.handle_timeout(now);
                }
            }
            for (name, _) in pending.take_finished() {
                ended[name] += 1;
            }
            prop_assert_eq!(pending.timers.len(), pending.waiters.len() + pending.hops.len());
            prop_assert!(pending.queries.len() <= pending.hops.len());
            for (count, deadline) in ended.iter().zip(&deadlines) {
                prop_assert!(*count <= 1, "a look-up ended {} times", count);
                // Only `Pass` moves the clock, and it handles what is due.
                prop_assert!(*count == 1 || *deadline > now, "a look-up outlived its deadline");
            }
        }
        if let Some(last) = deadlines.iter().max() {
            pending.handle_timeout(*last);
        }
        for (name, _) in pending.take_finished() {
            ended[name] += 1;
        }
        prop_assert!(ended.iter().all(|count| *count == 1), "{ended:?}");
        prop_assert!(pending.is_idle() && pending.timers.is_empty() && pending.queries.is_empty());
    }
}
