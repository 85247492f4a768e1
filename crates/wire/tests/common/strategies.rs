//! Arbitrary values of every repr; each field covers its whole range.

use portolan_wire::bth::{BthRepr, Opcode};
use portolan_wire::cm::*;
use portolan_wire::cma::CmaHeader;
use portolan_wire::eth::*;
use portolan_wire::mad::{
    MadHeaderRepr, Method, MgmtClass, RmppFlags, RmppHeader, RmppStatus, RmppType,
};
use portolan_wire::rocev2::Headers;
use portolan_wire::{Gid, PKey, Psn, QKey, Qpn, ServiceId};
use proptest::array::uniform16;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

const U24: std::ops::RangeInclusive<u32> = 0..=0xFF_FFFF;

fn qpn() -> impl Strategy<Value = Qpn> {
    U24.prop_map(Qpn::new)
}

fn psn() -> impl Strategy<Value = Psn> {
    U24.prop_map(Psn::new)
}

fn gid() -> impl Strategy<Value = Gid> {
    uniform16(any::<u8>()).prop_map(Gid)
}

fn ece() -> impl Strategy<Value = Ece> {
    (U24, any::<u32>()).prop_map(|(vendor_id, options)| Ece { vendor_id, options })
}

fn private_data<const N: usize>() -> impl Strategy<Value = PrivateData<N>> {
    vec(any::<u8>(), 0..=N).prop_map(|data| PrivateData::from_slice(&data).unwrap())
}

fn additional_info(len_max: u8) -> impl Strategy<Value = AdditionalInfo> {
    let area = AdditionalInfo::LEN;
    (0..=len_max, vec(any::<u8>(), area)).prop_map(|(len, bytes)| AdditionalInfo {
        len,
        bytes: bytes.try_into().unwrap(),
    })
}

pub(crate) fn bth() -> impl Strategy<Value = BthRepr> {
    (
        select(Opcode::ALL),
        any::<[bool; 5]>(),
        0..=3u8,
        0..=15u8,
        any::<u16>(),
        qpn(),
        psn(),
    )
        .prop_map(
            |(opcode, flags, pad_count, tver, pkey, dest_qp, psn)| BthRepr {
                opcode,
                solicited: flags[0],
                migreq: flags[1],
                pad_count,
                tver,
                pkey: PKey(pkey),
                fecn: flags[2],
                becn: flags[3],
                dest_qp,
                ack_request: flags[4],
                psn,
            },
        )
}

pub(crate) fn deth() -> impl Strategy<Value = DethRepr> {
    (any::<u32>(), qpn()).prop_map(|(qkey, src_qp)| DethRepr {
        qkey: QKey(qkey),
        src_qp,
    })
}

pub(crate) fn xrceth() -> impl Strategy<Value = XrcEthRepr> {
    U24.prop_map(|srqn| XrcEthRepr { srqn })
}

pub(crate) fn feth() -> impl Strategy<Value = FethRepr> {
    (0..=15u8, 0..=3u8).prop_map(|(placement, selectivity)| FethRepr {
        placement,
        selectivity,
    })
}

pub(crate) fn reth() -> impl Strategy<Value = RethRepr> {
    any::<(u64, u32, u32)>().prop_map(|(va, rkey, dma_len)| RethRepr { va, rkey, dma_len })
}

pub(crate) fn atomic_eth() -> impl Strategy<Value = AtomicEthRepr> {
    any::<(u64, u32, u64, u64)>().prop_map(|(va, rkey, swap_or_add, compare)| AtomicEthRepr {
        va,
        rkey,
        swap_or_add,
        compare,
    })
}

pub(crate) fn aeth() -> impl Strategy<Value = AethRepr> {
    (any::<u8>(), U24).prop_map(|(syndrome, msn)| AethRepr {
        syndrome: Syndrome::from_value(syndrome),
        msn,
    })
}

pub(crate) fn atomic_ack() -> impl Strategy<Value = AtomicAckEthRepr> {
    any::<u64>().prop_map(|original| AtomicAckEthRepr { original })
}

pub(crate) fn immdt() -> impl Strategy<Value = ImmDtRepr> {
    any::<[u8; 4]>().prop_map(ImmDtRepr)
}

pub(crate) fn ieth() -> impl Strategy<Value = IethRepr> {
    any::<u32>().prop_map(|rkey| IethRepr { rkey })
}

pub(crate) fn grh() -> impl Strategy<Value = GrhRepr> {
    (
        any::<u8>(),
        0..=0xF_FFFFu32,
        any::<(u16, u8, u8)>(),
        gid(),
        gid(),
    )
        .prop_map(
            |(traffic_class, flow_label, (payload_len, next_header, hop_limit), sgid, dgid)| {
                GrhRepr {
                    traffic_class,
                    flow_label,
                    payload_len,
                    next_header,
                    hop_limit,
                    sgid,
                    dgid,
                }
            },
        )
}

