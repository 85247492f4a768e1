//! Queue pair attributes for each state of a connection.

use portolan_provider::cm::{IdNumber, PathRecord};
use portolan_provider::error::{Cause, Error, Result, Step};
use portolan_provider::verbs::{Access, AhAttr, LocalRoute, QpAttr, QpAttrMask, QpState, QpType};
use portolan_wire::QKey;

use crate::engine::Cm;
use crate::id::{Connection, Id};
use crate::state::State;
use crate::types::BoundDevice;

impl Cm {
    /// The attributes that take the queue pair to `state` (`rdma_init_qp_attr`, `ib_cm_init_qp_attr`).
    ///
    /// # Errors
    /// `InvalidState` if it is too early for `state`; `InvalidArgument` for a state other than INIT, RTR and RTS;
    /// `DeviceRemoved`.
    pub fn init_qp_attr(&self, id: IdNumber, state: QpState) -> Result<(QpAttr, QpAttrMask)> {
        let step = Step::InitQpAttr;
        let id = self.ids.find(id, step)?;
        if id.state == State::DeviceRemoval {
            return Err(id.fail(step, Cause::DeviceRemoved));
        }
        if id.service.qp_type == QpType::Ud {
            return datagram_attr(id, state);
        }
        match (state, id.connection.as_deref()) {
            (QpState::Init, None) => init_before_connecting(id),
            (QpState::Init, Some(connection)) => {
                in_states(id, !is_over(id.state))?;
                Ok(init(connection))
            }
            (QpState::Rtr, Some(connection)) => {
                in_states(id, knows_peer(id.state))?;
                Ok(ready_to_receive(id, connection))
            }
            (QpState::Rts, Some(connection)) => {
                in_states(id, knows_peer(id.state))?;
                Ok(ready_to_send(id, connection))
            }
            (QpState::Rtr | QpState::Rts, None) => {
                in_states(id, false)?;
                Ok(Default::default())
            }
            _ => Err(no_such_step(state)),
        }
    }
}

/// Whether the peer's queue pair is known and the connection is open.
fn knows_peer(state: State) -> bool {
    matches!(
        state,
        State::ReqRcvd | State::RepRcvd | State::RepSent | State::MraRepRcvd | State::Established
    )
}

fn is_over(state: State) -> bool {
    matches!(
        state,
        State::DreqSent | State::DreqRcvd | State::Timewait | State::Closed
    )
}

fn in_states(id: &Id, legal: bool) -> Result<()> {
    if legal {
        return Ok(());
    }
    let expected = "connecting or established, with the peer's queue pair known";
    Err(id.fail(
        Step::InitQpAttr,
        Cause::InvalidState {
            expected,
            found: id.state.name(),
        },
    ))
}

const INIT_MASK: QpAttrMask = QpAttrMask::STATE
    .union(QpAttrMask::ACCESS_FLAGS)
    .union(QpAttrMask::PKEY_INDEX)
    .union(QpAttrMask::PORT);

fn bound_device(id: &Id) -> Result<BoundDevice> {
    id.device.ok_or_else(|| {
        let expected = "bound to a device";
        id.fail(
            Step::InitQpAttr,
            Cause::InvalidState {
                expected,
                found: id.state.name(),
            },
        )
    })
}

/// Any state of a datagram queue pair (`cma_ib_init_qp_attr`, `ucma_init_ud_qp`). It has no peer and needs only a
/// device. The mask is what the standard requires of each step; Linux returns INIT's for all.
fn datagram_attr(id: &Id, state: QpState) -> Result<(QpAttr, QpAttrMask)> {
    let device = bound_device(id)?;
    let mask = match state {
        QpState::Init => {
            QpAttrMask::STATE | QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::QKEY
        }
        QpState::Rtr => QpAttrMask::STATE,
        QpState::Rts => QpAttrMask::STATE | QpAttrMask::SQ_PSN,
        _ => return Err(no_such_step(state)),
    };
    let attr = QpAttr {
        state,
        qkey: id.qkey.unwrap_or(QKey::RDMA_CM),
        port_num: device.port_num,
        ..QpAttr::default()
    };
    Ok((attr, mask))
}

