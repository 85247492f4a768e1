//! Events: taken from the kernel, completed by the library's own work, and acknowledged by the program.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;

use portolan_kernel::raw::{self, EventResp, Fields};
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::Errno;

use crate::guard::{Result, caught, errno_of, failed};
use crate::id::{self, Id, Target, get, set};
use crate::layout::event_type::*;
use crate::layout::{CmEvent, CmId, ConnParam, Ece, EventChannel, EventParam, UdParam};
use crate::multicast::Membership;
use crate::{channel, connect, endpoint, lookup, qp};

/// An event; C's structure is its beginning.
#[repr(C)]
struct Whole {
    c: CmEvent,
    of: Target,
    private_data: [u8; raw::PRIVATE_DATA_LEN],
}

/// Waits for the channel's next event that is the program's business, unless the descriptor is non-blocking. The thread
/// may be cancelled while it waits: nothing that is to be dropped may live in the frames above, and nothing may catch
/// panics there.
///
/// # Errors
/// `EAGAIN`, `EINTR`, and those of the descriptor.
fn wait(channel: *mut EventChannel) -> Result<*mut CmEvent> {
    loop {
        let found = match caught(|| waiting(channel))? {
            Waiting::Device(fd) => raw::wait_event(fd)?,
            Waiting::Readable(fd) => {
                raw::readable(fd)?;
                caught(|| channel::hold(channel)?.get_event())?
            }
            Waiting::No => caught(|| channel::hold(channel)?.get_event())?,
        };
        let event = caught(|| Ok(interpret(&found)))?;
        if let Some(event) = event.map(Box::into_raw) {
            return Ok(event.cast());
        }
    }
}

/// How a channel's events are waited for.
#[derive(Clone, Copy)]
enum Waiting {
    /// The kernel's device waits itself.
    Device(RawFd),
    /// An event is there once this is readable.
    Readable(RawFd),
    /// The program does not want to.
    No,
}

fn waiting(channel: *mut EventChannel) -> Result<Waiting> {
    let commands = channel::hold(channel)?;
    let fd = commands.as_fd().as_raw_fd();
    Ok(match fcntl_getfl(&*commands)?.contains(OFlags::NONBLOCK) {
        true => Waiting::No,
        false if commands.is_kernels() => Waiting::Device(fd),
        false => Waiting::Readable(fd),
    })
}

/// `rdma_get_cm_event`.
///
/// # Safety
/// The place is null or good to write to.
pub(crate) unsafe fn get(channel: *mut EventChannel, into: *mut *mut CmEvent) -> c_int {
    let ready = caught(|| {
        if into.is_null() {
            return Err(Errno::INVAL);
        }
        if !matches!(waiting(channel)?, Waiting::No) {
            channel::wait_handed_over(channel);
        }
        Ok(())
    });
    let done = ready.and_then(|()| wait(channel)).and_then(|event| {
        caught(|| {
            // SAFETY: just taken.
            let taken = unsafe { &*event };
            if taken.event == CONNECT_REQUEST {
                // SAFETY: an id that was just made.
                channel::note_request(channel, unsafe { Id::made(taken.id) }?);
            }
            // SAFETY: as the caller promises; null was refused.
            unsafe { into.write(event) };
            Ok(())
        })
    });
    done.map_or_else(failed, |()| 0)
}

/// `rdma_ack_cm_event`.
///
/// # Safety
/// The event is null, or the program was given it and it was not acknowledged yet.
pub(crate) unsafe fn acknowledge(event: *mut CmEvent) -> Result<()> {
    if event.is_null() {
        return Err(Errno::INVAL);
    }
    // SAFETY: as the caller promises.
    let event = unsafe { Box::from_raw(event.cast::<Whole>()) };
    event.of.complete();
    Ok(())
}

impl Target {
    fn complete(&self) {
        match self {
            Self::Id(id) => id.complete_event(),
            Self::Membership(membership) => membership.id.complete_membership_event(membership),
        }
    }
}

