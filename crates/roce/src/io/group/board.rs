//! The hub's connections: what members say, and what is brought to them.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;

use super::block::{Block, BlockSet};
use super::config::{BACKOFF_MAX, KEPT_DATAGRAMS_MAX, MESSAGES_PER_TURN};
use super::datagram::Datagram;
use super::ground::Ground;
use super::inherit::PrivateFd;
use super::member::report;
use super::message::{Message, Refusal};
use super::packet::{self, Received};
use super::registry::{Ask, ConnectionId, Hello, Registry};
use super::service::Route;
use super::trust::{Credentials, Own};
use super::vault::VaultError;

/// Shortest packet that can have a destination: base and datagram transport headers, and the ICRC.
const DATAGRAM_BYTES_MIN: usize = 24;
/// QP1, the general services interface: connection management datagrams.
const GSI_QPN: u32 = 1;

/// Every connection of the hub, and what is known of the members at their other ends.
#[derive(Debug)]
pub(super) struct Board {
    pub(super) registry: Registry,
    connections: HashMap<ConnectionId, Connection>,
    /// Messages with datagrams for members on their way back to this new hub, in order.
    kept: Vec<(Block, Vec<u8>)>,
}

/// A connection to a member or to somebody who may become one.
#[derive(Debug)]
struct Connection {
    fd: PrivateFd,
    /// Responses that found the connection full. Until they are gone nothing more is read from it.
    outbox: VecDeque<Vec<u8>>,
    /// Dead processes' blocks that found the connection full. Until the member knows of them it gets
    /// no datagram: one from the block's next owner must not come before the news.
    untold: BlockSet,
}

impl Board {
    pub(super) fn new(registry: Registry) -> Self {
        Self {
            registry,
            connections: HashMap::new(),
            kept: Vec::new(),
        }
    }

    /// Brings a datagram to its block, which is not the hub's role.
    pub(super) fn dispatch(&mut self, block: Block, datagram: Datagram<'_>, ground: &mut Ground) {
        if block == ground.own {
            ground.deliver(&datagram);
            return;
        }
        let connection = self
            .registry
            .connection(block)
            .and_then(|id| self.connections.get(&id));
        let Some(connection) = connection else {
            self.keep(block, datagram, ground);
            return;
        };
        if !connection.untold.is_empty() {
            ground.counters.queue_full += 1;
            return;
        }
        let message = ground.encode(&Message::Datagram { block, datagram });
        match packet::send(connection.fd.as_fd(), message) {
            Ok(()) => ground.counters.forwarded += 1,
            // A member that does not keep up, or one about to be seen closing.
            Err(_) => ground.counters.queue_full += 1,
        }
    }

    /// Keeps a datagram for a member that may be on its way back: one that a process sent before it died must not
    /// come after the news of its death, or not at all.
    fn keep(&mut self, block: Block, datagram: Datagram<'_>, ground: &mut Ground) {
        let may_return =
            self.registry.is_departed(block) && self.registry.grace(Instant::now()).is_some();
        if !may_return || self.kept.len() >= KEPT_DATAGRAMS_MAX {
            ground.counters.no_member += 1;
            return;
        }
        let message = ground.encode(&Message::Datagram { block, datagram });
        self.kept.push((block, message.to_vec()));
    }

    /// Brings what was kept for a member that is back.
    fn bring_kept(&mut self, id: ConnectionId, block: Block, ground: &mut Ground) {
        let Some(connection) = self.connections.get(&id) else {
            return;
        };
        for (_, message) in self.kept.extract_if(.., |(kept_for, _)| *kept_for == block) {
            match packet::send(connection.fd.as_fd(), &message) {
                Ok(()) => ground.counters.forwarded += 1,
                Err(_) => ground.counters.queue_full += 1,
            }
        }
    }

    /// Gives up what was kept for members who had their time to come back.
    pub(super) fn give_up_kept(&mut self, ground: &mut Ground, now: Instant) {
        if !self.kept.is_empty() && self.registry.grace(now).is_none() {
            ground.counters.no_member += self.kept.drain(..).count() as u64;
        }
    }

