//! The kernel's structures as C's.

use portolan_kernel::raw;

use crate::layout::*;

/// Bytes of a management datagram's path record: where things lie.
mod path_record {
    pub(super) const DGID: usize = 8;
    pub(super) const SGID: usize = 24;
    pub(super) const DLID: usize = 40;
    pub(super) const SLID: usize = 42;
    pub(super) const FLOW_HOP: usize = 44;
    pub(super) const TCLASS: usize = 48;
    pub(super) const REVERSIBLE: usize = 49;
    pub(super) const PKEY: usize = 50;
    pub(super) const QOS_SL: usize = 52;
    pub(super) const MTU: usize = 54;
    pub(super) const RATE: usize = 55;
    pub(super) const LIFE_TIME: usize = 56;
}

/// A selector's "exactly".
const EXACTLY: u8 = 2;

/// A GID's bytes as C's union has them: as they are, aligned to eight.
pub(crate) fn gid_words(bytes: &[u8]) -> [u64; 2] {
    let word = |at: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&bytes[at..at + 8]);
        u64::from_ne_bytes(word)
    };
    [word(0), word(8)]
}

pub(crate) fn path(data: &raw::PathData) -> SaPathRec {
    use path_record::*;
    let bytes = &data.path_rec;
    let gid = |at: usize| Gid {
        raw: gid_words(&bytes[at..at + 16]),
    };
    // Big-endian in C's structure as well.
    let be16 = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
    let word =
        |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    SaPathRec {
        dgid: gid(DGID),
        sgid: gid(SGID),
        dlid: be16(DLID),
        slid: be16(SLID),
        raw_traffic: 0,
        flow_label: (word(FLOW_HOP) >> 8).to_be(),
        hop_limit: word(FLOW_HOP) as u8,
        traffic_class: bytes[TCLASS],
        reversible: i32::from(bytes[REVERSIBLE] >> 7),
        numb_path: 1,
        pkey: be16(PKEY),
        sl: bytes[QOS_SL + 1] & 0x0F,
        mtu_selector: EXACTLY,
        mtu: bytes[MTU] & 0x3F,
        rate_selector: EXACTLY,
        rate: bytes[RATE] & 0x3F,
        packet_life_time_selector: EXACTLY,
        packet_life_time: bytes[LIFE_TIME] & 0x3F,
        // librdmacm hands on the path's flags here, and programs may look at them.
        preference: data.flags as u8,
    }
}

pub(crate) fn ah_attr(from: &raw::AhAttr) -> AhAttr {
    AhAttr {
        grh: GlobalRoute {
            dgid: Gid {
                raw: gid_words(&from.dgid),
            },
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

pub(crate) fn qp_attr(from: &raw::QpAttr) -> QpAttr {
    let [
        max_send_wr,
        max_recv_wr,
        max_send_sge,
        max_recv_sge,
        max_inline_data,
    ] = from.cap;
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
            max_send_wr,
            max_recv_wr,
            max_send_sge,
            max_recv_sge,
            max_inline_data,
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

#[cfg(test)]
mod tests {
    use portolan_kernel::raw::Fields;

    use super::*;

    #[test]
    fn a_path_record_is_taken_apart() {
        let mut data = raw::PathData::zeroed();
        for (at, byte) in data.path_rec.iter_mut().enumerate() {
            *byte = at as u8;
        }
        data.path_rec[49] = 0x81;
        let path = path(&data);
        assert_eq!(path.dgid.raw[0].to_ne_bytes()[0], 8);
        assert_eq!(path.sgid.raw[1].to_ne_bytes()[7], 39);
        assert_eq!(path.dlid.to_ne_bytes(), [40, 41]);
        assert_eq!(path.flow_label, 0x002C_2D2E_u32.to_be());
        assert_eq!((path.hop_limit, path.traffic_class), (47, 48));
        assert_eq!((path.reversible, path.numb_path), (1, 1));
        assert_eq!(path.pkey.to_ne_bytes(), [50, 51]);
        assert_eq!((path.sl, path.mtu, path.rate), (5, 54, 55));
        assert_eq!((path.packet_life_time, path.preference), (56, 0));
        data.flags = 0x2B;
        assert_eq!(super::path(&data).preference, 0x2B);
    }
}
