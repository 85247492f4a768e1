//! The hub: accepts processes into the group, reads block 0's sockets, and keeps unused blocks clear.

use std::os::fd::AsFd;
use std::time::Instant;

use rustix::event::epoll::EventFlags;

use super::batch::{BATCH_DATAGRAMS, Batch};
use super::block::{Block, BlockSet};
use super::board::Board;
use super::config::{ACCEPTS_PER_TURN, BACKOFF_MAX, BATCHES_BEFORE_DEATH, BATCHES_PER_TURN};
use super::datagram::Datagram;
use super::ground::{Ground, KEY_CONNECTIONS, KEY_LISTENER, KEY_STRAYS};
use super::inherit::PrivateFd;
use super::name;
use super::registry::Registry;
use super::sockets::BlockSocket;
use super::trust::Own;
use super::vault::VaultError;

/// The hub.
#[derive(Debug)]
pub(super) struct Hub {
    listener: PrivateFd,
    /// When to accept again after running out of descriptors.
    accept_at: Option<Instant>,
    /// Block 0's sockets.
    strays: Vec<BlockSocket>,
    batch: Batch,
    board: Board,
    /// Whom the former hub left dead, until this process is told.
    found_dead: BlockSet,
}

impl Hub {
    /// Takes over with the listening name. `alive` are the blocks whose members, this process among
    /// them, have to register again; `dead` those that others may still believe alive.
    pub(super) fn open(
        listener: PrivateFd,
        alive: BlockSet,
        dead: BlockSet,
        ground: &mut Ground,
        now: Instant,
    ) -> Result<Self, VaultError> {
        let strays = ground.vault.peek(Block::HUB)?;
        ground.watch(listener.as_fd(), KEY_LISTENER, EventFlags::IN)?;
        for (key, socket) in KEY_STRAYS.zip(&strays) {
            socket.activate(ground.config.receive_buffer_bytes);
            ground.watch(socket.as_fd(), key, EventFlags::IN)?;
        }
        let registry = Registry::new(ground.own, Own::here(), alive, dead, now);
        let board = Board::new(registry);
        Ok(Self {
            listener,
            accept_at: None,
            strays,
            batch: Batch::new(),
            board,
            found_dead: dead,
        })
    }

    /// What is known of the members.
    pub(super) fn registry(&self) -> &Registry {
        &self.board.registry
    }

    /// This process has registered everything again.
    pub(super) fn own_replay_done(&mut self, ground: &Ground) {
        self.board.registry.replayed(ground.own);
    }

    /// Brings a datagram to the process that has its block, or to whom it concerns if it is the
    /// hub's.
    pub(super) fn forward(&mut self, block: Block, datagram: Datagram<'_>, ground: &mut Ground) {
        match block {
            Block::HUB => self.board.route(datagram, ground),
            block => self.board.dispatch(block, datagram, ground),
        }
    }

    /// What this process says of itself, for an observer.
    pub(super) fn report(&mut self, survey: u64, payloads: &[Vec<u8>], ground: &mut Ground) {
        self.board.report(survey, payloads, ground);
    }

    /// A descriptor is ready.
    pub(super) fn ready(&mut self, key: u64, flags: EventFlags, ground: &mut Ground, now: Instant) {
        if key == KEY_LISTENER {
            self.accept(ground, now);
        } else if KEY_STRAYS.contains(&key) {
            self.read_strays((key - KEY_STRAYS.start) as usize, BATCHES_PER_TURN, ground);
        } else if key >= KEY_CONNECTIONS {
            self.board.serve(key, flags, ground, now);
        }
    }

    /// What is due now.
    pub(super) fn timers(&mut self, ground: &mut Ground, now: Instant) {
        for id in self.board.registry.overdue(now) {
            ground.counters.hello_timeouts += 1;
            self.board.close(id, ground, now);
        }
        self.tell_of_deaths(ground, now);
        self.board.give_up_kept(ground, now);
        if self.accept_at.is_some_and(|at| at <= now) {
            self.accept_at = None;
            ground.rewatch(self.listener.as_fd(), KEY_LISTENER, EventFlags::IN);
        }
    }

    /// When [`timers`](Self::timers) has something to do.
    pub(super) fn next_timeout(&self, now: Instant) -> Option<Instant> {
        let news = (!self.found_dead.is_empty()).then_some(now);
        [self.board.registry.next_timeout(now), self.accept_at, news]
            .into_iter()
            .flatten()
            .min()
    }

    /// Tells who has died since the last time, after what they sent: it was there before they were dead.
    fn tell_of_deaths(&mut self, ground: &mut Ground, now: Instant) {
        let mut departed = self.board.registry.take_departed(now);
        departed.retain(|block| ground.retire_if_dead(*block));
        if departed.is_empty() && self.found_dead.is_empty() {
            return;
        }
        for index in 0..self.strays.len() {
            self.read_strays(index, BATCHES_BEFORE_DEATH, ground);
        }
        if !self.found_dead.is_empty() {
            let found_dead = std::mem::replace(&mut self.found_dead, BlockSet::EMPTY);
            ground.inbox.push_departed(found_dead);
        }
        for block in departed {
            self.board.announce_death(block, ground);
        }
    }

    fn accept(&mut self, ground: &mut Ground, now: Instant) {
        for _ in 0..ACCEPTS_PER_TURN {
            match name::accept(&self.listener) {
                Ok(Some(fd)) => self.board.greet(fd, ground, now),
                Ok(None) => return,
                Err(errno) => {
                    // Out of descriptors or memory. The listener stays ready, so looking away for a
                    // while is what keeps this from spinning.
                    tracing::warn!(%errno, "cannot accept a process into the group");
                    self.accept_at = Some(now + BACKOFF_MAX);
                    ground.rewatch(self.listener.as_fd(), KEY_LISTENER, EventFlags::empty());
                    return;
                }
            }
        }
    }

    fn read_strays(&mut self, index: usize, batches: usize, ground: &mut Ground) {
        let Some(socket) = self.strays.get(index) else {
            return;
        };
        for _ in 0..batches {
            let received = self
                .batch
                .receive(socket.as_fd(), |datagram| match datagram {
                    Some(datagram) => self.board.route(datagram, ground),
                    None => ground.counters.malformed += 1,
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
