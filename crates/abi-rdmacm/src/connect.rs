//! Connections: connect, accept, reject, and related calls.

#![allow(unsafe_code, reason = "pointers of C programs and libibverbs")]

use portolan_abi_layout::pointers::{Bytes, In, InOut, Out};
use portolan_kernel::raw::{self, Fields};
use rustix::io::Errno;

use crate::device::Device;
use crate::event;
use crate::guard::{Result, check};
use crate::id::{Id, NO_ECE, get};
use crate::layout::event_type::{CONNECT_ERROR, DISCONNECTED, REJECTED, UNREACHABLE};
use crate::layout::*;
use crate::qp;
use crate::sync::{Left, begun};
use crate::verbs::verbs;

/// Retry counts if the program passes none: the maximum. For missing receives (RNR) it means without limit.
const RETRIES_DEFAULT: u8 = 7;
/// Reject reasons of IBTA: consumer defined, and vendor option not supported.
pub(crate) const REASON_CONSUMER: u8 = 28;
pub(crate) const REASON_VENDOR_OPTION: u8 = 35;

/// `rdma_connect`.
///
/// # Errors
/// `EINVAL` for parameters beyond the device's limits, for missing parameters without a queue pair, and for private
/// data that does not fit; the kernel's errors.
pub(crate) fn connect(id: &Id, param: In<ConnParam>) -> Result<Left> {
    let private_data = private_data(&param);
    let param = param.get();
    let device = id.device()?;
    check_param(id, param, &device)?;
    let or_most =
        |wanted: Option<u8>, most: u8| wanted.filter(|n| *n != MAX_RESOURCES).unwrap_or(most);
    let wanted = param.map(|param| param.responder_resources);
    let responder_resources = or_most(wanted, device.responder_resources_max);
    let wanted = param.map(|param| param.initiator_depth);
    let initiator_depth = or_most(wanted, device.initiator_depth_max);
    let prefix = {
        let mut state = id.state();
        state.responder_resources = responder_resources;
        state.initiator_depth = initiator_depth;
        state.connect.clone()
    };
    let mut conn_param = kernels_param(id, param, &[&prefix, private_data].concat())?;
    conn_param.responder_resources = responder_resources;
    conn_param.initiator_depth = initiator_depth;
    if !get!(id, qp).is_null()
        && let Ok(ece) = query_ece(id)
    {
        id.state().local_ece = ece;
    }
    let connect = raw::Connect {
        conn_param,
        id: id.handle(),
        reserved: 0,
        ece: kernels_ece(id.state().local_ece),
    };
    begun(id, |commands| {
        // The prefix is sent once. Keep it if the command fails.
        let prefix = std::mem::take(&mut id.state().connect);
        commands
            .command(&connect)
            .inspect_err(|_| id.state().connect = prefix)
    })
}

/// # Errors
/// `EINVAL` if the parameters exceed the device's limits, or if there are neither parameters nor a queue pair.
fn check_param(id: &Id, param: Option<&ConnParam>, device: &Device) -> Result<()> {
    let has_pair = !get!(id, qp).is_null();
    let most = (device.responder_resources_max, device.initiator_depth_max);
    match get!(id, ps) != PS_TCP || is_within(param, has_pair, most) {
        true => Ok(()),
        false => Err(Errno::INVAL),
    }
}

fn is_within(param: Option<&ConnParam>, has_pair: bool, most: (u8, u8)) -> bool {
    let fits = |wanted: u8, most: u8| wanted == MAX_RESOURCES || wanted <= most;
    param.map_or(has_pair, |param| {
        fits(param.responder_resources, most.0) && fits(param.initiator_depth, most.1)
    })
}

