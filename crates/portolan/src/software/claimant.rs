//! This process as a member of the group that shares the UDP port: the callbacks of the group.

use std::sync::{Arc, Weak};

use portolan_port_sharing::{Block, MemberService};

use super::claim::{Request, Response};
use super::core::Core;
use super::ports::Claims;

/// The group's callbacks.
#[derive(Debug)]
pub(super) struct Claimant {
    core: Weak<Core>,
    claims: Arc<Claims>,
}

impl Claimant {
    pub(super) fn new(core: Weak<Core>, claims: Arc<Claims>) -> Self {
        Self { core, claims }
    }
}

impl MemberService for Claimant {
    fn replay(&self) -> Vec<Vec<u8>> {
        self.claims.replay()
    }

    fn replayed(&self, request: &[u8], answer: &[u8]) {
        let (Some(Request::Claim(id, claim)), Some(Response::Refused { errno, holder })) =
            (Request::decode(request), Response::decode(answer))
        else {
            return;
        };
        // A claim that was released meanwhile does not matter.
        if self.claims.lose(id) {
            let address = claim.address;
            tracing::error!(%address, errno, holder, "a new coordinator gave a port of this process to another one");
            if let Some(core) = self.core.upgrade() {
                core.port_lost(id, errno);
            }
        }
    }

    fn report(&self) -> Vec<Vec<u8>> {
        let core = self.core.upgrade();
        core.map_or_else(Vec::new, |core| super::survey::report(&core))
    }

    fn peer_death(&self, blocks: &[Block]) {
        if let Some(core) = self.core.upgrade() {
            core.peer_processes_died(blocks);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use portolan_provider::Cause;
    use portolan_provider::error::errno::EADDRINUSE;

    use super::super::own_group;
    use super::*;
    use crate::Listener;

    /// Longer than anything takes here.
    const PATIENCE: Duration = Duration::from_secs(20);

    #[test]
    fn a_listener_learns_that_a_new_coordinator_gave_its_port_to_another_process() {
        let provider = own_group::provider();
        let address = "127.0.0.1:0".parse().unwrap();
        let [kept, lost] = [(); 2].map(|()| Listener::bind_on(provider.clone(), address).unwrap());
        let port = lost.local_addr().unwrap().port();
        let is_lost = |request: &Vec<u8>| matches!(Request::decode(request), Some(Request::Claim(_, claim)) if claim.address.port() == port);
        let core = &provider.core;
        let replays = core.claims.replay();
        let member = Claimant::new(core.downgrade(), Arc::clone(&core.claims));
        for request in &replays {
            let answer = match is_lost(request) {
                true => Response::Refused {
                    errno: EADDRINUSE,
                    holder: "the process with block 9".into(),
                },
                false => Response::Granted { port: 1 },
            };
            // A second report has no effect.
            member.replayed(request, &answer.encode());
            member.replayed(request, &answer.encode());
        }
        let error = lost.accept_within(PATIENCE).unwrap_err();
        assert_eq!(error.cause, Cause::AddressInUse { holder: None });
        assert!(
            kept.try_accept().unwrap().is_none(),
            "the other listener is not affected"
        );
        assert_eq!(core.claims.len(), replays.len() - 1);
    }
}
