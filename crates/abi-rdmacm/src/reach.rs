//! `ibv_gid_reachable`, for the devices of whatever libibverbs there is.

use std::ffi::{CStr, c_int, c_uint};
use std::net::IpAddr;
use std::time::Duration;

use portolan::reach;
use portolan_wire::Gid as WireGid;
use rustix::io::Errno;

use crate::guard::{Result, check, last_errno};
use crate::layout::{Context, Gid};
use crate::verbs::verbs;

/// `IBV_PORT_ACTIVE`.
const PORT_ACTIVE: c_uint = 4;
/// `IBV_LINK_LAYER_INFINIBAND`.
const LINK_LAYER_INFINIBAND: u8 = 1;
/// Longest wait for an answer: that of the subnet administrator is retried within it, and so is the next hop's.
const PATIENCE: Duration = Duration::from_secs(60);
/// GIDs of a port that are looked at, at most: as many as an address vector's index can name.
const GIDS_MAX: usize = 256;

/// `struct ibv_port_attr`: what counts here lies where it does in every libibverbs.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct PortAttr {
    state: c_uint,
    mtus: [c_uint; 2],
    gid_tbl_len: c_int,
    counters: [u32; 4],
    pkey_tbl_len: u16,
    lids: [u16; 2],
    lanes: [u8; 8],
    link_layer: u8,
    rest: [u8; 5],
}

/// `struct ibv_gid_entry`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct GidEntry {
    gid: Gid,
    gid_index: u32,
    port_num: u32,
    gid_type: u32,
    ndev_ifindex: u32,
}

impl PortAttr {
    /// Whether it is linked by InfiniBand; a device that does not say is.
    pub(crate) fn is_infiniband(&self) -> bool {
        self.link_layer <= LINK_LAYER_INFINIBAND
    }

    fn is_active(&self) -> bool {
        self.state == PORT_ACTIVE
    }
}

/// The state of a port.
///
/// # Errors
/// `EINVAL` if there is no such port; the verb's.
///
/// # Safety
/// The context is one that libibverbs opened.
pub(crate) unsafe fn query_port(context: *mut Context, port_num: u8) -> Result<PortAttr> {
    let mut attr = PortAttr::default();
    // SAFETY: as the caller promises; the structure is as long as any libibverbs writes.
    check(unsafe { (verbs()?.query_port)(context, port_num, (&raw mut attr).cast()) })?;
    Ok(attr)
}

/// A GID's bytes are as they are on the wire.
pub(crate) fn gid(gid: &Gid) -> WireGid {
    let [first, second] = gid.raw.map(u64::to_ne_bytes);
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&first);
    bytes[8..].copy_from_slice(&second);
    WireGid(bytes)
}

/// `ibv_gid_reachable`.
///
/// # Errors
/// `EINVAL` for null, a timeout, and a port or GID that is none; `ENXIO` without a path, `EIO` if it could not be found
/// out; `ENOMEM`.
///
/// # Safety
/// The context is null or one that libibverbs opened, the GID is null or there.
pub(crate) unsafe fn gid_reachable(
    context: *mut Context,
    port: c_uint,
    wanted: *const Gid,
    timeout: c_int,
) -> Result<()> {
    // SAFETY: as the caller promises.
    let wanted = unsafe { wanted.as_ref() }.ok_or(Errno::INVAL)?;
    if context.is_null() || timeout != 0 {
        return Err(Errno::INVAL);
    }
    let port = u8::try_from(port).map_err(|_| Errno::INVAL)?;
    // SAFETY: as the caller promises.
    let port = unsafe { port_of(context, port) }?;
    let reached = reach::reach(&port, gid(wanted), PATIENCE);
    reached
        .map(drop)
        .map_err(|refused| Errno::from_raw_os_error(refused.errno()))
}

/// The port that asks; 0 is the first that is active.
///
/// # Safety
/// The context is one that libibverbs opened.
unsafe fn port_of(context: *mut Context, port_num: u8) -> Result<reach::Port> {
    let candidates = match port_num {
        0 => 1..=u8::MAX,
        port_num => port_num..=port_num,
    };
    for candidate in candidates {
        // SAFETY: as the caller promises.
        let attr = match unsafe { query_port(context, candidate) } {
            Ok(attr) => attr,
            // Ports are numbered without a gap.
            Err(_) if port_num == 0 => break,
            Err(_) => return Err(Errno::INVAL),
        };
        if attr.is_active() {
            // SAFETY: as the caller promises.
            return unsafe { describe(context, candidate, &attr) };
        }
    }
    Err(Errno::IO)
}

unsafe fn describe(context: *mut Context, port_num: u8, attr: &PortAttr) -> Result<reach::Port> {
    // SAFETY: an open device has a name, which stays as long as it.
    let name = unsafe { CStr::from_ptr((verbs()?.get_device_name)((*context).device)) };
    let name = name.to_string_lossy();
    if attr.is_infiniband() {
        let port = reach::Port::infiniband_named(&name, port_num);
        return port.map_err(|reason| Errno::from_raw_os_error(reason.errno()));
    }
    // SAFETY: as the caller promises.
    let entries = unsafe { gids(context) }?;
    let entries = entries
        .iter()
        .filter(|entry| entry.port_num == u32::from(port_num));
    let (addresses, interfaces): (Vec<IpAddr>, Vec<u32>) = entries
        .map(|entry| (gid(&entry.gid).to_ip(), entry.ndev_ifindex))
        .unzip();
    Ok(reach::Port::ethernet(
        &name, port_num, addresses, interfaces,
    ))
}

unsafe fn gids(context: *mut Context) -> Result<Vec<GidEntry>> {
    let empty = GidEntry {
        gid: Gid { raw: [0; 2] },
        gid_index: 0,
        port_num: 0,
        gid_type: 0,
        ndev_ifindex: 0,
    };
    let mut entries = vec![empty; GIDS_MAX];
    let (place, size) = (entries.as_mut_ptr(), size_of::<GidEntry>());
    // SAFETY: as the caller promises, and room for as many entries.
    let found = unsafe { (verbs()?.query_gid_table)(context, place.cast(), GIDS_MAX, 0, size) };
    match usize::try_from(found) {
        Ok(found) => {
            entries.truncate(found);
            Ok(entries)
        }
        Err(_) => Err(i32::try_from(-found).map_or(last_errno(), crate::guard::errno_of)),
    }
}
