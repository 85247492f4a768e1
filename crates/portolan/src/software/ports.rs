//! This process's port claims: requested from the coordinator, and repeated to a new one.

use portolan_threads::lock::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
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

/// Time limit for the coordinator's answer. A change of the coordinator fits in.
pub(super) const COORDINATOR_TIMEOUT: Duration = Duration::from_secs(5);

/// The holder's name in errors if this process itself holds the port.
const THIS_PROCESS: &str = "this process";

/// How long the released port of a connect stays with this process, for its next connect. Asking the coordinator takes
/// longer than the rest of an address resolution.
const SPARE_TIME: Duration = Duration::from_millis(500);
/// Maximum of ports kept like that.
const SPARES_MAX: usize = 16;
/// How often to report releases for which the queue had no room.
const TELL_INTERVAL: Duration = Duration::from_millis(100);

/// What a port is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// The program binds an address. If it releases a port, it may bind the same one next.
    Bind,
    /// An unbound id connects.
    Connect,
}

/// The group of the host's processes, whose coordinator grants claims.
pub(super) trait Group {
    /// See [`Stack::group_tell`].
    fn tell(&self, request: &[u8]) -> Result<()>;
    /// See [`Stack::group_request`].
    fn request(&self, request: &[u8], timeout: Duration) -> Result<Vec<u8>>;
    /// See [`Stack::group_epoch`].
    fn epoch(&self) -> u64;
    /// This process's block.
    fn block(&self) -> Block;
}

impl Group for Arc<Stack> {
    fn tell(&self, request: &[u8]) -> Result<()> {
        self.group_tell(request)
    }

    fn request(&self, request: &[u8], timeout: Duration) -> Result<Vec<u8>> {
        self.group_request(request, timeout)
    }

    fn epoch(&self) -> u64 {
        self.group_epoch()
    }

    fn block(&self) -> Block {
        self.as_ref().block()
    }
}

/// The claims that this process holds.
#[derive(Debug, Default)]
pub(super) struct Claims {
    held: Mutex<Held>,
    /// Released claims that the coordinator has not been told of yet, because it was slow and too many requests were
    /// queued.
    pending_releases: Mutex<Vec<ClaimId>>,
    next: AtomicU32,
}

/// The claims that the coordinator has granted.
#[derive(Debug, Default)]
struct Held {
    in_use: HashMap<ClaimId, Granted>,
    /// Claims on ports of connects that their ids have released, oldest first.
    spare: VecDeque<Spare>,
}

/// A granted claim with its port.
#[derive(Clone, Copy, Debug)]
struct Granted {
    claim: PortClaim,
    /// The coordinator chose the port for a connect.
    is_of_connect: bool,
}

#[derive(Debug)]
struct Spare {
    id: ClaimId,
    claim: PortClaim,
    since: Instant,
}

impl Claims {
    /// The requests that ask a new coordinator to grant the claims again.
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

    /// Claims an address within `timeout`. Returns the claim and its port.
    pub(super) fn take(
        &self,
        group: &impl Group,
        claim: PortClaim,
        purpose: Purpose,
        timeout: Duration,
    ) -> Result<(ClaimId, u16)> {
        let is_of_connect = purpose == Purpose::Connect && claim.address.port() == 0;
        if claim.address.port() != 0 {
            // The requested port may be one of the spares.
            self.give_back_spares(group, |_| true);
        } else if is_of_connect && let Some(spare) = self.held.lock().take_spare(&claim) {
            return Ok(spare);
        }
        let deadline = Instant::now() + timeout;
        // The requested port may be a released one.
        self.tell_all(group, timeout).map_err(|error| {
            error
                .at(Step::Bind)
                .between(Some(claim.address.into()), None)
        })?;
        let timeout = deadline.saturating_duration_since(Instant::now());
        let id = ClaimId(self.next.fetch_add(1, Ordering::Relaxed));
        let wanted = Granted {
            claim,
            is_of_connect,
        };
        let held = self.hold(group, id, wanted, Step::Bind, timeout);
        let port = held.inspect_err(|_| {
            // It may have been granted too late.
            self.held.lock().in_use.remove(&id);
            self.give_back(group, id);
        })?;
        Ok((id, port))
    }

    /// Changes a claim into a listening one.
    pub(super) fn listen(&self, group: &impl Group, id: ClaimId) -> Result<()> {
        let granted = self.held.lock().in_use.get(&id).copied();
        let gone = || Error::new(Step::Listen, Cause::NoSuchObject("the id's port"));
        let mut wanted = granted.ok_or_else(gone)?;
        wanted.claim.listening = true;
        self.hold(group, id, wanted, Step::Listen, COORDINATOR_TIMEOUT)?;
        Ok(())
    }

    /// Drops a claim that a new coordinator refused. Returns whether it was in use.
    pub(super) fn lose(&self, id: ClaimId) -> bool {
        let mut held = self.held.lock();
        held.spare.retain(|spare| spare.id != id);
        held.in_use.remove(&id).is_some()
    }

