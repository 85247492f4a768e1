//! A member's side: its connection to the hub.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;

use super::block::Block;
use super::config::{MESSAGES_PER_TURN, REPORT_PARTS_MAX, REQUEST_BYTES_MAX, WELCOME_TIMEOUT};
use super::datagram::Datagram;
use super::ground::{Ground, KEY_UPLINK};
use super::inherit::PrivateFd;
use super::message::{Message, Refusal, VERSION};
use super::packet::{self, Received};
use super::requests::Requests;
use super::trust::Credentials;

/// The connection to the hub.
#[derive(Debug)]
pub(super) struct Uplink {
    fd: PrivateFd,
    hub: Credentials,
    phase: Phase,
    /// Messages that found the connection full: replays and requests, bounded by their own limits.
    outbox: VecDeque<Vec<u8>>,
    /// Replays that the hub has not answered, oldest first.
    replays: VecDeque<Vec<u8>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Has said hello to a new hub.
    AwaitingWelcome { until: Instant },
    /// Is welcome, and has to register everything again before it asks anything.
    AwaitingReplay,
    /// A member in good standing.
    Joined,
}

/// What became of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It lasts.
    Lasts {
        /// The welcome came: registrations have to be replayed.
        welcomed: bool,
        /// A request has its answer.
        answered: bool,
    },
    /// It is over; there is a hub to be found after `wait`.
    Lost {
        /// How long the hub asked to wait.
        wait: Duration,
    },
    /// The hub will not have this process back.
    Refused(Refusal),
}

const LOST: Outcome = Outcome::Lost {
    wait: Duration::ZERO,
};

impl Uplink {
    /// The connection of a newcomer that has been welcomed.
    pub(super) fn joined(fd: PrivateFd, hub: Credentials, ground: &Ground) -> Result<Self, Errno> {
        ground.watch(fd.as_fd(), KEY_UPLINK, EventFlags::IN)?;
        Ok(Self {
            fd,
            hub,
            phase: Phase::Joined,
            outbox: VecDeque::new(),
            replays: VecDeque::new(),
        })
    }

    /// A connection to a new hub: says hello with the block this process has.
    pub(super) fn rejoin(
        fd: PrivateFd,
        hub: Credentials,
        ground: &mut Ground,
        now: Instant,
    ) -> Result<Self, Errno> {
        ground.watch(fd.as_fd(), KEY_UPLINK, EventFlags::IN)?;
        let rejoin = Some(ground.own);
        packet::send(
            fd.as_fd(),
            ground.encode(&Message::Hello {
                version: VERSION,
                rejoin,
            }),
        )?;
        let phase = Phase::AwaitingWelcome {
            until: now + WELCOME_TIMEOUT,
        };
        Ok(Self {
            fd,
            hub,
            phase,
            outbox: VecDeque::new(),
            replays: VecDeque::new(),
        })
    }

