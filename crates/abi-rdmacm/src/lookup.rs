//! Names looked up for an id without waiting (`rdma_resolve_addrinfo`), and events that the program writes.

use std::ffi::c_char;
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use portolan::provider::{self, Choice};
use portolan::resolve::{AddrInfo as Found, Flags, Machine};
use portolan_addrinfo::background::{Outcome, start_addrinfo};
use portolan_addrinfo::names::pool::Pending;
use portolan_kernel::raw::{self, Fields, WriteCmEvent};
use portolan_wire::Gid;
use rustix::io::Errno;

use crate::event::Left;
use crate::guard::Result;
use crate::id::{Id, get};
use crate::layout::AddrInfo;
use crate::layout::event_type::{ADDRINFO_ERROR, ADDRINFO_RESOLVED, INTERNAL, USER};
use crate::verbs::rdma_cm;
use crate::{event, lock, names, reach};

/// How long a look-up may take: as long as libc's resolver takes at most by itself (resolv.conf(5): 3 servers, 2
/// attempts at each, 5 s each).
const TIMEOUT: Duration = Duration::from_secs(30);
/// An internal event's argument says in these bits what it stands for; those above have the look-up's number.
const STANDS_FOR_BITS: u32 = 8;
/// No id has this number.
const NO_ID: u32 = u32::MAX;

/// Where an id's look-up stands. Shared with the thread that looks up, which may outlast the id.
#[derive(Default)]
pub(crate) struct Lookup(Mutex<Inner>);

/// Held while the id's channel is used or changed on the look-up's behalf.
#[derive(Default)]
pub(crate) struct Inner {
    /// None once the id is about to go.
    id: Option<Id>,
    /// Of the look-up that is under way, or was last: the event of another is nobody's.
    number: u64,
    stage: Stage,
}

#[derive(Default)]
enum Stage {
    /// None is under way.
    #[default]
    Idle,
    /// It is under way; dropping what is held ends it.
    Started(#[allow(dead_code, reason = "held for its drop")] Option<Pending>),
    /// It has ended, and its event waits to be taken.
    Ended(Outcome),
    /// Its event was taken, and its result waits to be.
    Ready(Vec<Found>),
}

/// The look-ups of this machine, with the devices of the libibverbs that is loaded.
pub(crate) fn machine() -> Machine {
    static PINNED: OnceLock<()> = OnceLock::new();
    PINNED.get_or_init(|| {
        let choice = match rdma_cm() {
            Some(_) => Choice::Software,
            None => Choice::Kernel,
        };
        provider::pin(Some(choice));
    });
    Machine::new()
}

/// `rdma_resolve_addrinfo`.
///
/// # Errors
/// `EBUSY` while a look-up of the id is under way or its result was not taken; `EOPNOTSUPP` where events cannot be
/// written to ids (Linux before 6.18), and for the subnet administrator (`RAI_SA`) with a node, or on a port that is not
/// InfiniBand's; `EINVAL` for it on an id without device; what is wrong with the question.
///
/// # Safety
/// Null or C's: texts, and a structure with what it says.
pub(crate) unsafe fn resolve(
    id: Id,
    node: *const c_char,
    service: *const c_char,
    hints: *const AddrInfo,
) -> Result<Left> {
    // SAFETY: as the caller promises.
    let question = unsafe { names::Question::read(node, service, hints) };
    let question = question.map_err(|error| Errno::from_raw_os_error(error.errno()))?;
    check_writes(id)?;
    let port = match &question.hints {
        Some(hints) if hints.flags.contains(Flags::SA) => Some(administrated_port(id)?),
        _ => None,
    };
    let lookup = id.own().lookup.clone();
    let number = lookup.begin(id)?;
    let machine = machine().at_port(port);
    let started = event::begun(id, |_| {
        let done = {
            let lookup = lookup.clone();
            move |outcome| lookup.end(number, outcome)
        };
        let (node, service) = (question.node, question.service);
        let hints = question.hints.as_ref();
        let pending = start_addrinfo(machine, node, service, hints, TIMEOUT, done);
        let pending = pending.map_err(|error| Errno::from_raw_os_error(error.errno()))?;
        lookup.hold(number, pending);
        Ok(())
    });
    started.inspect_err(|_| lookup.abandon(number))
}

/// `rdma_query_addrinfo`.
///
/// # Errors
/// `EINVAL` for null; `ENOENT` if nothing was found, not yet, or it was taken already.
///
/// # Safety
/// The place is null or good to write to.
pub(crate) unsafe fn query(id: Id, list: *mut *mut AddrInfo) -> Result<()> {
    if list.is_null() {
        return Err(Errno::INVAL);
    }
    let found = id.own().lookup.take_result().ok_or(Errno::NOENT)?;
    // SAFETY: as the caller promises.
    unsafe { list.write(names::chain(found)) };
    Ok(())
}

/// `rdma_write_cm_event`.
///
/// # Errors
/// `EINVAL` for another event than the program's own, and from Linux before 6.18; the kernel's.
pub(crate) fn write_event(id: Id, event: u32, status: i32, arg: u64) -> Result<()> {
    if event != USER {
        return Err(Errno::INVAL);
    }
    write(id, event, status, arg)
}

fn write(id: Id, event: u32, status: i32, arg: u64) -> Result<()> {
    id.commands()?.command(&WriteCmEvent {
        id: id.handle(),
        event,
        status: status.cast_unsigned(),
        arg,
        ..WriteCmEvent::zeroed()
    })
}

/// That the end of a look-up can be told: asked by an id that cannot exist, which a device that knows the command
/// misses.
fn check_writes(id: Id) -> Result<()> {
    static KNOWN: OnceLock<bool> = OnceLock::new();
    let commands = id.commands()?;
    let is_known = *KNOWN.get_or_init(|| {
        let written = commands.command(&WriteCmEvent {
            id: NO_ID,
            event: USER,
            ..WriteCmEvent::zeroed()
        });
        written == Err(Errno::NOENT)
    });
    match is_known {
        true => Ok(()),
        false => Err(Errno::OPNOTSUPP),
    }
}

/// The GID of the port whose administrator is asked: the id must be bound to one of InfiniBand.
fn administrated_port(id: Id) -> Result<Gid> {
    id.device()?;
    let context = get!(id, verbs);
    // SAFETY: the id's open device.
    let port = unsafe { reach::query_port(context, get!(id, port_num)) }?;
    if !reach::is_infiniband(&port) {
        return Err(Errno::OPNOTSUPP);
    }
    id.query_gids()?;
    Ok(get!(id, route.addr.addr.sgid).into())
}

impl Lookup {
    fn begin(&self, id: Id) -> Result<u64> {
        let mut inner = lock(&self.0);
        if !matches!(inner.stage, Stage::Idle) {
            return Err(Errno::BUSY);
        }
        inner.id = Some(id);
        inner.number += 1;
        inner.stage = Stage::Started(None);
        Ok(inner.number)
    }

