//! Converts the kernel's path records to libibverbs structures, for rdma-core's librdmacm.

use std::ffi::c_int;

use portolan_wire::addr::Gid;

use crate::layout::{KernPath, SaPathRec};

pub(crate) fn path(from: &KernPath) -> SaPathRec {
    SaPathRec {
        dgid: Gid(from.dgid).into(),
        sgid: Gid(from.sgid).into(),
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
        // An IBTA number, which fits.
        mtu: from.mtu as u8,
        rate_selector: from.rate_selector,
        rate: from.rate,
        packet_life_time_selector: from.packet_life_time_selector,
        packet_life_time: from.packet_life_time,
        preference: from.preference,
    }
}

pub(crate) fn path_to_kern(from: &SaPathRec) -> KernPath {
    KernPath {
        dgid: Gid::from(from.dgid).0,
        sgid: Gid::from(from.sgid).0,
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
    fn a_path_survives_a_round_trip() {
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
        // Plain numbers without padding.
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
