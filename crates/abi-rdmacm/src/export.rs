//! The exported C functions, with the names and versions of `librdmacm.map`.
//!
//! A function needs its definition here, its name and version in `librdmacm.map`, and its declaration in
//! `include/rdma`, or in `include/portolan.h` if rdma-core does not have it. Tests compare the three.

#![allow(unsafe_code, reason = "pointers of C programs and libibverbs")]

use std::ffi::{c_char, c_int, c_long, c_uint, c_void};

use libc::{fd_set, iovec, msghdr, pollfd, sockaddr, socklen_t, timeval};

use portolan_abi_layout::exports;
use portolan_abi_layout::pointers::{Bytes, In, InOut, Out, Text};
use rustix::io::Errno;

use crate::address::{self, SocketAddress};
use crate::arguments::{address_bytes, bytes, number, piece, pieces_of, slice_mut};
use crate::event::Event;
use crate::get_event::settled;
use crate::guard::{caught, failed, pointer, status, value};
use crate::id::{Id, get};
use crate::layout::*;
use crate::rsocket::{self, Gather, Scatter};
use crate::{
    channel, connect, device, endpoint, get_event, get_request, life, multicast, names, qp, reach,
    resolve, resolve_addrinfo,
};

/// The names of events by number.
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
fn port_of(id: *mut CmId, address: impl FnOnce(&Addr) -> &libc::sockaddr_storage) -> u16 {
    value(0, || {
        let Ok(id) = Id::of(id) else {
            return 0;
        };
        let addresses = get!(&id, route.addr);
        let storage = std::ptr::from_ref(address(&addresses));
        // SAFETY: both types have the same length, and the library or the program has initialized all bytes.
        address::port(unsafe { &*storage.cast::<address::Storage>() })
    })
}