    /// Brings a datagram that came to block 0 to whom it concerns.
    pub(super) fn route(&mut self, datagram: Datagram<'_>, ground: &mut Ground) {
        let Some(qpn) = destination_qpn(datagram.payload) else {
            ground.counters.malformed += 1;
            return;
        };
        if qpn == GSI_QPN {
            match ground.service.route(&datagram) {
                // Members that are still on their way back may be whom it concerns: no answer is
                // better than a wrong one, for the sender will ask again.
                Route::Local if self.registry.grace(Instant::now()).is_some() => {
                    ground.counters.unrouted += 1;
                }
                Route::Local => ground.deliver(&datagram),
                Route::Member(block) if block != Block::HUB => {
                    if self.is_dead(block, ground) {
                        ground.deliver(&datagram);
                    } else {
                        self.dispatch(block, datagram, ground);
                    }
                }
                Route::Everyone => {
                    ground.deliver(&datagram);
                    let members: Vec<_> = self.registry.members().collect();
                    for (block, _) in members {
                        self.dispatch(block, datagram, ground);
                    }
                }
                Route::Member(_) | Route::Drop => ground.counters.unrouted += 1,
            }
            return;
        }
        match Block::of_qpn(qpn) {
            Some(block) if block != Block::HUB => self.dispatch(block, datagram, ground),
            _ => ground.counters.no_member += 1,
        }
    }

    /// Whether nobody has a block, and nobody is on the way back who may: its name says so.
    fn is_dead(&self, block: Block, ground: &Ground) -> bool {
        block != ground.own
            && self.registry.connection(block).is_none()
            && self.registry.grace(Instant::now()).is_none()
            && matches!(ground.name.claim_block(block), Ok(Some(_)))
    }

    /// Somebody connected.
    pub(super) fn greet(&mut self, fd: PrivateFd, ground: &mut Ground, now: Instant) {
        let Ok(credentials) = Credentials::of_peer(fd.as_fd()) else {
            return;
        };
        let id = ground.next_connection();
        let trust = &ground.config.trust;
        if let Err(answer) = self.registry.connected(id, credentials, trust, now) {
            ground.counters.refused += 1;
            turn_away(fd.as_fd(), answer, ground);
            return;
        }
        if ground.watch(fd.as_fd(), id, EventFlags::IN).is_err() {
            self.registry.closed(id, now);
            return;
        }
        self.connections.insert(
            id,
            Connection {
                fd,
                outbox: VecDeque::new(),
                untold: BlockSet::EMPTY,
            },
        );
    }

    /// A connection is ready.
    pub(super) fn serve(
        &mut self,
        id: ConnectionId,
        flags: EventFlags,
        ground: &mut Ground,
        now: Instant,
    ) {
        if flags.contains(EventFlags::OUT) && self.flush(id, ground).is_err() {
            self.close(id, ground, now);
            return;
        }
        let mut buffer = ground.take_buffer();
        for _ in 0..MESSAGES_PER_TURN {
            let Some(connection) = self.connections.get(&id) else {
                break;
            };
            if connection.is_behind() {
                break;
            }
            let keep = match packet::receive(connection.fd.as_fd(), &mut buffer) {
                Ok(Received::Nothing) => break,
                Ok(Received::Record(bytes)) => {
                    self.handle(id, buffer.get(..bytes).unwrap_or_default(), ground, now)
                }
                Ok(Received::TooLong) => self.violation(ground),
                Ok(Received::Closed) | Err(_) => false,
            };
            if !keep {
                self.close(id, ground, now);
                break;
            }
        }
        ground.return_buffer(buffer);
    }

