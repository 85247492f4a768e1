//! The coordinator: admits processes to the group, reads block 0's sockets, and retires unused blocks.

use std::os::fd::AsFd;
use std::time::Instant;

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;

use super::batch::{BATCH_DATAGRAMS, Batch};
use super::block::{Block, BlockSet};
use super::config::{ACCEPTS_PER_TURN, BACKOFF_MAX, BATCHES_BEFORE_DEATH, BATCHES_PER_TURN};
use super::connections::MemberConnections;
use super::context::{KEY_CONNECTIONS, KEY_LISTENER, KEY_STRAYS, RoleContext};
use super::datagram::Datagram;
use super::descriptor_store::DescriptorStoreError;
use super::fork::PrivateFd;
use super::name;
use super::registry::Registry;
use super::sockets::BlockSocket;
use super::trust::Own;

/// The coordinator.
#[derive(Debug)]
pub(super) struct Coordinator {
    listener: PrivateFd,
    /// When to accept again after the process ran out of descriptors.
    accept_at: Option<Instant>,
    /// Block 0's sockets.
    strays: Vec<BlockSocket>,
    batch: Batch,
    connections: MemberConnections,
    /// Members that died under the former coordinator and are not reported to this process yet.
    found_dead: BlockSet,
}

impl Coordinator {
    /// Becomes the coordinator, as holder of the listening name. `alive` are the blocks whose members must register
    /// again, including this process. `dead` are blocks that other members may still consider alive.
    pub(super) fn open(
        listener: PrivateFd,
        alive: BlockSet,
        dead: BlockSet,
        context: &mut RoleContext,
        now: Instant,
    ) -> Result<Self, DescriptorStoreError> {
        let strays = context.store.peek(Block::COORDINATOR)?;
        let registry = Registry::new(context.own, Own::here(), alive, dead, now);
        let coordinator = Self {
            listener,
            accept_at: None,
            strays,
            batch: Batch::new(),
            connections: MemberConnections::new(registry),
            found_dead: dead,
        };
        if let Err(errno) = coordinator.watch(context) {
            // The descriptor store keeps block 0's sockets open, so epoll would continue to report them.
            coordinator
                .strays
                .iter()
                .for_each(|s| context.unwatch(s.as_fd()));
            return Err(errno.into());
        }
        Ok(coordinator)
    }

    fn watch(&self, context: &RoleContext) -> Result<(), Errno> {
        context.watch(self.listener.as_fd(), KEY_LISTENER, EventFlags::IN)?;
        for (key, socket) in KEY_STRAYS.zip(&self.strays) {
            socket.activate(context.config.receive_buffer_bytes);
            context.watch(socket.as_fd(), key, EventFlags::IN)?;
        }
        Ok(())
    }

    /// The registry of members.
    pub(super) fn registry(&self) -> &Registry {
        &self.connections.registry
    }

    /// This process has replayed all registrations.
    pub(super) fn own_replay_done(&mut self, context: &RoleContext) {
        self.connections.registry.replayed(context.own);
    }

    /// Sends a datagram to the process that owns the block. For block 0, routes it to the members it is for. `false` if
    /// the receiver's queue is full.
    pub(super) fn forward(
        &mut self,
        block: Block,
        datagram: Datagram<'_>,
        context: &mut RoleContext,
    ) -> bool {
        match block {
            Block::COORDINATOR => self.connections.route(datagram, context),
            block => self.connections.dispatch(block, datagram, context),
        }
    }

    /// Handles this process's own report for an observer.
    pub(super) fn report(&mut self, survey: u64, payloads: &[Vec<u8>], context: &mut RoleContext) {
        self.connections.report(survey, payloads, context);
    }

    /// Handles a ready descriptor.
    pub(super) fn ready(
        &mut self,
        key: u64,
        flags: EventFlags,
        context: &mut RoleContext,
        now: Instant,
    ) {
        if key == KEY_LISTENER {
            self.accept(context, now);
        } else if KEY_STRAYS.contains(&key) {
            self.read_strays((key - KEY_STRAYS.start) as usize, BATCHES_PER_TURN, context);
        } else if key >= KEY_CONNECTIONS {
            self.connections.serve(key, flags, context, now);
        }
    }

    /// Does the work that is due.
    pub(super) fn timers(&mut self, context: &mut RoleContext, now: Instant) {
        for id in self.connections.registry.overdue(now) {
            context.counters.hello_timeouts += 1;
            self.connections.close(id, context, now);
        }
        self.tell_of_deaths(context, now);
        self.connections.give_up_kept(context, now);
        if self.accept_at.is_some_and(|at| at <= now) {
            self.accept_at = None;
            context.rewatch(self.listener.as_fd(), KEY_LISTENER, EventFlags::IN);
        }
    }

    /// When [`timers`](Self::timers) is due.
    pub(super) fn next_timeout(&self, now: Instant) -> Option<Instant> {
        let news = (!self.found_dead.is_empty()).then_some(now);
        [
            self.connections.registry.next_timeout(now),
            self.accept_at,
            news,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Reports the deaths since the last call, after the datagrams that the dead processes sent before.
    fn tell_of_deaths(&mut self, context: &mut RoleContext, now: Instant) {
        let mut retiring = self.connections.registry.take_retiring(now);
        let places = context.places();
        retiring.retain(|block| context.retire_if_dead(&places, *block));
        if retiring.is_empty() && self.found_dead.is_empty() {
            return;
        }
        for index in 0..self.strays.len() {
            self.read_strays(index, BATCHES_BEFORE_DEATH, context);
        }
        if !self.found_dead.is_empty() {
            let found_dead = std::mem::replace(&mut self.found_dead, BlockSet::EMPTY);
            context.inbox.push_peer_death(found_dead);
        }
        for block in retiring {
            self.connections.announce_death(block, context);
        }
    }

    fn accept(&mut self, context: &mut RoleContext, now: Instant) {
        for _ in 0..ACCEPTS_PER_TURN {
            match name::accept(&self.listener) {
                Ok(Some(fd)) => self.connections.greet(fd, context, now),
                Ok(None) => return,
                Err(errno) => {
                    // Out of descriptors or memory. The listener stays ready, so stop watching it for a while to avoid
                    // a busy loop.
                    tracing::warn!(%errno, "cannot accept a process into the group");
                    self.accept_at = Some(now + BACKOFF_MAX);
                    context.rewatch(self.listener.as_fd(), KEY_LISTENER, EventFlags::empty());
                    return;
                }
            }
        }
    }

    fn read_strays(&mut self, index: usize, batches: usize, context: &mut RoleContext) {
        let Some(socket) = self.strays.get(index) else {
            return;
        };
        for _ in 0..batches {
            let received = self
                .batch
                .receive(socket.as_fd(), |datagram| match datagram {
                    Some(datagram) => {
                        self.connections.route(datagram, context);
                    }
                    None => context.counters.malformed += 1,
                });
            match received {
                Ok(BATCH_DATAGRAMS) => {}
                Ok(_) => return,
                Err(errno) => {
                    tracing::debug!(%errno, "reading block 0");
                    return;
                }
            }
        }
    }
}
