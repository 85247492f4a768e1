//! Endpoints: synchronous ids created from a resolved address.

#![allow(unsafe_code, reason = "pointers of C programs and libibverbs")]

use std::ffi::c_int;
use std::ptr::null_mut;

use portolan_abi_layout::pointers::{In, InOut, Out};

use crate::address::SocketAddress;
use crate::get_event::settle;
use crate::guard::{Result, caught, failed};
use crate::id::{Id, get, set};
use crate::layout::{AddrInfo, CmId, Pd, QpInitAttr, RAI_PASSIVE};
use crate::sync::Left;
use crate::{life, qp, resolve};

/// Time limit for resolving an endpoint's address, and again for its route.
const RESOLVE_TIMEOUT_MS: c_int = 2000;

/// `rdma_create_ep`: binds or resolves the first address of the list.
pub(crate) fn create_endpoint(
    into: Out<*mut CmId>,
    info: In<AddrInfo>,
    pd: *mut Pd,
    attr: InOut<QpInitAttr>,
) -> c_int {
    let made = caught(|| {
        into.check()?;
        let info = info.required()?;
        let ps = info.ai_port_space.cast_unsigned();
        let qp_type = info.ai_qp_type.cast_unsigned();
        Ok(life::create_as(null_mut(), null_mut(), ps, qp_type)?.as_c())
    });
    let done = made.and_then(|id| {
        let prepared = prepare(id, &info, pd, attr);
        caught(|| {
            if let Err(errno) = prepared {
                let id = Id::made(id)?;
                qp::destroy(&id);
                life::destroy(&id)?;
                return Err(errno);
            }
            into.write(id);
            Ok(())
        })
    });
    done.map_or_else(failed, |()| 0)
}

/// Each step runs in its own guard. Between the steps the thread may be cancelled, with nothing to drop.
fn prepare(
    id: *mut CmId,
    info: &In<AddrInfo>,
    pd: *mut Pd,
    mut attr: InOut<QpInitAttr>,
) -> Result<()> {
    let (info, attr) = (info.required()?, attr.get());
    // SAFETY: the pointers of a valid address list match their lengths (`In`).
    let (source, destination) = unsafe {
        (
            SocketAddress::new(info.ai_src_addr),
            SocketAddress::new(info.ai_dst_addr),
        )
    };
    if info.ai_flags & RAI_PASSIVE != 0 {
        return caught(|| prepare_listener(&Id::made(id)?, source, pd, attr));
    }
    settle(caught(|| {
        resolve::resolve_address(&Id::made(id)?, source, destination, RESOLVE_TIMEOUT_MS)
    })?)?;
    // SAFETY: the route of `info` is as long as it says (`In`).
    settle(caught(|| unsafe { begin_route(&Id::made(id)?, info) })?)?;
    // SAFETY: the connect data of `info` is as long as it says (`In`).
    caught(|| unsafe { prepare_caller(&Id::made(id)?, info, pd, attr) })
}

fn prepare_listener(
    id: &Id,
    local: SocketAddress,
    pd: *mut Pd,
    attr: Option<&mut QpInitAttr>,
) -> Result<()> {
    resolve::bind(id, local)?;
    if !pd.is_null() {
        set!(id, pd = pd);
    }
    id.state().qp_init_attr = attr.map(|attr| {
        attr.qp_type = get!(id, qp_type);
        *attr
    });
    Ok(())
}

/// # Safety
/// The route of `info` is as long as it says.
unsafe fn begin_route(id: &Id, info: &AddrInfo) -> Result<Left> {
    if info.ai_route_len == 0 || info.ai_route.is_null() {
        return resolve::resolve_route(id, RESOLVE_TIMEOUT_MS);
    }
    // SAFETY: the caller promises the length.
    let paths = unsafe { std::slice::from_raw_parts(info.ai_route.cast(), info.ai_route_len) };
    resolve::set_route(id, paths)
}

/// # Safety
/// The connect data of `info` is as long as it says.
unsafe fn prepare_caller(
    id: &Id,
    info: &AddrInfo,
    pd: *mut Pd,
    attr: Option<&mut QpInitAttr>,
) -> Result<()> {
    if let Some(attr) = attr {
        attr.qp_type = get!(id, qp_type);
        qp::create(id, pd, attr)?;
    }
    if info.ai_connect_len > 0 && !info.ai_connect.is_null() {
        let data = info.ai_connect.cast();
        // SAFETY: the caller promises the length.
        let data = unsafe { std::slice::from_raw_parts(data, info.ai_connect_len) };
        // Sent before the private data of the connect.
        id.state().connect = data.to_vec();
    }
    Ok(())
}

/// `rdma_destroy_ep`: destroys the id with its queue pair and shared receive queue.
pub(crate) fn destroy_endpoint(id: &Id) {
    if !get!(id, qp).is_null() {
        qp::destroy(id);
    }
    if !get!(id, srq).is_null() {
        qp::destroy_srq(id);
    }
    let _ = life::destroy(id);
}