    /// Acts on a message; `false` if the connection is to be closed.
    fn handle(
        &mut self,
        id: ConnectionId,
        bytes: &[u8],
        ground: &mut Ground,
        now: Instant,
    ) -> bool {
        match Message::decode(bytes) {
            Ok(Message::Hello { version, rejoin }) => {
                let verdict = self.registry.hello(id, version, rejoin);
                self.answer_hello(id, verdict, ground)
            }
            Ok(Message::Request {
                id: request,
                payload,
            }) => match self.registry.asks(id, now) {
                Ask::Answer(block) => {
                    let response = ground.ask_service(block, payload);
                    let response = Message::Response {
                        id: request,
                        payload: &response,
                    };
                    self.respond(id, &response, ground)
                }
                Ask::Later(after) => {
                    let after_ms = milliseconds(after);
                    let later = Message::ResponseLater {
                        id: request,
                        after_ms,
                    };
                    self.respond(id, &later, ground)
                }
                Ask::Violation => self.violation(ground),
            },
            Ok(Message::Replay { payload }) => match self.registry.member(id) {
                Some(block) => {
                    let answer = ground.ask_service(block, payload);
                    self.respond(id, &Message::Replayed { payload: &answer }, ground)
                }
                None => self.violation(ground),
            },
            Ok(Message::ReplaysDone) => match self.registry.member(id) {
                Some(block) => {
                    self.registry.replayed(block);
                    true
                }
                None => self.violation(ground),
            },
            Ok(Message::Datagram { block, datagram }) => {
                if self.registry.member(id).is_none() {
                    return self.violation(ground);
                }
                match block {
                    Block::HUB => self.route(datagram, ground),
                    block => self.dispatch(block, datagram, ground),
                }
                true
            }
            Ok(Message::Observe { version }) => match self.registry.observes(id, version, now) {
                Ok(()) => {
                    self.survey(id, ground);
                    true
                }
                Err(Hello::Violation) => self.violation(ground),
                Err(verdict) => self.turn_away(id, verdict, ground),
            },
            Ok(Message::Report { survey, block, .. }) => {
                if self.registry.member(id) != Some(block) {
                    return self.violation(ground);
                }
                self.pass_on(survey, bytes, ground, now);
                true
            }
            Ok(_) => self.violation(ground),
            Err(malformed) => {
                tracing::debug!(%malformed, "group connection closed");
                self.violation(ground)
            }
        }
    }

    /// Tells an observer who the members are and what the hub knows, and asks the members.
    fn survey(&mut self, id: ConnectionId, ground: &mut Ground) {
        let own = Message::Roster {
            block: ground.own,
            pid: std::process::id(),
            uid: Own::here().uid,
        };
        self.respond(id, &own, ground);
        let members: Vec<_> = self.registry.members().collect();
        for (block, Credentials { pid, uid }) in &members {
            let (block, pid, uid) = (*block, *pid, *uid);
            self.respond(id, &Message::Roster { block, pid, uid }, ground);
        }
        let payloads = ground.service.report();
        report(id, Block::HUB, &payloads, |message| {
            self.respond(id, message, ground);
        });
        let question = ground.encode(&Message::Survey { id });
        for member in self.registry.member_connections() {
            // One that does not keep up will not answer either: nothing piles up for it.
            if let Some(connection) = self.connections.get(&member)
                && !connection.is_behind()
            {
                let _ = packet::send(connection.fd.as_fd(), question);
            }
        }
        ground.note_survey(id);
    }

    /// What this process says of itself.
    pub(super) fn report(&mut self, survey: u64, payloads: &[Vec<u8>], ground: &mut Ground) {
        if self.registry.is_observer(survey) {
            report(survey, ground.own, payloads, |message| {
                self.respond(survey, message, ground);
            });
        }
    }

    /// Brings a member's answer to the observer, who may have gone. One that does not keep up is let
    /// go: what waits for it would grow and grow.
    fn pass_on(&mut self, survey: ConnectionId, bytes: &[u8], ground: &mut Ground, now: Instant) {
        if !self.registry.is_observer(survey) {
            return;
        }
        let Some(observer) = self.connections.get(&survey) else {
            return;
        };
        let is_behind = observer.is_behind();
        if is_behind || packet::send(observer.fd.as_fd(), bytes).is_err() {
            ground.counters.queue_full += 1;
            self.close(survey, ground, now);
        }
    }