/// Acknowledges the event that a synchronous id keeps.
pub(crate) fn drop_kept(id: Id) {
    let event = get!(id, event);
    set!(id, event = std::ptr::null_mut());
    // SAFETY: the library put it there when it took it, or nothing is there.
    let _ = unsafe { acknowledge(event) };
}

/// What is left of a call once its command was carried out.
#[derive(Clone, Copy)]
pub(crate) enum Left {
    Nothing,
    /// The event of a synchronous id.
    Event(Id),
}

/// Runs what writes a command whose answer is an event. Another id than a synchronous one is not touched after the
/// command: whoever takes the event may have destroyed it.
///
/// # Errors
/// Those of `command`.
pub(crate) fn begun(id: Id, command: impl FnOnce(&raw::Channel) -> Result<()>) -> Result<Left> {
    let is_sync = id.is_sync();
    command(&*id.commands()?)?;
    Ok(if is_sync {
        Left::Event(id)
    } else {
        Left::Nothing
    })
}

/// Runs the body of a call, and [`settle`]s what is left of it: 0, or -1 and `errno`.
pub(crate) fn settled(body: impl FnOnce() -> Result<Left>) -> c_int {
    caught(body).and_then(settle).map_or_else(failed, |()| 0)
}

/// Has a synchronous id wait for the event of its call, which it then keeps. The thread may be cancelled meanwhile, as in
/// [`wait`].
///
/// # Errors
/// `ECONNREFUSED` if it was rejected; otherwise what the event's status says.
pub(crate) fn settle(left: Left) -> Result<()> {
    let Left::Event(id) = left else {
        return Ok(());
    };
    let channel = caught(|| {
        drop_kept(id);
        Ok(get!(id, channel))
    })?;
    let waited = wait(channel);
    caught(|| match waited {
        Ok(event) => {
            set!(id, event = event);
            // SAFETY: just taken.
            outcome(unsafe { &*event })
        }
        Err(errno) => {
            id.own().lookup.give_up();
            Err(errno)
        }
    })
}

/// An event's status as an error.
pub(crate) fn outcome(event: &CmEvent) -> Result<()> {
    match (event.event, event.status) {
        (_, 0) => Ok(()),
        (REJECTED, _) => Err(Errno::CONNREFUSED),
        (_, status) => Err(errno_of(status.saturating_abs())),
    }
}

/// The event for the program; none if it is nothing to it.
fn interpret(raw: &EventResp) -> Option<Box<Whole>> {
    // Until an accept has told the kernel the name of an id, its events carry none.
    let target = match raw.uid {
        0 => id::by_handle(raw.id).map(Target::Id),
        uid => id::target(uid),
    }?;
    if raw.uid == 0 && raw.event != ESTABLISHED {
        target.complete();
        return None;
    }
    let mut event = Box::new(Whole {
        c: CmEvent {
            id: target.id().as_c(),
            event: raw.event,
            status: raw.status.cast_signed(),
            ..CmEvent::zeroed()
        },
        of: target.clone(),
        private_data: [0; raw::PRIVATE_DATA_LEN],
    });
    let is_for_program = match &target {
        Target::Id(id) => event.complete_of_id(*id, raw),
        Target::Membership(membership) => {
            event.complete_of_membership(membership, raw);
            true
        }
    };
    if !is_for_program {
        target.complete();
        return None;
    }
    Some(event)
}

impl Target {
    fn id(&self) -> Id {
        match self {
            Self::Id(id) => *id,
            Self::Membership(membership) => membership.id,
        }
    }
}

