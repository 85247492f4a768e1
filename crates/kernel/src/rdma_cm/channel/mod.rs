//! Event channels: open descriptors of the rdma_cm device, and the commands on them.

use portolan_threads::lock::Mutex;
use std::any::Any;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use portolan_provider::cm::{
    CmEvent, ConnParam, Ece, EventType, IdAddresses, IdNumber, IdOption, JoinKind,
    MembershipNumber, PathRecord, Service, UserId,
};
use portolan_provider::number_map::NumberSet;
use portolan_provider::traits::CmChannel;
use portolan_provider::verbs::{QpAttr, QpAttrMask, QpState, QpType};
use portolan_provider::{Cause, Error, Result, Step};
use portolan_wire::cm::RejectReason;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use super::abi::*;
use super::fields::Fields;
use super::param::{abi_ece, conn_param, internal_argument, padded, timeout_ms, too_long};
use super::{ConnectionManager, address, event, query};
use crate::error::{refused, unknown_id};
use crate::sys::rdma_cm::{Channel, Command};

/// An event channel of the kernel. Its descriptor is the device's: the user may poll it and set `O_NONBLOCK`.
#[derive(Debug)]
pub(crate) struct KernelChannel {
    cm: Arc<ConnectionManager>,
    device: Channel,
    taking: Mutex<Taking>,
    ids: Mutex<NumberSet<IdNumber>>,
}

/// Locked from the check for an event until the event is decoded, and while events are removed because an id is
/// destroyed or moved. Otherwise a take could block on an event that was removed.
#[derive(Debug, Default)]
struct Taking {
    /// How often events were taken or removed.
    turns: u64,
    /// Threads that block in the kernel without a timeout and without the lock. A pending event may already be theirs.
    waiting: u32,
}

impl KernelChannel {
    pub(super) fn new(cm: Arc<ConnectionManager>, device: Channel) -> Self {
        Self {
            cm,
            device,
            taking: Mutex::default(),
            ids: Mutex::default(),
        }
    }

    /// The descriptor, unless this process is a forked child.
    fn device(&self, step: Step) -> Result<&Channel> {
        self.cm.check_process(step)?;
        Ok(&self.device)
    }

    fn run<C: Command>(&self, step: Step, name: &'static str, command: &C) -> Result<()> {
        let done = self.device(step)?.command(command);
        done.map_err(|errno| refused(step, name, errno))
    }

