//! Event channels of the software provider: the commands of the rdma_cm, executed in this process.

use std::any::Any;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use portolan_provider::cm::{
    CmEvent, ConnParam, Ece, EventType, IdAddresses, IdNumber, IdOption, JoinKind,
    MembershipNumber, PathRecord, Service, UserId,
};
use portolan_provider::traits::{Attendance, CmChannel, Notify};
use portolan_provider::verbs::{QpAttr, QpAttrMask, QpState};
use portolan_provider::{Cause, Error, Result, Step};
use portolan_roce::io::EventWaiter;
use portolan_wire::cm::RejectReason;

use super::core::Core;
use super::queue::{EventQueue, Watcher};
use crate::deadline;

/// A channel of the software provider.
#[derive(Debug)]
pub(super) struct SoftwareChannel {
    core: Arc<Core>,
    queue: Arc<EventQueue>,
}

impl SoftwareChannel {
    pub(super) fn new(core: Arc<Core>) -> Result<Self> {
        let queue = Arc::new(EventQueue::new(core.stack().nudge())?);
        Ok(Self { core, queue })
    }

    /// A channel without a descriptor of its own.
    pub(super) fn calling(core: Arc<Core>, notify: Arc<dyn Notify>) -> Self {
        let queue = Arc::new(EventQueue::calling(notify, core.stack().nudge()));
        Self { core, queue }
    }

    /// Calls `watcher` at each event of a channel, if it is this provider's. `None` ends that. Returns whether it is.
    pub(super) fn watch(channel: &dyn CmChannel, watcher: Option<Arc<dyn Watcher>>) -> bool {
        let channel = channel.as_any().downcast_ref::<Self>();
        let watched = channel.map(|channel| channel.queue.watch(watcher));
        watched.is_some()
    }

    /// The provider. Fails in a forked child, because its locks may have been held at the fork.
    fn core(&self, step: Step) -> Result<&Core> {
        self.core.stack().check_process(step)?;
        Ok(&self.core)
    }
}

/// The calling thread waits for management datagrams.
#[derive(Debug)]
struct Attending<'a>(#[expect(dead_code, reason = "held")] portolan_roce::io::Attendance<'a>);

impl Attendance for Attending<'_> {}

impl portolan_provider::sealed::Sealed for SoftwareChannel {}