/// `rdma_accept`.
///
/// # Errors
/// `EINVAL` as for [`connect`]; those of the queue pair's transitions; the kernel's.
pub(crate) fn accept(id: &Id, param: In<ConnParam>) -> Result<Left> {
    let private_data = private_data(&param);
    let param = param.get();
    let device = id.device()?;
    check_param(id, param, &device)?;
    let is_datagram = id.is_datagram();
    let (responder_resources, initiator_depth) = {
        let mut state = id.state();
        let given = param.map(|param| param.responder_resources);
        state.responder_resources = match given.filter(|number| *number != MAX_RESOURCES) {
            Some(number) => number,
            None => state
                .responder_resources
                .min(device.responder_resources_max),
        };
        let given = param.map(|param| param.initiator_depth);
        state.initiator_depth = match given.filter(|number| *number != MAX_RESOURCES) {
            Some(number) => number,
            None => state.initiator_depth.min(device.initiator_depth_max),
        };
        (state.responder_resources, state.initiator_depth)
    };
    let mut conn_param = kernels_param(id, param, private_data)?;
    conn_param.responder_resources = responder_resources;
    conn_param.initiator_depth = initiator_depth;
    let has_pair = !get!(id, qp).is_null() && !is_datagram;
    if has_pair {
        agree_on_ece(id)?;
        qp::to_ready(id, responder_resources, initiator_depth)?;
        confirm_ece(id);
    }
    let accept = raw::Accept {
        uid: id.own().uid,
        conn_param,
        id: id.handle(),
        reserved: 0,
        ece: kernels_ece(id.state().local_ece),
    };
    let send = |commands: &raw::Channel| {
        commands.command(&accept).inspect_err(|_| {
            let _ = qp::to_error(id);
        })
    };
    if !is_datagram {
        return begun(id, send);
    }
    // A datagram service needs no further step.
    send(&*id.commands()?)?;
    if id.is_sync() {
        event::drop_kept(id);
    }
    Ok(Left::Nothing)
}

/// `rdma_reject` and `rdma_reject_ece`.
///
/// # Errors
/// The kernel's.
///
/// # Safety
/// The private data has `length` bytes.
pub(crate) unsafe fn reject(id: &Id, data: Bytes, length: u8, reason: u8) -> Result<()> {
    // SAFETY: the caller promises `length` bytes.
    let data = unsafe { data.get(length.into()) };
    let mut private_data = [0; raw::PRIVATE_DATA_LEN];
    private_data[..data.len()].copy_from_slice(data);
    let reject = raw::Reject {
        id: id.handle(),
        private_data_len: data.len() as u8,
        reason,
        reserved: [0; 2],
        private_data,
    };
    id.commands()?.command(&reject)
}

/// `rdma_establish`, for a program that moves its queue pair itself.
///
/// # Errors
/// `EINVAL` if the id has a queue pair; the kernel's.
pub(crate) fn establish(id: &Id) -> Result<()> {
    if !get!(id, qp).is_null() {
        return Err(Errno::INVAL);
    }
    confirm(id)
}

/// `rdma_disconnect`. A synchronous id without a connection has no event to wait for.
///
/// # Errors
/// Those of the queue pair's transition; the kernel's.
pub(crate) fn disconnect(id: &Id) -> Result<Left> {
    match id.transport() {
        Some(TRANSPORT_IWARP) => qp::to_drained(id)?,
        Some(TRANSPORT_IB) => qp::to_error(id)?,
        _ => return Err(Errno::INVAL),
    }
    let is_over = matches!(
        event::kept_type(id),
        Some(REJECTED | UNREACHABLE | CONNECT_ERROR | DISCONNECTED)
    );
    let disconnect = raw::Disconnect { id: id.handle() };
    let left = begun(id, |commands| commands.command(&disconnect))?;
    Ok(if is_over { Left::Nothing } else { left })
}

/// `rdma_notify`.
///
/// # Errors
/// The kernel's.
pub(crate) fn notify(id: &Id, event: u32) -> Result<()> {
    let notify = raw::Notify {
        id: id.handle(),
        event,
    };
    id.commands()?.command(&notify)
}

/// Handles the peer's reply: moves the queue pair to RTS, and sends the RTU.
pub(crate) fn finish(id: &Id, remote: Ece) -> Result<()> {
    if remote.vendor_id != 0 {
        if id.state().local_ece.vendor_id != remote.vendor_id {
            return Err(Errno::INVAL);
        }
        set_ece(id, remote)?;
    }
    qp::to_ready(id, MAX_RESOURCES, MAX_RESOURCES)?;
    confirm(id)?;
    confirm_ece(id);
    Ok(())
}

/// Confirms the reply. The command has no parameters.
fn confirm(id: &Id) -> Result<()> {
    let accept = raw::Accept {
        id: id.handle(),
        ..raw::Accept::zeroed()
    };
    id.commands()?.command(&accept)
}

/// Uses the options of the peer's vendor if the queue pair's vendor is the same, otherwise none.
fn agree_on_ece(id: &Id) -> Result<()> {
    let remote = id.state().remote_ece;
    let local = query_ece(id).unwrap_or(NO_ECE);
    let agreed = remote.vendor_id != 0 && remote.vendor_id == local.vendor_id;
    if agreed {
        set_ece(id, remote)?;
    }
    id.state().local_ece = if agreed { remote } else { NO_ECE };
    Ok(())
}

/// Stores the options that the queue pair has accepted.
fn confirm_ece(id: &Id) {
    if id.state().local_ece.vendor_id != 0
        && let Ok(ece) = query_ece(id)
    {
        id.state().local_ece = ece;
    }
}

