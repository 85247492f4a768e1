//! Converts connection parameters between the provider's form and the wire's.

use alloc::boxed::Box;

use portolan_provider::cm::{ConnParam, Ece};
use portolan_provider::error::{Error, Result, Step};
use portolan_wire::Qpn;
use portolan_wire::cm::{RepRepr, ReqRepr};

/// Largest value of the three-bit retry counts; for the RNR retry count it means unlimited.
const RETRY_FIELD_MAX: u8 = 7;

/// The parameters of a REQ from the receiver's point of view: the peer's initiator depth is our responder resources.
/// Skips the first `header_len` bytes of private data, which precede the user's.
pub(crate) fn param_of_req(req: &ReqRepr, header_len: usize) -> ConnParam {
    let user_data = req.private_data.get(header_len..).unwrap_or_default();
    ConnParam {
        private_data: Box::from(user_data),
        responder_resources: req.initiator_depth,
        initiator_depth: req.responder_resources,
        flow_control: req.end_to_end_flow_control,
        retry_count: req.retry_count,
        rnr_retry_count: req.rnr_retry_count,
        srq: req.srq,
        qp_num: req.local_qpn,
    }
}

/// The parameters of a REP from the receiver's point of view. A REP has no retry count.
pub(crate) fn param_of_rep(rep: &RepRepr) -> ConnParam {
    ConnParam {
        private_data: Box::from(&rep.private_data[..]),
        responder_resources: rep.initiator_depth,
        initiator_depth: rep.responder_resources,
        flow_control: rep.end_to_end_flow_control,
        retry_count: 0,
        rnr_retry_count: rep.rnr_retry_count,
        srq: rep.srq,
        qp_num: rep.local_qpn,
    }
}

/// Checks that a connection can use the queue pair number: 0 and 1 are reserved for management.
pub(crate) fn check_qpn(step: Step, qpn: Qpn) -> Result<()> {
    if qpn.value() <= Qpn::GSI.value() {
        return Err(Error::invalid(
            step,
            "queue pair number",
            "2 or more",
            qpn.value(),
        ));
    }
    Ok(())
}

/// A retry count limited to the width of its field (`cma_connect_ib`).
pub(crate) fn retry_field(count: u8) -> u8 {
    count.min(RETRY_FIELD_MAX)
}

/// The vendor's options in the wire's form.
///
/// # Errors
/// `InvalidArgument` for a vendor id of more than 24 bits.
pub(crate) fn check_ece(step: Step, ece: Ece) -> Result<Ece> {
    if ece.vendor_id >> 24 != 0 {
        return Err(Error::invalid(
            step,
            "ECE vendor id",
            "24 bits",
            ece.vendor_id,
        ));
    }
    Ok(ece)
}