    pub(super) fn hub(&self) -> Credentials {
        self.hub
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

    /// What is due now.
    pub(super) fn timers(&self, now: Instant) -> Outcome {
        match self.next_timeout() {
            Some(until) if until <= now => LOST,
            _ => Outcome::Lasts {
                welcomed: false,
                answered: false,
            },
        }
    }

    /// The connection is ready.
    pub(super) fn ready(
        &mut self,
        flags: EventFlags,
        ground: &mut Ground,
        requests: &mut Requests,
        now: Instant,
    ) -> Outcome {
        // If sending fails the hub is gone; what it still sent is read first.
        if flags.contains(EventFlags::OUT) {
            self.flush(ground);
        }
        let (mut welcomed, mut answered) = (false, false);
        let mut buffer = ground.take_buffer();
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
            match self.handle(bytes, ground, requests, now) {
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
        ground.return_buffer(buffer);
        over.unwrap_or(Outcome::Lasts { welcomed, answered })
    }

    /// Sends what registers this process's claims with a new hub.
    pub(super) fn replay(&mut self, payloads: &[Vec<u8>], ground: &mut Ground) {
        if self.phase != Phase::AwaitingReplay {
            return;
        }
        for payload in payloads {
            self.send(&Message::Replay { payload }, ground);
            self.replays.push_back(payload.clone());
        }
        self.send(&Message::ReplaysDone, ground);
        self.phase = Phase::Joined;
    }

    /// Sends a request.
    pub(super) fn request(&mut self, id: u64, payload: &[u8], ground: &mut Ground) {
        self.send(&Message::Request { id, payload }, ground);
    }

    /// Sends what this process says of itself.
    pub(super) fn report(&mut self, survey: u64, payloads: &[Vec<u8>], ground: &mut Ground) {
        let block = ground.own;
        report(survey, block, payloads, |message| {
            self.send(message, ground);
        });
    }

    /// Sends a datagram by way of the hub, if there is room.
    pub(super) fn forward(&self, block: Block, datagram: Datagram<'_>, ground: &mut Ground) {
        let bytes = ground.encode(&Message::Datagram { block, datagram });
        match packet::send(self.fd.as_fd(), bytes) {
            Ok(()) => ground.counters.forwarded += 1,
            Err(_) => ground.counters.queue_full += 1,
        }
    }

    fn handle(
        &mut self,
        bytes: &[u8],
        ground: &mut Ground,
        requests: &mut Requests,
        now: Instant,
    ) -> Outcome {
        let awaiting_welcome = matches!(self.phase, Phase::AwaitingWelcome { .. });
        let (mut welcomed, mut answered) = (false, false);
        let is_replaying = !self.replays.is_empty();
        match Message::decode(bytes) {
            Ok(Message::Welcome { block }) if awaiting_welcome && block == ground.own => {
                self.phase = Phase::AwaitingReplay;
                welcomed = true;
            }
            Ok(Message::Refused(refusal)) if awaiting_welcome => return Outcome::Refused(refusal),
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
                ground.replayed.extend(answered);
            }
            Ok(Message::ResponseLater { id, after_ms }) => {
                requests.postponed(id, Duration::from_millis(after_ms.into()), now);
            }
            Ok(Message::Datagram { datagram, .. }) => ground.deliver(&datagram),
            Ok(Message::Survey { id }) => ground.note_survey(id),
            Ok(Message::Departed { blocks }) => ground.inbox.push_departed(blocks),
            Ok(unexpected) => {
                tracing::warn!(?unexpected, "the hub does not keep to the group protocol");
                ground.counters.violations += 1;
                return LOST;
            }
            Err(malformed) => {
                tracing::warn!(%malformed, "the hub does not keep to the group protocol");
                ground.counters.violations += 1;
                return LOST;
            }
        }
        Outcome::Lasts { welcomed, answered }
    }

    fn send(&mut self, message: &Message<'_>, ground: &mut Ground) {
        let bytes = ground.encode(message);
        if self.outbox.is_empty() {
            match packet::send(self.fd.as_fd(), bytes) {
                Err(Errno::AGAIN) => {}
                // A failure shows again as the end of the connection, and then all is sent again.
                Ok(()) | Err(_) => return,
            }
        }
        self.outbox.push_back(bytes.to_vec());
        ground.rewatch(
            self.fd.as_fd(),
            KEY_UPLINK,
            EventFlags::IN | EventFlags::OUT,
        );
    }

    fn flush(&mut self, ground: &Ground) {
        while let Some(bytes) = self.outbox.front() {
            match packet::send(self.fd.as_fd(), bytes) {
                Err(Errno::AGAIN) => return,
                Ok(()) | Err(_) => drop(self.outbox.pop_front()),
            }
        }
        ground.rewatch(self.fd.as_fd(), KEY_UPLINK, EventFlags::IN);
    }
}

/// The messages of a report: at least one, so that its end is told.
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
