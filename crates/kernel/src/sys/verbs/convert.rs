//! Attributes in both forms.

use portolan_abi_layout as abi;
use portolan_provider::verbs::{Access, AhAttr, Mtu, QpAttr, QpCap, QpInit, QpState, QpType};
use portolan_provider::{Error, Result, Step};
use portolan_wire::addr::{Psn, QKey, Qpn};

/// An address vector, always with a global route: RoCE has no other.
pub(super) fn ah_attr(attr: &AhAttr) -> abi::AhAttr {
    abi::AhAttr {
        grh: abi::GlobalRoute {
            dgid: attr.dgid.into(),
            flow_label: attr.flow_label,
            sgid_index: attr.sgid_index,
            hop_limit: attr.hop_limit,
            traffic_class: attr.traffic_class,
        },
        sl: attr.sl,
        is_global: 1,
        port_num: attr.port_num,
        ..abi::AhAttr::zeroed()
    }
}

pub(super) fn qp_attr(attr: &QpAttr) -> abi::QpAttr {
    abi::QpAttr {
        qp_state: attr.state as u32,
        path_mtu: attr.path_mtu as u32,
        qkey: attr.qkey.0,
        rq_psn: attr.rq_psn.value(),
        sq_psn: attr.sq_psn.value(),
        dest_qp_num: attr.dest_qpn.value(),
        qp_access_flags: attr.access.bits(),
        ah_attr: ah_attr(&attr.ah_attr),
        pkey_index: attr.pkey_index,
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: attr.min_rnr_timer,
        port_num: attr.port_num,
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
        ..abi::QpAttr::zeroed()
    }
}

/// # Errors
/// `InvalidArgument` for a state that does not exist.
pub(super) fn qp_attr_from(raw: &abi::QpAttr) -> Result<QpAttr> {
    let default = QpAttr::default();
    let mtu = u8::try_from(raw.path_mtu).ok().and_then(Mtu::from_number);
    Ok(QpAttr {
        state: qp_state(raw.qp_state)?,
        // None before RTR.
        path_mtu: mtu.unwrap_or(default.path_mtu),
        qkey: QKey(raw.qkey),
        rq_psn: Psn::new(raw.rq_psn),
        sq_psn: Psn::new(raw.sq_psn),
        dest_qpn: Qpn::new(raw.dest_qp_num),
        access: Access::from_bits_truncate(raw.qp_access_flags),
        ah_attr: AhAttr {
            dgid: raw.ah_attr.grh.dgid.into(),
            sgid_index: raw.ah_attr.grh.sgid_index,
            flow_label: raw.ah_attr.grh.flow_label,
            hop_limit: raw.ah_attr.grh.hop_limit,
            traffic_class: raw.ah_attr.grh.traffic_class,
            sl: raw.ah_attr.sl,
            port_num: raw.ah_attr.port_num,
        },
        pkey_index: raw.pkey_index,
        max_rd_atomic: raw.max_rd_atomic,
        max_dest_rd_atomic: raw.max_dest_rd_atomic,
        min_rnr_timer: raw.min_rnr_timer,
        port_num: raw.port_num,
        timeout: raw.timeout,
        retry_cnt: raw.retry_cnt,
        rnr_retry: raw.rnr_retry,
    })
}

fn qp_state(number: u32) -> Result<QpState> {
    let all = [
        QpState::Reset,
        QpState::Init,
        QpState::Rtr,
        QpState::Rts,
        QpState::Sqd,
        QpState::Sqe,
        QpState::Err,
    ];
    let invalid = || Error::invalid(Step::ModifyQp, "queue pair state", "0 to 6", number);
    let mut all = all.into_iter();
    all.find(|state| *state as u32 == number)
        .ok_or_else(invalid)
}

pub(super) fn qp_cap(cap: &QpCap) -> abi::QpCap {
    abi::QpCap {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline_data: cap.max_inline_data,
    }
}

pub(super) fn qp_init_from(raw: &abi::QpInitAttr, qp_type: QpType) -> QpInit {
    QpInit {
        qp_type,
        cap: QpCap {
            max_send_wr: raw.cap.max_send_wr,
            max_recv_wr: raw.cap.max_recv_wr,
            max_send_sge: raw.cap.max_send_sge,
            max_recv_sge: raw.cap.max_recv_sge,
            max_inline_data: raw.cap.max_inline_data,
        },
        sq_sig_all: raw.sq_sig_all != 0,
    }
}

#[cfg(test)]
mod tests {
    use portolan_wire::addr::Gid;

    use super::*;

    #[test]
    fn queue_pair_attributes_read_back_as_they_were_written() {
        let attr = QpAttr {
            state: QpState::Rts,
            path_mtu: Mtu::Mtu4096,
            qkey: QKey(0x0123_4567),
            rq_psn: Psn::new(1),
            sq_psn: Psn::new(2),
            dest_qpn: Qpn::new(3),
            access: Access::REMOTE_READ,
            ah_attr: AhAttr {
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
        let raw = qp_attr(&attr);
        assert_eq!(raw.ah_attr.is_global, 1);
        assert_eq!(qp_attr_from(&raw).unwrap(), attr);
    }

    #[test]
    fn a_state_that_does_not_exist_is_an_error() {
        let raw = abi::QpAttr {
            qp_state: 7,
            ..abi::QpAttr::zeroed()
        };
        assert!(qp_attr_from(&raw).is_err());
    }
}
