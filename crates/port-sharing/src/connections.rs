//! The coordinator's connections, and the messages on them.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;

use super::block::{Block, BlockSet};
use super::config::{BACKOFF_MAX, KEPT_DATAGRAMS_MAX, MESSAGES_PER_TURN};
use super::connection::Connection;
use super::context::RoleContext;
use super::datagram::Datagram;
use super::descriptor_store::DescriptorStoreError;
use super::fork::PrivateFd;
use super::message::{Message, Refusal};
use super::packet::{self, Received};
use super::registry::{Absent, Ask, ConnectionId, Hello, Registry};
use super::service::Route;
use super::sockets::BlockSocket;
use super::trust::{Credentials, Own};
use super::uplink::report;

/// Minimum length of a packet with a destination: base and datagram transport headers, and the ICRC.
const DATAGRAM_BYTES_MIN: usize = 24;
/// QP1, the general services interface: connection management datagrams.
const GSI_QPN: u32 = 1;

/// All connections of the coordinator, and the members at their other ends.
#[derive(Debug)]
pub(super) struct MemberConnections {
    pub(super) registry: Registry,
    connections: HashMap<ConnectionId, Connection>,
    /// Queued datagram messages for members that have not reconnected to this new coordinator, in order.
    kept: Vec<(Block, Vec<u8>)>,
}

impl MemberConnections {
    pub(super) fn new(registry: Registry) -> Self {
        Self {
            registry,
            connections: HashMap::new(),
            kept: Vec::new(),
        }
    }

    /// Sends a datagram to its block. The block is not the coordinator's role. `false` if a queue is full.
    pub(super) fn dispatch(
        &mut self,
        block: Block,
        datagram: Datagram<'_>,
        context: &mut RoleContext,
    ) -> bool {
        if block == context.own {
            return context.deliver(&datagram);
        }
        let connection = self
            .registry
            .connection(block)
            .and_then(|id| self.connections.get_mut(&id));
        let Some(connection) = connection else {
            self.keep(block, datagram, context);
            return true;
        };
        if !connection.pending_notices.is_empty() {
            context.counters.queue_full += 1;
            return false;
        }
        let message = context.encode(&Message::Datagram { block, datagram });
        match connection.send(message) {
            Ok(()) => {
                context.counters.forwarded += 1;
                true
            }
            // The member is too slow, or dead.
            Err(_) => {
                context.counters.queue_full += 1;
                false
            }
        }
    }

    /// Keeps a datagram for a member that may be about to reconnect. A datagram that a process sent before it died must
    /// arrive before the notice of its death.
    fn keep(&mut self, block: Block, datagram: Datagram<'_>, context: &mut RoleContext) {
        let may_return =
            self.registry.is_departed(block) && self.registry.grace(Instant::now()).is_some();
        if !may_return || self.kept.len() >= KEPT_DATAGRAMS_MAX {
            context.counters.no_member += 1;
            return;
        }
        let message = context.encode(&Message::Datagram { block, datagram });
        self.kept.push((block, message.to_vec()));
    }

