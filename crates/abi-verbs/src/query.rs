//! Attributes of devices and ports: the software device's own if it has them, otherwise those of rdma_rxe.

#![allow(unsafe_code, reason = "pointers of C programs and libibverbs")]

use std::ffi::c_int;

use libc::timespec;
use portolan_provider::verbs::{self, ROCE_PKEY};
use rustix::io::Errno;

use crate::guard::{Result, errno_of, number};
use crate::layout::{
    Context, DeviceAttr, DeviceAttrEx, GID_TYPE_ROCE_V2, GidEntry, LINK_LAYER_ETHERNET, PortAttr,
    QueryDeviceExInput, VALUES_MASK_RAW_CLOCK, ValuesEx,
};
use crate::object::own;

/// Capabilities that rdma_rxe reports: counters of bad keys, migration, port events, system image, RNR NAK, resizable
/// SRQs, memory management and windows of both types. And XRC.
const DEVICE_CAP_FLAGS: u32 = 0x0122_3C76 | 1 << 20;
/// The device's clock counts nanoseconds; this is its frequency in kHz.
const CORE_CLOCK_KHZ: u64 = 1_000_000;
/// Supported page sizes, as in rdma_rxe.
const PAGE_SIZE_CAP: u64 = 0xFFFF_F000;
/// The vendor id of rdma_rxe, which means no vendor.
const VENDOR_ID: u32 = 0xFF_FFFF;
/// `IBV_PORT_CM_SUP`.
const PORT_CAP_FLAGS: u32 = 1 << 16;
/// Maximum message length, in bytes: IBTA's limit, which the software device also has.
const MAX_MSG_BYTES: u32 = 1 << 31;
/// `IBV_QPF_GRH_REQUIRED`.
const GRH_REQUIRED: u8 = 1;
/// `IBV_GID_TYPE_SYSFS_ROCE_V2`.
const SYSFS_ROCE_V2: u32 = 1;
/// Length of `struct ibv_port_attr` before `port_cap_flags2` was added, in bytes.
const OLD_PORT_ATTR: usize = std::mem::offset_of!(PortAttr, port_cap_flags2);

fn int(value: u32) -> c_int {
    c_int::try_from(value).unwrap_or(c_int::MAX)
}

/// # Safety
/// The context is open.
pub(crate) unsafe fn device(context: *mut Context) -> Result<DeviceAttr> {
    // SAFETY: the caller keeps `context` alive during this call.
    let attr = unsafe { own(context) }?.device.attr();
    attr.map(|attr| device_attr(&attr))
        .map_err(|error| errno_of(&error))
}

fn device_attr(attr: &verbs::DeviceAttr) -> DeviceAttr {
    DeviceAttr {
        node_guid: attr.node_guid.to_be(),
        sys_image_guid: attr.node_guid.to_be(),
        max_mr_size: attr.max_mr_size,
        page_size_cap: PAGE_SIZE_CAP,
        vendor_id: VENDOR_ID,
        max_qp: int(attr.max_qp),
        max_qp_wr: int(attr.max_qp_wr),
        device_cap_flags: DEVICE_CAP_FLAGS,
        max_sge: int(attr.max_sge),
        max_sge_rd: int(attr.max_sge),
        max_cq: int(attr.max_cq),
        max_cqe: int(attr.max_cqe),
        max_mr: int(attr.max_mr),
        max_pd: int(attr.max_pd),
        max_qp_rd_atom: attr.max_qp_rd_atom.into(),
        max_res_rd_atom: int(attr.max_qp.saturating_mul(attr.max_qp_rd_atom.into())),
        max_qp_init_rd_atom: attr.max_qp_init_rd_atom.into(),
        atomic_cap: attr.atomic_cap as u32,
        max_mw: int(attr.max_mw),
        max_mcast_grp: int(attr.max_mcast_grp),
        max_mcast_qp_attach: int(attr.max_mcast_qp_attach),
        max_total_mcast_qp_attach: int(attr.max_mcast_grp.saturating_mul(attr.max_mcast_qp_attach)),
        max_ah: int(attr.max_ah),
        max_srq: int(attr.max_srq),
        max_srq_wr: int(attr.max_srq_wr),
        max_srq_sge: int(attr.max_sge),
        max_pkeys: 1,
        local_ca_ack_delay: attr.local_ca_ack_delay,
        phys_port_cnt: attr.phys_port_cnt,
        ..DeviceAttr::zeroed()
    }
}

