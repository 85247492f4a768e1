//! The traits that users of the group implement.

use super::block::Block;
use super::datagram::Datagram;

/// The receiver of a management datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// To this process.
    Local,
    /// To this process, which refuses it, because its service has no registered listener. It is dropped while a living
    /// member has not registered again with this coordinator.
    Unregistered,
    /// To the member with this block.
    ///
    /// If its process is dead and its block still free, the coordinator's process gets the datagram and answers for it.
    Member(Block),
    /// To this process and every member; each decides whether the datagram is for it.
    Everyone,
    /// To no process.
    Drop,
}

/// Services of the coordinator for all members. Every process provides one; only the coordinator's is used.
///
/// Methods are called with the group's lock held. They must not call the group, and must not wait for a lock that a
/// thread may hold while it calls the group.
pub trait CoordinatorService: Send {
    /// Clears all state: this process just became the coordinator. Registrations follow as requests.
    fn reset(&mut self);

    /// A member joined or returned.
    fn member_joined(&mut self, member: Block) {
        let _ = member;
    }

    /// Answers a member's request, including this process's own. The answer has at most
    /// [`REQUEST_BYTES_MAX`](super::REQUEST_BYTES_MAX) bytes. A request can arrive twice (if a coordinator died after
    /// handling it), so requests must be idempotent.
    fn request(&mut self, member: Block, payload: &[u8]) -> Vec<u8>;

    /// The coordinator's report for an observer ([`observe`](super::observe)), in its own format: parts of at most
    /// [`REQUEST_BYTES_MAX`](super::REQUEST_BYTES_MAX) bytes. Only the first
    /// [`REPORT_PARTS_MAX`](super::REPORT_PARTS_MAX) are sent.
    fn report(&self) -> Vec<Vec<u8>> {
        Vec::new()
    }

    /// A member left: its registrations are void. Its block may be assigned to another process.
    fn member_left(&mut self, member: Block);

    /// Selects the receiver of a datagram to QP1.
    fn route(&mut self, datagram: &Datagram<'_>) -> Route;
}

/// Services of a member for a new coordinator.
pub trait MemberService: Send + Sync {
    /// The requests that register this process's claims with a new coordinator.
    ///
    /// Called without the group's lock, by the progress thread or by a thread in
    /// [`PortGroup::request`](super::PortGroup::request). So a thread must not make a request while it holds a lock
    /// that this method takes.
    fn replay(&self) -> Vec<Vec<u8>>;

    /// A new coordinator has answered a request of [`replay`](Self::replay) as it answers requests. The answer may be a
    /// refusal: a claim that was granted before may belong to another process by now, if this one could not register
    /// again in time.
    ///
    /// Called by [`PortGroup::process`](super::PortGroup::process), without the group's lock.
    fn replayed(&self, request: &[u8], answer: &[u8]) {
        let _ = (request, answer);
    }

    /// This process's report for an observer, in the format of [`CoordinatorService::report`]. Called without the
    /// group's lock, by the same threads and under the same rule as [`replay`](Self::replay).
    fn report(&self) -> Vec<Vec<u8>> {
        Vec::new()
    }

    /// No living process owns these blocks, so their processes' resources are gone. A new coordinator reports all such
    /// blocks, so a block may be reported again.
    ///
    /// Called in order with the datagrams that [`PortGroup::process`](super::PortGroup::process) delivers, after those
    /// from before a death, and without the group's lock. It is not called for a block that was reassigned while this
    /// process had no coordinator.
    fn peer_death(&self, blocks: &[Block]) {
        let _ = blocks;
    }
}
