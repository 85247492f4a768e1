//! An id's membership of a multicast group.

use portolan_threads::lock::Mutex;
use std::net::IpAddr;
use std::sync::Arc;

use portolan_provider::Result;
use portolan_provider::cm::{EventParam, JoinKind, MembershipNumber};
use portolan_provider::traits::Qp;
use portolan_wire::addr::Gid;

use super::counts::Counts;

/// An id's membership of a multicast group. It ends with [`CmId::leave_multicast`](super::CmId::leave_multicast) or with the id;
/// dropping this value does not end it.
///
/// ```
/// use portolan::cm::{CmId, EventChannel, EventType};
/// use portolan::datagram::JoinKind;
/// use portolan::provider::cm::Service;
/// # use portolan::cm::QpType;
/// # use portolan::wire::addr::PortSpace;
/// # use std::time::Duration;
///
/// # let patience = Duration::from_secs(10);
/// # let udp = Service { port_space: PortSpace::Udp, qp_type: QpType::Ud };
/// let channel = EventChannel::open()?;
/// let id = CmId::with_service(&channel, udp)?;
/// # id.resolve_addr(None, "127.0.0.1:7471".parse().unwrap(), patience)?;
/// # assert_eq!(channel.next_event_within(patience)?.event_type(), EventType::AddrResolved);
/// // The address of `id` is resolved, so it has a device.
/// let group = "239.1.7.41".parse().unwrap();
/// let membership = id.join_multicast(group, JoinKind::SendOnlyFullMember, 17)?;
/// let event = channel.next_event_within(patience)?;
/// assert_eq!(event.event_type(), EventType::MulticastJoin);
/// let joined = event.membership().expect("that of the group");
/// assert_eq!((joined.group(), joined.context()), (group, 17));
/// println!("send to queue pair {}", event.ud().expect("a destination").qp_num);
/// drop(event);
/// id.leave_multicast(membership.group(), patience)?;
/// # Ok::<(), portolan::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Membership {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    group: IpAddr,
    kind: JoinKind,
    context: u64,
    counts: Arc<Counts>,
    /// The queue pair that receives the group's datagrams.
    attached: Mutex<Option<Attached>>,
}

/// A queue pair that is attached to the group, with the group's address and LID on the wire.
#[derive(Debug)]
struct Attached {
    qp: Arc<dyn Qp>,
    mgid: Gid,
    lid: u16,
}

/// A membership with the provider's number, as stored in the id.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) membership: Membership,
    pub(super) number: Option<MembershipNumber>,
}

impl Membership {
    pub(super) fn new(group: IpAddr, kind: JoinKind, context: u64) -> Self {
        let shared = Arc::new(Shared {
            group,
            kind,
            context,
            counts: Arc::default(),
            attached: Mutex::default(),
        });
        Self { shared }
    }

    /// The group's address.
    pub fn group(&self) -> IpAddr {
        self.shared.group
    }

    /// Whether the membership sends and receives or only sends.
    pub fn kind(&self) -> JoinKind {
        self.shared.kind
    }

    /// The caller's context from joining (`context`; in C the events' private data).
    pub fn context(&self) -> u64 {
        self.shared.context
    }

    pub(super) fn counts(&self) -> &Arc<Counts> {
        &self.shared.counts
    }

    /// Attaches the id's queue pair to the group that the event of the join describes, unless the membership only sends.
    pub(super) fn attach(&self, qp: Option<Arc<dyn Qp>>, joined: &EventParam) -> Result<()> {
        let qp = qp.filter(|_| self.kind() == JoinKind::FullMember);
        if let (Some(qp), EventParam::Ud(group)) = (qp, joined) {
            let mgid = group.ah_attr.dgid;
            let lid = group.ah_attr.local_route.map_or(0, |local| local.dlid);
            qp.attach_mcast(&mgid, lid)?;
            *self.shared.attached.lock() = Some(Attached { qp, mgid, lid });
        }
        Ok(())
    }

    /// Detaches the queue pair that was attached, if any.
    pub(super) fn detach(&self) -> Result<()> {
        match self.shared.attached.lock().take() {
            Some(Attached { qp, mgid, lid }) => qp.detach_mcast(&mgid, lid),
            None => Ok(()),
        }
    }

    pub(super) fn is_attached(&self) -> bool {
        self.shared.attached.lock().is_some()
    }
}
