//! The structures of the rdma_cm device, `include/uapi/rdma/rdma_user_cm.h`, ABI 3 and 4.
//!
//! Fields are in the header's order and in host byte order, unless their comment says otherwise. No structure has
//! implicit padding.

use super::fields::{Fields, fields};

/// Private data of the ABI's parameters (`RDMA_MAX_PRIVATE_DATA`).
pub const PRIVATE_DATA_LEN: usize = 256;
/// Maximum number of records in a path query; the kernel keeps no more for an id.
pub const PATHS_MAX: usize = 6;
/// `struct __kernel_sockaddr_storage`.
pub type Storage = [u8; 128];

/// Numbers of `enum rdma_ucm_cmd`.
pub mod number {
    pub const CREATE_ID: u32 = 0;
    pub const DESTROY_ID: u32 = 1;
    pub const RESOLVE_ROUTE: u32 = 4;
    pub const CONNECT: u32 = 6;
    pub const LISTEN: u32 = 7;
    pub const ACCEPT: u32 = 8;
    pub const REJECT: u32 = 9;
    pub const DISCONNECT: u32 = 10;
    pub const INIT_QP_ATTR: u32 = 11;
    pub const GET_EVENT: u32 = 12;
    pub const SET_OPTION: u32 = 14;
    pub const NOTIFY: u32 = 15;
    pub const LEAVE_MCAST: u32 = 17;
    pub const MIGRATE_ID: u32 = 18;
    pub const QUERY: u32 = 19;
    pub const BIND: u32 = 20;
    pub const RESOLVE_ADDR: u32 = 21;
    pub const JOIN_MCAST: u32 = 22;
    pub const RESOLVE_IB_SERVICE: u32 = 23;
    pub const WRITE_CM_EVENT: u32 = 24;
    /// GET_EVENT without waiting: not the kernel's, but of a library's device ([`RdmaCmTable`](crate::raw::RdmaCmTable)).
    pub const TAKE_EVENT: u32 = 1 << 16;
}

/// `RDMA_USER_CM_QUERY_ADDR`.
pub const QUERY_ADDR: u32 = 0;
/// `RDMA_USER_CM_QUERY_PATH`.
pub const QUERY_PATH: u32 = 1;
/// `RDMA_USER_CM_QUERY_GID`.
pub const QUERY_GID: u32 = 2;

/// `RDMA_USER_CM_QUERY_IB_SERVICE`.
pub const QUERY_IB_SERVICE: u32 = 3;
/// `RDMA_USER_CM_IB_SERVICE_FLAG_ID`.
pub const IB_SERVICE_FLAG_ID: u32 = 1;
/// `RDMA_USER_CM_IB_SERVICE_FLAG_NAME`.
pub const IB_SERVICE_FLAG_NAME: u32 = 2;
/// `RDMA_USER_CM_IB_SERVICE_NAME_SIZE`.
pub const IB_SERVICE_NAME_LEN: usize = 64;
/// Maximum number of service records to read: as many as librdmacm requests first.
pub const IB_SERVICES_MAX: usize = 6;

/// `RDMA_CM_EVENT_INTERNAL`: an event that the library sends to itself through the kernel (Linux 6.18).
pub const EVENT_INTERNAL: u32 = 19;
/// `IBV_EVENT_COMM_EST`, the only event that NOTIFY accepts.
pub const NOTIFY_COMM_EST: u32 = 4;

/// `RDMA_OPTION_ID`.
pub const OPTION_LEVEL_ID: u32 = 0;
/// `RDMA_OPTION_IB`.
pub const OPTION_LEVEL_IB: u32 = 1;
/// `RDMA_OPTION_IB_PATH`, an array of [`PathData`].
pub const OPTION_IB_PATH: u32 = 1;
/// `RDMA_OPTION_ID_TOS`, a u8.
pub const OPTION_TOS: u32 = 0;
/// `RDMA_OPTION_ID_REUSEADDR`, an int.
pub const OPTION_REUSEADDR: u32 = 1;
/// `RDMA_OPTION_ID_AFONLY`, an int.
pub const OPTION_AFONLY: u32 = 2;
/// `RDMA_OPTION_ID_ACK_TIMEOUT`, a u8.
pub const OPTION_ACK_TIMEOUT: u32 = 3;