    /// Delivers the kept datagrams of a member that reconnected.
    fn bring_kept(&mut self, id: ConnectionId, block: Block, context: &mut RoleContext) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        for (_, message) in self.kept.extract_if(.., |(kept_for, _)| *kept_for == block) {
            match connection.send(&message) {
                Ok(()) => context.counters.forwarded += 1,
                Err(_) => context.counters.queue_full += 1,
            }
        }
    }

    /// Drops the kept datagrams of members that did not reconnect in time.
    pub(super) fn give_up_kept(&mut self, context: &mut RoleContext, now: Instant) {
        if !self.kept.is_empty() && self.registry.grace(now).is_none() {
            context.counters.no_member += self.kept.drain(..).count() as u64;
        }
    }

    /// Delivers a datagram that arrived at block 0 to the members it is for. `false` if the queue of its only receiver
    /// is full.
    pub(super) fn route(&mut self, datagram: Datagram<'_>, context: &mut RoleContext) -> bool {
        let Some(qpn) = destination_qpn(datagram.payload) else {
            context.counters.malformed += 1;
            return true;
        };
        if qpn == GSI_QPN {
            match context.service.route(&datagram) {
                // No answer is better than a wrong one, because the sender repeats its request.
                Route::Unregistered if self.registry.is_incomplete(Instant::now()) => {
                    context.counters.unrouted += 1;
                }
                Route::Local | Route::Unregistered => return context.deliver(&datagram),
                Route::Member(block) if block != Block::COORDINATOR => {
                    return match self.is_dead(block, context) {
                        true => context.deliver(&datagram),
                        false => self.dispatch(block, datagram, context),
                    };
                }
                Route::Everyone => {
                    context.deliver(&datagram);
                    let members: Vec<_> = self.registry.members().collect();
                    for (block, _) in members {
                        self.dispatch(block, datagram, context);
                    }
                }
                Route::Member(_) | Route::Drop => context.counters.unrouted += 1,
            }
            return true;
        }
        match Block::of_qpn(qpn) {
            Some(block) if block != Block::COORDINATOR => self.dispatch(block, datagram, context),
            _ => {
                context.counters.no_member += 1;
                true
            }
        }
    }

    /// Whether the block has no living process, and no member that is about to reconnect.
    fn is_dead(&mut self, block: Block, context: &RoleContext) -> bool {
        let now = Instant::now();
        match self.registry.absent(block, now) {
            Absent::Dead => true,
            Absent::Alive => false,
            Absent::Unknown => {
                let is_free = context.is_free(block);
                self.registry.looked(block, is_free, now);
                is_free
            }
        }
    }

    /// Handles a new connection.
    pub(super) fn greet(&mut self, fd: PrivateFd, context: &mut RoleContext, now: Instant) {
        let Ok(credentials) = Credentials::of_peer(fd.as_fd()) else {
            return;
        };
        let id = context.next_connection();
        let trust = &context.config.trust;
        if let Err(answer) = self.registry.connected(id, credentials, trust, now) {
            context.counters.refused += 1;
            turn_away(fd.as_fd(), answer, context);
            return;
        }
        if context.watch(fd.as_fd(), id, EventFlags::IN).is_err() {
            self.registry.closed(id, now);
            return;
        }
        self.connections.insert(
            id,
            Connection {
                fd,
                outbox: VecDeque::new(),
                pending_notices: BlockSet::EMPTY,
            },
        );
    }

    /// Handles a ready connection.
    pub(super) fn serve(
        &mut self,
        id: ConnectionId,
        flags: EventFlags,
        context: &mut RoleContext,
        now: Instant,
    ) {
        // These flags are reported even if they are not in the watched set.
        if flags.intersects(EventFlags::HUP | EventFlags::ERR) {
            if let Some(connection) = self.connections.get_mut(&id) {
                connection.end();
            }
        } else if flags.contains(EventFlags::OUT) {
            self.flush(id, context);
        }
        let mut buffer = context.take_buffer();
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
                    self.handle(id, buffer.get(..bytes).unwrap_or_default(), context, now)
                }
                Ok(Received::TooLong) => self.violation(context),
                Ok(Received::Closed) | Err(_) => false,
            };
            if !keep {
                self.close(id, context, now);
                break;
            }
        }
        context.return_buffer(buffer);
    }

    /// Handles a message; `false` if the connection must be closed.
    fn handle(
        &mut self,
        id: ConnectionId,
        bytes: &[u8],
        context: &mut RoleContext,
        now: Instant,
    ) -> bool {
        match Message::decode(bytes) {
            Ok(Message::Hello { version, rejoin }) => {
                let verdict = self.registry.hello(id, version, rejoin);
                self.answer_hello(id, verdict, context)
            }
            Ok(Message::Request {
                id: request,
                payload,
            }) => match self.registry.asks(id, request, now) {
                Ask::Answer(block) => {
                    let response = context.ask_service(block, payload);
                    let response = Message::Response {
                        id: request,
                        payload: &response,
                    };
                    self.respond(id, &response, context);
                    true
                }
                Ask::Later(after) => {
                    let after_ms = milliseconds(after);
                    let later = Message::ResponseLater {
                        id: request,
                        after_ms,
                    };
                    self.respond(id, &later, context);
                    true
                }
                Ask::Violation => self.violation(context),
            },
            Ok(Message::Replay { payload }) => match self.registry.member(id) {
                Some(block) => {
                    let answer = context.ask_service(block, payload);
                    self.respond(id, &Message::Replayed { payload: &answer }, context);
                    true
                }
                None => self.violation(context),
            },
            Ok(Message::ReplaysDone {}) => match self.registry.member(id) {
                Some(block) => {
                    self.registry.replayed(block);
                    true
                }
                None => self.violation(context),
            },
            Ok(Message::Datagram { block, datagram }) => {
                if self.registry.member(id).is_none() {
                    return self.violation(context);
                }
                match block {
                    Block::COORDINATOR => self.route(datagram, context),
                    block => self.dispatch(block, datagram, context),
                };
                true
            }
            Ok(Message::Observe { version }) => match self.registry.observes(id, version, now) {
                Ok(()) => {
                    self.survey(id, context);
                    true
                }
                Err(Hello::Violation) => self.violation(context),
                Err(verdict) => self.turn_away(id, verdict, context),
            },
            Ok(Message::Report { survey, block, .. }) => {
                if self.registry.member(id) != Some(block) {
                    return self.violation(context);
                }
                self.pass_on(survey, bytes, context, now);
                true
            }
            Ok(_) => self.violation(context),
            Err(malformed) => {
                tracing::debug!(%malformed, "group connection closed");
                self.violation(context)
            }
        }
    }

    /// Sends an observer the list of members and the coordinator's own report, and asks the members for theirs.
    fn survey(&mut self, id: ConnectionId, context: &mut RoleContext) {
        let own = Message::Roster {
            block: context.own,
            pid: std::process::id(),
            uid: Own::here().uid,
        };
        self.respond(id, &own, context);
        let members: Vec<_> = self.registry.members().collect();
        for (block, Credentials { pid, uid }) in &members {
            let (block, pid, uid) = (*block, *pid, *uid);
            self.respond(id, &Message::Roster { block, pid, uid }, context);
        }
        let payloads = context.service.report();
        report(id, Block::COORDINATOR, &payloads, |message| {
            self.respond(id, message, context);
        });
        let question = context.encode(&Message::Survey { id });
        for member in self.registry.member_connections() {
            // A member that is behind would not answer anyway, so nothing is queued for it.
            if let Some(connection) = self.connections.get_mut(&member)
                && !connection.is_behind()
            {
                let _ = connection.send(question);
            }
        }
        context.note_survey(id);
    }

    /// Handles this process's own report.
    pub(super) fn report(&mut self, survey: u64, payloads: &[Vec<u8>], context: &mut RoleContext) {
        if self.registry.is_observer(survey) {
            report(survey, context.own, payloads, |message| {
                self.respond(survey, message, context);
            });
        }
    }

    /// Passes a member's report to the observer, if it is still connected. An observer that is too slow is
    /// disconnected, because its send queue would grow without bound.
    fn pass_on(
        &mut self,
        survey: ConnectionId,
        bytes: &[u8],
        context: &mut RoleContext,
        now: Instant,
    ) {
        if !self.registry.is_observer(survey) {
            return;
        }
        let Some(observer) = self.connections.get_mut(&survey) else {
            return;
        };
        if observer.is_behind() || observer.send(bytes).is_err() {
            context.counters.queue_full += 1;
            self.close(survey, context, now);
        }
    }

    fn violation(&self, context: &mut RoleContext) -> bool {
        context.counters.violations += 1;
        false
    }

    fn answer_hello(
        &mut self,
        id: ConnectionId,
        verdict: Hello,
        context: &mut RoleContext,
    ) -> bool {
        match verdict {
            Hello::Newcomer => self.give_block(id, context),
            // The process proves by the name that it owns the block.
            Hello::Returns(block) => match context.name.claim_block(block) {
                Ok(None) => {
                    self.registry.admit(id, block);
                    context.service.member_joined(block);
                    self.respond(id, &Message::Welcome { block }, context);
                    self.bring_kept(id, block, context);
                    // Members that died while this one had no coordinator.
                    self.tell_of_deaths(id, self.registry.dead(), context);
                    true
                }
                Ok(Some(_)) => {
                    self.turn_away(id, Hello::Refuse(Refusal::BlockTaken { block }), context)
                }
                Err(_) => self.turn_away(id, Hello::Later(BACKOFF_MAX), context),
            },
            verdict => self.turn_away(id, verdict, context),
        }
    }

    fn turn_away(&self, id: ConnectionId, verdict: Hello, context: &mut RoleContext) -> bool {
        if let Some(connection) = self.connections.get(&id) {
            context.counters.refused += 1;
            turn_away(connection.fd.as_fd(), verdict, context);
        }
        false
    }

    /// Tells every member that the process of `block` is dead.
    pub(super) fn announce_death(&mut self, block: Block, context: &mut RoleContext) {
        self.registry.retired(block);
        let kept = self.kept.len();
        self.kept.retain(|(kept_for, _)| *kept_for != block);
        context.counters.no_member += (kept - self.kept.len()) as u64;
        let blocks = [block].into_iter().collect();
        context.inbox.push_peer_death(blocks);
        for id in self.registry.member_connections() {
            self.tell_of_deaths(id, blocks, context);
        }
    }

    fn tell_of_deaths(&mut self, id: ConnectionId, blocks: BlockSet, context: &mut RoleContext) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        if blocks.is_empty() {
            return;
        }
        connection.pending_notices.add(blocks);
        // Queued messages go first.
        if connection.outbox.is_empty()
            && connection.tell_pending_notices(context) == Err(Errno::AGAIN)
        {
            context.rewatch(connection.fd.as_fd(), id, EventFlags::OUT);
        }
    }

    fn give_block(&mut self, id: ConnectionId, context: &mut RoleContext) -> bool {
        let Some(connection) = self.connections.get(&id) else {
            return false;
        };
        match self.prepare_block(connection, context) {
            Ok(Some(block)) => {
                if self.registry.is_departed(block) {
                    // The name was free, so the block's former process is dead. Members must learn that before they
                    // hear from the next process.
                    self.announce_death(block, context);
                }
                self.registry.give(id, block);
                context.service.member_joined(block);
                true
            }
            Ok(None) => self.turn_away(id, Hello::Refuse(Refusal::Full), context),
            Err(error) => {
                tracing::warn!(%error, "cannot give a block to a process");
                self.turn_away(id, Hello::Later(BACKOFF_MAX), context)
            }
        }
    }

    /// Claims a free block and sends it with a welcome. `None` if no block is free.
    fn prepare_block(
        &self,
        connection: &Connection,
        context: &mut RoleContext,
    ) -> Result<Option<Block>, DescriptorStoreError> {
        for block in self.registry.candidates() {
            let Some(block_name) = context.name.claim_block(block)? else {
                continue;
            };
            let sockets = context.store.peek(block)?;
            for socket in &sockets {
                socket.drain();
                socket.activate(context.config.receive_buffer_bytes);
            }
            let mut message = Vec::new();
            Message::Welcome { block }.encode(&mut message);
            let mut descriptors = vec![context.store.as_fd(), block_name.as_fd()];
            descriptors.extend(sockets.iter().map(AsFd::as_fd));
            let sent = packet::send_with(connection.fd.as_fd(), &message, &descriptors);
            if let Err(errno) = sent {
                sockets.iter().for_each(BlockSocket::retire);
                return Err(errno.into());
            }
            return Ok(Some(block));
        }
        Ok(None)
    }

    /// Sends a response, or queues it if the connection is full.
    fn respond(&mut self, id: ConnectionId, message: &Message<'_>, context: &mut RoleContext) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let is_behind = connection.is_behind();
        let bytes = context.encode(message);
        if is_behind || connection.send(bytes) == Err(Errno::AGAIN) {
            connection.outbox.push_back(bytes.to_vec());
            context.rewatch(connection.fd.as_fd(), id, EventFlags::OUT);
        }
    }

    /// Sends queued messages while the connection has room.
    fn flush(&mut self, id: ConnectionId, context: &mut RoleContext) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        while let Some(bytes) = connection.outbox.pop_front() {
            if connection.send(&bytes) == Err(Errno::AGAIN) {
                connection.outbox.push_front(bytes);
                return;
            }
        }
        if connection.tell_pending_notices(context) != Err(Errno::AGAIN) {
            context.rewatch(connection.fd.as_fd(), id, EventFlags::IN);
        }
    }

    /// Closes a connection and removes its member.
    pub(super) fn close(&mut self, id: ConnectionId, context: &mut RoleContext, now: Instant) {
        if let Some(connection) = self.connections.remove(&id) {
            context.unwatch(connection.fd.as_fd());
        }
        if let Some(block) = self.registry.closed(id, now) {
            context.service.member_left(block);
        }
    }
}

fn turn_away(connection: BorrowedFd<'_>, verdict: Hello, context: &mut RoleContext) {
    let message = match verdict {
        Hello::Refuse(refusal) => Message::Refused { refusal },
        Hello::Later(after) => Message::Later {
            after_ms: milliseconds(after),
        },
        Hello::Newcomer | Hello::Returns(_) | Hello::Violation => return,
    };
    // If this fails, the other end still sees the connection close.
    let _ = packet::send(connection, context.encode(&message));
}

fn milliseconds(duration: Duration) -> u16 {
    u16::try_from(duration.as_millis())
        .unwrap_or(u16::MAX)
        .max(1)
}

/// The destination QPN of a packet, if the packet is long enough.
fn destination_qpn(payload: &[u8]) -> Option<u32> {
    if payload.len() < DATAGRAM_BYTES_MIN {
        return None;
    }
    let &[high, middle, low] = payload.get(5..8)?.first_chunk::<3>()?;
    Some(u32::from_be_bytes([0, high, middle, low]))
}
