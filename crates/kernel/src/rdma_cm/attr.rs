//! Converts queue pair attributes, address vectors and path records from the kernel's format.

use portolan_provider::cm::PathRecord;
use portolan_provider::verbs::{Access, AhAttr, LocalRoute, Mtu, QpAttr, QpAttrMask, QpState};
use portolan_provider::{Cause, Error, Result, Step};
use portolan_wire::addr::{Gid, Psn, QKey, Qpn};

use super::abi;

/// The attributes that take a queue pair to `state`, from the answer to INIT_QP_ATTR.
///
/// # Errors
/// `Unsupported` for an attribute of a newer kernel.
pub fn qp_attr(raw: &abi::QpAttr, state: QpState) -> Result<(QpAttr, QpAttrMask)> {
    let mask = QpAttrMask::from_bits(raw.qp_attr_mask).ok_or(Error::new(
        Step::InitQpAttr,
        Cause::Unsupported("a queue pair attribute that the kernel requires"),
    ))?;
    let mtu = u8::try_from(raw.path_mtu).ok().and_then(Mtu::from_number);
    let mut attr = QpAttr {
        state,
        path_mtu: match mtu {
            Some(mtu) => mtu,
            None if mask.contains(QpAttrMask::PATH_MTU) => {
                let found = raw.path_mtu;
                return Err(Error::invalid(
                    Step::InitQpAttr,
                    "path MTU",
                    "1 to 5",
                    found,
                ));
            }
            None => QpAttr::default().path_mtu,
        },
        qkey: QKey(raw.qkey),
        rq_psn: Psn::new(raw.rq_psn),
        sq_psn: Psn::new(raw.sq_psn),
        dest_qpn: Qpn::new(raw.dest_qp_num),
        // Drop newer rights (flushing to persistent memory), whose verbs the provider's types lack.
        access: Access::from_bits_truncate(raw.qp_access_flags),
        ah_attr: match mask.contains(QpAttrMask::AV) {
            true => ah_attr(&raw.ah_attr),
            false => QpAttr::default().ah_attr,
        },
        pkey_index: raw.pkey_index,
        max_rd_atomic: raw.max_rd_atomic,
        max_dest_rd_atomic: raw.max_dest_rd_atomic,
        min_rnr_timer: raw.min_rnr_timer,
        port_num: raw.port_num,
        timeout: raw.timeout,
        retry_cnt: raw.retry_cnt,
        rnr_retry: raw.rnr_retry,
    };
    // The kernel returns INIT's attributes for every state of a datagram queue pair, which has no address vector. Each
    // step may only set its own attributes (`ucma_init_ud_qp` of librdmacm).
    let is_datagram = mask.contains(QpAttrMask::QKEY) && !mask.contains(QpAttrMask::AV);
    let mask = match state {
        QpState::Rtr if is_datagram => QpAttrMask::STATE,
        QpState::Rts if is_datagram => {
            attr.sq_psn = Psn::new(0);
            QpAttrMask::STATE | QpAttrMask::SQ_PSN
        }
        _ => mask,
    };
    Ok((attr, mask))
}

/// The address vector of a destination.
pub(super) fn ah_attr(raw: &abi::AhAttr) -> AhAttr {
    AhAttr {
        dgid: Gid(raw.dgid),
        sgid_index: raw.sgid_index,
        flow_label: raw.flow_label,
        hop_limit: raw.hop_limit,
        traffic_class: raw.traffic_class,
        sl: raw.sl,
        port_num: raw.port_num,
        local_route: LocalRoute::of_fields(
            raw.dlid,
            raw.src_path_bits,
            raw.static_rate,
            raw.is_global != 0,
        ),
    }
}

/// Parses a PathRecord of 64 bytes in the format of management datagrams (IBTA 15.2.5.16).
///
/// # Errors
/// `InvalidArgument` for an invalid MTU.
pub(super) fn path_record(record: &[u8; 64]) -> Result<PathRecord> {
    let record = portolan_wire::sa::PathRecord::from_bytes(record);
    PathRecord::of_record(Step::Query, &record)
}

