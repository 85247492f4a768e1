//! A member's side: its connection to the coordinator.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;

use super::block::Block;
use super::config::{MESSAGES_PER_TURN, REPORT_PARTS_MAX, REQUEST_BYTES_MAX, WELCOME_TIMEOUT};
use super::context::{KEY_UPLINK, RoleContext};
use super::datagram::Datagram;
use super::fork::PrivateFd;
use super::message::{Message, Refusal, VERSION};
use super::packet::{self, Received};
use super::requests::Requests;
use super::trust::Credentials;

/// The connection to the coordinator.
#[derive(Debug)]
pub(super) struct Uplink {
    fd: PrivateFd,
    coordinator: Credentials,
    phase: Phase,
    /// Messages that did not fit into the connection: replays and requests, bounded by their own limits.
    outbox: VecDeque<Vec<u8>>,
    /// Replays without an answer, oldest first.
    replays: VecDeque<Vec<u8>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Has sent a hello to a new coordinator.
    AwaitingWelcome { until: Instant },
    /// Welcomed; must replay all registrations before it sends requests.
    AwaitingReplay,
    /// Is a full member.
    Joined,
}

/// The result of handling the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The connection continues.
    Lasts {
        /// The welcome arrived: registrations must be replayed.
        welcomed: bool,
        /// A request was answered.
        answered: bool,
    },
    /// The connection is closed; find a coordinator after `wait`.
    Lost {
        /// The wait that the coordinator asked for.
        wait: Duration,
    },
    /// The coordinator refused this process.
    Refused(Refusal),
}

const LOST: Outcome = Outcome::Lost {
    wait: Duration::ZERO,
};

impl Uplink {
    /// The connection of a newcomer that was welcomed.
    pub(super) fn joined(
        fd: PrivateFd,
        coordinator: Credentials,
        context: &RoleContext,
    ) -> Result<Self, Errno> {
        context.watch(fd.as_fd(), KEY_UPLINK, EventFlags::IN)?;
        Ok(Self {
            fd,
            coordinator,
            phase: Phase::Joined,
            outbox: VecDeque::new(),
            replays: VecDeque::new(),
        })
    }

    /// A connection to a new coordinator: sends a hello with this process's block.
    pub(super) fn rejoin(
        fd: PrivateFd,
        coordinator: Credentials,
        context: &mut RoleContext,
        now: Instant,
    ) -> Result<Self, Errno> {
        context.watch(fd.as_fd(), KEY_UPLINK, EventFlags::IN)?;
        let rejoin = Some(context.own);
        packet::send(
            fd.as_fd(),
            context.encode(&Message::Hello {
                version: VERSION,
                rejoin,
            }),
        )?;
        let phase = Phase::AwaitingWelcome {
            until: now + WELCOME_TIMEOUT,
        };
        Ok(Self {
            fd,
            coordinator,
            phase,
            outbox: VecDeque::new(),
            replays: VecDeque::new(),
        })
    }

    /// Stops watching the connection. A recently forked child may briefly hold a copy.
    pub(super) fn unwatch(&self, context: &RoleContext) {
        context.unwatch(self.fd.as_fd());
    }

    pub(super) fn coordinator(&self) -> Credentials {
        self.coordinator
    }

    /// Whether requests can be sent.
    pub(super) fn is_joined(&self) -> bool {
        self.phase == Phase::Joined
    }