fn query_ece(id: &Id) -> Result<Ece> {
    let mut ece = NO_ECE;
    // SAFETY: the id's queue pair, and a structure to write to.
    check(unsafe { (verbs()?.query_ece)(get!(id, qp), &mut ece) })?;
    Ok(ece)
}

/// Sets the options. A device that supports none ignores them.
fn set_ece(id: &Id, mut ece: Ece) -> Result<()> {
    // SAFETY: the id's queue pair, and a structure to read.
    match check(unsafe { (verbs()?.set_ece)(get!(id, qp), &mut ece) }) {
        Err(Errno::OPNOTSUPP) => Ok(()),
        done => done,
    }
}

fn kernels_ece(ece: Ece) -> raw::Ece {
    raw::Ece {
        vendor_id: ece.vendor_id,
        attr_mod: ece.options,
    }
}

/// The parameters in the kernel's format, without resources. Values of the id's queue pair take precedence over the
/// program's.
fn kernels_param(id: &Id, param: Option<&ConnParam>, data: &[u8]) -> Result<raw::ConnParam> {
    let mut private_data = [0; raw::PRIVATE_DATA_LEN];
    let private_data_len = u8::try_from(data.len()).map_err(|_| Errno::INVAL)?;
    private_data[..data.len()].copy_from_slice(data);
    let qp = get!(id, qp);
    let (qp_num, srq) = match qp.is_null() {
        true => param.map_or((0, 0), |param| (param.qp_num, param.srq)),
        // SAFETY: the id's queue pair.
        false => unsafe { ((*qp).qp_num, u8::from(!(*qp).srq.is_null())) },
    };
    Ok(raw::ConnParam {
        qp_num,
        qkey: 0,
        private_data,
        private_data_len,
        srq,
        responder_resources: 0,
        initiator_depth: 0,
        flow_control: param.map_or(0, |param| param.flow_control),
        retry_count: param.map_or(RETRIES_DEFAULT, |param| param.retry_count),
        rnr_retry_count: param.map_or(RETRIES_DEFAULT, |param| param.rnr_retry_count),
        valid: 1,
    })
}

/// The private data of the program's parameters.
fn private_data(param: &In<ConnParam>) -> &[u8] {
    let Some(param) = param.get() else {
        return &[];
    };
    if param.private_data.is_null() {
        return &[];
    }
    let length = usize::from(param.private_data_len);
    // SAFETY: the private data of valid parameters has this length (`In`).
    unsafe { std::slice::from_raw_parts(param.private_data.cast(), length) }
}

/// `rdma_init_qp_attr`. The program selects the state.
///
/// # Errors
/// `EINVAL` for null; the kernel's.
pub(crate) fn init_qp_attr(id: &Id, mut attr: InOut<QpAttr>, mask: Out<i32>) -> Result<()> {
    let attr = attr.required()?;
    mask.check()?;
    let (filled, which) = id.init_qp_attr(attr.qp_state)?;
    *attr = filled;
    mask.write((which & !qp_attr_mask::KERNELS_OWN).cast_signed());
    Ok(())
}

/// `rdma_set_local_ece`, for a program that creates its queue pairs itself.
///
/// # Errors
/// `EINVAL` for null, for an id with a queue pair, and for options without a vendor.
pub(crate) fn set_local_ece(id: &Id, ece: In<Ece>) -> Result<()> {
    let ece = ece.required()?;
    if !get!(id, qp).is_null() || ece.vendor_id == 0 || ece.comp_mask != 0 {
        return Err(Errno::INVAL);
    }
    id.state().local_ece = *ece;
    Ok(())
}

/// `rdma_get_remote_ece`.
///
/// # Errors
/// `EINVAL` for null, and for an id with a queue pair.
pub(crate) fn get_remote_ece(id: &Id, ece: Out<Ece>) -> Result<()> {
    ece.check()?;
    if !get!(id, qp).is_null() {
        return Err(Errno::INVAL);
    }
    ece.write(id.state().remote_ece);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_limited_by_the_device_and_missing_ones_need_a_queue_pair() {
        let mut param = ConnParam::zeroed();
        let most = (16, 4);
        for (responder_resources, initiator_depth, fits) in [
            (0, 0, true),
            (16, 4, true),
            (17, 4, false),
            (16, 5, false),
            (MAX_RESOURCES, MAX_RESOURCES, true),
        ] {
            param.responder_resources = responder_resources;
            param.initiator_depth = initiator_depth;
            assert_eq!(is_within(Some(&param), false, most), fits);
        }
        assert!(is_within(None, true, most));
        assert!(!is_within(None, false, most));
    }
}