#[cfg(test)]
mod tests {
    use portolan_wire::addr::PKey;

    use super::super::fields::Fields;
    use super::*;

    fn ready_to_receive() -> abi::QpAttr {
        let mask = QpAttrMask::STATE | QpAttrMask::AV | QpAttrMask::PATH_MTU;
        abi::QpAttr {
            qp_attr_mask: mask.bits(),
            path_mtu: 3,
            ah_attr: abi::AhAttr {
                is_global: 1,
                sgid_index: 2,
                hop_limit: 64,
                port_num: 1,
                ..abi::AhAttr::zeroed()
            },
            ..abi::QpAttr::zeroed()
        }
    }

    #[test]
    fn attributes_and_their_mask_are_taken_over() {
        let raw = abi::QpAttr {
            dest_qp_num: 17,
            rq_psn: 0xff_fffe,
            ..ready_to_receive()
        };
        let (attr, mask) = qp_attr(&raw, QpState::Rtr).unwrap();
        assert_eq!(mask.bits(), raw.qp_attr_mask);
        assert_eq!((attr.state, attr.path_mtu), (QpState::Rtr, Mtu::Mtu1024));
        assert_eq!(
            (attr.dest_qpn.value(), attr.rq_psn.value()),
            (17, 0xff_fffe)
        );
        assert_eq!((attr.ah_attr.sgid_index, attr.ah_attr.hop_limit), (2, 64));
    }

    #[test]
    fn a_datagram_queue_pair_names_only_what_each_step_needs() {
        let mask = QpAttrMask::STATE | QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::QKEY;
        let raw = abi::QpAttr {
            qp_attr_mask: mask.bits(),
            qkey: 0x0123_4567,
            ..abi::QpAttr::zeroed()
        };
        let masks = [QpState::Init, QpState::Rtr, QpState::Rts]
            .map(|state| qp_attr(&raw, state).unwrap().1);
        let rts = QpAttrMask::STATE | QpAttrMask::SQ_PSN;
        assert_eq!(masks, [mask, QpAttrMask::STATE, rts]);
    }

    #[test]
    fn values_that_the_providers_types_cannot_express_are_refused_by_name() {
        let mut unknown = ready_to_receive();
        unknown.qp_attr_mask |= 1 << 25;
        let error = qp_attr(&unknown, QpState::Rtr).unwrap_err();
        assert!(matches!(error.cause, Cause::Unsupported(_)), "{error}");
        let mut size = ready_to_receive();
        size.path_mtu = 6;
        assert!(qp_attr(&size, QpState::Rtr).is_err());
    }

    #[test]
    fn a_path_record_is_read_at_the_standards_offsets() {
        let mut record = [0; 64];
        record[8..24].copy_from_slice(&[1; 16]);
        record[24..40].copy_from_slice(&[2; 16]);
        record[40..44].copy_from_slice(&[0, 5, 0, 6]);
        record[44..48].copy_from_slice(&[0xfa, 0xbc, 0xde, 64]);
        record[48] = 0x20;
        record[50..52].copy_from_slice(&[0xff, 0xff]);
        record[53] = 0xf3;
        record[54..57].copy_from_slice(&[0x83, 0x82, 0x92]);
        let path = path_record(&record).unwrap();
        assert_eq!((path.dgid, path.sgid), (Gid([1; 16]), Gid([2; 16])));
        assert_eq!((path.dlid, path.slid), (5, 6));
        assert_eq!((path.flow_label, path.hop_limit), (0xa_bcde, 64));
        assert_eq!((path.traffic_class, path.sl), (0x20, 3));
        assert_eq!(path.pkey, PKey(0xffff));
        assert_eq!((path.mtu, path.rate), (Mtu::Mtu1024, 2));
        assert_eq!(path.packet_lifetime, 0x12);
        record[54] = 0x80;
        assert!(path_record(&record).is_err());
    }
}