exports! {
    fn rdma_create_event_channel() -> *mut EventChannel {
        pointer(channel::create)
    }

    fn rdma_destroy_event_channel(channel: *mut EventChannel) {
        value((), || channel::destroy(channel));
    }

    fn rdma_create_id(
        channel: *mut EventChannel,
        id: Out<*mut CmId>,
        context: *mut c_void,
        ps: c_uint
    ) -> c_int {
        status(|| {
            id.check()?;
            id.write(life::create(channel, context, ps)?.as_c());
            Ok(())
        })
    }

    fn rdma_destroy_id(id: *mut CmId) -> c_int {
        status(|| life::destroy(&Id::of(id)?))
    }

    fn rdma_create_ep(
        id: Out<*mut CmId>,
        info: In<AddrInfo>,
        pd: *mut Pd,
        attr: InOut<QpInitAttr>
    ) -> c_int {
        endpoint::create_endpoint(id, info, pd, attr)
    }

    fn rdma_destroy_ep(id: *mut CmId) {
        let _ = status(|| {
            endpoint::destroy_endpoint(&Id::of(id)?);
            Ok(())
        });
    }

    fn rdma_migrate_id(id: *mut CmId, channel: *mut EventChannel) -> c_int {
        status(|| life::migrate(&Id::of(id)?, channel))
    }

    fn rdma_bind_addr(id: *mut CmId, addr: SocketAddress) -> c_int {
        status(|| resolve::bind(&Id::of(id)?, addr))
    }

    fn rdma_resolve_addr(
        id: *mut CmId,
        source: SocketAddress,
        destination: SocketAddress,
        timeout_ms: c_int
    ) -> c_int {
        settled(|| resolve::resolve_address(&Id::of(id)?, source, destination, timeout_ms))
    }

    fn rdma_resolve_route(id: *mut CmId, timeout_ms: c_int) -> c_int {
        settled(|| resolve::resolve_route(&Id::of(id)?, timeout_ms))
    }

    fn rdma_listen(id: *mut CmId, backlog: c_int) -> c_int {
        status(|| resolve::listen(&Id::of(id)?, backlog))
    }

    fn rdma_set_option(
        id: *mut CmId,
        level: c_int,
        name: c_int,
        value: Bytes,
        length: usize
    ) -> c_int {
        // SAFETY: the value has as many bytes (rdma_set_option(3)).
        status(|| unsafe { resolve::set_option(&Id::of(id)?, level, name, value, length) })
    }

    fn rdma_connect(id: *mut CmId, param: In<ConnParam>) -> c_int {
        settled(|| connect::connect(&Id::of(id)?, param))
    }

    fn rdma_establish(id: *mut CmId) -> c_int {
        status(|| connect::establish(&Id::of(id)?))
    }

    fn rdma_accept(id: *mut CmId, param: In<ConnParam>) -> c_int {
        settled(|| connect::accept(&Id::of(id)?, param))
    }

    fn rdma_reject(id: *mut CmId, data: Bytes, length: u8) -> c_int {
        // SAFETY: the private data has as many bytes (rdma_reject(3)).
        status(|| unsafe { connect::reject(&Id::of(id)?, data, length, connect::REASON_CONSUMER) })
    }

    fn rdma_reject_ece(id: *mut CmId, data: Bytes, length: u8) -> c_int {
        let reason = connect::REASON_VENDOR_OPTION;
        // SAFETY: the private data has as many bytes (rdma_reject(3)).
        status(|| unsafe { connect::reject(&Id::of(id)?, data, length, reason) })
    }

    fn rdma_notify(id: *mut CmId, event: c_uint) -> c_int {
        status(|| connect::notify(&Id::of(id)?, event))
    }

    fn rdma_disconnect(id: *mut CmId) -> c_int {
        settled(|| connect::disconnect(&Id::of(id)?))
    }

    fn rdma_get_request(listener: *mut CmId, id: Out<*mut CmId>) -> c_int {
        get_request::get_request(listener, id)
    }

    fn rdma_init_qp_attr(id: *mut CmId, attr: InOut<QpAttr>, mask: Out<c_int>) -> c_int {
        status(|| connect::init_qp_attr(&Id::of(id)?, attr, mask))
    }

    fn rdma_set_local_ece(id: *mut CmId, ece: In<Ece>) -> c_int {
        status(|| connect::set_local_ece(&Id::of(id)?, ece))
    }

    fn rdma_get_remote_ece(id: *mut CmId, ece: Out<Ece>) -> c_int {
        status(|| connect::get_remote_ece(&Id::of(id)?, ece))
    }

    fn rdma_create_qp(id: *mut CmId, pd: *mut Pd, attr: InOut<QpInitAttr>) -> c_int {
        status(|| attr.with(|attr| qp::create(&Id::of(id)?, pd, attr)))
    }

    fn rdma_create_qp_ex(id: *mut CmId, attr: InOut<QpInitAttrEx>) -> c_int {
        status(|| attr.with(|attr| qp::create_with(&Id::of(id)?, attr)))
    }

    fn rdma_destroy_qp(id: *mut CmId) {
        let _ = status(|| {
            qp::destroy(&Id::of(id)?);
            Ok(())
        });
    }

    fn rdma_create_srq(id: *mut CmId, pd: *mut Pd, attr: InOut<SrqInitAttr>) -> c_int {
        status(|| attr.with(|attr| qp::create_srq(&Id::of(id)?, pd, attr)))
    }

    fn rdma_create_srq_ex(id: *mut CmId, attr: InOut<SrqInitAttrEx>) -> c_int {
        status(|| attr.with(|attr| qp::create_srq_with(&Id::of(id)?, attr)))
    }

    fn rdma_destroy_srq(id: *mut CmId) {
        let _ = status(|| {
            qp::destroy_srq(&Id::of(id)?);
            Ok(())
        });
    }

    fn rdma_join_multicast(id: *mut CmId, addr: SocketAddress, context: *mut c_void) -> c_int {
        settled(|| multicast::join(&Id::of(id)?, addr, context))
    }

    fn rdma_join_multicast_ex(id: *mut CmId, attr: In<JoinMcAttr>, context: *mut c_void) -> c_int {
        settled(|| multicast::join_with(&Id::of(id)?, attr, context))
    }

    fn rdma_leave_multicast(id: *mut CmId, addr: SocketAddress) -> c_int {
        status(|| multicast::leave(&Id::of(id)?, addr))
    }

    fn rdma_get_cm_event(channel: *mut EventChannel, event: Out<*mut CmEvent>) -> c_int {
        get_event::get(channel, event)
    }

    fn rdma_ack_cm_event(event: *mut CmEvent) -> c_int {
        // SAFETY: the program's event, which it passes for the last time.
        status(|| unsafe { Event::from_c(event) }.map(drop))
    }

    fn rdma_event_str(event: c_uint) -> *const c_char {
        let known = EVENTS.get(event as usize).copied();
        known.unwrap_or(c"UNKNOWN EVENT".as_ptr())
    }

    fn rdma_get_src_port(id: *mut CmId) -> u16 {
        port_of(id, |addresses| &addresses.src_storage)
    }

    fn rdma_get_dst_port(id: *mut CmId) -> u16 {
        port_of(id, |addresses| &addresses.dst_storage)
    }

    fn rdma_get_devices(count: Out<c_int>) -> *mut *mut Context {
        pointer(|| {
            let devices = device::all()?;
            let number = devices.len();
            let contexts = devices.iter().map(|device| device.context);
            let list = malloc_list(contexts);
            count.write(number as c_int);
            Ok(list)
        })
    }

    fn rdma_free_devices(list: *mut *mut Context) {
        // SAFETY: a list of `rdma_get_devices`, which the program passes for the last time.
        value((), || unsafe { free(list) });
    }

    fn rsocket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
        number(|| rsocket::create(domain, kind, protocol))
    }

    fn rbind(socket: c_int, addr: *const sockaddr, length: socklen_t) -> c_int {
        // SAFETY: the address has as many bytes (bind(2)).
        status(|| rsocket::bind(&*rsocket::find(socket)?, unsafe { address_bytes(addr, length) }?))
    }

    fn rlisten(socket: c_int, backlog: c_int) -> c_int {
        status(|| rsocket::listen(&*rsocket::find(socket)?, backlog))
    }

    fn raccept(socket: c_int, addr: *mut sockaddr, length: *mut socklen_t) -> c_int {
        number(|| {
            let child = rsocket::accept(&*rsocket::find(socket)?)?;
            if !addr.is_null() && !length.is_null() {
                // SAFETY: the place is as accept(2) says.
                unsafe { rsocket::peer_name(&child, addr, length) }?;
            }
            Ok(child.number())
        })
    }

    fn rconnect(socket: c_int, addr: *const sockaddr, length: socklen_t) -> c_int {
        // SAFETY: the address has as many bytes (connect(2)).
        status(|| rsocket::connect(&*rsocket::find(socket)?, unsafe { address_bytes(addr, length) }?))
    }

    fn rshutdown(socket: c_int, how: c_int) -> c_int {
        status(|| rsocket::shutdown(&*rsocket::find(socket)?, how))
    }

    fn rclose(socket: c_int) -> c_int {
        status(|| rsocket::close(socket))
    }

    fn rrecv(socket: c_int, into: *mut c_void, length: usize, flags: c_int) -> isize {
        let piece = piece(into, length);
        // SAFETY: one piece, of the program's memory (recv(2)).
        bytes(|| rsocket::receive(&*rsocket::find(socket)?, unsafe { Scatter::new(&piece, 1) }?, flags))
    }

    fn rrecvfrom(
        socket: c_int,
        into: *mut c_void,
        length: usize,
        flags: c_int,
        addr: *mut sockaddr,
        addr_length: *mut socklen_t
    ) -> isize {
        let piece = piece(into, length);
        bytes(|| {
            let socket = rsocket::find(socket)?;
            // SAFETY: one piece, of the program's memory (recvfrom(2)).
            let into = unsafe { Scatter::new(&piece, 1) }?;
            // SAFETY: the place is as recvfrom(2) says.
            unsafe { rsocket::receive_from(&socket, into, flags, addr, addr_length) }
        })
    }

    fn rrecvmsg(socket: c_int, message: *mut msghdr, flags: c_int) -> isize {
        bytes(|| {
            let socket = rsocket::find(socket)?;
            // SAFETY: the message is as recvmsg(2) says.
            let (first, count) = unsafe { pieces_of(message) }?;
            // SAFETY: as above.
            rsocket::receive(&socket, unsafe { Scatter::new(first, count) }?, flags)
        })
    }

    fn rsend(socket: c_int, from: *const c_void, length: usize, flags: c_int) -> isize {
        let piece = piece(from.cast_mut(), length);
        // SAFETY: one piece, of the program's memory (send(2)).
        bytes(|| rsocket::send(&*rsocket::find(socket)?, unsafe { Gather::new(&piece, 1) }?, flags))
    }

    fn rsendto(
        socket: c_int,
        from: *const c_void,
        length: usize,
        flags: c_int,
        addr: *const sockaddr,
        addr_length: socklen_t
    ) -> isize {
        let piece = piece(from.cast_mut(), length);
        bytes(|| {
            let socket = rsocket::find(socket)?;
            // SAFETY: one piece, of the program's memory (sendto(2)).
            let from = unsafe { Gather::new(&piece, 1) }?;
            let to = match addr.is_null() && addr_length == 0 {
                true => None,
                // SAFETY: the address has as many bytes (sendto(2)).
                false => Some(unsafe { address_bytes(addr, addr_length) }?),
            };
            rsocket::send_to(&socket, from, flags, to)
        })
    }

    fn rsendmsg(socket: c_int, message: *const msghdr, flags: c_int) -> isize {
        bytes(|| {
            let socket = rsocket::find(socket)?;
            // SAFETY: the message is as sendmsg(2) says.
            let (first, count) = unsafe { pieces_of(message) }?;
            // SAFETY: as above.
            rsocket::send(&socket, unsafe { Gather::new(first, count) }?, flags)
        })
    }

    fn rread(socket: c_int, into: *mut c_void, length: usize) -> isize {
        let piece = piece(into, length);
        // SAFETY: one piece, of the program's memory (read(2)).
        bytes(|| rsocket::receive(&*rsocket::find(socket)?, unsafe { Scatter::new(&piece, 1) }?, 0))
    }

    fn rreadv(socket: c_int, pieces: *const iovec, count: c_int) -> isize {
        bytes(|| {
            let socket = rsocket::find(socket)?;
            let count = usize::try_from(count).map_err(|_| Errno::INVAL)?;
            // SAFETY: the pieces are as readv(2) says.
            rsocket::receive(&socket, unsafe { Scatter::new(pieces, count) }?, 0)
        })
    }

    fn rwrite(socket: c_int, from: *const c_void, length: usize) -> isize {
        let piece = piece(from.cast_mut(), length);
        // SAFETY: one piece, of the program's memory (write(2)).
        bytes(|| rsocket::send(&*rsocket::find(socket)?, unsafe { Gather::new(&piece, 1) }?, 0))
    }

    fn rwritev(socket: c_int, pieces: *const iovec, count: c_int) -> isize {
        bytes(|| {
            let socket = rsocket::find(socket)?;
            let count = usize::try_from(count).map_err(|_| Errno::INVAL)?;
            // SAFETY: the pieces are as writev(2) says.
            rsocket::send(&socket, unsafe { Gather::new(pieces, count) }?, 0)
        })
    }

    fn rpoll(descriptors: *mut pollfd, count: libc::nfds_t, timeout_ms: c_int) -> c_int {
        number(|| {
            let count = usize::try_from(count).map_err(|_| Errno::INVAL)?;
            // SAFETY: as many descriptors (poll(2)).
            rsocket::poll(unsafe { slice_mut(descriptors, count) }?, timeout_ms)
        })
    }

    fn rselect(
        count: c_int,
        read: *mut fd_set,
        write: *mut fd_set,
        except: *mut fd_set,
        timeout: *mut timeval
    ) -> c_int {
        // SAFETY: sets and timeout are as select(2) says.
        number(|| unsafe { rsocket::select(count, [read, write, except], timeout) })
    }

    fn rgetpeername(socket: c_int, addr: *mut sockaddr, length: *mut socklen_t) -> c_int {
        // SAFETY: the place is as getpeername(2) says.
        status(|| unsafe { rsocket::peer_name(&*rsocket::find(socket)?, addr, length) })
    }

    fn rgetsockname(socket: c_int, addr: *mut sockaddr, length: *mut socklen_t) -> c_int {
        // SAFETY: the place is as getsockname(2) says.
        status(|| unsafe { rsocket::socket_name(&*rsocket::find(socket)?, addr, length) })
    }

    fn rsetsockopt(
        socket: c_int,
        level: c_int,
        name: c_int,
        value: Bytes,
        length: socklen_t
    ) -> c_int {
        status(|| {
            let socket = rsocket::find(socket)?;
            // SAFETY: the value has as many bytes (setsockopt(2)).
            rsocket::set_option(&socket, level, name, unsafe { value.get(length as usize) })
        })
    }

    fn rgetsockopt(
        socket: c_int,
        level: c_int,
        name: c_int,
        value: *mut c_void,
        length: *mut socklen_t
    ) -> c_int {
        status(|| {
            let found = rsocket::get_option(&*rsocket::find(socket)?, level, name)?;
            if value.is_null() || length.is_null() {
                return Err(Errno::FAULT);
            }
            // SAFETY: the place has as many bytes as `length` says (getsockopt(2)).
            unsafe {
                let found = found.bytes(*length as usize)?;
                let room = (*length as usize).min(found.len());
                std::ptr::copy_nonoverlapping(found.as_ptr(), value.cast(), room);
                *length = room as socklen_t;
            }
            Ok(())
        })
    }

    // In C, the last argument exists only for some commands. Both calling conventions pass it like a named argument.
    fn rfcntl(socket: c_int, command: c_int, argument: c_long) -> c_int {
        number(|| rsocket::descriptor(&*rsocket::find(socket)?, command, argument))
    }

    fn riomap(
        socket: c_int,
        memory: *mut c_void,
        length: usize,
        prot: c_int,
        _flags: c_int,
        offset: i64
    ) -> i64 {
        // SAFETY: the memory stays until `riounmap` (rsocket(7)).
        caught(|| unsafe { rsocket::map(&*rsocket::find(socket)?, memory.addr(), length, prot, offset) })
            .unwrap_or_else(|errno| failed(errno).into())
    }

    fn riounmap(socket: c_int, memory: *mut c_void, length: usize) -> c_int {
        status(|| rsocket::unmap(&*rsocket::find(socket)?, memory.addr(), length))
    }

    fn riowrite(
        socket: c_int,
        from: Bytes,
        length: usize,
        offset: i64,
        flags: c_int
    ) -> usize {
        bytes(|| {
            let socket = rsocket::find(socket)?;
            if from.is_null() && length > 0 {
                return Err(Errno::FAULT);
            }
            // SAFETY: as many bytes (rsocket(7)).
            rsocket::write_mapped(&socket, unsafe { from.get(length) }, offset, flags)
        })
        .cast_unsigned()
    }

    fn repoll_create(flags: c_int) -> c_int {
        number(|| rsocket::create_epoll(flags))
    }

    fn repoll_ctl(instance: c_int, operation: c_int, fd: c_int, event: In<libc::epoll_event>) -> c_int {
        status(|| {
            let event = event.get().map(|event| rsocket::Event {
                events: event.events,
                data: event.u64,
            });
            rsocket::control(instance, operation, fd, event)
        })
    }

    fn repoll_wait(
        instance: c_int,
        events: *mut libc::epoll_event,
        most: c_int,
        timeout_ms: c_int
    ) -> c_int {
        number(|| {
            if events.is_null() {
                return Err(Errno::FAULT);
            }
            let found = rsocket::wait_epoll(instance, most, timeout_ms)?;
            for (at, event) in found.iter().enumerate() {
                let event = libc::epoll_event {
                    events: event.events,
                    u64: event.data,
                };
                // SAFETY: the program passes room for `most` events, and `found` has at most that many (epoll_wait(2)).
                unsafe { events.add(at).write_unaligned(event) };
            }
            Ok(found.len() as c_int)
        })
    }

    fn rdma_getaddrinfo(
        node: Text,
        service: Text,
        hints: In<AddrInfo>,
        list: Out<*mut AddrInfo>
    ) -> c_int {
        value(libc::EAI_FAIL, || names::look_up(node, service, hints, list))
    }

    fn rdma_resolve_addrinfo(
        id: *mut CmId,
        node: Text,
        service: Text,
        hints: In<AddrInfo>
    ) -> c_int {
        settled(|| resolve_addrinfo::resolve(&Id::of(id)?, node, service, hints))
    }

    fn rdma_query_addrinfo(id: *mut CmId, list: Out<*mut AddrInfo>) -> c_int {
        status(|| resolve_addrinfo::query(&Id::of(id)?, list))
    }

    fn rdma_write_cm_event(id: *mut CmId, event: c_uint, outcome: c_int, arg: u64) -> c_int {
        status(|| resolve_addrinfo::write_event(&Id::of(id)?, event, outcome, arg))
    }

    fn ibv_gid_reachable(
        context: *mut Context,
        port: c_uint,
        gid: In<Gid>,
        timeout: c_int
    ) -> c_int {
        // SAFETY: the context is null or open (portolan.h).
        status(|| unsafe { reach::gid_reachable(context, port, gid, timeout) })
    }

    fn rdma_freeaddrinfo(list: *mut AddrInfo) {
        // SAFETY: the program's list, which it passes for the last time.
        value((), || unsafe { names::free(list) });
    }
}