    fn violation(&self, ground: &mut Ground) -> bool {
        ground.counters.violations += 1;
        false
    }

    fn answer_hello(&mut self, id: ConnectionId, verdict: Hello, ground: &mut Ground) -> bool {
        match verdict {
            Hello::Newcomer => self.give_block(id, ground),
            // The name is the proof that it has the block.
            Hello::Returns(block) => match ground.name.claim_block(block) {
                Ok(None) => {
                    self.registry.admit(id, block);
                    ground.service.member_joined(block);
                    let welcomed = self.respond(id, &Message::Welcome { block }, ground);
                    self.bring_kept(id, block, ground);
                    // Whoever died while this one had no hub.
                    self.tell_of_deaths(id, self.registry.dead(), ground);
                    welcomed
                }
                Ok(Some(_)) => {
                    self.turn_away(id, Hello::Refuse(Refusal::BlockTaken { block }), ground)
                }
                Err(_) => self.turn_away(id, Hello::Later(BACKOFF_MAX), ground),
            },
            verdict => self.turn_away(id, verdict, ground),
        }
    }

    fn turn_away(&self, id: ConnectionId, verdict: Hello, ground: &mut Ground) -> bool {
        if let Some(connection) = self.connections.get(&id) {
            ground.counters.refused += 1;
            turn_away(connection.fd.as_fd(), verdict, ground);
        }
        false
    }

    /// Tells every member that the process that had `block` is dead.
    pub(super) fn announce_death(&mut self, block: Block, ground: &mut Ground) {
        self.registry.retired(block);
        let kept = self.kept.len();
        self.kept.retain(|(kept_for, _)| *kept_for != block);
        ground.counters.no_member += (kept - self.kept.len()) as u64;
        let blocks = [block].into_iter().collect();
        ground.inbox.push_departed(blocks);
        for id in self.registry.member_connections() {
            self.tell_of_deaths(id, blocks, ground);
        }
    }

