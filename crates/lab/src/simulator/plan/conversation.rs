//! One connection attempt, the data sent over the connection, and its end.

use std::time::Duration;

use portolan_cm::{Config, time_of_exponent};
use portolan_wire::Psn;

use super::{Class, Crash, DEAD_PORT, ListenerPlan, WorkloadPlan};
use crate::simulator::rng::Rng;

/// The side that requested the connection, or the side that accepts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::simulator) enum Side {
    Active = 0,
    Passive = 1,
}

/// What the listener's program does with the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::simulator) enum Answer {
    Accept,
    Reject {
        data_len: usize,
    },
    /// Does not answer.
    Ignore,
    /// Destroys the id.
    Destroy,
}

/// The machine's answer to a lookup of the destination's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::simulator) enum AddressAnswer {
    Found,
    Unreachable,
    /// Answers too late.
    Late,
}

/// How a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::simulator) enum Ending {
    /// When all data are sent, a side disconnects, or both do at once.
    WhenDone { active: bool, passive: bool },
    /// A side disconnects `after` this long since the attempt began.
    Disconnect { side: Side, after: Duration },
    /// A side destroys its id `after` this long since the attempt began.
    Destroy { side: Side, after: Duration },
}

/// A region is deregistered while it may be in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::simulator) struct Revocation {
    pub(in crate::simulator) side: Side,
    pub(in crate::simulator) use_of_region: Use,
    pub(in crate::simulator) after: Duration,
}

/// The uses of an endpoint's regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::simulator) enum Use {
    /// Memory to send from.
    Outgoing,
    /// Memory for receives and read results.
    Incoming,
    /// Memory that its peer may write.
    Target,
    /// Memory that its peer may read.
    Source,
}

/// The required result of the attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::simulator) enum Expect {
    /// All work succeeds.
    Completion,
    /// The active side is rejected with this reason.
    Rejection(u16),
    /// Address resolution fails.
    AddressError,
    /// Any legal result.
    Anything,
}

impl Ending {
    /// When it happens, counted from the start. `None` if it waits for the conversation.
    pub(in crate::simulator) fn time(self) -> Option<Duration> {
        match self {
            Self::WhenDone { .. } => None,
            Self::Disconnect { after, .. } | Self::Destroy { after, .. } => Some(after),
        }
    }
}

#[derive(Clone, Debug)]
pub(in crate::simulator) struct ConversationPlan {
    pub(in crate::simulator) start_at: Duration,
    /// The active host and the passive one, by [`Side`].
    pub(in crate::simulator) hosts: [usize; 2],
    pub(in crate::simulator) port: u16,
    /// Whether the active side binds to its own address before it resolves.
    pub(in crate::simulator) binds_first: bool,
    pub(in crate::simulator) address_answer: AddressAnswer,
    pub(in crate::simulator) answer: Answer,
    pub(in crate::simulator) answer_delay: Duration,
    /// How long the active side takes to complete the handshake when its program owns the queue
    /// pair.
    pub(in crate::simulator) establish_delay: Duration,
    /// Whether the passive side reports data that arrive before the RTU.
    pub(in crate::simulator) notifies: bool,
    /// First PSNs chosen by the two programs instead of by the ids; by [`Side`].
    pub(in crate::simulator) psns: Option<[Psn; 2]>,
    /// Bytes of private data beyond the simulator's own, in REQ and REP.
    pub(in crate::simulator) private_data_extra: usize,
    pub(in crate::simulator) retry_count: u8,
    pub(in crate::simulator) rnr_retry_count: u8,
    pub(in crate::simulator) workloads: [WorkloadPlan; 2],
    pub(in crate::simulator) ending: Ending,
    /// Delay of the disconnect after the conversation's end or the peer's request, by [`Side`].
    pub(in crate::simulator) disconnect_delay: [Duration; 2],
    /// Whether a side leaves the peer's disconnect unanswered, by [`Side`].
    pub(in crate::simulator) ignores_disconnect: [bool; 2],
    /// Whether an id is kept until its time-wait is over, by [`Side`].
    pub(in crate::simulator) waits_for_timewait: [bool; 2],
    /// Time from the end of the connection to the destruction of the id, by [`Side`].
    pub(in crate::simulator) destroy_delay: [Duration; 2],
    /// A region that a side deregisters early.
    pub(in crate::simulator) revocation: Option<Revocation>,
    /// How long after the start the programs give up.
    pub(in crate::simulator) patience: Duration,
    pub(in crate::simulator) expect: Expect,
}

impl ConversationPlan {
    /// A conversation that a machine begins after its crash, when its peers may not have noticed
    /// it.
    pub(super) fn draw_after(
        rng: &mut Rng,
        crash: &Crash,
        hosts: usize,
        listeners: &[ListenerPlan],
        cm: &Config,
    ) -> Self {
        let mut plan = Self::draw(rng, Class::Chaos, hosts, listeners, cm);
        plan.hosts[Side::Active as usize] = crash.host;
        plan.start_at = crash.restart_at + rng.millis(0, 300);
        plan
    }

