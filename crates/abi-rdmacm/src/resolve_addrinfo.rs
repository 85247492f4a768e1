//! Looks up names for an id without waiting (`rdma_resolve_addrinfo`), and writes the program's events.

#![allow(unsafe_code, reason = "pointers of C programs and libibverbs")]

use std::time::Duration;

use once_cell::race::OnceBool;
use portolan::resolve::Flags;
use portolan_abi_layout::pointers::{In, Out, Text};
use portolan_addrinfo::background::{Outcome, start_addrinfo};
use portolan_kernel::raw::{Fields, WriteCmEvent};
use portolan_wire::Gid;
use rustix::io::Errno;

use crate::guard::Result;
use crate::id::{Id, WeakId, get};
use crate::layout::AddrInfo;
use crate::layout::event_type::{INTERNAL, USER};
use crate::names::{Question, chain, machine};
use crate::reach;
use crate::sync::{Left, begun};

/// Time limit of a look-up: libc's resolver never takes longer (resolv.conf(5): 3 servers, at most 5 attempts at each and 30 s
/// for each, and two questions).
const TIMEOUT: Duration = Duration::from_secs(900);
/// A number that no id has.
const NO_ID: u32 = u32::MAX;

/// `rdma_resolve_addrinfo`.
///
/// # Errors
/// `EBUSY` while a look-up of the id runs or its result is not taken. `EOPNOTSUPP` if events cannot be written to ids
/// (Linux before 6.18), and for the subnet administrator (`RAI_SA`) with a node, or on a port that is not InfiniBand.
/// `EINVAL` for the subnet administrator on an id without a device. Other errors for invalid hints, and those of the rdma_cm
/// device.
pub(crate) fn resolve(id: &Id, node: Text, service: Text, hints: In<AddrInfo>) -> Result<Left> {
    let question = Question::read(&node, &service, &hints);
    let question = question.map_err(|error| Errno::from_raw_os_error(error.errno()))?;
    check_writes(id)?;
    let port = match &question.hints {
        Some(hints) if hints.flags.contains(Flags::SA) => Some(administrated_port(id)?),
        _ => None,
    };
    let lookup = &id.own().lookup;
    let number = lookup.begin()?;
    let machine = machine()?.at_port(port);
    let started = begun(id, |_| {
        let done = {
            let id = id.downgrade();
            move |outcome| end(&id, number, outcome)
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

/// Ends a look-up: writes its event to the id's channel, if the id still exists.
fn end(id: &WeakId, number: u64, outcome: Outcome) {
    if let Some(id) = id.upgrade() {
        let write = |status, arg| write(&id, INTERNAL, status, arg);
        id.own().lookup.end(number, outcome, write);
    }
}

/// `rdma_query_addrinfo`.
///
/// # Errors
/// `EINVAL` for null; `ENOENT` if nothing was found, the look-up still runs, or the result was taken already.
pub(crate) fn query(id: &Id, list: Out<*mut AddrInfo>) -> Result<()> {
    list.check()?;
    let found = id.own().lookup.take_result().ok_or(Errno::NOENT)?;
    list.write(chain(found));
    Ok(())
}

/// `rdma_write_cm_event`.
///
/// # Errors
/// `EINVAL` for an event that programs may not write, and on Linux before 6.18; the kernel's.
pub(crate) fn write_event(id: &Id, event: u32, status: i32, arg: u64) -> Result<()> {
    if event != USER {
        return Err(Errno::INVAL);
    }
    write(id, event, status, arg)
}

fn write(id: &Id, event: u32, status: i32, arg: u64) -> Result<()> {
    id.commands()?.command(&WriteCmEvent {
        id: id.handle(),
        event,
        status: status.cast_unsigned(),
        arg,
        ..WriteCmEvent::zeroed()
    })
}

/// Checks that the end of a look-up can be reported. It writes to an id that cannot exist: a device that has the
/// command answers that the id is missing.
fn check_writes(id: &Id) -> Result<()> {
    static KNOWN: OnceBool = OnceBool::new();
    let commands = id.commands()?;
    let is_known = KNOWN.get_or_try_init(|| {
        has_command(commands.command(&WriteCmEvent {
            id: NO_ID,
            event: USER,
            ..WriteCmEvent::zeroed()
        }))
    })?;
    match is_known {
        true => Ok(()),
        false => Err(Errno::OPNOTSUPP),
    }
}

/// Whether the device has the command that it has answered.
///
/// # Errors
/// The answer, if it is another one.
fn has_command(answer: Result<()>) -> Result<bool> {
    match answer {
        Ok(()) | Err(Errno::NOENT) => Ok(true),
        Err(Errno::INVAL | Errno::NOSYS) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// The GID of the port whose administrator is asked. The id must be bound to an InfiniBand port.
fn administrated_port(id: &Id) -> Result<Gid> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_answer_about_the_command_or_its_id_says_whether_the_device_has_the_command() {
        for (errno, has) in [
            (Errno::NOENT, Ok(true)),
            // Linux: a number beyond the table, and a gap in it.
            (Errno::INVAL, Ok(false)),
            (Errno::NOSYS, Ok(false)),
            (Errno::NOMEM, Err(Errno::NOMEM)),
            (Errno::ACCESS, Err(Errno::ACCESS)),
            (Errno::INTR, Err(Errno::INTR)),
        ] {
            assert_eq!(has_command(Err(errno)), has, "{errno}");
        }
    }
}
