//! The functions of C, by their names and the versions of `librdmacm.map`.

use std::ffi::{c_char, c_int, c_uint, c_void};

use libc::sockaddr;
use portolan_abi_layout::exports;
use rustix::io::Errno;

use crate::address;
use crate::guard::{pointer, status, value};
use crate::id::{Id, get};
use crate::layout::*;
use crate::{
    channel, connect, device, endpoint, event, lookup, multicast, names, qp, reach, resolve,
};

/// Names of the events, by their numbers.
const EVENTS: [*const c_char; 20] = [
    c"RDMA_CM_EVENT_ADDR_RESOLVED".as_ptr(),
    c"RDMA_CM_EVENT_ADDR_ERROR".as_ptr(),
    c"RDMA_CM_EVENT_ROUTE_RESOLVED".as_ptr(),
    c"RDMA_CM_EVENT_ROUTE_ERROR".as_ptr(),
    c"RDMA_CM_EVENT_CONNECT_REQUEST".as_ptr(),
    c"RDMA_CM_EVENT_CONNECT_RESPONSE".as_ptr(),
    c"RDMA_CM_EVENT_CONNECT_ERROR".as_ptr(),
    c"RDMA_CM_EVENT_UNREACHABLE".as_ptr(),
    c"RDMA_CM_EVENT_REJECTED".as_ptr(),
    c"RDMA_CM_EVENT_ESTABLISHED".as_ptr(),
    c"RDMA_CM_EVENT_DISCONNECTED".as_ptr(),
    c"RDMA_CM_EVENT_DEVICE_REMOVAL".as_ptr(),
    c"RDMA_CM_EVENT_MULTICAST_JOIN".as_ptr(),
    c"RDMA_CM_EVENT_MULTICAST_ERROR".as_ptr(),
    c"RDMA_CM_EVENT_ADDR_CHANGE".as_ptr(),
    c"RDMA_CM_EVENT_TIMEWAIT_EXIT".as_ptr(),
    c"RDMA_CM_EVENT_ADDRINFO_RESOLVED".as_ptr(),
    c"RDMA_CM_EVENT_ADDRINFO_ERROR".as_ptr(),
    c"RDMA_CM_EVENT_USER".as_ptr(),
    c"RDMA_CM_EVENT_INTERNAL".as_ptr(),
];

/// The port of one of an id's addresses, in network byte order.
///
/// # Safety
/// The id exists.
unsafe fn port_of(id: *mut CmId, address: impl FnOnce(&Addr) -> &libc::sockaddr_storage) -> u16 {
    value(0, || {
        // SAFETY: as the caller promises.
        let Ok(id) = (unsafe { Id::of(id) }) else {
            return 0;
        };
        let addresses = get!(id, route.addr);
        let storage = std::ptr::from_ref(address(&addresses));
        // SAFETY: as many bytes, all of them initialized by the library or the program.
        address::port(unsafe { &*storage.cast::<address::Storage>() })
    })
}

