//! Converts queue pair attributes and address vectors between the provider's types and C's.

use portolan_provider::verbs::{self, Access, LocalRoute, Mtu, QpAttrMask, QpState};
use portolan_provider::{Error, Result, Step};
use portolan_wire::addr::{Psn, QKey, Qpn};

use super::{AhAttr, GlobalRoute, QpAttr, QpCap, qp_attr_mask};

impl From<&QpCap> for verbs::QpCap {
    fn from(from: &QpCap) -> Self {
        Self {
            max_send_wr: from.max_send_wr,
            max_recv_wr: from.max_recv_wr,
            max_send_sge: from.max_send_sge,
            max_recv_sge: from.max_recv_sge,
            max_inline_data: from.max_inline_data,
        }
    }
}

impl From<&verbs::QpCap> for QpCap {
    fn from(from: &verbs::QpCap) -> Self {
        Self {
            max_send_wr: from.max_send_wr,
            max_recv_wr: from.max_recv_wr,
            max_send_sge: from.max_send_sge,
            max_recv_sge: from.max_recv_sge,
            max_inline_data: from.max_inline_data,
        }
    }
}

impl From<&AhAttr> for verbs::AhAttr {
    fn from(from: &AhAttr) -> Self {
        Self {
            dgid: from.grh.dgid.into(),
            sgid_index: from.grh.sgid_index,
            flow_label: from.grh.flow_label,
            hop_limit: from.grh.hop_limit,
            traffic_class: from.grh.traffic_class,
            sl: from.sl,
            port_num: from.port_num,
            local_route: LocalRoute::of_fields(
                from.dlid,
                from.src_path_bits,
                from.static_rate,
                from.is_global != 0,
            ),
        }
    }
}

impl From<&verbs::AhAttr> for AhAttr {
    /// On Ethernet with a global route, which RoCE requires.
    fn from(from: &verbs::AhAttr) -> Self {
        let local = from.local_route;
        Self {
            grh: GlobalRoute {
                dgid: from.dgid.into(),
                flow_label: from.flow_label,
                sgid_index: from.sgid_index,
                hop_limit: from.hop_limit,
                traffic_class: from.traffic_class,
            },
            dlid: local.map_or(0, |local| local.dlid),
            sl: from.sl,
            src_path_bits: local.map_or(0, |local| local.src_path_bits),
            static_rate: local.map_or(0, |local| local.static_rate),
            is_global: local.is_none_or(|local| local.has_grh).into(),
            port_num: from.port_num,
        }
    }
}

impl From<&verbs::QpAttr> for QpAttr {
    /// Without capacities and without an alternate path.
    fn from(from: &verbs::QpAttr) -> Self {
        Self {
            qp_state: from.state as u32,
            cur_qp_state: from.state as u32,
            path_mtu: from.path_mtu as u32,
            qkey: from.qkey.0,
            rq_psn: from.rq_psn.value(),
            sq_psn: from.sq_psn.value(),
            dest_qp_num: from.dest_qpn.value(),
            qp_access_flags: from.access.bits(),
            ah_attr: (&from.ah_attr).into(),
            pkey_index: from.pkey_index,
            max_rd_atomic: from.max_rd_atomic,
            max_dest_rd_atomic: from.max_dest_rd_atomic,
            min_rnr_timer: from.min_rnr_timer,
            port_num: from.port_num,
            timeout: from.timeout,
            retry_cnt: from.retry_cnt,
            rnr_retry: from.rnr_retry,
            ..Self::zeroed()
        }
    }
}