    /// Whether an event is pending or arrives within `timeout`.
    fn is_readable(&self, timeout: Option<Duration>) -> Result<bool> {
        let mut fds = [PollFd::new(&self.device, PollFlags::IN)];
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(timeout.subsec_nanos()),
        });
        match rustix::event::poll(&mut fds, timeout.as_ref()) {
            Ok(ready) => Ok(ready > 0),
            Err(Errno::INTR) => Ok(false),
            Err(errno) => Err(refused(Step::Event, "poll", errno)),
        }
    }

    fn is_nonblocking(&self) -> Result<bool> {
        let flags = rustix::fs::fcntl_getfl(&self.device);
        let flags = flags.map_err(|errno| refused(Step::Event, "fcntl", errno))?;
        Ok(flags.contains(rustix::fs::OFlags::NONBLOCK))
    }

    /// Takes a pending event. If the caller saw one after `turns` turns and the number has not changed, the check is
    /// skipped.
    fn take_unless_gone(&self, turns: Option<u64>) -> Result<CmEvent> {
        let device = self.device(Step::Event)?;
        let mut seen = turns;
        loop {
            // Hold the lock until the event is decoded: once its id is destroyed, the parameters' type and the
            // request's listener are unknown.
            let mut taking = self.taking.lock();
            if seen != Some(taking.turns) && !self.is_readable(Some(Duration::ZERO))? {
                return Err(Error::new(Step::Event, Cause::WouldBlock));
            }
            seen = None;
            if taking.waiting > 0 {
                // The waiting threads were woken for this event. Let them run; they leave the rest to others.
                drop(taking);
                std::thread::yield_now();
                continue;
            }
            taking.turns += 1;
            let raw = device.ask(number::GET_EVENT, GetEvent::zeroed(), &EventResp::zeroed());
            let raw = raw.map_err(|errno| refused(Step::Event, "GET_EVENT", errno))?;
            if let Some(event) = self.complete(&raw)? {
                return Ok(event);
            }
        }
    }

    /// Waits in the kernel, as librdmacm does: one system call per event instead of a poll and a read.
    fn take_in_the_end(&self) -> Result<CmEvent> {
        let device = self.device(Step::Event)?;
        loop {
            self.taking.lock().waiting += 1;
            let raw = device.get_event();
            let mut taking = self.taking.lock();
            taking.waiting -= 1;
            match raw {
                Ok(raw) => {
                    taking.turns += 1;
                    if let Some(event) = self.complete(&raw)? {
                        return Ok(event);
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Err(Error::new(Step::Event, Cause::WouldBlock)),
                Err(errno) => return Err(refused(Step::Event, "GET_EVENT", errno)),
            }
        }
    }

    /// Stores the id's addresses, which the kernel forgets when the device is removed. They are queried often, and
    /// errors report them after the end. GIDs are queried on demand.
    fn settle_addresses(&self, id: IdNumber) {
        // An id that was destroyed has no addresses: querying them fails.
        let known = query::addresses(&self.device, id).ok();
        self.cm.ids.note_addresses(id, known);
    }

    /// Adds what the kernel does not report: the parameters' type, and the id of a group's event. `None` if the id was
    /// destroyed before its event was taken.
    fn complete(&self, raw: &EventResp) -> Result<Option<CmEvent>> {
        let owner = self.cm.ids.owner(UserId(raw.uid));
        let qp_type = owner.map_or(QpType::Rc, |(_, service)| service.qp_type);
        let mut event = event::decode(raw, qp_type)?;
        match (event.event, owner) {
            // The listener was destroyed, but the id that its request created was not.
            (EventType::ConnectRequest, None) => {}
            (_, None) => return Ok(None),
            (EventType::ConnectRequest, Some((_, service))) => {
                self.cm.ids.insert(event.id, None, service);
                self.ids.lock().insert(event.id);
                self.settle_addresses(event.id);
            }
            (EventType::AddrResolved, _) => self.settle_addresses(event.id),
            (EventType::MulticastJoin | EventType::MulticastError, Some((id, _))) => event.id = id,
            (EventType::User | EventType::AddrinfoResolved | EventType::AddrinfoError, _) => {
                self.cm.ids.note_taken(event.id);
            }
            _ => {}
        }
        Ok(Some(event))
    }
}

impl portolan_provider::sealed::Sealed for KernelChannel {}

impl CmChannel for KernelChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }

    fn take_event(&self) -> Result<CmEvent> {
        self.take_unless_gone(None)
    }

    fn wait_event(&self, timeout: Option<Duration>) -> Result<CmEvent> {
        let Some(timeout) = timeout else {
            return self.take_in_the_end();
        };
        let taken = self.take_event();
        if !matches!(&taken, Err(error) if error.is_would_block()) {
            return taken;
        }
        // Compare elapsed times, because a deadline may exceed the clock's range.
        let started = Instant::now();
        loop {
            let left = timeout.saturating_sub(started.elapsed());
            if left.is_zero() {
                let (after_ms, retries) = (timeout.as_millis() as u64, 0);
                let cause = Cause::TimedOut { after_ms, retries };
                return Err(Error::new(Step::Event, cause));
            }
            let before = self.taking.lock().turns;
            let waits = self.is_readable(Some(left))?;
            match self.take_unless_gone(waits.then_some(before)) {
                Err(error) if error.is_would_block() => {}
                taken => return taken,
            }
        }
    }

    fn await_event(&self) -> Result<()> {
        self.device(Step::Event)?;
        if self.is_nonblocking()? {
            // Another thread may take it, but a non-blocking caller must not sleep then.
            return match self.is_readable(Some(Duration::ZERO))? {
                true => Ok(()),
                false => Err(Error::new(Step::Event, Cause::WouldBlock)),
            };
        }
        // A signal may end the wait early.
        self.is_readable(None).map(drop)
    }

    fn create_id(&self, uid: UserId, service: Service) -> Result<IdNumber> {
        let step = Step::CreateId;
        let create = CreateId {
            uid: uid.0,
            ps: service.port_space.value(),
            qp_type: service.qp_type as u8,
            ..CreateId::zeroed()
        };
        let answer = self
            .device(step)?
            .ask(number::CREATE_ID, create, &CreateIdResp::zeroed());
        let id = IdNumber(
            answer
                .map_err(|errno| refused(step, "CREATE_ID", errno))?
                .id,
        );
        self.cm.ids.insert(id, Some(uid), service);
        self.ids.lock().insert(id);
        Ok(id)
    }

    fn destroy_id(&self, id: IdNumber) -> Result<u32> {
        let step = Step::DestroyId;
        let device = self.device(step)?;
        let destroy = DestroyId {
            id: id.0,
            ..DestroyId::zeroed()
        };
        let mut taking = self.taking.lock();
        taking.turns += 1;
        self.ids.lock().remove(&id);
        self.cm.ids.remove(id);
        device
            .ask(number::DESTROY_ID, destroy, &EventsReported::zeroed())
            .map(|answer| answer.events_reported)
            .map_err(|errno| unknown_id(step, "DESTROY_ID", errno))
    }

    fn bind(&self, id: IdNumber, local: SocketAddr) -> Result<()> {
        let step = Step::Bind;
        let (addr, addr_size) = address::encode(local);
        let bind = Bind {
            id: id.0,
            addr_size,
            addr,
            ..Bind::zeroed()
        };
        let bound = self.device(step)?.command(&bind);
        bound.map_err(|errno| {
            let error = match errno {
                Errno::ACCESS => {
                    let port = local.port();
                    Error::new(step, Cause::PrivilegedPort { port })
                }
                Errno::NODEV => {
                    let why = format!(
                        "none of the kernel's devices has the address {}",
                        local.ip()
                    );
                    Error::new(step, Cause::NoDevice { why })
                }
                _ => refused(step, "BIND", errno),
            };
            error.between(Some(local.into()), None)
        })?;
        self.settle_addresses(id);
        Ok(())
    }

    fn resolve_addr(
        &self,
        id: IdNumber,
        source: Option<SocketAddr>,
        destination: SocketAddr,
        timeout: Duration,
    ) -> Result<()> {
        let (src_addr, src_size) = source.map_or(([0; 128], 0), address::encode);
        let (dst_addr, dst_size) = address::encode(destination);
        let resolve = ResolveAddr {
            id: id.0,
            timeout_ms: timeout_ms(timeout),
            src_size,
            dst_size,
            reserved: 0,
            src_addr,
            dst_addr,
        };
        self.cm.check_process(Step::ResolveAddress)?;
        // Before the command, because its result may arrive at once.
        self.cm.ids.note_addresses(id, None);
        self.run(Step::ResolveAddress, "RESOLVE_ADDR", &resolve)
            .map_err(|error| error.between(source.map(Into::into), Some(destination.into())))
    }

    fn resolve_route(&self, id: IdNumber, timeout: Duration) -> Result<()> {
        let resolve = ResolveRoute {
            id: id.0,
            timeout_ms: timeout_ms(timeout),
        };
        self.run(Step::ResolveRoute, "RESOLVE_ROUTE", &resolve)
    }

    fn set_route(&self, id: IdNumber, paths: &[u8]) -> Result<()> {
        let step = Step::ResolveRoute;
        let set = SetOption {
            id: id.0,
            level: OPTION_LEVEL_IB,
            optname: OPTION_IB_PATH,
            ..SetOption::zeroed()
        };
        let done = self.device(step)?.set_option(set, paths);
        done.map_err(|errno| refused(step, "SET_OPTION", errno))
    }

    fn addresses(&self, id: IdNumber) -> Result<IdAddresses> {
        let device = self.device(Step::Query)?;
        let settled = self.cm.ids.addresses(id);
        let is_settled = settled.is_some();
        let known = match settled {
            Some(known) => known,
            None => query::addresses(device, id)?,
        };
        if known.device_index.is_none() || known.sgid.is_some() {
            return Ok(known);
        }
        match query::gids(device, id, known.clone()) {
            Ok(whole) => {
                self.cm.ids.note_gids(id, &whole);
                Ok(whole)
            }
            // The device was removed, and the kernel forgot the addresses.
            Err(_) if is_settled => Ok(known),
            Err(error) => Err(error),
        }
    }

    fn device_index(&self, id: IdNumber) -> Result<Option<u32>> {
        let device = self.device(Step::Query)?;
        match self.cm.ids.device_index(id) {
            Some(settled) => Ok(settled),
            None => Ok(query::addresses(device, id)?.device_index),
        }
    }

    fn paths(&self, id: IdNumber) -> Result<Vec<PathRecord>> {
        query::paths(self.device(Step::Query)?, id)
    }

    fn listen(&self, id: IdNumber, backlog: i32) -> Result<()> {
        let listen = Listen {
            id: id.0,
            backlog: backlog.cast_unsigned(),
        };
        self.run(Step::Listen, "LISTEN", &listen)?;
        // Connecting may have bound the id.
        self.settle_addresses(id);
        Ok(())
    }

    fn connect(&self, id: IdNumber, param: &ConnParam, ece: Ece) -> Result<()> {
        let connect = Connect {
            conn_param: conn_param(Step::Connect, param)?,
            id: id.0,
            reserved: 0,
            ece: abi_ece(ece),
        };
        self.run(Step::Connect, "CONNECT", &connect)
    }

    fn accept(&self, id: IdNumber, uid: UserId, param: &ConnParam, ece: Ece) -> Result<()> {
        let accept = Accept {
            uid: uid.0,
            conn_param: conn_param(Step::Accept, param)?,
            id: id.0,
            reserved: 0,
            ece: abi_ece(ece),
        };
        self.cm.check_process(Step::Accept)?;
        // Before the command, because events for the id may be taken at once.
        let before = self.cm.ids.name(id, uid);
        self.run(Step::Accept, "ACCEPT", &accept)
            .inspect_err(|_| self.cm.ids.name_again(id, before))
    }

    fn establish(&self, id: IdNumber) -> Result<()> {
        // Parameters marked as invalid: confirms the reply.
        let accept = Accept {
            id: id.0,
            ..Accept::zeroed()
        };
        self.run(Step::Accept, "ACCEPT", &accept)
    }

    fn reject(&self, id: IdNumber, reason: RejectReason, private_data: &[u8]) -> Result<()> {
        let step = Step::Reject;
        let padded = padded(private_data).ok_or_else(|| too_long(step, private_data));
        let (private_data, private_data_len) = padded?;
        let reject = Reject {
            id: id.0,
            private_data_len,
            reason: u8::try_from(reason.0)
                .map_err(|_| Error::invalid(step, "reason", "0 to 255", reason.0))?,
            reserved: [0; 2],
            private_data,
        };
        self.run(step, "REJECT", &reject)
    }

    fn disconnect(&self, id: IdNumber) -> Result<()> {
        self.run(Step::Disconnect, "DISCONNECT", &Disconnect { id: id.0 })
    }

    fn init_qp_attr(&self, id: IdNumber, state: QpState) -> Result<(QpAttr, QpAttrMask)> {
        query::qp_attr(self.device(Step::InitQpAttr)?, id, state)
    }

    fn migrate_id(&self, from: &dyn CmChannel, id: IdNumber) -> Result<u32> {
        let step = Step::Event;
        let from = from.as_any().downcast_ref::<Self>();
        let Some(from) = from.filter(|from| Arc::ptr_eq(&from.cm, &self.cm)) else {
            let expected = "a channel of the same provider";
            let found = "another provider's";
            return Err(Error::invalid(step, "channel", expected, found));
        };
        let migrate = MigrateId {
            id: id.0,
            fd: from.device.as_fd().as_raw_fd().cast_unsigned(),
            ..MigrateId::zeroed()
        };
        let device = self.device(step)?;
        let answer = {
            let mut taking = from.taking.lock();
            taking.turns += 1;
            device.ask(number::MIGRATE_ID, migrate, &EventsReported::zeroed())
        };
        let answer = answer.map_err(|errno| unknown_id(step, "MIGRATE_ID", errno))?;
        from.ids.lock().remove(&id);
        self.ids.lock().insert(id);
        Ok(answer.events_reported)
    }

    fn set_option(&self, id: IdNumber, option: IdOption) -> Result<()> {
        let step = Step::SetOption;
        let flag = |set: bool| u32::from(set).to_ne_bytes().to_vec();
        let (optname, value) = match option {
            IdOption::Tos(tos) => (OPTION_TOS, vec![tos]),
            IdOption::ReuseAddr(reuse) => (OPTION_REUSEADDR, flag(reuse)),
            IdOption::AfOnly(only) => (OPTION_AFONLY, flag(only)),
            IdOption::AckTimeout(exponent) => (OPTION_ACK_TIMEOUT, vec![exponent]),
            _ => return Err(Error::new(step, Cause::Unsupported("this option"))),
        };
        let set = SetOption {
            id: id.0,
            level: OPTION_LEVEL_ID,
            optname,
            ..SetOption::zeroed()
        };
        let done = self.device(step)?.set_option(set, &value);
        done.map_err(|errno| refused(step, "SET_OPTION", errno))
    }

    fn notify_established(&self, id: IdNumber) -> Result<()> {
        let notify = Notify {
            id: id.0,
            event: NOTIFY_COMM_EST,
        };
        self.run(Step::Notify, "NOTIFY", &notify)
    }

    fn join_multicast(
        &self,
        id: IdNumber,
        uid: UserId,
        group: SocketAddr,
        kind: JoinKind,
    ) -> Result<MembershipNumber> {
        let step = Step::JoinMulticast;
        let device = self.device(step)?;
        let (addr, addr_size) = address::encode(group);
        let join = JoinMcast {
            response: 0,
            uid: uid.0,
            id: id.0,
            addr_size,
            join_flags: kind as u16,
            addr,
        };
        // Before the command, because its event may be taken at once.
        self.cm.ids.expect_membership(id, uid);
        let answer = device.ask(number::JOIN_MCAST, join, &CreateIdResp::zeroed());
        let membership = answer.map(|answer| MembershipNumber(u64::from(answer.id)));
        let noted = membership.as_ref().ok().copied();
        self.cm.ids.note_membership(id, uid, noted);
        membership.map_err(|errno| refused(step, "JOIN_MCAST", errno))
    }

    fn leave_multicast(&self, id: IdNumber, membership: MembershipNumber) -> Result<u32> {
        let step = Step::LeaveMulticast;
        let device = self.device(step)?;
        let leave = DestroyId {
            id: u32::try_from(membership.0).map_err(|_| missing_membership(step))?,
            ..DestroyId::zeroed()
        };
        let mut taking = self.taking.lock();
        taking.turns += 1;
        self.cm.ids.forget_membership(id, membership);
        device
            .ask(number::LEAVE_MCAST, leave, &EventsReported::zeroed())
            .map(|answer| answer.events_reported)
            .map_err(|errno| match errno {
                Errno::NOENT => missing_membership(step),
                _ => refused(step, "LEAVE_MCAST", errno),
            })
    }

    fn write_event(&self, id: IdNumber, event: EventType, status: i32, arg: u64) -> Result<()> {
        let step = Step::Event;
        let (number, arg) = match event {
            EventType::User => (event as u32, arg),
            EventType::AddrinfoResolved | EventType::AddrinfoError => {
                (EVENT_INTERNAL, internal_argument(step, event, arg)?)
            }
            _ => {
                let expected = "User, AddrinfoResolved or AddrinfoError";
                return Err(Error::invalid(step, "event", expected, event));
            }
        };
        self.check_write_event(id)?;
        self.cm.ids.note_written(id, event)?;
        let write = WriteCmEvent {
            id: id.0,
            event: number,
            status: status.cast_unsigned(),
            arg,
            ..WriteCmEvent::zeroed()
        };
        self.run(step, "WRITE_CM_EVENT", &write)
            .inspect_err(|_| self.cm.ids.note_taken(id))
    }

    fn check_write_event(&self, id: IdNumber) -> Result<()> {
        self.cm.check_process(Step::Event)?;
        if !self.cm.offers.write_event {
            let what = "writing events to an id before Linux 6.18";
            return Err(Error::new(Step::Event, Cause::Unsupported(what)));
        }
        // The kernel would accept it without a user id, so its owner could not be found.
        if self.cm.ids.is_unnamed(id) {
            let (expected, found) = ("an id of one's own", "one whose request is not accepted");
            let cause = Cause::InvalidState { expected, found };
            return Err(Error::new(Step::Event, cause));
        }
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for KernelChannel {
    fn drop(&mut self) {
        // Closing the descriptor destroys the ids, unless this is a forked child's copy.
        if self.cm.check_process(Step::DestroyId).is_ok() {
            let ids = std::mem::take(&mut *self.ids.lock());
            ids.into_iter().for_each(|id| self.cm.ids.remove(id));
        }
    }
}

fn missing_membership(step: Step) -> Error {
    Error::new(step, Cause::NoSuchObject("multicast membership"))
}

#[cfg(test)]
mod tests;
