//! Flow steering: selects the packets that go to a queue pair.

use std::ffi::{c_uint, c_void};

use super::{Context, Counters, layouts};

layouts! {
    struct Flow = "struct ibv_flow" { comp_mask: u32, context: *mut Context, handle: u32 }
    struct FlowAttr = "struct ibv_flow_attr" {
        comp_mask: u32,
        r#type: c_uint,
        size: u16,
        priority: u16,
        num_of_specs: u8,
        port: u8,
        flags: u32,
    }
    struct FlowEthFilter = "struct ibv_flow_eth_filter" {
        dst_mac: [u8; 6],
        src_mac: [u8; 6],
        ether_type: u16,
        vlan_tag: u16,
    }
    struct FlowSpecEth = "struct ibv_flow_spec_eth" {
        r#type: c_uint,
        size: u16,
        val: FlowEthFilter,
        mask: FlowEthFilter,
    }
    struct FlowIpv4Filter = "struct ibv_flow_ipv4_filter" { src_ip: u32, dst_ip: u32 }
    struct FlowSpecIpv4 = "struct ibv_flow_spec_ipv4" {
        r#type: c_uint,
        size: u16,
        val: FlowIpv4Filter,
        mask: FlowIpv4Filter,
    }
    struct FlowIpv4ExtFilter = "struct ibv_flow_ipv4_ext_filter" {
        src_ip: u32,
        dst_ip: u32,
        proto: u8,
        tos: u8,
        ttl: u8,
        flags: u8,
    }
    struct FlowSpecIpv4Ext = "struct ibv_flow_spec_ipv4_ext" {
        r#type: c_uint,
        size: u16,
        val: FlowIpv4ExtFilter,
        mask: FlowIpv4ExtFilter,
    }
    struct FlowIpv6Filter = "struct ibv_flow_ipv6_filter" {
        src_ip: [u8; 16],
        dst_ip: [u8; 16],
        flow_label: u32,
        next_hdr: u8,
        traffic_class: u8,
        hop_limit: u8,
    }
    struct FlowSpecIpv6 = "struct ibv_flow_spec_ipv6" {
        r#type: c_uint,
        size: u16,
        val: FlowIpv6Filter,
        mask: FlowIpv6Filter,
    }
    struct FlowTcpUdpFilter = "struct ibv_flow_tcp_udp_filter" { dst_port: u16, src_port: u16 }
    struct FlowSpecTcpUdp = "struct ibv_flow_spec_tcp_udp" {
        r#type: c_uint,
        size: u16,
        val: FlowTcpUdpFilter,
        mask: FlowTcpUdpFilter,
    }
    struct FlowEspFilter = "struct ibv_flow_esp_filter" { spi: u32, seq: u32 }
    struct FlowSpecEsp = "struct ibv_flow_spec_esp" {
        r#type: c_uint,
        size: u16,
        val: FlowEspFilter,
        mask: FlowEspFilter,
    }
    struct FlowTunnelFilter = "struct ibv_flow_tunnel_filter" { tunnel_id: u32 }
    struct FlowSpecTunnel = "struct ibv_flow_spec_tunnel" {
        r#type: c_uint,
        size: u16,
        val: FlowTunnelFilter,
        mask: FlowTunnelFilter,
    }
    struct FlowGreFilter = "struct ibv_flow_gre_filter" {
        c_ks_res0_ver: u16,
        protocol: u16,
        key: u32,
    }
    struct FlowSpecGre = "struct ibv_flow_spec_gre" {
        r#type: c_uint,
        size: u16,
        val: FlowGreFilter,
        mask: FlowGreFilter,
    }
    struct FlowMplsFilter = "struct ibv_flow_mpls_filter" { label: u32 }
    struct FlowSpecMpls = "struct ibv_flow_spec_mpls" {
        r#type: c_uint,
        size: u16,
        val: FlowMplsFilter,
        mask: FlowMplsFilter,
    }
    struct FlowSpecActionTag = "struct ibv_flow_spec_action_tag" {
        r#type: c_uint,
        size: u16,
        tag_id: u32,
    }
    struct FlowSpecActionDrop = "struct ibv_flow_spec_action_drop" { r#type: c_uint, size: u16 }
    struct FlowSpecActionHandle = "struct ibv_flow_spec_action_handle" {
        r#type: c_uint,
        size: u16,
        action: *const FlowAction,
    }
    struct FlowSpecCounterAction = "struct ibv_flow_spec_counter_action" {
        r#type: c_uint,
        size: u16,
        counters: *mut Counters,
    }
    /// A union in C. This is its longest member; others contain pointers.
    #[repr(align(8))]
    struct FlowSpec = "struct ibv_flow_spec" { ipv6: FlowSpecIpv6 }
    struct FlowAction = "struct ibv_flow_action" { context: *mut Context }
    /// Its pointers refer to the kernel's structures.
    struct FlowActionEspAttr = "struct ibv_flow_action_esp_attr" {
        esp_attr: *mut c_void,
        keymat_proto: c_uint,
        keymat_len: u16,
        keymat_ptr: *mut c_void,
        replay_proto: c_uint,
        replay_len: u16,
        replay_ptr: *mut c_void,
        esp_encap: *mut c_void,
        comp_mask: u32,
        esn: u32,
    }
}