    /// Keeps what ends the look-up early, unless it has ended.
    fn hold(&self, number: u64, pending: Option<Pending>) {
        let mut inner = lock(&self.0);
        if inner.number == number
            && let Stage::Started(held) = &mut inner.stage
        {
            *held = pending;
        }
    }

    /// Gives a look-up up: its event, should it come, is nobody's.
    fn abandon(&self, number: u64) {
        let mut inner = lock(&self.0);
        if inner.number == number && !matches!(inner.stage, Stage::Ready(_)) {
            let given_up = std::mem::take(&mut inner.stage);
            drop(inner);
            drop(given_up);
        }
    }

    /// Gives the look-up up that is under way.
    pub(crate) fn give_up(&self) {
        let number = lock(&self.0).number;
        self.abandon(number);
    }

    /// The look-up has ended: its event goes to the id's channel, if there is still an id.
    fn end(&self, number: u64, outcome: Outcome) {
        let mut inner = lock(&self.0);
        let Some(id) = inner.id else { return };
        if inner.number != number || !matches!(inner.stage, Stage::Started(_)) {
            return;
        }
        let (event, status) = match &outcome {
            Ok(_) => (ADDRINFO_RESOLVED, 0),
            Err(error) => (ADDRINFO_ERROR, -error.errno()),
        };
        let former = std::mem::replace(&mut inner.stage, Stage::Ended(outcome));
        let arg = number << STANDS_FOR_BITS | u64::from(event);
        // The lock holds the id and its channel; the event cannot be understood before it is given back.
        if write(id, INTERNAL, status, arg).is_err() {
            inner.stage = Stage::Idle;
        }
        drop(inner);
        drop(former);
    }

    /// An internal event is taken: what it is to the program, or none if its look-up was given up.
    pub(crate) fn take_event(&self, arg: u64) -> Option<u32> {
        let mut inner = lock(&self.0);
        if inner.number != arg >> STANDS_FOR_BITS {
            return None;
        }
        match std::mem::take(&mut inner.stage) {
            Stage::Ended(Ok(found)) => {
                inner.stage = Stage::Ready(found);
                Some(ADDRINFO_RESOLVED)
            }
            Stage::Ended(Err(_)) => Some(ADDRINFO_ERROR),
            other => {
                inner.stage = other;
                None
            }
        }
    }

    fn take_result(&self) -> Option<Vec<Found>> {
        let mut inner = lock(&self.0);
        match std::mem::take(&mut inner.stage) {
            Stage::Ready(found) => Some(found),
            other => {
                inner.stage = other;
                None
            }
        }
    }

    /// The id is about to go: nothing is written to it any more.
    pub(crate) fn close(&self) {
        let mut inner = lock(&self.0);
        inner.id = None;
        let last = std::mem::take(&mut inner.stage);
        drop(inner);
        // Not under the lock: it may wait for the thread that looks up.
        drop(last);
    }

    /// Keeps the id's channel from being written to, while it is changed.
    pub(crate) fn pause(&self) -> MutexGuard<'_, Inner> {
        lock(&self.0)
    }
}

/// The argument of an event that was written.
pub(crate) fn argument(raw: &raw::EventResp) -> u64 {
    u64::from_bytes(&raw.param)
}
