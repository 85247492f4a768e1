//! The provider's types and C's.

use portolan_provider::verbs::{self, Access, Mtu, QpAttrMask, QpState, WorkCompletion};
use portolan_wire::addr::{Psn, QKey, Qpn};
use rustix::io::Errno;

use crate::guard::Result;
use crate::layout::{AhAttr, GlobalRoute, QpAttr, QpCap, qp_attr_mask, wc_flags};

pub(crate) fn cap(from: &QpCap) -> verbs::QpCap {
    verbs::QpCap {
        max_send_wr: from.max_send_wr,
        max_recv_wr: from.max_recv_wr,
        max_send_sge: from.max_send_sge,
        max_recv_sge: from.max_recv_sge,
        max_inline_data: from.max_inline_data,
    }
}

pub(crate) fn cap_to_c(from: &verbs::QpCap) -> QpCap {
    QpCap {
        max_send_wr: from.max_send_wr,
        max_recv_wr: from.max_recv_wr,
        max_send_sge: from.max_send_sge,
        max_recv_sge: from.max_recv_sge,
        max_inline_data: from.max_inline_data,
    }
}

pub(crate) fn ah_attr(from: &AhAttr) -> verbs::AhAttr {
    verbs::AhAttr {
        dgid: from.grh.dgid.into(),
        sgid_index: from.grh.sgid_index,
        flow_label: from.grh.flow_label,
        hop_limit: from.grh.hop_limit,
        traffic_class: from.grh.traffic_class,
        sl: from.sl,
        port_num: from.port_num,
    }
}

fn ah_attr_to_c(from: &verbs::AhAttr) -> AhAttr {
    AhAttr {
        grh: GlobalRoute {
            dgid: from.dgid.into(),
            flow_label: from.flow_label,
            sgid_index: from.sgid_index,
            hop_limit: from.hop_limit,
            traffic_class: from.traffic_class,
        },
        dlid: 0,
        sl: from.sl,
        src_path_bits: 0,
        static_rate: 0,
        is_global: 1,
        port_num: from.port_num,
    }
}

/// What a mask names of the attributes.
///
/// # Errors
/// `EINVAL` for numbers that name nothing.
pub(crate) fn qp_attr(from: &QpAttr, mask: u32) -> Result<verbs::QpAttr> {
    let default = verbs::QpAttr::default();
    let has = |bit: u32| mask & bit != 0;
    let state = match has(qp_attr_mask::STATE) {
        true => qp_state(from.qp_state)?,
        false => default.state,
    };
    let path_mtu = match has(qp_attr_mask::PATH_MTU) {
        true => {
            let mtu = u8::try_from(from.path_mtu).ok().and_then(Mtu::from_number);
            mtu.ok_or(Errno::INVAL)?
        }
        false => default.path_mtu,
    };
    let access = match has(QpAttrMask::ACCESS_FLAGS.bits()) {
        true => Access::from_bits_truncate(from.qp_access_flags),
        false => default.access,
    };
    let ah_attr = match has(qp_attr_mask::AV) {
        true => ah_attr(&from.ah_attr),
        false => default.ah_attr,
    };
    Ok(verbs::QpAttr {
        state,
        path_mtu,
        qkey: QKey(from.qkey),
        rq_psn: Psn::new(from.rq_psn),
        sq_psn: Psn::new(from.sq_psn),
        dest_qpn: Qpn::new(from.dest_qp_num),
        access,
        ah_attr,
        pkey_index: from.pkey_index,
        max_rd_atomic: from.max_rd_atomic,
        max_dest_rd_atomic: from.max_dest_rd_atomic,
        min_rnr_timer: from.min_rnr_timer,
        port_num: from.port_num,
        timeout: from.timeout,
        retry_cnt: from.retry_cnt,
        rnr_retry: from.rnr_retry,
    })
}

fn qp_state(number: u32) -> Result<QpState> {
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
    let mut all = [Reset, Init, Rtr, Rts, Sqd, Sqe, Err].into_iter();
    all.find(|state| *state as u32 == number)
        .ok_or(Errno::INVAL)
}

