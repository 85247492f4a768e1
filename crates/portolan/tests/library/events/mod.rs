//! Each type of event, made to happen, with the fields that rdma_get_cm_event(3) says it has.

mod addr_error;
mod addr_resolved;
mod addrinfo_arguments;
mod addrinfo_error;
mod addrinfo_resolved;
mod connect_error;
mod connect_request;
mod connect_response;
mod data;
mod disconnected;
mod established;
mod multicast_error;
mod multicast_join;
mod rejected;
mod route_resolved;
mod timewait_exit;
mod unreachable;
mod user;

use portolan::cm::Event;

/// That an event carries nothing but its type and this status.
#[track_caller]
fn assert_bare(event: &Event, status: i32) {
    assert_eq!(event.status(), status);
    assert!(event.listener().is_none());
    assert_eq!((event.conn(), event.ud(), event.arg()), (None, None, None));
    assert!(event.private_data().is_empty() && event.membership().is_none());
}
