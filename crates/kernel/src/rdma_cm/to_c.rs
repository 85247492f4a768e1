//! Converts the rdma_cm device's address vectors and queue pair attributes to libibverbs structures.

use portolan_abi_layout as c;
use portolan_wire::addr::Gid;

use super::abi::{AhAttr, QpAttr};

impl From<&AhAttr> for c::AhAttr {
    fn from(from: &AhAttr) -> Self {
        Self {
            grh: c::GlobalRoute {
                dgid: Gid(from.dgid).into(),
                flow_label: from.flow_label,
                sgid_index: from.sgid_index,
                hop_limit: from.hop_limit,
                traffic_class: from.traffic_class,
            },
            dlid: from.dlid,
            sl: from.sl,
            src_path_bits: from.src_path_bits,
            static_rate: from.static_rate,
            is_global: from.is_global,
            port_num: from.port_num,
        }
    }
}

impl From<&QpAttr> for c::QpAttr {
    /// Everything except the rate limit, which the device does not report.
    fn from(from: &QpAttr) -> Self {
        let [
            max_send_wr,
            max_recv_wr,
            max_send_sge,
            max_recv_sge,
            max_inline_data,
        ] = from.cap;
        Self {
            qp_state: from.qp_state,
            cur_qp_state: from.cur_qp_state,
            path_mtu: from.path_mtu,
            path_mig_state: from.path_mig_state,
            qkey: from.qkey,
            rq_psn: from.rq_psn,
            sq_psn: from.sq_psn,
            dest_qp_num: from.dest_qp_num,
            qp_access_flags: from.qp_access_flags,
            cap: c::QpCap {
                max_send_wr,
                max_recv_wr,
                max_send_sge,
                max_recv_sge,
                max_inline_data,
            },
            ah_attr: (&from.ah_attr).into(),
            alt_ah_attr: (&from.alt_ah_attr).into(),
            pkey_index: from.pkey_index,
            alt_pkey_index: from.alt_pkey_index,
            en_sqd_async_notify: from.en_sqd_async_notify,
            sq_draining: from.sq_draining,
            max_rd_atomic: from.max_rd_atomic,
            max_dest_rd_atomic: from.max_dest_rd_atomic,
            min_rnr_timer: from.min_rnr_timer,
            port_num: from.port_num,
            timeout: from.timeout,
            retry_cnt: from.retry_cnt,
            rnr_retry: from.rnr_retry,
            alt_port_num: from.alt_port_num,
            alt_timeout: from.alt_timeout,
            rate_limit: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::rdma_cm::fields::Fields;

    use super::*;

    #[test]
    fn the_last_attributes_are_read_at_the_kernels_offsets() {
        let mut bytes = QpAttr::zeroed().to_bytes();
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = at as u8;
        }
        let attr = c::QpAttr::from(&QpAttr::from_bytes(&bytes));
        assert_eq!(Gid::from(attr.ah_attr.grh.dgid).0[0], 40);
        assert_eq!(attr.alt_ah_attr.port_num, 102);
        assert_eq!(attr.cap.max_inline_data.to_ne_bytes()[0], 120);
        assert_eq!(
            (attr.rnr_retry, attr.alt_port_num, attr.alt_timeout),
            (136, 137, 138)
        );
        assert_eq!(attr.rate_limit, 0);
    }
}
