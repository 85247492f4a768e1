//! Converts an event of the rdma_cm device, kernel or software, to the program's event. Does the library's part of it
//! first.

#![allow(unsafe_code, reason = "pointers of C programs and libibverbs")]

use std::sync::Arc;

use portolan_kernel::raw::{self, EventResp, Fields};

use crate::event::Event;
use crate::guard::Result;
use crate::id::{self, Id, Target, get, set};
use crate::layout::event_type::*;
use crate::layout::{ConnParam, Ece, EventChannel, EventParam, UdParam};
use crate::membership::Membership;
use crate::{connect, life, lookup, multicast, qp};

/// The event for the program, taken from a channel. `None` if the program must not see it.
pub(crate) fn interpret(raw: &EventResp, from: *mut EventChannel) -> Option<Event> {
    // The kernel learns the number of a new id from its accept. Earlier events of the id have none.
    let target = match raw.uid {
        0 => id::by_handle(raw.id).map(Target::Id),
        uid => id::target(uid),
    }?;
    // Dropping the event acknowledges it.
    let mut event = Event::new(target.clone(), raw.event, raw.status.cast_signed());
    if raw.uid == 0 && raw.event != ESTABLISHED {
        return None;
    }
    // A program that gets the event finds its id on the channel that it came from.
    let stays = target.id().own().moving.lock();
    if raw.event == CONNECT_REQUEST {
        // This leads to another id, which the library may move.
        drop(stays);
    }
    match &target {
        Target::Id(id) => complete_of_id(&mut event, id, raw, from).then_some(event),
        Target::Membership(id, membership) => {
            complete_of_membership(&mut event, id, membership, raw);
            Some(event)
        }
    }
}

/// Does the library's part. Returns false if the program must not see the event.
fn complete_of_id(event: &mut Event, id: &Id, raw: &EventResp, from: *mut EventChannel) -> bool {
    match raw.event {
        ADDR_RESOLVED => fail_as(event, ADDR_ERROR, address_resolved(id)),
        ROUTE_RESOLVED => fail_as(event, ROUTE_ERROR, route_resolved(id)),
        CONNECT_REQUEST => {
            take_param(event, id, raw);
            let Ok(child) = connect_request(id, raw, from) else {
                return false;
            };
            event.change(|c| (c.listen_id, c.id) = (c.id, child.as_c()));
        }
        CONNECT_RESPONSE => {
            take_param(event, id, raw);
            connect_response(event, id, raw);
        }
        REJECTED | DISCONNECTED if id.state().connect_failed => return false,
        REJECTED => {
            take_param(event, id, raw);
            // An error here would hide the rejection.
            let _ = qp::to_error(id);
        }
        INTERNAL => match id.own().lookup.take_event(lookup::argument(raw)) {
            Some(stands_for) => event.change(|c| c.event = stands_for),
            None => return false,
        },
        USER => event.change(|c| {
            c.param = EventParam {
                arg: lookup::argument(raw),
            };
        }),
        _ => take_param(event, id, raw),
    }
    true
}

fn complete_of_membership(
    event: &mut Event,
    id: &Id,
    membership: &Arc<Membership>,
    raw: &EventResp,
) {
    let param = UdParam {
        private_data: membership.context.cast(),
        private_data_len: 0,
        ..ud_param(&raw::UdParam::from_bytes(&raw.param))
    };
    event.change(|c| c.param.ud = param);
    if raw.event == MULTICAST_JOIN {
        let joined = multicast::joined(id, membership, &param);
        fail_as(event, MULTICAST_ERROR, joined);
    }
}

/// Turns an event into a failure if the library's part failed.
fn fail_as(event: &mut Event, failure: u32, done: Result<()>) {
    if let Err(errno) = done {
        event.change(|c| (c.event, c.status) = (failure, -errno.raw_os_error()));
    }
}

/// With a queue pair, the library continues the handshake; without one, the program does.
fn connect_response(event: &mut Event, id: &Id, raw: &EventResp) {
    let remote = ece(raw);
    id.state().remote_ece = remote;
    if get!(id, qp).is_null() {
        return;
    }
    event.change(|c| c.event = ESTABLISHED);
    let done = connect::finish(id, remote);
    if done.is_err() {
        let _ = qp::to_error(id);
        id.state().connect_failed = true;
    }
    fail_as(event, CONNECT_ERROR, done);
}

fn take_param(event: &mut Event, id: &Id, raw: &EventResp) {
    if id.is_datagram() {
        let ud = raw::UdParam::from_bytes(&raw.param);
        event.set_param(&ud.private_data, ud.private_data_len, |private_data| {
            EventParam {
                ud: UdParam {
                    private_data,
                    ..ud_param(&ud)
                },
            }
        });
    } else {
        let conn = raw::ConnParam::from_bytes(&raw.param);
        event.set_param(&conn.private_data, conn.private_data_len, |private_data| {
            EventParam {
                conn: ConnParam {
                    private_data,
                    ..conn_param(&conn)
                },
            }
        });
    }
}

/// All fields except the private data.
fn conn_param(conn: &raw::ConnParam) -> ConnParam {
    ConnParam {
        private_data: std::ptr::null(),
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

/// All fields except the private data.
fn ud_param(ud: &raw::UdParam) -> UdParam {
    UdParam {
        private_data: std::ptr::null(),
        private_data_len: ud.private_data_len,
        ah_attr: (&ud.ah_attr).into(),
        qp_num: ud.qp_num,
        qkey: ud.qkey,
    }
}

fn address_resolved(id: &Id) -> Result<()> {
    id.query_addresses()?;
    // An address without a device is useless to a program.
    id.device()?;
    match id.is_infiniband() {
        true => id.query_gids(),
        false => Ok(()),
    }
}

fn route_resolved(id: &Id) -> Result<()> {
    match id.is_infiniband() {
        true => id.query_paths(),
        false => Ok(()),
    }
}

/// Creates an id for a connection request of a listener. It is on the channel that the request was taken from, also if the
/// listener moves meanwhile.
fn connect_request(listener: &Id, raw: &EventResp, from: *mut EventChannel) -> Result<Id> {
    let child = Id::new(from, false);
    set!(&child, context = get!(listener, context));
    set!(&child, ps = get!(listener, ps));
    set!(&child, qp_type = get!(listener, qp_type));
    child.set_handle(raw.id);
    let described = describe_child(listener, &child, raw);
    if described.is_err() {
        // This also destroys the kernel's id, which rejects the peer.
        let _ = life::destroy_unseen(&child);
    }
    described.map(|()| child)
}

fn describe_child(listener: &Id, child: &Id, raw: &EventResp) -> Result<()> {
    if listener.is_sync() {
        life::migrate(child, std::ptr::null_mut::<EventChannel>())?;
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
        // The peer's wishes. The accept limits them to the device's maximum.
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