impl Whole {
    /// Does the library's part; false if the event is nothing to the program.
    fn complete_of_id(&mut self, id: Id, raw: &EventResp) -> bool {
        match raw.event {
            ADDR_RESOLVED => self.fail_as(ADDR_ERROR, address_resolved(id)),
            ROUTE_RESOLVED => self.fail_as(ROUTE_ERROR, route_resolved(id)),
            CONNECT_REQUEST => {
                self.take_param(id, raw);
                let Ok(child) = connect_request(id, raw) else {
                    return false;
                };
                self.c.listen_id = self.c.id;
                self.c.id = child.as_c();
            }
            CONNECT_RESPONSE => {
                self.take_param(id, raw);
                self.connect_response(id, raw);
            }
            REJECTED | DISCONNECTED if id.state().connect_failed => return false,
            REJECTED => {
                self.take_param(id, raw);
                // Its error would hide the rejection.
                let _ = qp::to_error(id);
            }
            INTERNAL => match id.own().lookup.take_event(lookup::argument(raw)) {
                Some(event) => self.c.event = event,
                None => return false,
            },
            USER => {
                self.c.param = EventParam {
                    arg: lookup::argument(raw),
                };
            }
            _ => self.take_param(id, raw),
        }
        true
    }

    fn complete_of_membership(&mut self, membership: &Arc<Membership>, raw: &EventResp) {
        let param = self.ud_param(raw);
        self.c.param.ud = UdParam {
            private_data: membership.context.cast(),
            private_data_len: 0,
            ..param
        };
        if raw.event == MULTICAST_JOIN {
            self.fail_as(MULTICAST_ERROR, membership.joined(&param));
        }
    }

    /// What comes of it if the library's own part failed.
    fn fail_as(&mut self, event: u32, done: Result<()>) {
        if let Err(errno) = done {
            self.c.event = event;
            self.c.status = -errno.raw_os_error();
        }
    }

    /// With a queue pair the library goes on by itself; without one the program does.
    fn connect_response(&mut self, id: Id, raw: &EventResp) {
        let remote = ece(raw);
        id.state().remote_ece = remote;
        if get!(id, qp).is_null() {
            return;
        }
        self.c.event = ESTABLISHED;
        let done = connect::finish(id, remote);
        if done.is_err() {
            let _ = qp::to_error(id);
            id.state().connect_failed = true;
        }
        self.fail_as(CONNECT_ERROR, done);
    }

    fn take_param(&mut self, id: Id, raw: &EventResp) {
        self.c.param = match id.is_datagram() {
            true => EventParam {
                ud: self.ud_param(raw),
            },
            false => EventParam {
                conn: self.conn_param(raw),
            },
        };
    }

    fn conn_param(&mut self, raw: &EventResp) -> ConnParam {
        let conn = raw::ConnParam::from_bytes(&raw.param);
        ConnParam {
            private_data: self.keep(&conn.private_data, conn.private_data_len),
            private_data_len: conn.private_data_len,
            responder_resources: conn.responder_resources,
            initiator_depth: conn.initiator_depth,
            flow_control: conn.flow_control,
            retry_count: conn.retry_count,
            rnr_retry_count: conn.rnr_retry_count,
            srq: conn.srq,
            qp_num: conn.qp_num,
        }
    }

    fn ud_param(&mut self, raw: &EventResp) -> UdParam {
        let ud = raw::UdParam::from_bytes(&raw.param);
        UdParam {
            private_data: self.keep(&ud.private_data, ud.private_data_len),
            private_data_len: ud.private_data_len,
            ah_attr: (&ud.ah_attr).into(),
            qp_num: ud.qp_num,
            qkey: ud.qkey,
        }
    }

    /// Private data lives as long as its event; none is null.
    fn keep(&mut self, data: &[u8; raw::PRIVATE_DATA_LEN], length: u8) -> *const c_void {
        self.private_data = *data;
        match length {
            0 => std::ptr::null(),
            _ => self.private_data.as_ptr().cast(),
        }
    }
}

fn address_resolved(id: Id) -> Result<()> {
    id.query_addresses()?;
    // An address without a device is of no use to a program.
    id.device()?;
    match id.is_infiniband() {
        true => id.query_gids(),
        false => Ok(()),
    }
}