    fn tell_of_deaths(&mut self, id: ConnectionId, blocks: BlockSet, ground: &mut Ground) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        if blocks.is_empty() {
            return;
        }
        connection.untold.add(blocks);
        // What waits before it goes first.
        if connection.outbox.is_empty() && connection.tell_untold(ground) == Err(Errno::AGAIN) {
            ground.rewatch(connection.fd.as_fd(), id, EventFlags::OUT);
        }
    }

    fn give_block(&mut self, id: ConnectionId, ground: &mut Ground) -> bool {
        let Some(connection) = self.connections.get(&id) else {
            return false;
        };
        match self.prepare_block(connection, ground) {
            Ok(Some(block)) => {
                if self.registry.is_departed(block) {
                    // Its name was free, so its former process is dead: told before anything can
                    // come from the next.
                    self.announce_death(block, ground);
                }
                self.registry.give(id, block);
                ground.service.member_joined(block);
                true
            }
            Ok(None) => self.turn_away(id, Hello::Refuse(Refusal::Full), ground),
            Err(error) => {
                tracing::warn!(%error, "cannot give a block to a process");
                self.turn_away(id, Hello::Later(BACKOFF_MAX), ground)
            }
        }
    }

    /// Finds a free block and sends it off with its welcome. `None` if none is free.
    fn prepare_block(
        &self,
        connection: &Connection,
        ground: &mut Ground,
    ) -> Result<Option<Block>, VaultError> {
        for block in self.registry.candidates() {
            let Some(block_name) = ground.name.claim_block(block)? else {
                continue;
            };
            let sockets = ground.vault.peek(block)?;
            for socket in &sockets {
                socket.drain();
                socket.activate(ground.config.receive_buffer_bytes);
            }
            let mut message = Vec::new();
            Message::Welcome { block }.encode(&mut message);
            let mut descriptors = vec![ground.vault.as_fd(), block_name.as_fd()];
            descriptors.extend(sockets.iter().map(AsFd::as_fd));
            packet::send_with(connection.fd.as_fd(), &message, &descriptors)?;
            return Ok(Some(block));
        }
        Ok(None)
    }

    /// Sends a response, or keeps it until there is room; `false` if the connection is to be closed.
    fn respond(&mut self, id: ConnectionId, message: &Message<'_>, ground: &mut Ground) -> bool {
        let Some(connection) = self.connections.get_mut(&id) else {
            return false;
        };
        let is_behind = connection.is_behind();
        let bytes = ground.encode(message);
        let sent = match is_behind {
            true => Err(Errno::AGAIN),
            false => packet::send(connection.fd.as_fd(), bytes),
        };
        match sent {
            Ok(()) => true,
            Err(Errno::AGAIN) => {
                connection.outbox.push_back(bytes.to_vec());
                ground.rewatch(connection.fd.as_fd(), id, EventFlags::OUT);
                true
            }
            Err(_) => false,
        }
    }

    fn flush(&mut self, id: ConnectionId, ground: &mut Ground) -> Result<(), Errno> {
        let Some(connection) = self.connections.get_mut(&id) else {
            return Ok(());
        };
        while let Some(bytes) = connection.outbox.front() {
            match packet::send(connection.fd.as_fd(), bytes) {
                Ok(()) => drop(connection.outbox.pop_front()),
                Err(Errno::AGAIN) => return Ok(()),
                Err(errno) => return Err(errno),
            }
        }
        match connection.tell_untold(ground) {
            Ok(()) => {}
            Err(Errno::AGAIN) => return Ok(()),
            Err(errno) => return Err(errno),
        }
        ground.rewatch(connection.fd.as_fd(), id, EventFlags::IN);
        Ok(())
    }

    /// Closes a connection; its member is gone.
    pub(super) fn close(&mut self, id: ConnectionId, ground: &mut Ground, now: Instant) {
        if let Some(connection) = self.connections.remove(&id) {
            ground.unwatch(connection.fd.as_fd());
        }
        if let Some(block) = self.registry.closed(id, now) {
            ground.service.member_left(block);
        }
    }
}

impl Connection {
    /// Whether something waits to be sent before anything else is.
    fn is_behind(&self) -> bool {
        !self.outbox.is_empty() || !self.untold.is_empty()
    }

    /// Sends the news of the dead that waits.
    fn tell_untold(&mut self, ground: &mut Ground) -> Result<(), Errno> {
        if self.untold.is_empty() {
            return Ok(());
        }
        let departed = Message::Departed {
            blocks: self.untold,
        };
        packet::send(self.fd.as_fd(), ground.encode(&departed))?;
        self.untold = BlockSet::EMPTY;
        Ok(())
    }
}

fn turn_away(connection: BorrowedFd<'_>, verdict: Hello, ground: &mut Ground) {
    let message = match verdict {
        Hello::Refuse(refusal) => Message::Refused(refusal),
        Hello::Later(after) => Message::Later {
            after_ms: milliseconds(after),
        },
        Hello::Newcomer | Hello::Returns(_) | Hello::Violation => return,
    };
    // If it does not get through, the other end sees the connection close all the same.
    let _ = packet::send(connection, ground.encode(&message));
}

fn milliseconds(duration: Duration) -> u16 {
    u16::try_from(duration.as_millis())
        .unwrap_or(u16::MAX)
        .max(1)
}

/// The destination QPN of a packet, if it is long enough to be one.
fn destination_qpn(payload: &[u8]) -> Option<u32> {
    if payload.len() < DATAGRAM_BYTES_MIN {
        return None;
    }
    let &[high, middle, low] = payload.get(5..8)?.first_chunk::<3>()?;
    Some(u32::from_be_bytes([0, high, middle, low]))
}
