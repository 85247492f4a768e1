//! Who is in the way of a process that would share the port, and is not trusted.
//!
//! Any user can bind an abstract name, or the port itself. That keeps others out, and no more: no stranger is let
//! into a group, and no group joined, unless the kernel's word on the other process (`trust`) fits. So all that is
//! left to do is to say who it is, at once. The kernel's tables are read for it, so callers look after an attempt
//! failed, and rarely.

use portolan_provider::Cause;
use rustix::io::Errno;

use super::block::{BLOCK_COUNT, Block};
use super::config::GroupConfig;
use super::message::Refusal;
use super::name::GroupName;
use super::trust::{Credentials, Own, Trust};
use super::unix_diag::BoundSocket;

/// Blocks that processes can have.
const PLACES: usize = BLOCK_COUNT - 1;

/// Whether to look for a stranger after so many attempts failed: soon, and ever more rarely.
pub(super) fn is_time_to_look(attempts: u32) -> bool {
    attempts.is_power_of_two()
}

/// The process that holds the name that the coordinator should have, if it is a stranger.
pub(super) fn with_name(name: &GroupName, trust: &Trust) -> Option<Cause> {
    let socket = name.holder()?;
    let own = Own::here();
    (!trust.admits(own, socket.uid?)).then(|| Cause::GroupNotTrusted {
        holder: Box::new(socket.holder()),
        own_uid: own.uid,
        listens: socket.listens,
    })
}

/// The processes that hold places, if some are strangers. Asked where no place is left.
pub(super) fn with_places(name: &GroupName, trust: &Trust) -> Option<Cause> {
    let mut strange = strange_places(name, trust);
    let first = strange.next()?;
    Some(Cause::GroupPlacesTaken {
        holder: Box::new(first.holder()),
        taken: 1 + strange.count(),
        places: PLACES,
    })
}

/// Why nobody can join the group, or found it: every place is held, some by strangers. A free place is `None`.
pub fn places_taken(config: &GroupConfig) -> Option<Cause> {
    let name = GroupName::new(config);
    let is_full = name.block_holders().len() >= PLACES;
    is_full.then(|| with_places(&name, &config.trust)).flatten()
}

/// Whether a living member has a block's name. A stranger who took it is no sign of life.
///
/// # Errors
/// What the system refuses.
pub(super) fn has_member(name: &GroupName, trust: &Trust, block: Block) -> Result<bool, Errno> {
    if name.claim_block(block)?.is_some() {
        return Ok(false);
    }
    let taken = name.of_block(block);
    let is_strange = strange_places(name, trust).any(|socket| socket.name == taken);
    Ok(!is_strange)
}

/// How many processes live that have a block, strangers left out. Where nobody leads the group, it tells members
/// that are slow or stopped from a port that is somebody else's.
pub(super) fn living_members(name: &GroupName, trust: &Trust) -> usize {
    let is_taken = |block: &Block| matches!(name.claim_block(*block), Ok(None));
    match Block::members().filter(is_taken).count() {
        0 => 0,
        taken => taken.saturating_sub(strange_places(name, trust).count()),
    }
}

/// Why a coordinator's refusal keeps this process out.
pub(super) fn refusal_cause(
    refusal: Refusal,
    coordinator: Credentials,
    name: &GroupName,
    trust: &Trust,
) -> Cause {
    match refusal {
        Refusal::NotTrusted { uid } => Cause::GroupDistrusts {
            leader: Box::new(coordinator.holder()),
            own_uid: Own::here().uid,
            seen_uid: uid,
        },
        Refusal::Full => no_place(name, trust),
        refusal => Cause::GroupRefused(refusal.to_string()),
    }
}

/// Why there is no place in the group.
pub(super) fn no_place(name: &GroupName, trust: &Trust) -> Cause {
    with_places(name, trust).unwrap_or(Cause::LimitReached {
        what: "processes sharing the UDP port of one network namespace (more need another namespace)",
        limit: PLACES as u64,
    })
}

/// This process does not trust the one that listens as the coordinator.
pub(super) fn not_trusted(coordinator: Credentials, own: Own) -> Cause {
    Cause::GroupNotTrusted {
        holder: Box::new(coordinator.holder()),
        own_uid: own.uid,
        listens: true,
    }
}

/// The sockets that hold places and belong to users who are known and not trusted.
fn strange_places(name: &GroupName, trust: &Trust) -> impl Iterator<Item = BoundSocket> {
    let own = Own::here();
    let places = name.block_holders().into_iter();
    let is_strange = move |uid| !trust.admits(own, uid);
    places.filter(move |socket| socket.uid.is_some_and(is_strange))
}
