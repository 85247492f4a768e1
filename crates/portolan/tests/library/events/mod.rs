//! Causes each type of event and checks the fields documented in rdma_get_cm_event(3).

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

/// Checks that an event carries only its type and this status.
#[track_caller]
fn assert_bare(event: &Event, status: i32) {
    assert_eq!(event.status(), status);
    assert!(event.listener().is_none());
    assert_eq!((event.conn(), event.ud(), event.arg()), (None, None, None));
    assert!(event.private_data().is_empty() && event.membership().is_none());
}