/// Headers with the extensions that their opcode requires.
pub(crate) fn headers() -> impl Strategy<Value = Headers> {
    (
        bth(),
        (deth(), xrceth(), feth(), reth(), atomic_eth()),
        (aeth(), atomic_ack(), immdt(), ieth()),
    )
        .prop_map(
            |(bth, (deth, xrceth, feth, reth, atomic), (aeth, ack, immdt, ieth))| {
                let opcode = bth.opcode;
                Headers {
                    bth,
                    deth: opcode.has_deth().then_some(deth),
                    xrceth: opcode.has_xrceth().then_some(xrceth),
                    feth: opcode.has_feth().then_some(feth),
                    reth: opcode.has_reth().then_some(reth),
                    atomic_eth: opcode.has_atomic_eth().then_some(atomic),
                    aeth: opcode.has_aeth().then_some(aeth),
                    atomic_ack_eth: opcode.has_atomic_ack_eth().then_some(ack),
                    immdt: opcode.has_immdt().then_some(immdt),
                    ieth: opcode.has_ieth().then_some(ieth),
                }
            },
        )
}

pub(crate) fn mad_header() -> impl Strategy<Value = MadHeaderRepr> {
    any::<([u8; 4], u16, u16, u64, u16, u32)>().prop_map(
        |(
            [base_version, class, class_version, method],
            status,
            class_specific,
            tid,
            id,
            modifier,
        )| {
            MadHeaderRepr {
                base_version,
                mgmt_class: MgmtClass(class),
                class_version,
                method: Method(method),
                status,
                class_specific,
                tid,
                attribute_id: id,
                attribute_modifier: modifier,
            }
        },
    )
}

pub(crate) fn rmpp() -> impl Strategy<Value = RmppHeader> {
    (any::<[u8; 3]>(), 0..=31u8, 0..=7u8, any::<(u32, u32)>()).prop_map(
        |([version, rmpp_type, status], response_time, flags, (data1, data2))| RmppHeader {
            version,
            rmpp_type: RmppType(rmpp_type),
            response_time,
            flags: RmppFlags::from_bits_retain(flags),
            status: RmppStatus(status),
            data1,
            data2,
        },
    )
}

pub(crate) fn cma_header() -> impl Strategy<Value = CmaHeader> {
    (
        select(vec![4u8, 6]),
        any::<u16>(),
        uniform16(any::<u8>()),
        uniform16(any::<u8>()),
    )
        .prop_map(|(ip_version, port, src, dst)| CmaHeader {
            ip_version,
            port,
            src,
            dst,
        })
}

fn path() -> impl Strategy<Value = PathRepr> {
    (
        any::<(u16, u16)>(),
        (gid(), gid()),
        0..=0xF_FFFFu32,
        0..=63u8,
        any::<(u8, u8)>(),
        0..=15u8,
        any::<bool>(),
        0..=31u8,
    )
        .prop_map(
            |(lids, gids, flow_label, packet_rate, class_and_hops, sl, local, ack)| PathRepr {
                local_lid: lids.0,
                remote_lid: lids.1,
                local_gid: gids.0,
                remote_gid: gids.1,
                flow_label,
                packet_rate,
                traffic_class: class_and_hops.0,
                hop_limit: class_and_hops.1,
                service_level: sl,
                subnet_local: local,
                local_ack_timeout: ack,
            },
        )
}

fn req() -> impl Strategy<Value = ReqRepr> {
    let ids = (
        any::<u32>(),
        ece(),
        any::<u64>(),
        any::<u64>(),
        any::<u32>(),
        qpn(),
    );
    let depths = (any::<(u8, u8)>(), U24, U24);
    let transport = select(vec![
        TransportService::Rc,
        TransportService::Uc,
        TransportService::Rd,
        TransportService::Extended,
    ]);
    let times = (0..=31u8, transport, psn(), 0..=31u8, 0..=7u8);
    let rest = (any::<u16>(), 0..=15u8, 0..=7u8, 0..=15u8, 0..=7u8);
    (
        ids,
        depths,
        times,
        rest,
        any::<[bool; 3]>(),
        path(),
        path(),
        private_data(),
    )
        .prop_map(
            |(ids, depths, times, rest, flags, primary, alternate, private_data)| ReqRepr {
                local_comm_id: ids.0,
                ece: ids.1,
                service_id: ServiceId(ids.2),
                local_ca_guid: ids.3,
                local_qkey: QKey(ids.4),
                local_qpn: ids.5,
                responder_resources: depths.0.0,
                initiator_depth: depths.0.1,
                local_eecn: depths.1,
                remote_eecn: depths.2,
                remote_cm_response_timeout: times.0,
                transport: times.1,
                starting_psn: times.2,
                local_cm_response_timeout: times.3,
                retry_count: times.4,
                pkey: PKey(rest.0),
                path_mtu: PathMtu(rest.1),
                rnr_retry_count: rest.2,
                max_cm_retries: rest.3,
                extended_transport: rest.4,
                end_to_end_flow_control: flags[0],
                rdc_exists: flags[1],
                srq: flags[2],
                primary,
                alternate,
                private_data,
            },
        )
}