pub(crate) fn qp_attr_to_c(from: &verbs::QpAttr, cap: QpCap) -> QpAttr {
    QpAttr {
        qp_state: from.state as u32,
        cur_qp_state: from.state as u32,
        path_mtu: from.path_mtu as u32,
        path_mig_state: 0,
        qkey: from.qkey.0,
        rq_psn: from.rq_psn.value(),
        sq_psn: from.sq_psn.value(),
        dest_qp_num: from.dest_qpn.value(),
        qp_access_flags: from.access.bits(),
        cap,
        ah_attr: ah_attr_to_c(&from.ah_attr),
        alt_ah_attr: AhAttr {
            is_global: 0,
            ..ah_attr_to_c(&verbs::QpAttr::default().ah_attr)
        },
        pkey_index: from.pkey_index,
        alt_pkey_index: 0,
        en_sqd_async_notify: 0,
        sq_draining: 0,
        max_rd_atomic: from.max_rd_atomic,
        max_dest_rd_atomic: from.max_dest_rd_atomic,
        min_rnr_timer: from.min_rnr_timer,
        port_num: from.port_num,
        timeout: from.timeout,
        retry_cnt: from.retry_cnt,
        rnr_retry: from.rnr_retry,
        alt_port_num: 0,
        alt_timeout: 0,
        rate_limit: 0,
    }
}

/// Immediate data in network order, or the key that was invalidated.
#[inline]
pub(crate) fn immediate(from: &WorkCompletion) -> u32 {
    let immediate = from.imm_data;
    immediate.or(from.invalidated_rkey).unwrap_or(0)
}

/// `enum ibv_wc_flags`.
#[inline]
pub(crate) fn flags(from: &WorkCompletion) -> u32 {
    let flag = |is_set, flag| if is_set { flag } else { 0 };
    flag(from.has_grh, wc_flags::GRH)
        | flag(from.imm_data.is_some(), wc_flags::WITH_IMM)
        | flag(from.invalidated_rkey.is_some(), wc_flags::WITH_INV)
}

#[cfg(test)]
mod tests {
    use portolan_wire::addr::Gid;

    use super::*;

    #[test]
    fn queue_pair_attributes_read_back_as_they_were_written() {
        let attr = verbs::QpAttr {
            state: QpState::Rts,
            path_mtu: Mtu::Mtu4096,
            qkey: QKey(0x0123_4567),
            rq_psn: Psn::new(1),
            sq_psn: Psn::new(2),
            dest_qpn: Qpn::new(3),
            access: Access::REMOTE_READ,
            ah_attr: verbs::AhAttr {
                dgid: Gid(std::array::from_fn(|at| at as u8)),
                sgid_index: 4,
                flow_label: 5,
                hop_limit: 6,
                traffic_class: 7,
                sl: 8,
                port_num: 9,
            },
            pkey_index: 10,
            max_rd_atomic: 11,
            max_dest_rd_atomic: 12,
            min_rnr_timer: 13,
            port_num: 14,
            timeout: 15,
            retry_cnt: 16,
            rnr_retry: 17,
        };
        let cap = QpCap {
            max_send_wr: 1,
            max_recv_wr: 2,
            max_send_sge: 3,
            max_recv_sge: 4,
            max_inline_data: 5,
        };
        let c = qp_attr_to_c(&attr, cap);
        assert_eq!(qp_attr(&c, u32::MAX), Ok(attr));
        assert_eq!(cap_to_c(&super::cap(&cap)).max_inline_data, 5);
        assert_eq!(
            qp_attr(&QpAttr { qp_state: 7, ..c }, u32::MAX),
            Err(Errno::INVAL)
        );
        assert_eq!(
            qp_attr(&QpAttr { path_mtu: 9, ..c }, u32::MAX),
            Err(Errno::INVAL)
        );
        let unnamed = qp_attr(
            &QpAttr {
                path_mtu: 9,
                qp_state: 7,
                ..c
            },
            0,
        );
        assert_eq!(unnamed.map(|attr| attr.state), Ok(QpState::Reset));
    }
}
