//! What the group asks of those who use it.

use super::block::Block;
use super::datagram::Datagram;

/// Where a management datagram belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// To this process.
    Local,
    /// To the member with this block.
    ///
    /// If its process is dead, and its block is still free, this one gets the datagram, as the one
    /// that answers for it.
    Member(Block),
    /// To this process and to every member; each finds in it whether it is meant.
    Everyone,
    /// To none.
    Drop,
}

/// What the coordinator does for all members. Every process brings one along; only the coordinator's is used.
///
/// Methods are called with the group's lock held. They must not call the group, and must not wait for
/// a lock that some thread may hold while it calls the group.
pub trait CoordinatorService: Send {
    /// Forgets everything: this process has just become the coordinator. Registrations follow as requests.
    fn reset(&mut self);

    /// A member has joined or come back.
    fn member_joined(&mut self, member: Block) {
        let _ = member;
    }

    /// Answers a member's request, this process's own included. The answer has at most
    /// [`REQUEST_BYTES_MAX`](super::REQUEST_BYTES_MAX) bytes. A request can come twice (when a coordinator
    /// died after acting on it), so it must be one that can be repeated.
    fn request(&mut self, member: Block, payload: &[u8]) -> Vec<u8>;

    /// What it knows, for an observer ([`observe`](super::observe)), in its own format: parts of at most
    /// [`REQUEST_BYTES_MAX`](super::REQUEST_BYTES_MAX) bytes, of which the first
    /// [`REPORT_PARTS_MAX`](super::REPORT_PARTS_MAX) are passed on.
    fn report(&self) -> Vec<Vec<u8>> {
        Vec::new()
    }

    /// A member is gone: what it registered is void. Its block may be given to another process.
    fn member_left(&mut self, member: Block);

    /// Decides who receives a datagram that was sent to QP1.
    fn route(&mut self, datagram: &Datagram<'_>) -> Route;
}

/// What a member does for a new coordinator.
pub trait MemberService: Send + Sync {
    /// The requests by which a new coordinator learns what this process had registered with the old one.
    ///
    /// Called without the group's lock, by the progress thread or by a thread in
    /// [`PortGroup::request`](super::PortGroup::request): so no thread may hold a lock that this method takes
    /// while it makes a request.
    fn replay(&self) -> Vec<Vec<u8>>;

    /// A new coordinator has answered a request of [`replay`](Self::replay), as it answers requests: what was
    /// granted before may have gone to another process, while this one was kept from registering again.
    ///
    /// Called by [`PortGroup::process`](super::PortGroup::process), without the group's lock.
    fn replayed(&self, request: &[u8], answer: &[u8]) {
        let _ = (request, answer);
    }

    /// What this process says of itself to an observer: as [`CoordinatorService::report`], but called without
    /// the group's lock and by the threads that call [`replay`](Self::replay), of which the same
    /// holds.
    fn report(&self) -> Vec<Vec<u8>> {
        Vec::new()
    }

    /// No living process has these blocks, and whatever their processes had is gone with them. A new
    /// coordinator tells of all there are, so the same block may be told of again.
    ///
    /// Called in turn with the datagrams that [`PortGroup::process`](super::PortGroup::process) delivers,
    /// those from before a death first, and without the group's lock. Of a block that another
    /// process was given while this one had no coordinator, there is no call.
    fn peer_death(&self, blocks: &[Block]) {
        let _ = blocks;
    }
}
