//! Datagram services, and lookups of their queue pairs (SIDR).

use std::time::Duration;

use portolan_cm::{Config, SIDR_REP_PRIVATE_DATA_MAX, SIDR_REQ_PRIVATE_DATA_MAX, time_of_exponent};
use portolan_wire::QKey;

use super::{Class, DEAD_PORT, HostPlan, PORTS, Side};
use crate::simulator::rng::Rng;

/// A program that listens for questions. It uses the same port numbers as the listeners for
/// connections, in another port space.
#[derive(Clone, Copy, Debug)]
pub(in crate::simulator) struct ServicePlan {
    pub(in crate::simulator) host: usize,
    pub(in crate::simulator) port: u16,
    /// Bound to the host's address instead of the wildcard.
    pub(in crate::simulator) is_specific: bool,
    pub(in crate::simulator) backlog: i32,
    /// Its own Q_Key instead of the default.
    pub(in crate::simulator) qkey: Option<QKey>,
    pub(in crate::simulator) close_at: Option<Duration>,
}

/// What the service's program does with a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::simulator) enum Reply {
    Accept,
    Reject,
    /// Does not answer.
    Ignore,
    /// Destroys the id.
    Destroy,
}

/// The required result of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::simulator) enum Outcome {
    /// The service's queue pair and key.
    Served,
    /// The answer is a refusal with this status.
    Refused(u8),
    /// The answer has a Q_Key that the asker may not use.
    ForeignKey,
    /// Any legal result.
    Anything,
}

/// One question, from creation to destruction of its id.
#[derive(Clone, Debug)]
pub(in crate::simulator) struct InquiryPlan {
    pub(in crate::simulator) start_at: Duration,
    /// The host that asks and the one that is asked, by [`Side`].
    pub(in crate::simulator) hosts: [usize; 2],
    pub(in crate::simulator) port: u16,
    /// The Q_Key that the asker's id was given before.
    pub(in crate::simulator) qkey: Option<QKey>,
    pub(in crate::simulator) reply: Reply,
    pub(in crate::simulator) reply_delay: Duration,
    /// Bytes of private data beyond the simulator's own, by [`Side`].
    pub(in crate::simulator) private_data_extra: [usize; 2],
    /// When the asker destroys its id in any state, counted from the start.
    pub(in crate::simulator) withdraw_after: Option<Duration>,
    /// Time from the end of the question to the destruction of the id, by [`Side`].
    pub(in crate::simulator) destroy_delay: [Duration; 2],
    pub(in crate::simulator) outcome: Outcome,
}

/// SIDR statuses (IBTA 12.11.2, table 128).
pub(in crate::simulator) const STATUS_UNSUPPORTED: u8 = 1;
pub(in crate::simulator) const STATUS_REJECT: u8 = 2;

/// Bytes of private data that identify the question.
const NAMES_LEN: u64 = 8;

/// Q_Keys that programs choose.
const QKEYS: [QKey; 2] = [QKey(0x1111_1111), QKey(0x2222_2222)];

pub(super) fn draw_services(rng: &mut Rng, class: Class, hosts: &[HostPlan]) -> Vec<ServicePlan> {
    let mut services: Vec<ServicePlan> = Vec::new();
    for host in 0..hosts.len() {
        for port in PORTS {
            let is_taken = services
                .iter()
                .any(|other| other.port == port && hosts[other.host].group == hosts[host].group);
            if !is_taken && rng.percent(30) {
                let closes = class == Class::Chaos && rng.percent(20);
                services.push(ServicePlan {
                    host,
                    port,
                    is_specific: rng.percent(40),
                    backlog: if rng.percent(30) { 1 } else { 0 },
                    qkey: rng.percent(40).then(|| rng.pick(&QKEYS)),
                    close_at: closes.then(|| rng.millis(1, 8000)),
                });
            }
        }
    }
    services
}

pub(super) fn draw_inquiries(
    rng: &mut Rng,
    class: Class,
    hosts: usize,
    services: &[ServicePlan],
    cm: &Config,
) -> Vec<InquiryPlan> {
    if services.is_empty() {
        return Vec::new();
    }
    let count = rng.below(if class == Class::Chaos { 12 } else { 8 });
    (0..count)
        .map(|_| InquiryPlan::draw(rng, class, hosts, services, cm))
        .collect()
}

impl InquiryPlan {
    fn draw(
        rng: &mut Rng,
        class: Class,
        hosts: usize,
        services: &[ServicePlan],
        cm: &Config,
    ) -> Self {
        let service = rng.pick(services);
        let is_wild = class == Class::Chaos || rng.percent(20);
        let (mut port, mut reply, mut outcome) = (service.port, Reply::Accept, Outcome::Served);
        match rng.below(100) {
            0..6 => {
                port = DEAD_PORT;
                outcome = Outcome::Refused(STATUS_UNSUPPORTED);
            }
            6..16 => {
                reply = rng.pick(&[Reply::Reject, Reply::Destroy]);
                outcome = Outcome::Refused(STATUS_REJECT);
            }
            16..20 if is_wild => reply = Reply::Ignore,
            _ => {}
        }
        let qkey = rng.percent(25).then(|| rng.pick(&QKEYS));
        let served = service.qkey.unwrap_or(QKey::RDMA_CM);
        if outcome == Outcome::Served && qkey.is_some_and(|qkey| qkey != served) {
            outcome = Outcome::ForeignKey;
        }
        if is_wild {
            outcome = Outcome::Anything;
        }
        let soon = rng.pick(&[5, 100, 5000]);
        let withdraws = is_wild && rng.percent(20);
        let mut destroy_delay = || {
            let longest = rng.pick(&[0, 10, 1500, 30_000]);
            rng.millis(0, longest)
        };
        let destroy_delay = [destroy_delay(), destroy_delay()];
        let extra = |rng: &mut Rng, max: usize| rng.between(0, max as u64 - NAMES_LEN) as usize;
        Self {
            start_at: match rng.below(10) {
                0..7 => rng.millis(1, 1000),
                _ => rng.millis(1000, 9000),
            },
            hosts: [rng.below(hosts as u64) as usize, service.host],
            port,
            qkey,
            reply,
            reply_delay: draw_reply_delay(rng, is_wild, cm),
            private_data_extra: [
                extra(rng, SIDR_REQ_PRIVATE_DATA_MAX),
                extra(rng, SIDR_REP_PRIVATE_DATA_MAX),
            ],
            withdraw_after: withdraws.then(|| rng.millis(0, soon)),
            destroy_delay,
            outcome,
        }
    }

    /// Extra bytes of one side's private data.
    pub(in crate::simulator) fn extra(&self, side: Side) -> usize {
        self.private_data_extra[side as usize]
    }
}

/// How long a service's program takes. SIDR has no message that asks for more time, so an answer
/// that must be in time takes only a part of the asker's timeout.
fn draw_reply_delay(rng: &mut Rng, is_wild: bool, cm: &Config) -> Duration {
    let response_ms = time_of_exponent(cm.response_timeout_exp).as_millis() as u64;
    match rng.below(20) {
        0..10 => Duration::ZERO,
        10..14 => rng.millis(0, 50),
        14..18 => rng.millis(0, response_ms * 3),
        _ if is_wild => rng.millis(0, response_ms * 20),
        _ => rng.millis(0, 5),
    }
}