impl CmChannel for SoftwareChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.queue.as_fd()
    }

    fn descriptor(&self) -> Result<BorrowedFd<'_>> {
        EventWaiter::descriptor(&*self.queue)
    }

    fn attend(&self) -> Option<Box<dyn Attendance + '_>> {
        let attendance = self.core.stack().attend()?;
        Some(Box::new(Attending(attendance)))
    }

    fn take_event(&self) -> Result<CmEvent> {
        // A forked child shares the descriptor, and would take its parent's events.
        let core = self.core(Step::Event)?;
        loop {
            let event = self.queue.pop();
            let event = event.ok_or_else(|| Error::new(Step::Event, Cause::WouldBlock))?;
            let event = core.refuse_before_completions(&self.queue, event);
            if let Some(event) = event.filter(|event| core.note_reported(event)) {
                return Ok(event);
            }
        }
    }

    fn may_have_event(&self) -> bool {
        self.queue.may_have_event() || self.core(Step::Event).is_err()
    }

    fn wait_event(&self, timeout: Option<Duration>) -> Result<CmEvent> {
        let deadline = timeout.map(|timeout| (deadline::after(timeout), timeout));
        loop {
            match self.take_event() {
                Err(error) if error.is_would_block() => {}
                taken => return taken,
            }
            let left = deadline.map(|(at, _)| deadline::left(at));
            if let (Some(Duration::ZERO), Some((_, timeout))) = (left, deadline) {
                let after_ms = timeout.as_millis() as u64;
                return Err(Error::new(
                    Step::Event,
                    Cause::TimedOut {
                        after_ms,
                        retries: 0,
                    },
                ));
            }
            if left.is_none() && self.queue.is_nonblocking()? {
                return Err(Error::new(Step::Event, Cause::WouldBlock));
            }
            self.core.stack().wait_for(&*self.queue, left)?;
        }
    }

    fn await_event(&self) -> Result<()> {
        self.core(Step::Event)?;
        match (self.queue.is_nonblocking()?, self.queue.is_empty()) {
            (true, true) => Err(Error::new(Step::Event, Cause::WouldBlock)),
            // Another thread may take the event first, and a caller that does not want to wait must not sleep then.
            (true, false) => Ok(()),
            (false, _) => self.queue.sleep(),
        }
    }

    fn create_id(&self, uid: UserId, service: Service) -> Result<IdNumber> {
        self.core(Step::CreateId)?
            .create_id(&self.queue, uid, service)
    }

    fn destroy_id(&self, id: IdNumber) -> Result<u32> {
        self.core(Step::DestroyId)?.destroy_id(id)
    }

    fn bind(&self, id: IdNumber, local: SocketAddr) -> Result<()> {
        self.core(Step::Bind)?.bind(id, local)
    }

    fn resolve_addr(
        &self,
        id: IdNumber,
        source: Option<SocketAddr>,
        destination: SocketAddr,
        timeout: Duration,
    ) -> Result<()> {
        self.core(Step::ResolveAddress)?
            .resolve_addr(id, source, destination, timeout)
    }

    fn resolve_route(&self, id: IdNumber, timeout: Duration) -> Result<()> {
        self.core(Step::ResolveRoute)?.resolve_route(id, timeout)
    }

    fn addresses(&self, id: IdNumber) -> Result<IdAddresses> {
        self.core(Step::Query)?.run(|cm, _| cm.addresses(id))
    }

    fn paths(&self, id: IdNumber) -> Result<Vec<PathRecord>> {
        self.core(Step::Query)?.run(|cm, _| cm.paths(id))
    }

    fn listen(&self, id: IdNumber, backlog: i32) -> Result<()> {
        self.core(Step::Listen)?.listen(id, backlog)
    }

    fn connect(&self, id: IdNumber, param: &ConnParam, ece: Ece) -> Result<()> {
        self.core(Step::Connect)?
            .run(|cm, now| cm.connect(now, id, param, ece))
    }

    fn accept(&self, id: IdNumber, uid: UserId, param: &ConnParam, ece: Ece) -> Result<()> {
        self.core(Step::Accept)?.accept(id, uid, param, ece)
    }

    fn establish(&self, id: IdNumber) -> Result<()> {
        self.core(Step::Accept)?
            .run(|cm, now| cm.establish(now, id))
    }

    fn reject(&self, id: IdNumber, reason: RejectReason, private_data: &[u8]) -> Result<()> {
        self.core(Step::Reject)?
            .run(|cm, now| cm.reject(now, id, reason, private_data))
    }

    fn disconnect(&self, id: IdNumber) -> Result<()> {
        self.core(Step::Disconnect)?
            .run(|cm, now| cm.disconnect(now, id))?;
        // Who disconnects itself flushes its queue pair, and need not poll to learn of the end.
        self.queue.take_refusable(id);
        self.queue.release(id);
        Ok(())
    }

    fn init_qp_attr(&self, id: IdNumber, state: QpState) -> Result<(QpAttr, QpAttrMask)> {
        self.core(Step::InitQpAttr)?
            .run(|cm, _| cm.init_qp_attr(id, state))
    }

    fn migrate_id(&self, from: &dyn CmChannel, id: IdNumber) -> Result<u32> {
        let ours = from
            .as_any()
            .downcast_ref::<Self>()
            .filter(|from| Arc::ptr_eq(&from.core, &self.core));
        let Some(from) = ours else {
            let expected = "a channel of the same provider";
            return Err(Error::invalid(
                Step::Event,
                "channel",
                expected,
                "another provider's",
            ));
        };
        self.core(Step::Event)?
            .migrate(id, &from.queue, &self.queue)
    }

    fn set_option(&self, id: IdNumber, option: IdOption) -> Result<()> {
        self.core(Step::SetOption)?
            .run(|cm, _| cm.set_option(id, option))
    }

    fn notify_established(&self, id: IdNumber) -> Result<()> {
        self.core(Step::Notify)?
            .run(|cm, now| cm.notify_established(now, id))
    }

    fn join_multicast(
        &self,
        id: IdNumber,
        uid: UserId,
        group: SocketAddr,
        kind: JoinKind,
    ) -> Result<MembershipNumber> {
        self.core(Step::JoinMulticast)?
            .join(id, uid, group.ip(), kind)
    }

    fn leave_multicast(&self, id: IdNumber, membership: MembershipNumber) -> Result<u32> {
        self.core(Step::LeaveMulticast)?.leave(id, membership)
    }

    fn write_event(&self, id: IdNumber, event: EventType, status: i32, arg: u64) -> Result<()> {
        self.core(Step::Event)?.write_event(id, event, status, arg)
    }

    fn check_write_event(&self, id: IdNumber) -> Result<()> {
        self.core(Step::Event)?.check_write_event(id)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for SoftwareChannel {
    fn drop(&mut self) {
        // Peers are not notified of the end of a forked child's copy: the ids belong to its parent.
        if let Ok(core) = self.core(Step::DestroyId) {
            core.close_queue(&self.queue);
        }
    }
}