    /// The number of claims in use.
    pub(super) fn len(&self) -> usize {
        self.held.lock().in_use.len()
    }

    /// Releases a claim without waiting for the coordinator, which learns of it before any later claim of this
    /// process. The claim of a connect may be kept for a while; see [`Claims::next_timeout`].
    pub(super) fn release(&self, group: &impl Group, id: ClaimId) {
        let mut held = self.held.lock();
        let Some(granted) = held.in_use.remove(&id) else {
            return;
        };
        let claim = granted.claim;
        if granted.is_of_connect && !claim.listening && held.spare.len() < SPARES_MAX {
            let since = Instant::now();
            held.spare.push_back(Spare { id, claim, since });
            return;
        }
        drop(held);
        self.give_back(group, id);
    }

    /// The time until [`Claims::give_back_old`] must be called.
    pub(super) fn next_timeout(&self) -> Option<Duration> {
        let is_pending = !self.pending_releases.lock().is_empty();
        let held = self.held.lock();
        let spare = held.spare.front();
        let spare = spare.map(|oldest| SPARE_TIME.saturating_sub(oldest.since.elapsed()));
        let pending = is_pending.then_some(TELL_INTERVAL);
        [spare, pending].into_iter().flatten().min()
    }

    /// Releases the spare ports that were not reused in time, and reports earlier releases that the coordinator has not been
    /// told of.
    pub(super) fn give_back_old(&self, group: &impl Group) {
        let now = Instant::now();
        self.give_back_spares(group, |spare| {
            now.saturating_duration_since(spare.since) >= SPARE_TIME
        });
        self.tell(group);
    }

    fn give_back_spares(&self, group: &impl Group, which: impl Fn(&Spare) -> bool) {
        let mut given_back = Vec::new();
        self.held.lock().spare.retain(|spare| {
            let goes = which(spare);
            if goes {
                given_back.push(spare.id);
            }
            !goes
        });
        for id in given_back {
            self.give_back(group, id);
        }
    }

    fn give_back(&self, group: &impl Group, id: ClaimId) {
        self.pending_releases.lock().push(id);
        self.tell(group);
    }

    /// Reports released claims to the coordinator, as far as requests fit into the queue. The rest is reported later, at the
    /// latest before the next claim. When this process leaves, the coordinator drops what remains.
    fn tell(&self, group: &impl Group) {
        let mut pending_releases = self.pending_releases.lock();
        while !pending_releases.is_empty() {
            let kept = pending_releases.len().saturating_sub(RELEASES_MAX);
            let release = Request::Release(pending_releases[kept..].to_vec());
            if group.tell(&release.encode()).is_err() {
                return;
            }
            pending_releases.truncate(kept);
        }
    }

    /// Reports all released claims to the coordinator. What does not fit into the queue waits for its answer, for which the
    /// queue has more room.
    ///
    /// # Errors
    /// Those of requests. The rest is reported later.
    fn tell_all(&self, group: &impl Group, timeout: Duration) -> Result<()> {
        self.tell(group);
        // They stay in the list until they are sent, so that a claim of another thread waits, too.
        let pending = self.pending_releases.lock().clone();
        for ids in pending.chunks(RELEASES_MAX) {
            group.request(&Request::Release(ids.to_vec()).encode(), timeout)?;
            self.pending_releases.lock().retain(|id| !ids.contains(id));
        }
        Ok(())
    }

    /// Asks the coordinator to grant a claim, and stores it for a replay.
    fn hold(
        &self,
        group: &impl Group,
        id: ClaimId,
        mut wanted: Granted,
        step: Step,
        timeout: Duration,
    ) -> Result<u16> {
        loop {
            let epoch = group.epoch();
            let port = ask(group, id, wanted.claim, step, timeout)?;
            wanted.claim.address.set_port(port);
            self.held.lock().in_use.insert(id, wanted);
            if group.epoch() == epoch {
                return Ok(port);
            }
            // A new coordinator that was elected meanwhile may not know of it.
        }
    }
}

impl Held {
    /// Reuses a spare claim that differs from the wanted one only by its port.
    fn take_spare(&mut self, wanted: &PortClaim) -> Option<(ClaimId, u16)> {
        let alike = |spare: &Spare| {
            let mut claim = spare.claim;
            claim.address.set_port(0);
            claim == *wanted
        };
        let at = self.spare.iter().position(alike)?;
        let Spare { id, claim, .. } = self.spare.remove(at)?;
        let granted = Granted {
            claim,
            is_of_connect: true,
        };
        self.in_use.insert(id, granted);
        Some((id, claim.address.port()))
    }
}