    pub(super) fn draw(
        rng: &mut Rng,
        class: Class,
        hosts: usize,
        listeners: &[ListenerPlan],
        cm: &Config,
    ) -> Self {
        let listener = rng.pick(listeners);
        // Sometimes a host connects to itself.
        let active = rng.below(hosts as u64) as usize;
        let is_wild = class == Class::Chaos || rng.percent(20);
        let mut expect = if is_wild {
            Expect::Anything
        } else {
            Expect::Completion
        };
        let (mut port, mut answer) = (listener.port, Answer::Accept);
        let mut address_answer = AddressAnswer::Found;
        match rng.below(100) {
            0..6 => {
                port = DEAD_PORT;
                expect = Expect::Rejection(REASON_INVALID_SERVICE_ID);
            }
            6..12 => {
                answer = Answer::Reject {
                    data_len: rng.between(0, 140) as usize,
                };
                expect = Expect::Rejection(REASON_CONSUMER_DEFINED);
            }
            12..15 => {
                address_answer = rng.pick(&[AddressAnswer::Unreachable, AddressAnswer::Late]);
                expect = Expect::AddressError;
            }
            15..20 if is_wild => answer = rng.pick(&[Answer::Ignore, Answer::Destroy]),
            _ => {}
        }
        if class == Class::Chaos {
            expect = Expect::Anything;
        }
        // Do not disturb a conversation that must end in a certain way.
        let is_wild = expect == Expect::Anything;
        let is_sound = expect == Expect::Completion;
        let workloads = WorkloadPlan::draw_pair(rng, class, is_sound);
        let mut pair = |draw: fn(&mut Rng) -> Duration| [draw(rng), draw(rng)];
        let disconnect_delay = pair(|rng| {
            let longest = rng.pick(&[0, 10, 1500]);
            rng.millis(0, longest)
        });
        let destroy_delay = pair(|rng| {
            let longest = rng.pick(&[0, 10, 1500]);
            rng.millis(0, longest)
        });
        Self {
            start_at: match rng.below(10) {
                0..7 => rng.millis(1, 500),
                7..9 => rng.millis(500, 8000),
                _ => rng.millis(8000, 40_000),
            },
            hosts: [active, listener.host],
            port,
            binds_first: rng.percent(30),
            address_answer,
            answer,
            answer_delay: draw_delay(rng, is_wild, cm),
            establish_delay: draw_delay(rng, is_wild, cm),
            notifies: rng.percent(50),
            psns: rng.percent(50).then(|| [draw_psn(rng), draw_psn(rng)]),
            private_data_extra: rng.between(0, 48) as usize,
            retry_count: if is_wild { rng.between(0, 7) as u8 } else { 7 },
            rnr_retry_count: if is_wild { rng.pick(&[0, 1, 3, 7]) } else { 7 },
            workloads,
            ending: draw_ending(rng, is_wild),
            disconnect_delay,
            ignores_disconnect: [is_wild && rng.percent(10), is_wild && rng.percent(10)],
            waits_for_timewait: [rng.percent(50), rng.percent(50)],
            destroy_delay,
            revocation: (is_wild && rng.percent(15)).then(|| Revocation {
                side: rng.pick(&[Side::Active, Side::Passive]),
                use_of_region: rng.pick(&[Use::Outgoing, Use::Incoming, Use::Target, Use::Source]),
                after: rng.millis(0, 1000),
            }),
            patience: match is_wild {
                true => rng.millis(1000, 200_000),
                false => PATIENCE_OF_SOUND,
            },
            expect,
        }
    }
}

const REASON_INVALID_SERVICE_ID: u16 = 8;
const REASON_CONSUMER_DEFINED: u16 = 28;

/// Time within which everything that must succeed has succeeded.
const PATIENCE_OF_SOUND: Duration = Duration::from_secs(3000);

/// How long a program takes for its part of the handshake. Sometimes longer than all
/// retransmissions together; then the peer's MRA makes the other side wait.
fn draw_delay(rng: &mut Rng, is_wild: bool, cm: &Config) -> Duration {
    let response = time_of_exponent(cm.response_timeout_exp);
    let response_ms = response.as_millis() as u64;
    match rng.below(20) {
        0..12 => Duration::ZERO,
        12..16 => rng.millis(0, 50),
        16..18 => rng.millis(0, response_ms * 4),
        18 => response * 20 + rng.millis(0, response_ms),
        _ if is_wild => rng.millis(0, response_ms * 40),
        _ => rng.millis(0, 5),
    }
}

/// Any PSN, but often one near the wrap or the change of sign.
pub(in crate::simulator) fn draw_psn(rng: &mut Rng) -> Psn {
    let near = rng.below(600) as u32;
    Psn::new(match rng.below(4) {
        0 => Psn::MAX.value() - near,
        1 => (1 << 23) - near,
        2 => near,
        _ => rng.next_u32(),
    })
}

fn draw_ending(rng: &mut Rng, is_wild: bool) -> Ending {
    let side = rng.pick(&[Side::Active, Side::Passive]);
    let soon = rng.pick(&[5, 100, 2000, 20_000]);
    let after = rng.millis(0, soon);
    match rng.below(10) {
        0..3 if is_wild => Ending::Disconnect { side, after },
        3..6 if is_wild => Ending::Destroy { side, after },
        _ => match rng.below(4) {
            0 => Ending::WhenDone {
                active: true,
                passive: true,
            },
            1 => Ending::WhenDone {
                active: false,
                passive: true,
            },
            _ => Ending::WhenDone {
                active: true,
                passive: false,
            },
        },
    }
}
