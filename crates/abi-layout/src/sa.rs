//! `infiniband/sa.h`.

use std::ffi::c_int;

use super::{Gid, layouts};

layouts! {
    struct SaPathRec = "struct ibv_sa_path_rec" {
        dgid: Gid,
        sgid: Gid,
        dlid: u16,
        slid: u16,
        raw_traffic: c_int,
        flow_label: u32,
        hop_limit: u8,
        traffic_class: u8,
        reversible: c_int,
        numb_path: u8,
        pkey: u16,
        sl: u8,
        mtu_selector: u8,
        mtu: u8,
        rate_selector: u8,
        rate: u8,
        packet_life_time_selector: u8,
        packet_life_time: u8,
        preference: u8,
    }
    /// In the format of management datagrams: big-endian.
    struct PathRecord = "struct ibv_path_record" {
        service_id: u64,
        dgid: Gid,
        sgid: Gid,
        dlid: u16,
        slid: u16,
        flowlabel_hoplimit: u32,
        tclass: u8,
        reversible_numpath: u8,
        pkey: u16,
        qosclass_sl: u16,
        mtu: u8,
        rate: u8,
        packetlifetime: u8,
        preference: u8,
        reserved: [u8; 6],
    }
    struct PathData = "struct ibv_path_data" { flags: u32, reserved: u32, path: PathRecord }
}