    /// When to stop waiting for the welcome.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        match self.phase {
            Phase::AwaitingWelcome { until } => Some(until),
            Phase::AwaitingReplay | Phase::Joined => None,
        }
    }

    /// Does the work that is due.
    pub(super) fn timers(&self, now: Instant) -> Outcome {
        match self.next_timeout() {
            Some(until) if until <= now => LOST,
            _ => Outcome::Lasts {
                welcomed: false,
                answered: false,
            },
        }
    }

    /// Handles the ready connection.
    pub(super) fn ready(
        &mut self,
        flags: EventFlags,
        context: &mut RoleContext,
        requests: &mut Requests,
        now: Instant,
    ) -> Outcome {
        // If sending fails, the connection is over; but first read what the coordinator sent.
        if flags.contains(EventFlags::OUT) {
            self.flush(context);
        }
        let (mut welcomed, mut answered) = (false, false);
        let mut buffer = context.take_buffer();
        let mut over = None;
        for _ in 0..MESSAGES_PER_TURN {
            let bytes = match packet::receive(self.fd.as_fd(), &mut buffer) {
                Ok(Received::Record(bytes)) => buffer.get(..bytes).unwrap_or_default(),
                Ok(Received::Nothing) => break,
                Ok(Received::TooLong | Received::Closed) | Err(_) => {
                    over = Some(LOST);
                    break;
                }
            };
            match self.handle(bytes, context, requests, now) {
                Outcome::Lasts {
                    welcomed: w,
                    answered: a,
                } => {
                    welcomed |= w;
                    answered |= a;
                }
                outcome => {
                    over = Some(outcome);
                    break;
                }
            }
        }
        context.return_buffer(buffer);
        over.unwrap_or(Outcome::Lasts { welcomed, answered })
    }

    /// Registers this process's claims with a new coordinator.
    pub(super) fn replay(&mut self, payloads: &[Vec<u8>], context: &mut RoleContext) {
        if self.phase != Phase::AwaitingReplay {
            return;
        }
        for payload in payloads {
            self.send(&Message::Replay { payload }, context);
            self.replays.push_back(payload.clone());
        }
        self.send(&Message::ReplaysDone {}, context);
        self.phase = Phase::Joined;
    }

    /// Sends a request.
    pub(super) fn request(&mut self, id: u64, payload: &[u8], context: &mut RoleContext) {
        self.send(&Message::Request { id, payload }, context);
    }

    /// Sends this process's report.
    pub(super) fn report(&mut self, survey: u64, payloads: &[Vec<u8>], context: &mut RoleContext) {
        let block = context.own;
        report(survey, block, payloads, |message| {
            self.send(message, context);
        });
    }

    /// Sends a datagram through the coordinator. `false` if there is no room.
    pub(super) fn forward(
        &mut self,
        block: Block,
        datagram: Datagram<'_>,
        context: &mut RoleContext,
    ) -> bool {
        let bytes = context.encode(&Message::Datagram { block, datagram });
        let is_sent = self.send_now(bytes).is_ok();
        match is_sent {
            true => context.counters.forwarded += 1,
            false => context.counters.queue_full += 1,
        }
        is_sent
    }

    fn handle(
        &mut self,
        bytes: &[u8],
        context: &mut RoleContext,
        requests: &mut Requests,
        now: Instant,
    ) -> Outcome {
        let awaiting_welcome = matches!(self.phase, Phase::AwaitingWelcome { .. });
        let (mut welcomed, mut answered) = (false, false);
        let is_replaying = !self.replays.is_empty();
        match Message::decode(bytes) {
            Ok(Message::Welcome { block }) if awaiting_welcome && block == context.own => {
                self.phase = Phase::AwaitingReplay;
                welcomed = true;
            }
            Ok(Message::Refused { refusal }) if awaiting_welcome => {
                return Outcome::Refused(refusal);
            }
            Ok(Message::Later { after_ms }) if awaiting_welcome => {
                return Outcome::Lost {
                    wait: Duration::from_millis(after_ms.into()),
                };
            }
            Ok(Message::Response { id, payload }) => {
                answered = requests.answered(id, payload.to_vec());
            }
            Ok(Message::Replayed { payload }) if is_replaying => {
                let replays = self.replays.pop_front();
                let answered = replays.map(|replay| (replay, payload.to_vec()));
                context.replayed.extend(answered);
            }
            Ok(Message::ResponseLater { id, after_ms }) => {
                requests.postponed(id, Duration::from_millis(after_ms.into()), now);
            }
            Ok(Message::Datagram { datagram, .. }) => {
                context.deliver(&datagram);
            }
            Ok(Message::Survey { id }) => context.note_survey(id),
            Ok(Message::PeerDeath { blocks }) => context.inbox.push_peer_death(blocks),
            Ok(unexpected) => {
                tracing::warn!(?unexpected, "the coordinator violates the group protocol");
                context.counters.violations += 1;
                return LOST;
            }
            Err(malformed) => {
                tracing::warn!(%malformed, "the coordinator violates the group protocol");
                context.counters.violations += 1;
                return LOST;
            }
        }
        Outcome::Lasts { welcomed, answered }
    }

    fn send(&mut self, message: &Message<'_>, context: &mut RoleContext) {
        let bytes = context.encode(message);
        if self.outbox.is_empty() && self.send_now(bytes) != Err(Errno::AGAIN) {
            return;
        }
        self.outbox.push_back(bytes.to_vec());
        context.rewatch(
            self.fd.as_fd(),
            KEY_UPLINK,
            EventFlags::IN | EventFlags::OUT,
        );
    }

    /// Sends a record at once. On an error other than [`Errno::AGAIN`] the connection is over; unanswered messages go
    /// to the next coordinator, or to this one again.
    fn send_now(&mut self, record: &[u8]) -> Result<(), Errno> {
        let sent = packet::send(self.fd.as_fd(), record);
        if sent.is_err_and(|errno| errno != Errno::AGAIN) {
            self.outbox.clear();
            packet::end(self.fd.as_fd());
        }
        sent
    }

    fn flush(&mut self, context: &RoleContext) {
        while let Some(bytes) = self.outbox.pop_front() {
            if self.send_now(&bytes) == Err(Errno::AGAIN) {
                self.outbox.push_front(bytes);
                return;
            }
        }
        context.rewatch(self.fd.as_fd(), KEY_UPLINK, EventFlags::IN);
    }
}

/// The messages of a report: at least one, to mark the end.
pub(super) fn report(
    survey: u64,
    block: Block,
    payloads: &[Vec<u8>],
    mut send: impl FnMut(&Message<'_>),
) {
    let fits = |payload: &&Vec<u8>| payload.len() <= REQUEST_BYTES_MAX;
    let payloads = payloads.iter().filter(fits).take(REPORT_PARTS_MAX - 1);
    for payload in payloads {
        send(&Message::Report {
            survey,
            block,
            last: false,
            payload,
        });
    }
    send(&Message::Report {
        survey,
        block,
        last: true,
        payload: &[],
    });
}