exports! {
    fn rdma_create_event_channel() -> *mut EventChannel {
        pointer(channel::create)
    }

    fn rdma_destroy_event_channel(channel: *mut EventChannel) {
        // SAFETY: the program's, for the last time.
        value((), || unsafe { channel::destroy(channel) });
    }

    fn rdma_create_id(
        channel: *mut EventChannel,
        id: *mut *mut CmId,
        context: *mut c_void,
        ps: c_uint
    ) -> c_int {
        status(|| {
            if id.is_null() {
                return Err(Errno::INVAL);
            }
            let made = endpoint::create(channel, context, ps)?;
            // SAFETY: the program's place for it.
            unsafe { id.write(made.as_c()) };
            Ok(())
        })
    }

    fn rdma_destroy_id(id: *mut CmId) -> c_int {
        // SAFETY: the program's id, for the last time.
        status(|| unsafe { endpoint::destroy(Id::of(id)?) })
    }

    fn rdma_create_ep(
        id: *mut *mut CmId,
        info: *mut AddrInfo,
        pd: *mut Pd,
        attr: *mut QpInitAttr
    ) -> c_int {
        // SAFETY: the program's pointers.
        unsafe { endpoint::create_endpoint(id, info, pd, attr) }
    }

    fn rdma_destroy_ep(id: *mut CmId) {
        // SAFETY: the program's id, for the last time.
        let _ = status(|| unsafe {
            endpoint::destroy_endpoint(Id::of(id)?);
            Ok(())
        });
    }

    fn rdma_migrate_id(id: *mut CmId, channel: *mut EventChannel) -> c_int {
        // SAFETY: the program's id.
        status(|| endpoint::migrate(unsafe { Id::of(id) }?, channel))
    }

    fn rdma_bind_addr(id: *mut CmId, addr: *mut sockaddr) -> c_int {
        // SAFETY: the program's pointers.
        status(|| unsafe { resolve::bind(Id::of(id)?, addr) })
    }

    fn rdma_resolve_addr(
        id: *mut CmId,
        source: *mut sockaddr,
        destination: *mut sockaddr,
        timeout_ms: c_int
    ) -> c_int {
        // SAFETY: the program's pointers.
        event::settled(|| unsafe { resolve::resolve_address(Id::of(id)?, source, destination, timeout_ms) })
    }

    fn rdma_resolve_route(id: *mut CmId, timeout_ms: c_int) -> c_int {
        // SAFETY: the program's id.
        event::settled(|| resolve::resolve_route(unsafe { Id::of(id) }?, timeout_ms))
    }

    fn rdma_listen(id: *mut CmId, backlog: c_int) -> c_int {
        // SAFETY: the program's id.
        status(|| resolve::listen(unsafe { Id::of(id) }?, backlog))
    }

    fn rdma_set_option(
        id: *mut CmId,
        level: c_int,
        name: c_int,
        value: *mut c_void,
        length: usize
    ) -> c_int {
        // SAFETY: the program's pointers.
        status(|| unsafe { resolve::set_option(Id::of(id)?, level, name, value, length) })
    }

    fn rdma_connect(id: *mut CmId, param: *mut ConnParam) -> c_int {
        // SAFETY: the program's pointers.
        event::settled(|| unsafe { connect::connect(Id::of(id)?, param) })
    }

    fn rdma_establish(id: *mut CmId) -> c_int {
        // SAFETY: the program's id.
        status(|| connect::establish(unsafe { Id::of(id) }?))
    }

    fn rdma_accept(id: *mut CmId, param: *mut ConnParam) -> c_int {
        // SAFETY: the program's pointers.
        event::settled(|| unsafe { connect::accept(Id::of(id)?, param) })
    }

    fn rdma_reject(id: *mut CmId, data: *const c_void, length: u8) -> c_int {
        // SAFETY: the program's pointers.
        status(|| unsafe { connect::reject(Id::of(id)?, data, length, connect::REASON_CONSUMER) })
    }

    fn rdma_reject_ece(id: *mut CmId, data: *const c_void, length: u8) -> c_int {
        let reason = connect::REASON_VENDOR_OPTION;
        // SAFETY: the program's pointers.
        status(|| unsafe { connect::reject(Id::of(id)?, data, length, reason) })
    }

    fn rdma_notify(id: *mut CmId, event: c_uint) -> c_int {
        // SAFETY: the program's id.
        status(|| connect::notify(unsafe { Id::of(id) }?, event))
    }

    fn rdma_disconnect(id: *mut CmId) -> c_int {
        // SAFETY: the program's id.
        event::settled(|| connect::disconnect(unsafe { Id::of(id) }?))
    }

    fn rdma_get_request(listener: *mut CmId, id: *mut *mut CmId) -> c_int {
        // SAFETY: the program's pointers.
        unsafe { event::get_request(listener, id) }
    }

    fn rdma_init_qp_attr(id: *mut CmId, attr: *mut QpAttr, mask: *mut c_int) -> c_int {
        // SAFETY: the program's pointers.
        status(|| unsafe { connect::init_qp_attr(Id::of(id)?, attr, mask) })
    }

    fn rdma_set_local_ece(id: *mut CmId, ece: *mut Ece) -> c_int {
        // SAFETY: the program's pointers.
        status(|| unsafe { connect::set_local_ece(Id::of(id)?, ece) })
    }

    fn rdma_get_remote_ece(id: *mut CmId, ece: *mut Ece) -> c_int {
        // SAFETY: the program's pointers.
        status(|| unsafe { connect::get_remote_ece(Id::of(id)?, ece) })
    }

    fn rdma_create_qp(id: *mut CmId, pd: *mut Pd, attr: *mut QpInitAttr) -> c_int {
        // SAFETY: the program's pointers.
        status(|| unsafe { qp::create(Id::of(id)?, pd, attr.as_mut().ok_or(Errno::INVAL)?) })
    }

    fn rdma_create_qp_ex(id: *mut CmId, attr: *mut QpInitAttrEx) -> c_int {
        // SAFETY: the program's pointers.
        status(|| unsafe { qp::create_with(Id::of(id)?, attr.as_mut().ok_or(Errno::INVAL)?) })
    }

    fn rdma_destroy_qp(id: *mut CmId) {
        // SAFETY: the program's id.
        let _ = status(|| unsafe {
            qp::destroy(Id::of(id)?);
            Ok(())
        });
    }

    fn rdma_create_srq(id: *mut CmId, pd: *mut Pd, attr: *mut SrqInitAttr) -> c_int {
        // SAFETY: the program's pointers.
        status(|| unsafe { qp::create_srq(Id::of(id)?, pd, attr.as_mut().ok_or(Errno::INVAL)?) })
    }

    fn rdma_create_srq_ex(id: *mut CmId, attr: *mut SrqInitAttrEx) -> c_int {
        // SAFETY: the program's pointers.
        status(|| unsafe { qp::create_srq_with(Id::of(id)?, attr.as_mut().ok_or(Errno::INVAL)?) })
    }

    fn rdma_destroy_srq(id: *mut CmId) {
        // SAFETY: the program's id.
        let _ = status(|| unsafe {
            qp::destroy_srq(Id::of(id)?);
            Ok(())
        });
    }

    fn rdma_join_multicast(id: *mut CmId, addr: *mut sockaddr, context: *mut c_void) -> c_int {
        // SAFETY: the program's pointers.
        event::settled(|| unsafe { multicast::join(Id::of(id)?, addr, context) })
    }

    fn rdma_join_multicast_ex(id: *mut CmId, attr: *mut JoinMcAttr, context: *mut c_void) -> c_int {
        // SAFETY: the program's pointers.
        event::settled(|| unsafe { multicast::join_with(Id::of(id)?, attr, context) })
    }

    fn rdma_leave_multicast(id: *mut CmId, addr: *mut sockaddr) -> c_int {
        // SAFETY: the program's pointers.
        status(|| unsafe { multicast::leave(Id::of(id)?, addr) })
    }

    fn rdma_get_cm_event(channel: *mut EventChannel, event: *mut *mut CmEvent) -> c_int {
        // SAFETY: the program's pointers.
        unsafe { event::get(channel, event) }
    }

    fn rdma_ack_cm_event(event: *mut CmEvent) -> c_int {
        // SAFETY: the program's event, for the last time.
        status(|| unsafe { event::acknowledge(event) })
    }

    fn rdma_event_str(event: c_uint) -> *const c_char {
        let known = EVENTS.get(event as usize).copied();
        known.unwrap_or(c"UNKNOWN EVENT".as_ptr())
    }

    fn rdma_get_src_port(id: *mut CmId) -> u16 {
        // SAFETY: the program's id.
        unsafe { port_of(id, |addresses| &addresses.src_storage) }
    }

    fn rdma_get_dst_port(id: *mut CmId) -> u16 {
        // SAFETY: the program's id.
        unsafe { port_of(id, |addresses| &addresses.dst_storage) }
    }

    fn rdma_get_devices(count: *mut c_int) -> *mut *mut Context {
        pointer(|| {
            let devices = device::all()?;
            let number = devices.len();
            let contexts = devices.iter().map(|device| device.context);
            let list: Box<[_]> = contexts.chain([std::ptr::null_mut()]).collect();
            if !count.is_null() {
                // SAFETY: the program's place for it.
                unsafe { count.write(number as c_int) };
            }
            Ok(Box::into_raw(list).cast())
        })
    }

    fn rdma_free_devices(list: *mut *mut Context) {
        value((), || {
            if list.is_null() {
                return;
            }
            let mut length = 1;
            // SAFETY: a list of `rdma_get_devices`, which a null ends; for the last time.
            unsafe {
                while !(*list.add(length - 1)).is_null() {
                    length += 1;
                }
                drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(list, length)));
            }
        });
    }

    // The library has no sockets yet, so none of the descriptors is one, and then this is poll(2). The example
    // programs of librdmacm wait by it for their event channels.
    fn rpoll(descriptors: *mut libc::pollfd, count: libc::nfds_t, timeout_ms: c_int) -> c_int {
        // SAFETY: the program's array.
        unsafe { libc::poll(descriptors, count, timeout_ms) }
    }

    fn rdma_getaddrinfo(
        node: *const c_char,
        service: *const c_char,
        hints: *const AddrInfo,
        list: *mut *mut AddrInfo
    ) -> c_int {
        // SAFETY: the program's pointers.
        value(libc::EAI_FAIL, || unsafe { names::look_up(node, service, hints, list) })
    }

    fn rdma_resolve_addrinfo(
        id: *mut CmId,
        node: *const c_char,
        service: *const c_char,
        hints: *const AddrInfo
    ) -> c_int {
        // SAFETY: the program's pointers.
        event::settled(|| unsafe { lookup::resolve(Id::of(id)?, node, service, hints) })
    }

    fn rdma_query_addrinfo(id: *mut CmId, list: *mut *mut AddrInfo) -> c_int {
        // SAFETY: the program's pointers.
        status(|| unsafe { lookup::query(Id::of(id)?, list) })
    }

    fn rdma_write_cm_event(id: *mut CmId, event: c_uint, outcome: c_int, arg: u64) -> c_int {
        // SAFETY: the program's id.
        status(|| lookup::write_event(unsafe { Id::of(id) }?, event, outcome, arg))
    }

    fn ibv_gid_reachable(
        context: *mut Context,
        port: c_uint,
        gid: *mut Gid,
        timeout: c_int
    ) -> c_int {
        // SAFETY: the program's pointers.
        status(|| unsafe { reach::gid_reachable(context, port, gid, timeout) })
    }

    fn rdma_freeaddrinfo(list: *mut AddrInfo) {
        // SAFETY: the program's list, for the last time.
        value((), || unsafe { names::free(list) });
    }
}