fn no_such_step(state: QpState) -> Error {
    let expected = "INIT, RTR or RTS";
    Error::invalid(Step::InitQpAttr, "queue pair state", expected, state)
}

/// INIT for a queue pair that is created before connecting (`cma_ib_init_qp_attr`): no rights yet.
fn init_before_connecting(id: &Id) -> Result<(QpAttr, QpAttrMask)> {
    let device = bound_device(id)?;
    let attr = QpAttr {
        state: QpState::Init,
        port_num: device.port_num,
        ..QpAttr::default()
    };
    Ok((attr, INIT_MASK))
}

/// INIT (`cm_init_qp_init_attr`).
fn init(connection: &Connection) -> (QpAttr, QpAttrMask) {
    let mut access = Access::REMOTE_WRITE;
    if connection.responder_resources > 0 {
        access |= Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    }
    let attr = QpAttr {
        state: QpState::Init,
        access,
        port_num: connection.mad_path.device.port_num,
        ..QpAttr::default()
    };
    (attr, INIT_MASK)
}

/// RTR (`cm_init_qp_rtr_attr`).
fn ready_to_receive(id: &Id, connection: &Connection) -> (QpAttr, QpAttrMask) {
    let mut attr = QpAttr {
        state: QpState::Rtr,
        path_mtu: connection.mtu,
        dest_qpn: connection.remote_qpn,
        rq_psn: id.starting_psn,
        ..QpAttr::default()
    };
    if let (Some(path), Some(device)) = (id.path, id.device) {
        attr.ah_attr = ah_attr_of(&path, &device);
    }
    let mut mask = QpAttrMask::STATE
        | QpAttrMask::AV
        | QpAttrMask::PATH_MTU
        | QpAttrMask::DEST_QPN
        | QpAttrMask::RQ_PSN;
    if matches!(id.service.qp_type, QpType::Rc | QpType::XrcRecv) {
        mask |= QpAttrMask::MAX_DEST_RD_ATOMIC | QpAttrMask::MIN_RNR_TIMER;
        attr.max_dest_rd_atomic = connection.responder_resources;
        attr.min_rnr_timer = 0;
    }
    (attr, mask)
}

/// The address vector to the end of a path (`ib_init_ah_attr_from_path`). On InfiniBand, packets have a global route header
/// if they may leave the subnet.
pub(crate) fn ah_attr_of(path: &PathRecord, device: &BoundDevice) -> AhAttr {
    AhAttr {
        dgid: path.dgid,
        sgid_index: device.sgid_index,
        flow_label: path.flow_label,
        hop_limit: path.hop_limit,
        traffic_class: path.traffic_class,
        sl: path.sl,
        port_num: device.port_num,
        local_route: LocalRoute::of_fields(
            path.dlid,
            0,
            path.rate,
            path.dlid == 0 || path.hop_limit > 0,
        ),
    }
}

/// RTS (`cm_init_qp_rts_attr`). An ACK timeout set by the user overrides the path's (`rdma_init_qp_attr`).
fn ready_to_send(id: &Id, connection: &Connection) -> (QpAttr, QpAttrMask) {
    let mut attr = QpAttr {
        state: QpState::Rts,
        sq_psn: connection.remote_psn,
        ..QpAttr::default()
    };
    let mut mask = QpAttrMask::STATE | QpAttrMask::SQ_PSN;
    let qp_type = id.service.qp_type;
    if matches!(qp_type, QpType::Rc | QpType::XrcSend | QpType::XrcRecv) {
        mask |= QpAttrMask::TIMEOUT;
        let set = id.options.ack_timeout_exp;
        attr.timeout = set.unwrap_or(connection.ack_timeout_exp);
    }
    if matches!(qp_type, QpType::Rc | QpType::XrcSend) {
        mask |= QpAttrMask::RETRY_CNT | QpAttrMask::RNR_RETRY | QpAttrMask::MAX_QP_RD_ATOMIC;
        attr.retry_cnt = connection.retry_count;
        attr.rnr_retry = connection.rnr_retry_count;
        attr.max_rd_atomic = connection.initiator_depth;
    }
    (attr, mask)
}
