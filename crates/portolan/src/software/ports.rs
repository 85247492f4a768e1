//! This process's port claims: asked of the coordinator, remembered to be asked again of a new one.

use portolan_threads::lock::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use portolan_cm::ports::PortConfig;
use portolan_provider::error::errno;
use portolan_provider::{Cause, Error, Result, Step};
use portolan_roce::io::Stack;

use portolan_port_sharing::Block;

use super::claim::{
    ClaimId, PortClaim, RELEASES_MAX, Request, Response, ephemeral_ports, holder_name,
};

/// How long the coordinator may take to answer; a change of the coordinator fits in.
pub(super) const COORDINATOR_TIMEOUT: Duration = Duration::from_secs(5);

/// How an error calls the holder of a port that is one of this process's own.
const THIS_PROCESS: &str = "this process";

/// How long a free port that was given back stays with this process, for its next connect: asking
/// the coordinator takes longer than all the rest of resolving an address.
const SPARE_TIME: Duration = Duration::from_millis(500);
/// Ports that stay so at most.
const SPARES_MAX: usize = 16;

/// The claims that this process holds.
#[derive(Debug, Default)]
pub(super) struct Claims {
    held: Mutex<Held>,
    /// Claims given back that the coordinator does not know of yet: it was slow, and too many requests
    /// waited for it.
    pending_releases: Mutex<Vec<ClaimId>>,
    next: AtomicU32,
}

/// Claims as the coordinator has granted them.
#[derive(Debug, Default)]
struct Held {
    in_use: HashMap<ClaimId, Granted>,
    /// Of ports that any other would have done for, given back by their ids; oldest first.
    spare: VecDeque<Spare>,
}

/// A claim with its port.
#[derive(Clone, Copy, Debug)]
struct Granted {
    claim: PortClaim,
    /// The port was the coordinator's choice.
    is_ephemeral: bool,
}

#[derive(Debug)]
struct Spare {
    id: ClaimId,
    claim: PortClaim,
    since: Instant,
}

impl Claims {
    /// The requests that have a new coordinator grant them again.
    pub(super) fn replay(&self) -> Vec<Vec<u8>> {
        let held = self.held.lock();
        let in_use = held.in_use.iter();
        let in_use = in_use.map(|(id, granted)| (*id, granted.claim));
        let spare = held.spare.iter().map(|spare| (spare.id, spare.claim));
        in_use
            .chain(spare)
            .map(|(id, claim)| Request::Claim(id, claim).encode())
            .collect()
    }

    /// Claims an address, within `timeout`; gives the claim, and the port if it was 0.
    pub(super) fn take(
        &self,
        stack: &Stack,
        claim: PortClaim,
        timeout: Duration,
    ) -> Result<(ClaimId, u16)> {
        if claim.address.port() != 0 {
            // What is asked for by number may be a spare one.
            self.give_back_spares(stack, |_| true);
        } else if let Some(spare) = self.held.lock().take_spare(&claim) {
            return Ok(spare);
        }
        self.tell(stack);
        let id = ClaimId(self.next.fetch_add(1, Ordering::Relaxed));
        let held = self.hold(stack, id, claim, Step::Bind, timeout);
        let port = held.inspect_err(|_| {
            // It may have been granted after all, too late.
            self.held.lock().in_use.remove(&id);
            self.give_back(stack, id);
        })?;
        Ok((id, port))
    }

    /// Changes a claim into a listening one.
    pub(super) fn listen(&self, stack: &Stack, id: ClaimId) -> Result<()> {
        let granted = self.held.lock().in_use.get(&id).copied();
        let gone = || Error::new(Step::Listen, Cause::NoSuchObject("the id's port"));
        let claim = PortClaim {
            listening: true,
            ..granted.ok_or_else(gone)?.claim
        };
        self.hold(stack, id, claim, Step::Listen, COORDINATOR_TIMEOUT)?;
        Ok(())
    }

    /// Forgets a claim that a new coordinator refused; whether it was in use.
    pub(super) fn lose(&self, id: ClaimId) -> bool {
        let mut held = self.held.lock();
        held.spare.retain(|spare| spare.id != id);
        held.in_use.remove(&id).is_some()
    }

    /// How many are in use.
    pub(super) fn len(&self) -> usize {
        self.held.lock().in_use.len()
    }

    /// Gives a claim back. It does not wait for the coordinator, which hears of it before it hears of any
    /// later claim of this process. One of a port that was the coordinator's choice may stay for a while;
    /// see [`Claims::next_timeout`].
    pub(super) fn release(&self, stack: &Stack, id: ClaimId) {
        let mut held = self.held.lock();
        let Some(granted) = held.in_use.remove(&id) else {
            return;
        };
        let claim = granted.claim;
        if granted.is_ephemeral && !claim.listening && held.spare.len() < SPARES_MAX {
            let since = Instant::now();
            held.spare.push_back(Spare { id, claim, since });
            return;
        }
        drop(held);
        self.give_back(stack, id);
    }

    /// How long it is until [`Claims::give_back_old`] has something to do.
    pub(super) fn next_timeout(&self) -> Option<Duration> {
        let held = self.held.lock();
        let oldest = held.spare.front()?;
        Some(SPARE_TIME.saturating_sub(oldest.since.elapsed()))
    }

    /// Gives back the ports that were not needed again in time.
    pub(super) fn give_back_old(&self, stack: &Stack) {
        let now = Instant::now();
        self.give_back_spares(stack, |spare| {
            now.saturating_duration_since(spare.since) >= SPARE_TIME
        });
    }

