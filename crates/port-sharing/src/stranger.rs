//! Finds untrusted processes that keep this process from sharing the port.
//!
//! Any user can bind an abstract name, or the port itself. That keeps others out, but gives no access: a group admits a
//! stranger, or is joined, only if the credentials that the kernel reports (`trust`) are trusted. So the only task here
//! is to report the process quickly. This reads the kernel's tables, so callers only use it after failed attempts, and
//! rarely.

use std::cell::OnceCell;

use portolan_provider::Cause;
use rustix::io::Errno;

use super::block::{BLOCK_COUNT, Block};
use super::config::GroupConfig;
use super::message::Refusal;
use super::name::GroupName;
use super::trust::{Credentials, Own, Trust};
use super::unix_diag::BoundSocket;
use super::witness;

/// Number of blocks for processes.
const PLACES: usize = BLOCK_COUNT - 1;
/// Maximum number of members that an error names. To find the process of each takes a look at all processes.
const NAMED_MAX: usize = 3;

/// Whether to look for a stranger after this many failed attempts: early, then at growing intervals.
pub(super) fn is_time_to_look(attempts: u32) -> bool {
    attempts.is_power_of_two()
}

/// The process that holds the coordinator's name, if it is a stranger.
pub(super) fn with_name(name: &GroupName, trust: &Trust) -> Option<Cause> {
    let socket = name.holder()?;
    let own = Own::here();
    (!trust.admits(own, socket.uid?)).then(|| Cause::GroupNotTrusted {
        holder: Box::new(socket.holder()),
        own_uid: own.uid,
        listens: socket.listens,
    })
}

/// The processes that hold places, if some are strangers. Used when no place is left.
pub(super) fn with_places(name: &GroupName, trust: &Trust) -> Option<Cause> {
    let mut strange = strange_places(name, trust);
    let first = strange.next()?;
    Some(Cause::GroupPlacesTaken {
        holder: Box::new(first.holder()),
        taken: 1 + strange.count(),
        places: PLACES,
    })
}

/// Why no process can join or found the group: every place is held, some by strangers. `None` if a place is free.
pub fn places_taken(config: &GroupConfig) -> Option<Cause> {
    let name = GroupName::new(config);
    let is_full = name.block_holders().len() >= PLACES;
    is_full.then(|| with_places(&name, &config.trust)).flatten()
}

/// One look at the names of blocks, which reads the kernel's table at most once.
pub(super) struct Places<'a> {
    name: &'a GroupName,
    trust: &'a Trust,
    /// The names that strangers hold, once they are needed.
    strange: OnceCell<Vec<String>>,
}

impl<'a> Places<'a> {
    pub(super) fn new(name: &'a GroupName, trust: &'a Trust) -> Self {
        Self {
            name,
            trust,
            strange: OnceCell::new(),
        }
    }

    /// Whether a living member holds a block's name. A stranger with that name does not count.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn has_member(&self, block: Block) -> Result<bool, Errno> {
        if self.name.claim_block(block)?.is_some() {
            return Ok(false);
        }
        let taken = self.name.of_block(block);
        let look = || strange_places(self.name, self.trust).map(|socket| socket.name);
        let strange = self.strange.get_or_init(|| look().collect());
        Ok(!strange.contains(&taken))
    }
}

/// Number of living processes with a block, without strangers. If no coordinator exists, it distinguishes slow or
/// stopped members from a port that another program owns.
pub(super) fn living_members(name: &GroupName, trust: &Trust) -> usize {
    let is_taken = |block: &Block| matches!(name.claim_block(*block), Ok(None));
    match Block::members().filter(is_taken).count() {
        0 => 0,
        taken => taken.saturating_sub(strange_places(name, trust).count()),
    }
}

/// The first living processes with a block, without strangers, as the end of a sentence; empty if none is visible.
pub(super) fn members_text(name: &GroupName, trust: &Trust) -> String {
    let own = Own::here();
    let members = name.block_holders().into_iter();
    let members = members.filter(|socket| socket.uid.is_none_or(|uid| trust.admits(own, uid)));
    let mut text = String::new();
    for socket in members.take(NAMED_MAX) {
        let holder = socket.holder();
        let separator = if text.is_empty() {
            "; among them "
        } else {
            ", "
        };
        let state = match witness::is_stopped(holder.pid) {
            true => ", which is stopped",
            false => "",
        };
        text.push_str(&format!("{separator}{holder}{state}"));
    }
    text
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

/// Why there is no free place in the group.
pub(super) fn no_place(name: &GroupName, trust: &Trust) -> Cause {
    with_places(name, trust).unwrap_or(Cause::LimitReached {
        what: "processes sharing the UDP port of one network namespace (more need another namespace)",
        limit: PLACES as u64,
    })
}

/// This process does not trust the listening coordinator.
pub(super) fn not_trusted(coordinator: Credentials, own: Own) -> Cause {
    Cause::GroupNotTrusted {
        holder: Box::new(coordinator.holder()),
        own_uid: own.uid,
        listens: true,
    }
}

/// The sockets that hold places and whose users are known and not trusted.
fn strange_places(name: &GroupName, trust: &Trust) -> impl Iterator<Item = BoundSocket> {
    let own = Own::here();
    let places = name.block_holders().into_iter();
    let is_strange = move |uid| !trust.admits(own, uid);
    places.filter(move |socket| socket.uid.is_some_and(is_strange))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unix_diag::dumps;

    #[test]
    fn a_look_at_all_blocks_reads_the_kernels_table_of_sockets_once() {
        let config = GroupConfig {
            name_prefix: format!("portolan-strangers-{}", std::process::id()),
            ..GroupConfig::default()
        };
        let name = GroupName::new(&config);
        let claim = |block| name.claim_block(block).unwrap().unwrap();
        let claimed: Vec<_> = Block::members().take(5).map(claim).collect();
        let before = dumps();
        let places = Places::new(&name, &config.trust);
        let has_member = |block: &Block| places.has_member(*block).unwrap();
        let living = Block::members().filter(has_member).count();
        assert_eq!(living, claimed.len());
        assert!(dumps() - before <= 1, "{} times", dumps() - before);
    }
}
