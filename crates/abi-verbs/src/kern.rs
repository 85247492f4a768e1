//! What the kernel's rdma_cm says, in libibverbs's structures: a librdmacm of other make asks for it.

use std::ffi::c_int;

use portolan_wire::addr::Gid as WireGid;

use crate::convert::{gid, words};
use crate::layout::{
    AhAttr, Gid, GlobalRoute, KernAhAttr, KernPath, KernQpAttr, QpAttr, QpCap, SaPath,
};

fn gid_of(bytes: [u8; 16]) -> Gid {
    Gid {
        raw: words(WireGid(bytes)),
    }
}

pub(crate) fn ah_attr(from: &KernAhAttr) -> AhAttr {
    AhAttr {
        grh: GlobalRoute {
            dgid: gid_of(from.grh.dgid),
            flow_label: from.grh.flow_label,
            sgid_index: from.grh.sgid_index,
            hop_limit: from.grh.hop_limit,
            traffic_class: from.grh.traffic_class,
        },
        dlid: from.dlid,
        sl: from.sl,
        src_path_bits: from.src_path_bits,
        static_rate: from.static_rate,
        is_global: from.is_global,
        port_num: from.port_num,
    }
}

/// All but the state of draining and the rate limit, which the kernel does not say here.
pub(crate) fn qp_attr(from: &KernQpAttr) -> QpAttr {
    QpAttr {
        qp_state: from.qp_state,
        cur_qp_state: from.cur_qp_state,
        path_mtu: from.path_mtu,
        path_mig_state: from.path_mig_state,
        qkey: from.qkey,
        rq_psn: from.rq_psn,
        sq_psn: from.sq_psn,
        dest_qp_num: from.dest_qp_num,
        qp_access_flags: from.qp_access_flags,
        cap: QpCap {
            max_send_wr: from.max_send_wr,
            max_recv_wr: from.max_recv_wr,
            max_send_sge: from.max_send_sge,
            max_recv_sge: from.max_recv_sge,
            max_inline_data: from.max_inline_data,
        },
        ah_attr: ah_attr(&from.ah_attr),
        alt_ah_attr: ah_attr(&from.alt_ah_attr),
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

pub(crate) fn path(from: &KernPath) -> SaPath {
    SaPath {
        dgid: gid_of(from.dgid),
        sgid: gid_of(from.sgid),
        dlid: from.dlid,
        slid: from.slid,
        raw_traffic: from.raw_traffic as c_int,
        flow_label: from.flow_label,
        hop_limit: from.hop_limit,
        traffic_class: from.traffic_class,
        reversible: from.reversible as c_int,
        numb_path: from.numb_path,
        pkey: from.pkey,
        sl: from.sl,
        mtu_selector: from.mtu_selector,
        // A number of the standard's: it fits.
        mtu: from.mtu as u8,
        rate_selector: from.rate_selector,
        rate: from.rate,
        packet_life_time_selector: from.packet_life_time_selector,
        packet_life_time: from.packet_life_time,
        preference: from.preference,
    }
}

pub(crate) fn path_to_kern(from: &SaPath) -> KernPath {
    KernPath {
        dgid: gid(from.dgid.raw).0,
        sgid: gid(from.sgid.raw).0,
        dlid: from.dlid,
        slid: from.slid,
        raw_traffic: from.raw_traffic as u32,
        flow_label: from.flow_label,
        reversible: from.reversible as u32,
        mtu: from.mtu.into(),
        pkey: from.pkey,
        hop_limit: from.hop_limit,
        traffic_class: from.traffic_class,
        numb_path: from.numb_path,
        sl: from.sl,
        mtu_selector: from.mtu_selector,
        rate_selector: from.rate_selector,
        rate: from.rate,
        packet_life_time_selector: from.packet_life_time_selector,
        packet_life_time: from.packet_life_time,
        preference: from.preference,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_goes_there_and_back() {
        let path_of_kernel = KernPath {
            dgid: std::array::from_fn(|at| at as u8),
            sgid: [3; 16],
            dlid: 4,
            slid: 5,
            raw_traffic: 6,
            flow_label: 7,
            reversible: 8,
            mtu: 5,
            pkey: 9,
            hop_limit: 10,
            traffic_class: 11,
            numb_path: 12,
            sl: 13,
            mtu_selector: 14,
            rate_selector: 15,
            rate: 16,
            packet_life_time_selector: 17,
            packet_life_time: 18,
            preference: 19,
        };
        let ours = path(&path_of_kernel);
        assert_eq!((ours.mtu, ours.rate, ours.packet_life_time), (5, 16, 18));
        let back = path_to_kern(&ours);
        // Plain numbers with no room between them.
        let bytes = |path: &KernPath| {
            let fields = (path.dgid, path.sgid, [path.dlid, path.slid, path.pkey]);
            let words = [path.raw_traffic, path.flow_label, path.reversible, path.mtu];
            let rest = [
                path.hop_limit,
                path.traffic_class,
                path.numb_path,
                path.sl,
                path.mtu_selector,
                path.rate_selector,
                path.rate,
                path.packet_life_time_selector,
                path.packet_life_time,
                path.preference,
            ];
            (fields, words, rest)
        };
        assert_eq!(bytes(&back), bytes(&path_of_kernel));
    }
}