    fn give_back_spares(&self, stack: &Stack, which: impl Fn(&Spare) -> bool) {
        let mut given_back = Vec::new();
        self.held.lock().spare.retain(|spare| {
            let goes = which(spare);
            if goes {
                given_back.push(spare.id);
            }
            !goes
        });
        for id in given_back {
            self.give_back(stack, id);
        }
    }

    fn give_back(&self, stack: &Stack, id: ClaimId) {
        self.pending_releases.lock().push(id);
        self.tell(stack);
    }

    /// Reports returned claims to the coordinator, as far as there is room for requests; the rest is reported
    /// with the next claim or release. When this process leaves, the coordinator drops what it still has.
    fn tell(&self, stack: &Stack) {
        let mut pending_releases = self.pending_releases.lock();
        while !pending_releases.is_empty() {
            let kept = pending_releases.len().saturating_sub(RELEASES_MAX);
            let release = Request::Release(pending_releases[kept..].to_vec());
            if stack.group_tell(&release.encode()).is_err() {
                return;
            }
            pending_releases.truncate(kept);
        }
    }

    /// Has the coordinator grant a claim, and notes it down to be replayed.
    fn hold(
        &self,
        stack: &Stack,
        id: ClaimId,
        mut claim: PortClaim,
        step: Step,
        timeout: Duration,
    ) -> Result<u16> {
        let known = self.held.lock().in_use.get(&id).copied();
        let is_ephemeral = known.map_or(claim.address.port() == 0, |known| known.is_ephemeral);
        loop {
            let epoch = stack.group_epoch();
            let port = ask(stack, id, claim, step, timeout)?;
            claim.address.set_port(port);
            let granted = Granted {
                claim,
                is_ephemeral,
            };
            self.held.lock().in_use.insert(id, granted);
            if stack.group_epoch() == epoch {
                return Ok(port);
            }
            // A coordinator that came in between may not have been told of it.
        }
    }
}

impl Held {
    /// Takes a spare claim that differs from the wanted one by its port alone into use.
    fn take_spare(&mut self, wanted: &PortClaim) -> Option<(ClaimId, u16)> {
        let alike = |spare: &Spare| {
            let mut claim = spare.claim;
            claim.address.set_port(0);
            claim == *wanted
        };
        let at = self.spare.iter().position(alike)?;
        let Spare { id, claim, .. } = self.spare.remove(at)?;
        let is_ephemeral = true;
        let granted = Granted {
            claim,
            is_ephemeral,
        };
        self.in_use.insert(id, granted);
        Some((id, claim.address.port()))
    }
}

fn ask(stack: &Stack, id: ClaimId, claim: PortClaim, step: Step, timeout: Duration) -> Result<u16> {
    let answer = stack.group_request(&Request::Claim(id, claim).encode(), timeout);
    let answer = answer.map_err(|error| {
        let error = Error { step, ..error };
        error.between(Some(claim.address.into()), None)
    })?;
    let cause = match Response::decode(&answer) {
        Some(Response::Granted { port }) => return Ok(port),
        Some(Response::Refused { errno, holder }) => refused(stack.block(), errno, holder),
        None => Cause::InvalidArgument {
            what: "the coordinator's answer",
            expected: "a port or an errno".into(),
            found: format!("{} bytes", answer.len()),
        },
    };
    Err(Error::new(step, cause).between(Some(claim.address.into()), None))
}

/// What the coordinator's refusal means to the process with block `own`.
fn refused(own: Block, errno: i32, holder: String) -> Cause {
    match errno {
        errno::EADDRINUSE => {
            let itself = holder == holder_name(own);
            let holder = if itself { THIS_PROCESS.into() } else { holder };
            Cause::AddressInUse {
                holder: Some(holder).filter(|holder| !holder.is_empty()),
            }
        }
        errno::EADDRNOTAVAIL => {
            let range = ephemeral_ports().unwrap_or(PortConfig::default().ephemeral);
            let (first, last) = range.into_inner();
            Cause::PortsExhausted { first, last }
        }
        errno => {
            let call = "port claim";
            Cause::Os { call, errno }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: Block = Block::new(1).unwrap();
    const OTHER: Block = Block::new(2).unwrap();

    /// Sends a refusal over the wire and returns its cause.
    fn told(cause: &Cause) -> Cause {
        let bytes = Response::refusal(cause).encode();
        let Some(Response::Refused { errno, holder }) = Response::decode(&bytes) else {
            panic!("{bytes:?} is not a refusal");
        };
        refused(OWN, errno, holder)
    }

    #[test]
    fn a_port_in_use_names_its_holder_and_whether_that_is_this_process() {
        let held = |by: Option<&str>| Cause::AddressInUse {
            holder: by.map(str::to_owned),
        };
        let name = holder_name(OTHER);
        assert_eq!(told(&held(Some(&name))), held(Some(&name)));
        assert_eq!(
            told(&held(Some(&holder_name(OWN)))),
            held(Some(THIS_PROCESS))
        );
        assert_eq!(told(&held(None)), held(None));
    }

    #[test]
    fn exhausted_ports_are_an_unavailable_address() {
        let (first, last) = (50_000, 50_009);
        let cause = told(&Cause::PortsExhausted { first, last });
        assert!(matches!(cause, Cause::PortsExhausted { first, last } if first <= last));
        assert_eq!(cause.errno(), errno::EADDRNOTAVAIL);
    }

    #[test]
    fn other_refusals_keep_their_errno() {
        let (what, limit) = ("bound ports of this host", 1);
        let cause = told(&Cause::LimitReached { what, limit });
        assert_eq!(cause.errno(), errno::ENOMEM);
    }
}
