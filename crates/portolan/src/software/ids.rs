//! Creates, moves and destroys ids, and counts their events.

use std::sync::Arc;

use portolan_provider::cm::{
    CmEvent, ConnParam, Ece, EventParam, EventType, IdNumber, Service, UserId,
};
use portolan_provider::{Cause, Error, Result, Step};
use portolan_wire::addr::Qpn;

use super::claim::ClaimId;
use super::core::Core;
use super::queue::EventQueue;
use super::state::{IdEntry, is_of_group};

/// Maximum of events that an id's owner has written and not yet taken.
const WRITTEN_EVENTS_MAX: u32 = 256;

impl Core {
    pub(super) fn create_id(
        &self,
        queue: &Arc<EventQueue>,
        uid: UserId,
        service: Service,
    ) -> Result<IdNumber> {
        let mut state = self.state();
        let id = state.cm.create_id(uid, service)?;
        state.insert(id, IdEntry::new(uid, service, queue.clone()));
        Ok(id)
    }

    /// Destroys an id and drops its events. Rejects the queued requests of a listener.
    pub(super) fn destroy_id(&self, id: IdNumber) -> Result<u32> {
        let gone = Error::new(Step::DestroyId, Cause::NoSuchObject("the id"));
        let entry = {
            let mut state = self.state();
            let entry = state.remove(id).ok_or(gone)?;
            // The engine rejects the requests that were not taken, and destroys their ids.
            let is_its = |event: &CmEvent| event.id == id || state.belongs_to(event, id);
            let waiting = entry.queue.extract(is_its);
            for request in waiting.iter().filter(|event| event.id != id) {
                state.remove(request.id);
            }
            entry
        };
        if let Some((claim, _)) = entry.claim {
            self.release(claim);
        }
        self.run(|cm, now| cm.destroy_id(now, id))?;
        Ok(entry.reported)
    }

    /// Moves an id with its queued events from one queue to another.
    pub(super) fn migrate(
        &self,
        id: IdNumber,
        from: &EventQueue,
        to: &Arc<EventQueue>,
    ) -> Result<u32> {
        let mut state = self.state();
        let entry = state.entry(id, Step::Event)?;
        let reported = entry.reported;
        if !std::ptr::eq(&*entry.queue, from) {
            let (expected, found) = ("an id of the channel it is to leave", "another channel's");
            return Err(Error::invalid(Step::Event, "id", expected, found));
        }
        if Arc::ptr_eq(&entry.queue, to) {
            return Ok(reported);
        }
        state.redirect(id, to);
        // The state is locked, so no event can overtake the moved ones.
        for event in from.extract(|event| state.belongs_to(event, id)) {
            // The id of a request belongs to the thread that takes the request, and its events go to the same queue.
            let request = (event.event == EventType::ConnectRequest).then_some(event.id);
            if let Some(child) = request {
                state.redirect(child, to);
            }
            let ticket = to.push(event);
            if let Some(child) = request {
                state.note_ticket(child, ticket);
            }
        }
        Ok(reported)
    }

    pub(super) fn accept(
        &self,
        id: IdNumber,
        uid: UserId,
        param: &ConnParam,
        ece: Ece,
    ) -> Result<()> {
        self.run_state(|state, now| {
            state.cm.accept(now, id, uid, param, ece)?;
            state.note_accepted(id, uid, param.qp_num);
            Ok(())
        })
    }

    /// A queue pair received data before the last message of the handshake: the connection is established. The owner
    /// need not call `rdma_notify(3)`.
    pub(super) fn peer_sent_data(&self, qp: Qpn) {
        // The id does not wait for it any more: the message has arrived meanwhile, or the connection is over.
        let _ = self.run_state(|state, now| match state.accepted_with(qp) {
            Some(id) => state.cm.notify_established(now, id),
            None => Ok(()),
        });
    }

    /// Whether an event may be written to the id.
    pub(super) fn check_write_event(&self, id: IdNumber) -> Result<()> {
        self.state().entry_mut(id, Step::Event)?.check_owned()
    }

    /// Queues an event written by the id's owner.
    pub(super) fn write_event(
        &self,
        id: IdNumber,
        event: EventType,
        status: i32,
        arg: u64,
    ) -> Result<()> {
        use EventType::{AddrinfoError, AddrinfoResolved, User};
        if !matches!(event, User | AddrinfoResolved | AddrinfoError) {
            return Err(Error::invalid(Step::Event, "event to write", User, event));
        }
        // An id has at most one event of the library at a time. It fits even if the user's events fill the queue.
        let reserved = u32::from(event != User);
        let mut state = self.state();
        let entry = state.entry_mut(id, Step::Event)?;
        entry.check_owned()?;
        if entry.written >= WRITTEN_EVENTS_MAX + reserved {
            let (what, limit) = (
                "written events waiting to be taken",
                WRITTEN_EVENTS_MAX.into(),
            );
            return Err(Error::new(Step::Event, Cause::LimitReached { what, limit }));
        }
        entry.written += 1;
        entry.queue.push(CmEvent {
            uid: entry.uid,
            id,
            event,
            status,
            param: EventParam::Arg(arg),
            ece: Ece::default(),
        });
        Ok(())
    }

    /// A new coordinator has given the port of a claim to another process. The listener on that port gets
    /// `ConnectError` with this errno, because no more requests will arrive. The kernel has no such event, because
    /// its table of ports cannot be lost.
    pub(super) fn port_lost(&self, claim: ClaimId, errno: i32) {
        let _ = self.run_state(|state, _| {
            state.tell_listener(claim, EventType::ConnectError, -errno);
            Ok(())
        });
    }

    /// Counts an event that the user took. Returns `false` for a request that was displaced meanwhile, which is
    /// dropped.
    pub(super) fn note_reported(&self, event: &CmEvent) -> bool {
        let mut state = self.state();
        if event.event == EventType::ConnectRequest {
            if state.entry(event.id, Step::Event).is_err() {
                return false;
            }
            state.cm.request_taken(event.id);
            let listener = state.listener_of(event.id);
            if let Some(Ok(entry)) = listener.map(|id| state.entry_mut(id, Step::Event)) {
                entry.reported += 1;
            }
            return true;
        }
        let Ok(entry) = state.entry_mut(event.id, Step::Event) else {
            return true;
        };
        if is_of_group(event.event) {
            if let Some(member) = entry.member_named(event.uid) {
                member.reported += 1;
            }
            return true;
        }
        if matches!(event.param, EventParam::Arg(_)) {
            entry.written = entry.written.saturating_sub(1);
        }
        if let Some(waits) = entry.hint_waiting(event.event) {
            *waits = false;
        }
        entry.reported += 1;
        true
    }

    /// Destroys all ids of a queue whose channel is closed.
    pub(super) fn close_queue(&self, queue: &EventQueue) {
        for id in queue.ids() {
            // Destroying a listener may have destroyed its children.
            let _ = self.destroy_id(id);
        }
    }
}