fn rep() -> impl Strategy<Value = RepRepr> {
    (
        (any::<(u32, u32, u32)>(), qpn(), ece(), U24, psn()),
        (any::<(u8, u8)>(), 0..=31u8, 0..=3u8, 0..=7u8),
        any::<(bool, bool, u64)>(),
        private_data(),
    )
        .prop_map(|(ids, small, (flow, srq, guid), private_data)| RepRepr {
            local_comm_id: ids.0.0,
            remote_comm_id: ids.0.1,
            local_qkey: QKey(ids.0.2),
            local_qpn: ids.1,
            ece: ids.2,
            local_eecn: ids.3,
            starting_psn: ids.4,
            responder_resources: small.0.0,
            initiator_depth: small.0.1,
            target_ack_delay: small.1,
            failover_accepted: small.2,
            rnr_retry_count: small.3,
            end_to_end_flow_control: flow,
            srq,
            local_ca_guid: guid,
            private_data,
        })
}

fn short_messages() -> impl Strategy<Value = CmMessage> {
    let ids = || any::<(u32, u32)>();
    let mra_message = select(vec![
        MraMessage::Req,
        MraMessage::Rep,
        MraMessage::Lap,
        MraMessage::Reserved,
    ]);
    let rej_message = select(vec![
        RejMessage::Req,
        RejMessage::Rep,
        RejMessage::Other,
        RejMessage::Reserved,
    ]);
    prop_oneof![
        (ids(), mra_message, 0..=31u8, private_data()).prop_map(|(ids, message, timeout, data)| {
            CmMessage::Mra(MraRepr {
                local_comm_id: ids.0,
                remote_comm_id: ids.1,
                message,
                service_timeout: timeout,
                private_data: data,
            })
        }),
        (
            ids(),
            rej_message,
            any::<u16>(),
            additional_info(127),
            private_data()
        )
            .prop_map(|(ids, message, reason, additional_info, private_data)| {
                CmMessage::Rej(RejRepr {
                    local_comm_id: ids.0,
                    remote_comm_id: ids.1,
                    message,
                    reason: RejectReason(reason),
                    additional_info,
                    private_data,
                })
            }),
        (ids(), private_data()).prop_map(|(ids, private_data)| {
            CmMessage::Rtu(RtuRepr {
                local_comm_id: ids.0,
                remote_comm_id: ids.1,
                private_data,
            })
        }),
        (ids(), qpn(), private_data()).prop_map(|(ids, remote_qpn, private_data)| {
            CmMessage::Dreq(DreqRepr {
                local_comm_id: ids.0,
                remote_comm_id: ids.1,
                remote_qpn,
                private_data,
            })
        }),
        (ids(), private_data()).prop_map(|(ids, private_data)| {
            CmMessage::Drep(DrepRepr {
                local_comm_id: ids.0,
                remote_comm_id: ids.1,
                private_data,
            })
        }),
    ]
}

fn service_messages() -> impl Strategy<Value = CmMessage> {
    prop_oneof![
        (any::<(u32, u16, u64)>(), private_data()).prop_map(|((id, pkey, sid), private_data)| {
            CmMessage::SidrReq(SidrReqRepr {
                request_id: id,
                pkey: PKey(pkey),
                service_id: ServiceId(sid),
                private_data,
            })
        }),
        (
            any::<(u32, u8, u64, u32)>(),
            ece(),
            qpn(),
            additional_info(255),
            private_data()
        )
            .prop_map(
                |((id, status, sid, qkey), ece, qpn, additional_info, data)| {
                    CmMessage::SidrRep(SidrRepRepr {
                        request_id: id,
                        status: SidrStatus(status),
                        ece,
                        qpn,
                        service_id: ServiceId(sid),
                        qkey: QKey(qkey),
                        additional_info,
                        private_data: data,
                    })
                }
            ),
    ]
}

fn path_messages() -> impl Strategy<Value = CmMessage> {
    prop_oneof![
        (any::<(u32, u32)>(), qpn(), 0..=31u8, path(), private_data()).prop_map(
            |(ids, remote_qpn, timeout, alternate, private_data)| {
                CmMessage::Lap(LapRepr {
                    local_comm_id: ids.0,
                    remote_comm_id: ids.1,
                    remote_qpn,
                    remote_cm_response_timeout: timeout,
                    alternate,
                    private_data,
                })
            }
        ),
        (
            any::<(u32, u32, u8)>(),
            additional_info(255),
            private_data()
        )
            .prop_map(|((local, remote, status), additional_info, private_data)| {
                CmMessage::Apr(AprRepr {
                    local_comm_id: local,
                    remote_comm_id: remote,
                    status: AprStatus(status),
                    additional_info,
                    private_data,
                })
            }),
    ]
}

/// Any message of the communication manager.
pub(crate) fn cm_message() -> impl Strategy<Value = CmMessage> {
    prop_oneof![
        2 => req().prop_map(CmMessage::Req),
        1 => rep().prop_map(CmMessage::Rep),
        4 => short_messages(),
        2 => service_messages(),
        2 => path_messages(),
    ]
}