impl QpAttr {
    /// Converts the attributes. State, path MTU, access flags and address vector are only used if `mask` (bits of `enum
    /// ibv_qp_attr_mask`) contains them.
    ///
    /// # Errors
    /// `InvalidArgument` for an invalid state or path MTU.
    pub fn named_by(&self, mask: u32) -> Result<verbs::QpAttr> {
        let default = verbs::QpAttr::default();
        let has = |bit: u32| mask & bit != 0;
        Ok(verbs::QpAttr {
            state: match has(qp_attr_mask::STATE) {
                true => qp_state(self.qp_state)?,
                false => default.state,
            },
            path_mtu: match has(qp_attr_mask::PATH_MTU) {
                true => path_mtu(self.path_mtu)?,
                false => default.path_mtu,
            },
            access: match has(QpAttrMask::ACCESS_FLAGS.bits()) {
                true => Access::from_bits_truncate(self.qp_access_flags),
                false => default.access,
            },
            ah_attr: match has(qp_attr_mask::AV) {
                true => (&self.ah_attr).into(),
                false => default.ah_attr,
            },
            qkey: QKey(self.qkey),
            rq_psn: Psn::new(self.rq_psn),
            sq_psn: Psn::new(self.sq_psn),
            dest_qpn: Qpn::new(self.dest_qp_num),
            pkey_index: self.pkey_index,
            max_rd_atomic: self.max_rd_atomic,
            max_dest_rd_atomic: self.max_dest_rd_atomic,
            min_rnr_timer: self.min_rnr_timer,
            port_num: self.port_num,
            timeout: self.timeout,
            retry_cnt: self.retry_cnt,
            rnr_retry: self.rnr_retry,
        })
    }
}

fn qp_state(number: u32) -> Result<QpState> {
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
    let invalid = || Error::invalid(Step::ModifyQp, "queue pair state", "0 to 6", number);
    let mut all = [Reset, Init, Rtr, Rts, Sqd, Sqe, Err].into_iter();
    all.find(|state| *state as u32 == number)
        .ok_or_else(invalid)
}

fn path_mtu(number: u32) -> Result<Mtu> {
    let invalid = || Error::invalid(Step::ModifyQp, "path MTU", "1 to 5", number);
    let mtu = u8::try_from(number).ok().and_then(Mtu::from_number);
    mtu.ok_or_else(invalid)
}

#[cfg(test)]
mod tests {
    use portolan_wire::addr::Gid;

    use super::*;

    #[test]
    fn queue_pair_attributes_survive_a_round_trip() {
        let attr = verbs::QpAttr {
            state: QpState::Rts,
            path_mtu: Mtu::Mtu4096,
            qkey: QKey(0x0123_4567),
            rq_psn: Psn::new(1),
            sq_psn: Psn::new(2),
            dest_qpn: Qpn::new(3),
            access: Access::REMOTE_READ,
            ah_attr: verbs::AhAttr {
                dgid: Gid(std::array::from_fn(|at| at as u8)),
                sgid_index: 4,
                flow_label: 5,
                hop_limit: 6,
                traffic_class: 7,
                sl: 8,
                port_num: 9,
                local_route: Some(LocalRoute {
                    dlid: 18,
                    src_path_bits: 19,
                    static_rate: 20,
                    has_grh: false,
                }),
            },
            pkey_index: 10,
            max_rd_atomic: 11,
            max_dest_rd_atomic: 12,
            min_rnr_timer: 13,
            port_num: 14,
            timeout: 15,
            retry_cnt: 16,
            rnr_retry: 17,
        };
        let c = QpAttr::from(&attr);
        assert_eq!((c.ah_attr.is_global, c.ah_attr.dlid), (0, 18));
        assert_eq!(c.named_by(u32::MAX).unwrap(), attr);
    }

    #[test]
    fn an_address_vector_of_ethernet_has_a_global_route_and_no_lid() {
        let attr = verbs::QpAttr::default().ah_attr;
        let c = AhAttr::from(&attr);
        assert_eq!((c.is_global, c.dlid), (1, 0));
        assert_eq!(verbs::AhAttr::from(&c), attr);
    }

    #[test]
    fn capacities_survive_a_round_trip() {
        let cap = verbs::QpCap {
            max_send_wr: 1,
            max_recv_wr: 2,
            max_send_sge: 3,
            max_recv_sge: 4,
            max_inline_data: 5,
        };
        assert_eq!(verbs::QpCap::from(&QpCap::from(&cap)), cap);
    }

    #[test]
    fn unknown_numbers_are_errors_if_the_mask_names_the_field() {
        let c = QpAttr::from(&verbs::QpAttr::default());
        let (mut state, mut mtu) = (c, c);
        (state.qp_state, mtu.path_mtu) = (7, 9);
        for (wrong, what) in [(state, "queue pair state"), (mtu, "path MTU")] {
            let error = wrong.named_by(u32::MAX).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
            assert_eq!(wrong.named_by(0).unwrap().state, QpState::Reset);
        }
    }
}