fields! {
    /// `struct rdma_ucm_cmd_hdr`: precedes every command. `in_len` does not count this header.
    pub struct Header { cmd: u32, in_len: u16, out_len: u16 }

    pub struct CreateId { uid: u64, response: u64, ps: u16, qp_type: u8, reserved: [u8; 5] }
    /// Answer to CREATE_ID and JOIN_MCAST.
    pub struct CreateIdResp { id: u32 }
    /// DESTROY_ID; LEAVE_MCAST with a membership for the id.
    pub struct DestroyId { response: u64, id: u32, reserved: u32 }
    /// Answer to DESTROY_ID, LEAVE_MCAST and MIGRATE_ID.
    pub struct EventsReported { events_reported: u32 }
    pub struct Bind { id: u32, addr_size: u16, reserved: u16, addr: Storage }
    pub struct ResolveAddr {
        id: u32,
        timeout_ms: u32,
        src_size: u16,
        dst_size: u16,
        reserved: u32,
        src_addr: Storage,
        dst_addr: Storage,
    }
    pub struct ResolveRoute { id: u32, timeout_ms: u32 }
    pub struct Query { response: u64, id: u32, option: u32 }
    /// Answer to QUERY for addresses, or for GIDs in the form of `AF_IB` addresses. `node_guid` and `pkey` are
    /// big-endian.
    pub struct QueryAddrResp {
        node_guid: u64,
        port_num: u8,
        reserved: u8,
        pkey: u16,
        src_size: u16,
        dst_size: u16,
        src_addr: Storage,
        dst_addr: Storage,
        ibdev_index: u32,
        reserved1: u32,
    }
    /// `struct ib_path_rec_data`; the record has the format of management datagrams.
    pub struct PathData { flags: u32, reserved: u32, path_rec: [u8; 64] }
    pub struct QueryPathResp {
        num_paths: u32,
        reserved: u32,
        path_data: [PathData; PATHS_MAX],
    }
    /// `struct rdma_ucm_conn_param`.
    pub struct ConnParam {
        qp_num: u32,
        qkey: u32,
        private_data: [u8; PRIVATE_DATA_LEN],
        private_data_len: u8,
        srq: u8,
        responder_resources: u8,
        initiator_depth: u8,
        flow_control: u8,
        retry_count: u8,
        rnr_retry_count: u8,
        valid: u8,
    }
    /// `struct ib_uverbs_global_route` and the rest of `struct ib_uverbs_ah_attr`.
    pub struct AhAttr {
        dgid: [u8; 16],
        flow_label: u32,
        sgid_index: u8,
        hop_limit: u8,
        traffic_class: u8,
        reserved: u8,
        dlid: u16,
        sl: u8,
        src_path_bits: u8,
        static_rate: u8,
        is_global: u8,
        port_num: u8,
        reserved1: u8,
    }
    /// `struct rdma_ucm_ud_param`.
    pub struct UdParam {
        qp_num: u32,
        qkey: u32,
        ah_attr: AhAttr,
        private_data: [u8; PRIVATE_DATA_LEN],
        private_data_len: u8,
        reserved: [u8; 7],
    }
    /// `struct rdma_ucm_ece`.
    pub struct Ece { vendor_id: u32, attr_mod: u32 }
    pub struct Connect { conn_param: ConnParam, id: u32, reserved: u32, ece: Ece }
    pub struct Listen { id: u32, backlog: u32 }
    pub struct Accept {
        uid: u64,
        conn_param: ConnParam,
        id: u32,
        reserved: u32,
        ece: Ece,
    }
    pub struct Reject {
        id: u32,
        private_data_len: u8,
        reason: u8,
        reserved: [u8; 2],
        private_data: [u8; PRIVATE_DATA_LEN],
    }
    pub struct Disconnect { id: u32 }
    pub struct InitQpAttr { response: u64, id: u32, qp_state: u32 }
    /// `struct ib_uverbs_qp_attr`.
    pub struct QpAttr {
        qp_attr_mask: u32,
        qp_state: u32,
        cur_qp_state: u32,
        path_mtu: u32,
        path_mig_state: u32,
        qkey: u32,
        rq_psn: u32,
        sq_psn: u32,
        dest_qp_num: u32,
        qp_access_flags: u32,
        ah_attr: AhAttr,
        alt_ah_attr: AhAttr,
        cap: [u32; 5],
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
        reserved: [u8; 5],
    }
    pub struct GetEvent { response: u64 }
    /// `struct rdma_ucm_event_resp`. `param` is a `ConnParam`, a `UdParam` or two words.
    pub struct EventResp {
        uid: u64,
        id: u32,
        event: u32,
        status: u32,
        param: [u8; UdParam::SIZE],
        reserved: u32,
        ece: Ece,
    }
    pub struct SetOption { optval: u64, id: u32, level: u32, optname: u32, optlen: u32 }
    pub struct Notify { id: u32, event: u32 }
    pub struct JoinMcast {
        response: u64,
        uid: u64,
        id: u32,
        addr_size: u16,
        join_flags: u16,
        addr: Storage,
    }
    pub struct MigrateId { response: u64, id: u32, fd: u32 }
    /// `struct rdma_ucm_ib_service` (Linux 6.18).
    pub struct IbService {
        service_id: u64,
        service_name: [u8; IB_SERVICE_NAME_LEN],
        flags: u32,
        reserved: u32,
    }
    pub struct ResolveIbService { id: u32, reserved: u32, service: IbService }
    /// `struct ib_user_service_rec`: the record has the format of management datagrams.
    pub struct IbServiceRec { record: [u8; 176] }
    /// Answer to QUERY for services (Linux 6.18): their number, and the first ones.
    pub struct QueryIbServiceResp {
        num_service_recs: u32,
        reserved: u32,
        recs: [IbServiceRec; IB_SERVICES_MAX],
    }
    /// WRITE_CM_EVENT (Linux 6.18). The kernel reads `arg` at the start of its union. Events that a program may write
    /// do not use the rest.
    pub struct WriteCmEvent {
        id: u32,
        reserved: u32,
        event: u32,
        status: u32,
        arg: u64,
        rest: [u8; UdParam::SIZE],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_are_as_long_as_the_kernels_with_the_header_before_commands() {
        let command = |size: usize| Header::SIZE + size;
        let sizes = [
            ("CREATE_ID", command(CreateId::SIZE), 32),
            ("DESTROY_ID", command(DestroyId::SIZE), 24),
            ("BIND", command(Bind::SIZE), 144),
            ("RESOLVE_ADDR", command(ResolveAddr::SIZE), 280),
            ("RESOLVE_ROUTE", command(ResolveRoute::SIZE), 16),
            ("QUERY", command(Query::SIZE), 24),
            ("CONNECT", command(Connect::SIZE), 296),
            ("LISTEN", command(Listen::SIZE), 16),
            ("ACCEPT", command(Accept::SIZE), 304),
            ("REJECT", command(Reject::SIZE), 272),
            ("DISCONNECT", command(Disconnect::SIZE), 12),
            ("INIT_QP_ATTR", command(InitQpAttr::SIZE), 24),
            ("GET_EVENT", command(GetEvent::SIZE), 16),
            ("SET_OPTION", command(SetOption::SIZE), 32),
            ("NOTIFY", command(Notify::SIZE), 16),
            ("JOIN_MCAST", command(JoinMcast::SIZE), 160),
            ("MIGRATE_ID", command(MigrateId::SIZE), 24),
            ("RESOLVE_IB_SERVICE", command(ResolveIbService::SIZE), 96),
            ("ib_user_service_rec", IbServiceRec::SIZE, 176),
            (
                "query_ib_service_resp",
                QueryIbServiceResp::SIZE,
                8 + 176 * IB_SERVICES_MAX,
            ),
            ("WRITE_CM_EVENT", command(WriteCmEvent::SIZE), 336),
            ("query_addr_resp", QueryAddrResp::SIZE, 280),
            ("query_path_resp", QueryPathResp::SIZE, 8 + 72 * PATHS_MAX),
            ("event_resp", EventResp::SIZE, 336),
            ("conn_param", ConnParam::SIZE, 272),
            ("ud_param", UdParam::SIZE, 304),
            ("uverbs_ah_attr", AhAttr::SIZE, 32),
            ("uverbs_qp_attr", QpAttr::SIZE, 144),
        ];
        for (name, size, expected) in sizes {
            assert_eq!(size, expected, "{name}");
        }
    }

    #[test]
    fn fields_are_at_the_kernels_offsets() {
        let event = EventResp {
            uid: 1,
            id: 2,
            event: 3,
            status: 4,
            ece: Ece {
                vendor_id: 5,
                attr_mod: 6,
            },
            ..EventResp::zeroed()
        };
        let bytes = event.to_bytes();
        let word = |at: usize| u32::from_ne_bytes(bytes[at..][..4].try_into().unwrap());
        assert_eq!([word(0), word(8), word(12), word(16)], [1, 2, 3, 4]);
        assert_eq!([word(328), word(332)], [5, 6]);

        let accept = Accept {
            id: 7,
            ece: event.ece,
            ..Accept::zeroed()
        };
        let bytes = accept.to_bytes();
        let word = |at: usize| u32::from_ne_bytes(bytes[at - 8..][..4].try_into().unwrap());
        assert_eq!([word(288), word(296), word(300)], [7, 5, 6]);

        let attr = QpAttr {
            pkey_index: 0x0102,
            timeout: 9,
            rnr_retry: 8,
            ..QpAttr::zeroed()
        };
        let bytes = attr.to_bytes();
        assert_eq!(bytes[124..126], 0x0102u16.to_ne_bytes());
        assert_eq!((bytes[134], bytes[136]), (9, 8));
    }

    #[test]
    fn written_structures_survive_a_round_trip() {
        let join = JoinMcast {
            response: u64::MAX - 1,
            uid: 2,
            id: 3,
            addr_size: 16,
            join_flags: 1,
            addr: [9; 128],
        };
        assert_eq!(JoinMcast::from_bytes(&join.to_bytes()), join);
        let mut paths = QueryPathResp::zeroed();
        paths.num_paths = 1;
        paths.path_data[5].path_rec = [7; 64];
        assert_eq!(QueryPathResp::from_bytes(&paths.to_bytes()), paths);
    }
}
