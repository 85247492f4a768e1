//! This process as a member of the group that shares the UDP port.

use std::sync::{Arc, Weak};

use portolan_roce::io::group::{Block, MemberService};

use super::core::Core;
use super::ports::Claims;

/// What the group asks of this process.
#[derive(Debug)]
pub(super) struct Member {
    core: Weak<Core>,
    claims: Arc<Claims>,
}

impl Member {
    pub(super) fn new(core: Weak<Core>, claims: Arc<Claims>) -> Self {
        Self { core, claims }
    }
}

impl MemberService for Member {
    fn replay(&self) -> Vec<Vec<u8>> {
        self.claims.replay()
    }

    fn report(&self) -> Vec<Vec<u8>> {
        let core = self.core.upgrade();
        core.map_or_else(Vec::new, |core| super::survey::report(&core))
    }

    fn departed(&self, blocks: &[Block]) {
        if let Some(core) = self.core.upgrade() {
            core.peer_processes_died(blocks);
        }
    }
}