/// `query_device_ex` of the table. The program's header may be older or newer; `size` is the length of its structure.
pub(crate) unsafe extern "C" fn device_extended(
    context: *mut Context,
    input: *const QueryDeviceExInput,
    into: *mut DeviceAttrEx,
    size: usize,
) -> c_int {
    number(|| {
        // SAFETY: null, or the program's.
        if unsafe { input.as_ref() }.is_some_and(|input| input.comp_mask != 0) || into.is_null() {
            return Err(Errno::INVAL);
        }
        if size < size_of::<DeviceAttr>() {
            return Err(Errno::INVAL);
        }
        // SAFETY: the program's context.
        let attr = unsafe { device(context) }?;
        // SAFETY: the program provides `size` bytes. Fields beyond ours are zero, which means absent.
        unsafe {
            into.cast::<u8>().write_bytes(0, size);
            into.cast::<DeviceAttr>().write(attr);
            if size > std::mem::offset_of!(DeviceAttrEx, device_cap_flags_ex) + 7 {
                (&raw mut (*into).device_cap_flags_ex).write(attr.device_cap_flags.into());
            }
            if size >= size_of::<DeviceAttrEx>() {
                (&raw mut (*into).phys_port_cnt_ex).write(attr.phys_port_cnt.into());
                (&raw mut (*into).completion_timestamp_mask).write(u64::MAX);
                (&raw mut (*into).hca_core_clock).write(CORE_CLOCK_KHZ);
            }
        }
        Ok(())
    })
}

/// `query_rt_values` of the table.
pub(crate) unsafe extern "C" fn values(context: *mut Context, into: *mut ValuesEx) -> c_int {
    number(|| {
        if into.is_null() {
            return Err(Errno::INVAL);
        }
        // SAFETY: the program's pointers.
        unsafe {
            let clock = own(context)?.device.clock_ns();
            let clock = clock.map_err(|error| errno_of(&error))?;
            let wanted = (*into).comp_mask & VALUES_MASK_RAW_CLOCK;
            if wanted != 0 {
                // In nanoseconds, where mlx devices report their cycles, because programs compare it with timestamps.
                (*into).raw_clock = timespec {
                    tv_sec: 0,
                    tv_nsec: clock.cast_signed(),
                };
            }
            (*into).comp_mask = wanted;
        }
        Ok(())
    })
}

/// # Safety
/// The context is open.
unsafe fn port_attr(context: *mut Context, port_num: u8) -> Result<PortAttr> {
    // SAFETY: the caller keeps `context` alive during this call.
    let attr = unsafe { own(context) }?.device.port_attr(port_num);
    let attr = attr.map_err(|error| errno_of(&error))?;
    let (active, down) = ((4, 5), (1, 3));
    let (state, phys_state) = if attr.active { active } else { down };
    Ok(PortAttr {
        state,
        max_mtu: attr.max_mtu as u32,
        active_mtu: attr.active_mtu as u32,
        gid_tbl_len: int(attr.gid_tbl_len),
        port_cap_flags: PORT_CAP_FLAGS,
        max_msg_sz: MAX_MSG_BYTES,
        pkey_tbl_len: attr.pkey_tbl_len,
        max_vl_num: 1,
        // One lane of 2.5 Gbit/s: what rdma_rxe reports for interfaces without a known speed.
        active_width: 1,
        active_speed: 1,
        phys_state,
        link_layer: LINK_LAYER_ETHERNET,
        flags: GRH_REQUIRED,
        ..PortAttr::zeroed()
    })
}

/// `ibv_query_port` for programs built with old headers, whose structure is shorter.
///
/// # Safety
/// The context is open, and the structure the program's.
pub(crate) unsafe fn port(context: *mut Context, port_num: u8, into: *mut PortAttr) -> Result<()> {
    // SAFETY: the memory has the length of the structure without its last field.
    unsafe { give_port(context, port_num, into, OLD_PORT_ATTR) }
}

