//! Random commands on a network that loses and repeats messages. Nothing panics, nothing grows beyond its
//! bound, owners get sensible events, and destroyed ids are forgotten.

use std::net::SocketAddr;
use std::time::Duration;

use portolan_cm::{State, TableSizes};
use portolan_provider::cm::{Ece, EventType, IdNumber, JoinKind, UserId};
use portolan_provider::verbs::QpState;
use portolan_wire::cm::RejectReason;
use proptest::prelude::*;

use crate::hostile::tight;
use crate::net::*;

/// A step of a run: a command to one of a host's ids, or the passing of time.
#[derive(Clone, Copy, Debug)]
enum Step {
    Create { host: usize, datagrams: bool },
    Listen { host: usize, which: usize },
    Bind { host: usize, which: usize },
    Join { host: usize, which: usize },
    Resolve { host: usize, which: usize },
    Route { host: usize, which: usize },
    Connect { host: usize, which: usize, qpn: u32 },
    Accept { host: usize, which: usize, qpn: u32 },
    Establish { host: usize, which: usize },
    Notify { host: usize, which: usize },
    Reject { host: usize, which: usize },
    Disconnect { host: usize, which: usize },
    Destroy { host: usize, which: usize },
    TakeRequest { host: usize, which: usize },
    Exchange,
    Shake { qpn: u32 },
    Lose { part: u8 },
    Wait { ms: u64 },
    RemoveDevice { host: usize, lazy: bool },
    ChangeAddresses { host: usize, last: u8 },
}

fn step() -> impl Strategy<Value = Step> {
    let id = || (0usize..2, 0usize..8);
    let with_qpn = || (id(), 2u32..6);
    prop_oneof![
        3 => (0usize..2, any::<bool>()).prop_map(|(host, datagrams)| Step::Create { host, datagrams }),
        2 => id().prop_map(|(host, which)| Step::Listen { host, which }),
        1 => id().prop_map(|(host, which)| Step::Bind { host, which }),
        2 => id().prop_map(|(host, which)| Step::Join { host, which }),
        4 => id().prop_map(|(host, which)| Step::Resolve { host, which }),
        4 => id().prop_map(|(host, which)| Step::Route { host, which }),
        4 => with_qpn().prop_map(|((host, which), qpn)| Step::Connect { host, which, qpn }),
        4 => with_qpn().prop_map(|((host, which), qpn)| Step::Accept { host, which, qpn }),
        4 => id().prop_map(|(host, which)| Step::Establish { host, which }),
        1 => id().prop_map(|(host, which)| Step::Notify { host, which }),
        1 => id().prop_map(|(host, which)| Step::Reject { host, which }),
        2 => id().prop_map(|(host, which)| Step::Disconnect { host, which }),
        1 => id().prop_map(|(host, which)| Step::Destroy { host, which }),
        1 => id().prop_map(|(host, which)| Step::TakeRequest { host, which }),
        6 => Just(Step::Exchange),
        2 => (2u32..6).prop_map(|qpn| Step::Shake { qpn }),
        1 => (0u8..4).prop_map(|part| Step::Lose { part }),
        2 => (0u64..20_000).prop_map(|ms| Step::Wait { ms }),
        // Rare, because it ends everything that the run has reached.
        1 => (0usize..24, prop::bool::weighted(0.1))
            .prop_map(|(host, lazy)| Step::RemoveDevice { host, lazy }),
        1 => (0usize..2, 0u8..3).prop_map(|(host, last)| Step::ChangeAddresses { host, last }),
    ]
}

/// The events of an id's owner, to check that they make sense.
#[derive(Default)]
struct Told {
    requests: usize,
    disconnected: Vec<IdNumber>,
    timewait_exits: Vec<IdNumber>,
    removed: Vec<IdNumber>,
}

struct Run {
    net: Net,
    ids: [Vec<IdNumber>; 2],
    told: [Told; 2],
}