fn route_resolved(id: Id) -> Result<()> {
    match id.is_infiniband() {
        true => id.query_paths(),
        false => Ok(()),
    }
}

/// A new id for a peer that calls a listener.
fn connect_request(listener: Id, raw: &EventResp) -> Result<Id> {
    let child = Id::new(get!(listener, channel), false);
    set!(child, context = get!(listener, context));
    set!(child, ps = get!(listener, ps));
    set!(child, qp_type = get!(listener, qp_type));
    child.set_handle(raw.id);
    let described = describe_child(listener, child, raw);
    if described.is_err() {
        // The kernel's half goes as well: the peer hears that nobody wants it.
        let _ = endpoint::destroy_child(child);
    }
    described.map(|()| child)
}

fn describe_child(listener: Id, child: Id, raw: &EventResp) -> Result<()> {
    if listener.is_sync() {
        endpoint::migrate(child, std::ptr::null_mut::<EventChannel>())?;
    }
    child.query_addresses()?;
    if child.is_infiniband() {
        child.query_gids()?;
        child.query_paths()?;
    }
    let mut state = child.state();
    state.remote_ece = ece(raw);
    if !listener.is_datagram() {
        let conn = raw::ConnParam::from_bytes(&raw.param);
        // What the peer wants; the accept bounds it by what the device has.
        state.initiator_depth = state.initiator_depth.min(conn.initiator_depth);
        state.responder_resources = state.responder_resources.min(conn.responder_resources);
    }
    Ok(())
}

fn ece(raw: &EventResp) -> Ece {
    Ece {
        vendor_id: raw.ece.vendor_id,
        options: raw.ece.attr_mod,
        comp_mask: 0,
    }
}

/// `rdma_get_request`: the next caller of a synchronous listener, with a queue pair if the listener says which. `EINVAL`
/// if the listener has a channel, or its event is another.
///
/// # Safety
/// The listener is the program's, the place null or good to write to.
pub(crate) unsafe fn get_request(listener: *mut CmId, into: *mut *mut CmId) -> c_int {
    let begun = caught(|| {
        if into.is_null() {
            return Err(Errno::INVAL);
        }
        // SAFETY: as the caller promises.
        let listener = unsafe { Id::of(listener) }?;
        if !listener.is_sync() {
            return Err(Errno::INVAL);
        }
        drop_kept(listener);
        Ok((listener, get!(listener, channel)))
    });
    let done = begun.and_then(|(listener, channel)| {
        let event = wait(channel)?;
        caught(|| {
            let child = take_request(listener, event)?;
            // SAFETY: as the caller promises; null was refused.
            unsafe { into.write(child) };
            Ok(())
        })
    });
    done.map_or_else(failed, |()| 0)
}

/// The new id of a listener's event, which was just taken.
fn take_request(listener: Id, event: *mut CmEvent) -> Result<*mut CmId> {
    // SAFETY: just taken.
    let child = match request_of(unsafe { &*event }) {
        Ok(child) => child,
        Err(errno) => {
            set!(listener, event = event);
            return Err(errno);
        }
    };
    let template = listener.state().qp_init_attr;
    let pd = get!(listener, pd);
    let prepared = template.map_or(Ok(()), |mut attr| qp::create(child, pd, &mut attr));
    if let Err(errno) = prepared {
        // Nobody else could: the program never hears of the child.
        // SAFETY: just taken, and kept nowhere.
        let _ = unsafe { acknowledge(event) };
        let _ = endpoint::destroy_child(child);
        return Err(errno);
    }
    set!(child, event = event);
    Ok(child.as_c())
}

/// The caller that a listener's event is of.
fn request_of(event: &CmEvent) -> Result<Id> {
    outcome(event)?;
    if event.event != CONNECT_REQUEST {
        return Err(Errno::INVAL);
    }
    // SAFETY: the event's id was just made.
    unsafe { Id::made(event.id) }
}
