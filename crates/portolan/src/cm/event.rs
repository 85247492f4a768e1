//! Events: their delivery to ids, and their acknowledgement.

use std::net::IpAddr;
use std::ops::Deref;
use std::sync::Arc;

use portolan_addrinfo::route;
use portolan_provider::cm::{CmEvent, EventParam, EventType};
use portolan_provider::{Cause, Error, Step};

use super::counts::Counts;
use super::event_data::EventData;
use super::id::{CmId, Finished};
use super::membership::Membership;

/// A connection-manager event (`struct rdma_cm_event`). It owns its data and is acknowledged when
/// dropped.
///
/// Its type, status and parameters are in its [`EventData`].
///
/// ```
/// use portolan::cm::{CmId, EventChannel};
/// use std::time::Duration;
///
/// let channel = EventChannel::open()?;
/// let id = CmId::new(&channel)?;
/// id.resolve_addr(None, "127.0.0.1:7471".parse().unwrap(), Duration::from_secs(5))?;
/// let event = channel.next_event_within(Duration::from_secs(5))?;
/// match event.failure() {
///     None => println!("{} of id {:?}", event.event_type(), event.id().number()),
///     Some(error) => println!("{error}"),
/// }
/// # Ok::<(), portolan::Error>(())
/// ```
#[derive(Debug)]
pub struct Event {
    id: CmId,
    listener: Option<CmId>,
    data: EventData,
    /// The counts at which it is acknowledged.
    counts: Arc<Counts>,
}

impl Event {
    /// Wraps an event of an existing id after the library's part of the work. Returns `None` if the
    /// event is internal.
    pub(super) fn arrived(id: CmId, raw: CmEvent) -> Option<Self> {
        let mut data = EventData::from(raw);
        match data.event {
            EventType::ConnectResponse => {
                id.note_remote_ece(data.ece);
                if id.has_queue_pair() {
                    // If the id has a queue pair, the library completes the handshake itself.
                    match id.finish_connect(&data.param) {
                        Finished::Established => data.event = EventType::Established,
                        Finished::Failed(error) => data.fail(EventType::ConnectError, &error),
                        // The next event reports what the peer did meanwhile.
                        Finished::Overtaken => return None,
                    }
                }
            }
            // The end of a handshake that failed on this side, which the user already knows.
            EventType::Rejected | EventType::Disconnected if id.has_failed_to_connect() => {
                return None;
            }
            EventType::Rejected => {
                id.shared.ender.note_reported();
                id.fail_queue_pair();
            }
            EventType::Disconnected => {
                id.shared.ender.note_reported();
                data.ended_here = id.shared.ender.is_this_side();
            }
            EventType::AddrinfoResolved | EventType::AddrinfoError => {
                // The argument is the library's own lookup number.
                let number = data.arg()?;
                data.param = EventParam::None;
                data.addrinfo_error = id.take_lookup(number)?.err();
            }
            _ => {}
        }
        let counts = id.counts().clone();
        Some(Self::counted(id, None, data, counts))
    }

    /// Wraps a connection request. `id` is the new connection's; the event is acknowledged on the
    /// listener.
    pub(super) fn request(id: CmId, listener: CmId, raw: CmEvent) -> Self {
        let data = EventData::from(raw);
        id.note_request(&data);
        let counts = listener.counts().clone();
        Self::counted(id, Some(listener), data, counts)
    }

    /// Wraps an event of a multicast membership, on which it is acknowledged.
    pub(super) fn of_group(id: CmId, membership: Membership, raw: CmEvent) -> Self {
        let mut data = EventData::from(raw);
        if data.event == EventType::MulticastJoin
            && let Err(error) = membership.attach(id.queue_pair(), &data.param)
        {
            data.fail(EventType::MulticastError, &error);
        }
        let counts = membership.counts().clone();
        data.membership = Some(membership);
        Self::counted(id, None, data, counts)
    }

    fn counted(id: CmId, listener: Option<CmId>, data: EventData, counts: Arc<Counts>) -> Self {
        counts.note_reported();
        Self {
            id,
            listener,
            data,
            counts,
        }
    }

    /// The event's id; for a connection request, the new one.
    pub fn id(&self) -> &CmId {
        &self.id
    }

    /// For a connection request, the listener.
    pub fn listener(&self) -> Option<&CmId> {
        self.listener.as_ref()
    }

    /// The contents, which may be kept after the event is acknowledged.
    pub fn data(&self) -> &EventData {
        &self.data
    }

    /// The failure that the event reports, with the id's addresses; `None` for a success. The end of a connection
    /// (`Disconnected`) counts as a failure, also if this side ended it: then the cause is
    /// [`Closed`](portolan_provider::Cause::Closed). [`EventData::failure`] lists the others.
    pub fn failure(&self) -> Option<Error> {
        let mut error = self.data.failure()?;
        let Ok(known) = self.id.addresses() else {
            return Some(error);
        };
        let remote = known.remote.and_then(|remote| remote.inet());
        if let (Step::ResolveAddress, Cause::NoDevice { why }, Some(remote)) =
            (error.step, &mut error.cause, remote)
        {
            *why = why_no_device(remote.ip());
        }
        Some(error.between(known.local, known.remote))
    }
}

/// Why resolving `destination` found no device. The event has only `ENODEV`, as the kernel's has.
fn why_no_device(destination: IpAddr) -> String {
    let route = route::lookup(&route::Query::to(destination));
    match route.is_ok_and(|route| route.is_on_this_machine()) {
        true => format!(
            "{destination} is an address of this host that no device has; use one that `portolan devices` lists"
        ),
        false => format!(
            "no device has the source address of the route to {destination}; `portolan devices` lists their addresses"
        ),
    }
}

impl Deref for Event {
    type Target = EventData;

    fn deref(&self) -> &EventData {
        &self.data
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        self.counts.note_acknowledged();
    }
}
