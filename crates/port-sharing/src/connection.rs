//! A connection of the coordinator, and the order of its send queue.

use std::collections::VecDeque;
use std::os::fd::AsFd;

use rustix::io::Errno;

use super::block::BlockSet;
use super::context::RoleContext;
use super::fork::PrivateFd;
use super::message::Message;
use super::packet;

/// A connection to a member, a newcomer or an observer.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) fd: PrivateFd,
    /// Responses that did not fit into the connection. Until they are sent, nothing more is read from it.
    pub(super) outbox: VecDeque<Vec<u8>>,
    /// Blocks of dead processes whose notices did not fit into the connection. Until the notices are sent, the member
    /// gets no datagrams, because a datagram from the block's next owner must not precede the notice.
    pub(super) pending_notices: BlockSet,
}

impl Connection {
    /// Whether something is queued that must be sent first.
    pub(super) fn is_behind(&self) -> bool {
        !self.outbox.is_empty() || !self.pending_notices.is_empty()
    }

    /// Sends a record when nothing is queued. On an error other than [`Errno::AGAIN`] the connection is
    /// [`end`](Self::end)ed.
    pub(super) fn send(&mut self, record: &[u8]) -> Result<(), Errno> {
        let sent = packet::send(self.fd.as_fd(), record);
        if sent.is_err_and(|errno| errno != Errno::AGAIN) {
            self.end();
        }
        sent
    }

    /// Drops the send queue. The next turn reads the remaining input and closes the connection.
    pub(super) fn end(&mut self) {
        self.outbox.clear();
        self.pending_notices = BlockSet::EMPTY;
        packet::end(self.fd.as_fd());
    }

    /// Sends pending death notices.
    pub(super) fn tell_pending_notices(&mut self, context: &mut RoleContext) -> Result<(), Errno> {
        if self.pending_notices.is_empty() {
            return Ok(());
        }
        let dead = Message::PeerDeath {
            blocks: self.pending_notices,
        };
        self.send(context.encode(&dead))?;
        self.pending_notices = BlockSet::EMPTY;
        Ok(())
    }
}