fn ask(
    group: &impl Group,
    id: ClaimId,
    claim: PortClaim,
    step: Step,
    timeout: Duration,
) -> Result<u16> {
    let answer = group.request(&Request::Claim(id, claim).encode(), timeout);
    let answer =
        answer.map_err(|error| error.at(step).between(Some(claim.address.into()), None))?;
    let cause = match Response::decode(&answer) {
        Some(Response::Granted { port }) => return Ok(port),
        Some(Response::Refused { errno, holder }) => refused(group.block(), errno, holder),
        None => Cause::InvalidArgument {
            what: "the coordinator's answer",
            expected: "a port or an errno".into(),
            found: format!("{} bytes", answer.len()),
        },
    };
    Err(Error::new(step, cause).between(Some(claim.address.into()), None))
}

/// The cause for a coordinator's refusal, in the process with block `own`.
fn refused(own: Block, errno: i32, holder: String) -> Cause {
    match errno {
        errno::EADDRINUSE => {
            let holder = match holder {
                holder if holder.is_empty() => None,
                holder if holder == holder_name(own) => Some(THIS_PROCESS.into()),
                holder => Some(format!("{holder} (`portolan ps` lists them)")),
            };
            Cause::AddressInUse { holder }
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
    use std::net::{IpAddr, Ipv4Addr, SocketAddr};
    use std::sync::atomic::AtomicBool;

    use portolan_wire::addr::PortSpace;

    use super::*;

    /// A coordinator with one port, to which requests may be queued or not.
    #[derive(Default)]
    struct OnePort {
        is_full: AtomicBool,
        held: Mutex<Option<ClaimId>>,
    }

    impl Group for OnePort {
        fn tell(&self, request: &[u8]) -> Result<()> {
            match self.is_full.load(Ordering::Relaxed) {
                true => {
                    let (what, limit) = ("waiting requests", 1);
                    let cause = Cause::LimitReached { what, limit };
                    Err(Error::new(Step::OpenDevice, cause))
                }
                false => self.request(request, COORDINATOR_TIMEOUT).map(drop),
            }
        }

        fn request(&self, request: &[u8], _: Duration) -> Result<Vec<u8>> {
            let mut held = self.held.lock();
            Ok(match Request::decode(request).unwrap() {
                Request::Release(released) => {
                    *held = held.filter(|id| !released.contains(id));
                    Vec::new()
                }
                Request::Claim(id, claim) if *held.get_or_insert(id) == id => {
                    let port = claim.address.port();
                    Response::Granted { port }.encode()
                }
                Request::Claim(..) => {
                    let holder = Some(holder_name(OWN));
                    Response::refusal(&Cause::AddressInUse { holder }).encode()
                }
            })
        }

        fn epoch(&self) -> u64 {
            0
        }

        fn block(&self) -> Block {
            OWN
        }
    }

    const CLAIM: PortClaim = PortClaim {
        port_space: PortSpace::Tcp,
        address: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7471),
        reuse_addr: false,
        af_only: false,
        listening: false,
    };

    #[test]
    fn a_port_is_claimed_after_its_release_even_if_no_more_releases_may_wait() {
        let (claims, group) = (Claims::default(), OnePort::default());
        let take = || claims.take(&group, CLAIM, Purpose::Bind, COORDINATOR_TIMEOUT);
        let (id, _) = take().unwrap();
        group.is_full.store(true, Ordering::Relaxed);
        claims.release(&group, id);
        take().unwrap();
        assert_eq!(claims.next_timeout(), None);
    }

    #[test]
    fn a_release_that_was_not_sent_is_sent_later_by_itself() {
        let (claims, group) = (Claims::default(), OnePort::default());
        let (id, _) = claims
            .take(&group, CLAIM, Purpose::Bind, COORDINATOR_TIMEOUT)
            .unwrap();
        assert_eq!(claims.next_timeout(), None);
        group.is_full.store(true, Ordering::Relaxed);
        claims.release(&group, id);
        assert!(claims.next_timeout().is_some());
        claims.give_back_old(&group);
        assert!(group.held.lock().is_some());
        group.is_full.store(false, Ordering::Relaxed);
        claims.give_back_old(&group);
        assert_eq!(*group.held.lock(), None);
        assert_eq!(claims.next_timeout(), None);
    }

    const OWN: Block = Block::new(1).unwrap();
    const OTHER: Block = Block::new(2).unwrap();

    /// Encodes and decodes a refusal, and returns its cause.
    fn told(cause: &Cause) -> Cause {
        let bytes = Response::refusal(cause).encode();
        let Some(Response::Refused { errno, holder }) = Response::decode(&bytes) else {
            panic!("{bytes:?} is not a refusal");
        };
        refused(OWN, errno, holder)
    }

    #[test]
    fn a_port_in_use_names_its_holder_and_what_lists_it_or_this_process() {
        let held = |by: Option<&str>| Cause::AddressInUse {
            holder: by.map(str::to_owned),
        };
        assert_eq!(
            told(&held(Some(&holder_name(OTHER)))),
            held(Some("the process with block 2 (`portolan ps` lists them)"))
        );
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