/// # Safety
/// The context is open, and `into` is null or has `size` bytes.
unsafe fn give_port(
    context: *mut Context,
    port_num: u8,
    into: *mut PortAttr,
    size: usize,
) -> Result<()> {
    if into.is_null() {
        return Err(Errno::INVAL);
    }
    // SAFETY: the context is open.
    let attr = unsafe { port_attr(context, port_num) }?;
    let known = size.min(size_of::<PortAttr>());
    // SAFETY: the program provides that many bytes, which may exceed our structure.
    unsafe {
        into.cast::<u8>().write_bytes(0, size);
        std::ptr::copy_nonoverlapping((&raw const attr).cast::<u8>(), into.cast::<u8>(), known);
    }
    Ok(())
}

/// `query_port` of the table.
pub(crate) unsafe extern "C" fn port_extended(
    context: *mut Context,
    port_num: u8,
    into: *mut PortAttr,
    size: usize,
) -> c_int {
    // SAFETY: the program's pointers.
    number(|| unsafe { give_port(context, port_num, into, size) })
}

fn entry(found: &verbs::GidEntry) -> GidEntry {
    GidEntry {
        gid: found.gid.into(),
        gid_index: found.index,
        port_num: found.port_num.into(),
        gid_type: GID_TYPE_ROCE_V2,
        ndev_ifindex: found.interface_index,
    }
}

/// The entry at an index.
///
/// # Errors
/// `ENODATA` for an empty entry, `EINVAL` for an invalid index.
///
/// # Safety
/// The context is open.
pub(crate) unsafe fn gid(context: *mut Context, port_num: u32, index: u32) -> Result<GidEntry> {
    // SAFETY: the caller keeps `context` alive during this call.
    let device = &unsafe { own(context) }?.device;
    let port_num = u8::try_from(port_num).map_err(|_| Errno::INVAL)?;
    let port = device
        .port_attr(port_num)
        .map_err(|error| errno_of(&error))?;
    if index >= port.gid_tbl_len {
        return Err(Errno::INVAL);
    }
    let gids = device.gids(port_num).map_err(|error| errno_of(&error))?;
    let found = gids.iter().find(|found| found.index == index);
    found.map(entry).ok_or(Errno::NODATA)
}

/// The used entries of all ports.
///
/// # Safety
/// The context is open.
pub(crate) unsafe fn gids(context: *mut Context) -> Result<Vec<GidEntry>> {
    // SAFETY: the caller keeps `context` alive during this call.
    let gids = unsafe { own(context) }?.device.gids(1);
    let gids = gids.map_err(|error| errno_of(&error))?;
    Ok(gids.iter().map(entry).collect())
}

/// The type of an entry, in sysfs's numbers.
///
/// # Safety
/// The context is open.
pub(crate) unsafe fn gid_type(context: *mut Context, port_num: u8, index: u32) -> Result<u32> {
    // SAFETY: the context is open.
    match unsafe { gid(context, port_num.into(), index) } {
        // An empty entry has the type that it would have in use.
        Ok(_) | Err(Errno::NODATA) => Ok(SYSFS_ROCE_V2),
        Err(errno) => Err(errno),
    }
}

/// A P_Key in network order.
///
/// # Safety
/// The context is open.
pub(crate) unsafe fn pkey(context: *mut Context, port_num: u8, index: c_int) -> Result<u16> {
    // SAFETY: the caller keeps `context` alive during this call.
    let port = unsafe { own(context) }?.device.port_attr(port_num);
    port.map_err(|error| errno_of(&error))?;
    match index {
        0 => Ok(ROCE_PKEY.0.to_be()),
        _ => Err(Errno::INVAL),
    }
}

/// The index of a P_Key, given in network order.
///
/// # Safety
/// The context is open.
pub(crate) unsafe fn pkey_index(context: *mut Context, port_num: u8, wanted: u16) -> Result<c_int> {
    // SAFETY: the context is open.
    match unsafe { pkey(context, port_num, 0) }? == wanted {
        true => Ok(0),
        false => Err(Errno::NOENT),
    }
}