impl Run {
    fn new() -> Self {
        let net = Net::with_config(tight());
        Self {
            net,
            ids: Default::default(),
            told: Default::default(),
        }
    }

    fn id(&self, host: usize, which: usize) -> Option<IdNumber> {
        let ids = &self.ids[host];
        ids.get(which % ids.len().max(1)).copied()
    }

    /// Takes a step. A command may fail, but then it must not change the id.
    fn take(&mut self, step: Step) {
        let now = self.net.now;
        let (host, which) = match step {
            Step::Create { host, datagrams } => {
                let service = if datagrams { UDP } else { RC };
                if let Ok(id) = self.net.cm(host).create_id(UserId(7), service) {
                    self.ids[host].push(id);
                }
                return;
            }
            Step::Exchange => {
                self.net.exchange();
                return self.listen_to_events();
            }
            Step::Shake { qpn } => return self.shake_hands(qpn),
            Step::Lose { part } => {
                let mut count = 0u8;
                self.net.disturb(move |_| {
                    count = count.wrapping_add(1);
                    match (part, count % 3) {
                        (0, _) | (_, 0) => Fate::Deliver,
                        (1, _) => Fate::Drop,
                        (_, 1) => Fate::Duplicate,
                        _ => Fate::Deliver,
                    }
                });
                return;
            }
            Step::Wait { ms } => {
                self.net.run_for(Duration::from_millis(ms));
                return self.listen_to_events();
            }
            Step::RemoveDevice { host: 2.., .. } => return,
            Step::RemoveDevice { host, lazy } => {
                let index = device(host).device_index;
                self.net.cm(host).device_removed(now, index);
                self.net.drain();
                self.listen_to_events();
                // Most owners destroy ids of removed devices.
                let removed = self.told[host].removed.clone();
                for id in removed.into_iter().filter(|_| !lazy) {
                    let _ = self.net.cm(host).destroy_id(now, id);
                    self.ids[host].retain(|other| *other != id);
                }
                return;
            }
            Step::ChangeAddresses { host, last } => {
                let cm = self.net.cm(host);
                cm.hardware_address_changed(device(host).device_index);
                let neighbour = portolan_cm::Neighbour {
                    link_address: [2, 0, 0, 0, 0, last],
                    ..neighbour(host)
                };
                cm.neighbour_changed(&neighbour);
                self.net.drain();
                return self.listen_to_events();
            }
            Step::Listen { host, which }
            | Step::Bind { host, which }
            | Step::Join { host, which }
            | Step::Resolve { host, which }
            | Step::Route { host, which }
            | Step::Connect { host, which, .. }
            | Step::Accept { host, which, .. }
            | Step::Establish { host, which }
            | Step::Notify { host, which }
            | Step::Reject { host, which }
            | Step::Disconnect { host, which }
            | Step::Destroy { host, which }
            | Step::TakeRequest { host, which } => (host, which),
        };
        let Some(id) = self.id(host, which) else {
            return;
        };
        let cm = self.net.cm(host);
        let before = cm.state(id).ok();
        let second = Duration::from_secs(1);
        let any = SocketAddr::new([0, 0, 0, 0].into(), PORT);
        let result = match step {
            Step::Listen { .. } => {
                cm.bind(now, id, any, None).ok();
                cm.listen(now, id, 2)
            }
            Step::Bind { .. } => {
                cm.bind(now, id, SocketAddr::new(ip(host), PORT), Some(device(host)))
            }
            Step::Join { .. } => {
                let group = [239, 1, 2, 3].into();
                let joined = cm.join(now, id, UserId(9), group, JoinKind::FullMember);
                joined.map(|_| ())
            }
            Step::Resolve { .. } => {
                cm.resolve_addr(now, id, None, SocketAddr::new(ip(1 - host), PORT), second)
            }
            Step::Route { .. } => cm.resolve_route(now, id, second),
            Step::Connect { qpn, .. } => cm.connect(now, id, &param(qpn, b"x"), Ece::default()),
            Step::Accept { qpn, .. } => {
                cm.accept(now, id, UserId(8), &param(qpn, b"y"), Ece::default())
            }
            Step::Establish { .. } => cm.establish(now, id),
            Step::Notify { .. } => cm.notify_established(now, id),
            Step::Reject { .. } => cm.reject(now, id, RejectReason::CONSUMER_DEFINED, b""),
            Step::Disconnect { .. } => cm.disconnect(now, id),
            Step::Destroy { .. } => {
                let result = cm.destroy_id(now, id);
                self.ids[host].retain(|other| *other != id);
                result
            }
            Step::TakeRequest { .. } => {
                cm.request_taken(id);
                Ok(())
            }
            // Handled above.
            Step::Create { .. }
            | Step::Exchange
            | Step::Shake { .. }
            | Step::Lose { .. }
            | Step::Wait { .. }
            | Step::RemoveDevice { .. }
            | Step::ChangeAddresses { .. } => Ok(()),
        };
        let cm = self.net.cm(host);
        if result.is_err() && !matches!(step, Step::Listen { .. }) {
            assert_eq!(
                cm.state(id).ok(),
                before,
                "{step:?} failed and changed the state"
            );
        }
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            let _ = cm.init_qp_attr(id, state);
        }
        // The owner of an engine drains it after each call.
        self.net.drain();
        self.listen_to_events();
    }

    /// Takes all steps of a connection in a row, which random steps seldom do.
    fn shake_hands(&mut self, qpn: u32) {
        let now = self.net.now;
        let any = SocketAddr::new([0, 0, 0, 0].into(), PORT);
        let second = Duration::from_secs(1);
        let created = [0, 1].map(|host| self.net.cm(host).create_id(UserId(7), RC).ok());
        for (host, id) in created.into_iter().enumerate() {
            self.ids[host].extend(id);
        }
        let [Some(active), Some(listener)] = created else {
            return;
        };
        // Another id may already listen.
        let cm = self.net.cm(1);
        let _ = cm.bind(now, listener, any, None);
        let _ = cm.listen(now, listener, 2);
        let destination = SocketAddr::new(ip(1), PORT);
        let _ = self
            .net
            .cm(0)
            .resolve_addr(now, active, None, destination, second);
        self.net.drain();
        let _ = self.net.cm(0).resolve_route(now, active, second);
        let _ = self
            .net
            .cm(0)
            .connect(now, active, &param(qpn, b"x"), Ece::default());
        self.net.exchange();
        self.listen_to_events();
        let now = self.net.now;
        if let Some(passive) = self.ids[1].last().copied() {
            let param = param(qpn, b"y");
            let _ = self
                .net
                .cm(1)
                .accept(now, passive, UserId(8), &param, Ece::default());
        }
        self.net.exchange();
        let now = self.net.now;
        let _ = self.net.cm(0).establish(now, active);
        self.net.exchange();
        self.listen_to_events();
    }

    fn listen_to_events(&mut self) {
        for host in 0..2 {
            while let Some(event) = self.net.hosts[host].events.pop_front() {
                let told = &mut self.told[host];
                assert!(
                    !told.removed.contains(&event.id),
                    "its device was removed: {event:?}"
                );
                match event.event {
                    EventType::DeviceRemoval => told.removed.push(event.id),
                    EventType::ConnectRequest => {
                        self.ids[host].push(event.id);
                        told.requests += 1;
                    }
                    EventType::Disconnected => {
                        assert!(
                            !told.disconnected.contains(&event.id),
                            "told twice: {event:?}"
                        );
                        told.disconnected.push(event.id);
                    }
                    EventType::TimewaitExit => {
                        assert!(
                            told.disconnected.contains(&event.id),
                            "told first: {event:?}"
                        );
                        assert!(!told.timewait_exits.contains(&event.id), "twice: {event:?}");
                        told.timewait_exits.push(event.id);
                    }
                    _ => {}
                }
            }
        }
    }

    fn check_bounds(&mut self) {
        for host in 0..2 {
            let sizes = self.net.cm(host).table_sizes();
            assert!(sizes.ids <= 12 && sizes.remembered <= 2, "{sizes:?}");
            assert!(
                sizes.answers <= 2 && sizes.remote_requests <= sizes.ids,
                "{sizes:?}"
            );
            assert!(sizes.memberships <= 4, "{sizes:?}");
            assert!(sizes.neighbours <= 1, "{sizes:?}");
            assert!(sizes.comm_ids <= sizes.ids, "{sizes:?}");
            assert!(sizes.remote_ids <= sizes.comm_ids, "{sizes:?}");
            assert!(sizes.remote_qps <= sizes.remote_ids, "{sizes:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn random_commands_on_a_bad_network_keep_every_promise(
        steps in prop::collection::vec(step(), 1..200),
    ) {
        let mut run = Run::new();
        for step in steps {
            run.take(step);
            run.check_bounds();
        }
        // Everything in progress must end by itself, because every wait has a limit.
        run.net.run_for(Duration::from_secs(3600));
        run.listen_to_events();
        for host in 0..2 {
            let cm = run.net.cm(host);
            prop_assert_eq!(cm.poll_timeout(), None);
            let waiting: Vec<_> = cm
                .ids()
                .filter(|(_, state)| {
                    use State::*;
                    matches!(state, AddrQuery | ReqSent | MraReqRcvd | RepSent | MraRepRcvd
                        | DreqSent | SidrReqSent | Timewait)
                })
                .collect();
            prop_assert!(waiting.is_empty(), "{waiting:?}");
        }
        // Destroying all ids must leave nothing.
        for host in 0..2 {
            let now = run.net.now;
            let all: Vec<_> = run.net.cm(host).ids().map(|(id, _)| id).collect();
            for id in all {
                // Destroying a listener may have destroyed it already.
                let _ = run.net.cm(host).destroy_id(now, id);
                run.net.drain();
            }
            let left = TableSizes { remembered: 0, rejections: 0, answers: 0, ..run.net.cm(host).table_sizes() };
            prop_assert_eq!(left, TableSizes::default());
        }
    }

    #[test]
    fn a_run_is_a_function_of_its_seed(steps in prop::collection::vec(step(), 1..80)) {
        let trace = |_| {
            let mut run = Run::new();
            steps.iter().for_each(|step| run.take(*step));
            let log = run.net.log.iter();
            log.map(|passing| (passing.at, passing.from, passing.tid, passing.message)).collect()
        };
        let (first, second): (Vec<_>, Vec<_>) = (trace(1), trace(2));
        prop_assert_eq!(first, second);
    }
}

/// Checks the strategy itself: a run that never connects would prove nothing.
#[test]
fn random_runs_reach_every_state_and_every_kind_of_message() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let mut states = std::collections::BTreeSet::new();
    let mut kinds = std::collections::HashSet::new();
    for _ in 0..400 {
        let steps = prop::collection::vec(step(), 200)
            .new_tree(&mut runner)
            .unwrap()
            .current();
        let mut run = Run::new();
        for step in steps {
            run.take(step);
            states.extend(
                run.net
                    .hosts
                    .iter()
                    .flat_map(|host| host.cm.ids())
                    .map(|(_, state)| state),
            );
        }
        kinds.extend(run.net.log.iter().map(Passing::kind));
    }
    // The harness answers queries at once, so no id is seen waiting for one.
    let missing: Vec<_> = State::ALL
        .iter()
        .filter(|state| !states.contains(state))
        .copied()
        .collect();
    assert_eq!(missing, [State::AddrQuery]);
    assert_eq!(
        kinds.len(),
        9,
        "REQ, MRA, REJ, REP, RTU, DREQ, DREP, SIDR REQ, SIDR REP: {kinds:?}"
    );
}
