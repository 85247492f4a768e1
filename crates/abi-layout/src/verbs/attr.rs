//! Attributes of devices, ports, queues and paths.

use std::ffi::{c_char, c_int, c_uint, c_void};

use super::{CompChannel, Cq, Gid, Mr, Pd, Srq, Xrcd, layouts};

layouts! {
    struct DeviceAttr = "struct ibv_device_attr" {
        fw_ver: [c_char; 64],
        node_guid: u64,
        sys_image_guid: u64,
        max_mr_size: u64,
        page_size_cap: u64,
        vendor_id: u32,
        vendor_part_id: u32,
        hw_ver: u32,
        max_qp: c_int,
        max_qp_wr: c_int,
        device_cap_flags: c_uint,
        max_sge: c_int,
        max_sge_rd: c_int,
        max_cq: c_int,
        max_cqe: c_int,
        max_mr: c_int,
        max_pd: c_int,
        max_qp_rd_atom: c_int,
        max_ee_rd_atom: c_int,
        max_res_rd_atom: c_int,
        max_qp_init_rd_atom: c_int,
        max_ee_init_rd_atom: c_int,
        atomic_cap: c_uint,
        max_ee: c_int,
        max_rdd: c_int,
        max_mw: c_int,
        max_raw_ipv6_qp: c_int,
        max_raw_ethy_qp: c_int,
        max_mcast_grp: c_int,
        max_mcast_qp_attach: c_int,
        max_total_mcast_qp_attach: c_int,
        max_ah: c_int,
        max_fmr: c_int,
        max_map_per_fmr: c_int,
        max_srq: c_int,
        max_srq_wr: c_int,
        max_srq_sge: c_int,
        max_pkeys: u16,
        local_ca_ack_delay: u8,
        phys_port_cnt: u8,
    }
    struct QueryDeviceExInput = "struct ibv_query_device_ex_input" { comp_mask: u32 }
    struct OdpCaps = "struct ibv_odp_caps" { general_caps: u64, per_transport_caps: [u32; 3] }
    struct TsoCaps = "struct ibv_tso_caps" { max_tso: u32, supported_qpts: u32 }
    struct RssCaps = "struct ibv_rss_caps" {
        supported_qpts: u32,
        max_rwq_indirection_tables: u32,
        max_rwq_indirection_table_size: u32,
        rx_hash_fields_mask: u64,
        rx_hash_function: u8,
    }
    struct PacketPacingCaps = "struct ibv_packet_pacing_caps" {
        qp_rate_limit_min: u32,
        qp_rate_limit_max: u32,
        supported_qpts: u32,
    }
    struct TmCaps = "struct ibv_tm_caps" {
        max_rndv_hdr_size: u32,
        max_num_tags: u32,
        flags: u32,
        max_ops: u32,
        max_sge: u32,
    }
    struct CqModerationCaps = "struct ibv_cq_moderation_caps" {
        max_cq_count: u16,
        max_cq_period: u16,
    }
    struct PciAtomicCaps = "struct ibv_pci_atomic_caps" {
        fetch_add: u16,
        swap: u16,
        compare_swap: u16,
    }
    struct DeviceAttrEx = "struct ibv_device_attr_ex" {
        orig_attr: DeviceAttr,
        comp_mask: u32,
        odp_caps: OdpCaps,
        completion_timestamp_mask: u64,
        hca_core_clock: u64,
        device_cap_flags_ex: u64,
        tso_caps: TsoCaps,
        rss_caps: RssCaps,
        max_wq_type_rq: u32,
        packet_pacing_caps: PacketPacingCaps,
        raw_packet_caps: u32,
        tm_caps: TmCaps,
        cq_mod_caps: CqModerationCaps,
        max_dm_size: u64,
        pci_atomic_caps: PciAtomicCaps,
        xrc_odp_caps: u32,
        phys_port_cnt_ex: u32,
    }
    struct PortAttr = "struct ibv_port_attr" {
        state: c_uint,
        max_mtu: c_uint,
        active_mtu: c_uint,
        gid_tbl_len: c_int,
        port_cap_flags: u32,
        max_msg_sz: u32,
        bad_pkey_cntr: u32,
        qkey_viol_cntr: u32,
        pkey_tbl_len: u16,
        lid: u16,
        sm_lid: u16,
        lmc: u8,
        max_vl_num: u8,
        sm_sl: u8,
        subnet_timeout: u8,
        init_type_reply: u8,
        active_width: u8,
        active_speed: u8,
        phys_state: u8,
        link_layer: u8,
        flags: u8,
        port_cap_flags2: u16,
    }
    struct GlobalRoute = "struct ibv_global_route" {
        dgid: Gid,
        flow_label: u32,
        sgid_index: u8,
        hop_limit: u8,
        traffic_class: u8,
    }
    struct Grh = "struct ibv_grh" {
        version_tclass_flow: u32,
        paylen: u16,
        next_hdr: u8,
        hop_limit: u8,
        sgid: Gid,
        dgid: Gid,
    }
    struct AhAttr = "struct ibv_ah_attr" {
        grh: GlobalRoute,
        dlid: u16,
        sl: u8,
        src_path_bits: u8,
        static_rate: u8,
        is_global: u8,
        port_num: u8,
    }
    struct SrqAttr = "struct ibv_srq_attr" { max_wr: u32, max_sge: u32, srq_limit: u32 }
    struct SrqInitAttr = "struct ibv_srq_init_attr" { srq_context: *mut c_void, attr: SrqAttr }
    struct TmCap = "struct ibv_tm_cap" { max_num_tags: u32, max_ops: u32 }
    /// Starts like [`SrqInitAttr`].
    struct SrqInitAttrEx = "struct ibv_srq_init_attr_ex" {
        srq_context: *mut c_void,
        attr: SrqAttr,
        comp_mask: u32,
        srq_type: c_uint,
        pd: *mut Pd,
        xrcd: *mut Xrcd,
        cq: *mut Cq,
        tm_cap: TmCap,
    }
    struct QpCap = "struct ibv_qp_cap" {
        max_send_wr: u32,
        max_recv_wr: u32,
        max_send_sge: u32,
        max_recv_sge: u32,
        max_inline_data: u32,
    }
    struct QpInitAttr = "struct ibv_qp_init_attr" {
        qp_context: *mut c_void,
        send_cq: *mut Cq,
        recv_cq: *mut Cq,
        srq: *mut Srq,
        cap: QpCap,
        qp_type: c_uint,
        sq_sig_all: c_int,
    }
    struct RxHashConf = "struct ibv_rx_hash_conf" {
        rx_hash_function: u8,
        rx_hash_key_len: u8,
        rx_hash_key: *mut u8,
        rx_hash_fields_mask: u64,
    }
    /// Starts like [`QpInitAttr`].
    struct QpInitAttrEx = "struct ibv_qp_init_attr_ex" {
        qp_context: *mut c_void,
        send_cq: *mut Cq,
        recv_cq: *mut Cq,
        srq: *mut Srq,
        cap: QpCap,
        qp_type: c_uint,
        sq_sig_all: c_int,
        comp_mask: u32,
        pd: *mut Pd,
        xrcd: *mut Xrcd,
        create_flags: u32,
        max_tso_header: u16,
        rwq_ind_tbl: *mut c_void,
        rx_hash_conf: RxHashConf,
        source_qpn: u32,
        send_ops_flags: u64,
    }
    struct QpAttr = "struct ibv_qp_attr" {
        qp_state: c_uint,
        cur_qp_state: c_uint,
        path_mtu: c_uint,
        path_mig_state: c_uint,
        qkey: u32,
        rq_psn: u32,
        sq_psn: u32,
        dest_qp_num: u32,
        qp_access_flags: c_uint,
        cap: QpCap,
        ah_attr: AhAttr,
        alt_ah_attr: AhAttr,
        pkey_index: u16,
        alt_pkey_index: u16,
        en_sqd_async_notify: u8,
        sq_draining: u8,
        max_rd_atomic: u8,
        max_dest_rd_atomic: u8,
        min_rnr_timer: u8,
        port_num: u8,
        timeout: u8,
        retry_cnt: u8,
        rnr_retry: u8,
        alt_port_num: u8,
        alt_timeout: u8,
        rate_limit: u32,
    }
    struct CqInitAttrEx = "struct ibv_cq_init_attr_ex" {
        cqe: u32,
        cq_context: *mut c_void,
        channel: *mut CompChannel,
        comp_vector: u32,
        wc_flags: u64,
        comp_mask: u32,
        flags: u32,
        parent_domain: *mut Pd,
    }
    struct MwBindInfo = "struct ibv_mw_bind_info" {
        mr: *mut Mr,
        addr: u64,
        length: u64,
        mw_access_flags: c_uint,
    }
    struct MwBind = "struct ibv_mw_bind" {
        wr_id: u64,
        send_flags: c_uint,
        bind_info: MwBindInfo,
    }
    struct Ece = "struct ibv_ece" { vendor_id: u32, options: u32, comp_mask: u32 }
}
