//! Required and optional attributes of each state transition, and the range of each attribute.

use core::ops::RangeInclusive;

use portolan_provider::verbs::{QpAttr, QpAttrMask, QpState, QpType};
use portolan_provider::{Cause, Error, Result, Step};

use crate::engine::QpLimits;

const NONE: QpAttrMask = QpAttrMask::empty();
const CONNECTED_RTR: QpAttrMask = QpAttrMask::AV
    .union(QpAttrMask::PATH_MTU)
    .union(QpAttrMask::DEST_QPN)
    .union(QpAttrMask::RQ_PSN);
const SQD_OPTIONAL: QpAttrMask = QpAttrMask::PORT
    .union(QpAttrMask::AV)
    .union(QpAttrMask::TIMEOUT)
    .union(QpAttrMask::RETRY_CNT)
    .union(QpAttrMask::RNR_RETRY)
    .union(QpAttrMask::MAX_QP_RD_ATOMIC)
    .union(QpAttrMask::MAX_DEST_RD_ATOMIC)
    .union(QpAttrMask::ACCESS_FLAGS)
    .union(QpAttrMask::PKEY_INDEX)
    .union(QpAttrMask::MIN_RNR_TIMER);

/// The attributes of a service type's legal transitions, besides STATE (IBTA 10.3.1; Linux `qp_state_table` of
/// `ib_modify_qp_is_ok`). Every state may go to RESET, and every state except RESET to ERR, without attributes.
struct Transitions {
    /// Required from RESET to INIT, optional in INIT.
    init: QpAttrMask,
    /// Required from INIT to RTR.
    rtr: QpAttrMask,
    /// Optional from INIT to RTR.
    rtr_optional: QpAttrMask,
    /// Required from RTR to RTS.
    rts: QpAttrMask,
    /// Optional on the way to RTS and in RTS.
    rts_optional: QpAttrMask,
    /// Optional in SQD.
    sqd_optional: QpAttrMask,
    /// Whether a send queue in error may resume.
    resumes: bool,
}

const RC: Transitions = Transitions {
    init: QpAttrMask::PKEY_INDEX
        .union(QpAttrMask::PORT)
        .union(QpAttrMask::ACCESS_FLAGS),
    rtr: CONNECTED_RTR
        .union(QpAttrMask::MAX_DEST_RD_ATOMIC)
        .union(QpAttrMask::MIN_RNR_TIMER),
    rtr_optional: QpAttrMask::ACCESS_FLAGS.union(QpAttrMask::PKEY_INDEX),
    rts: QpAttrMask::TIMEOUT
        .union(QpAttrMask::RETRY_CNT)
        .union(QpAttrMask::RNR_RETRY)
        .union(QpAttrMask::SQ_PSN)
        .union(QpAttrMask::MAX_QP_RD_ATOMIC),
    rts_optional: QpAttrMask::ACCESS_FLAGS.union(QpAttrMask::MIN_RNR_TIMER),
    sqd_optional: SQD_OPTIONAL,
    resumes: false,
};

/// Without attributes of reliability.
const UC: Transitions = Transitions {
    rtr: CONNECTED_RTR,
    rts: QpAttrMask::SQ_PSN,
    rts_optional: QpAttrMask::ACCESS_FLAGS,
    sqd_optional: QpAttrMask::AV
        .union(QpAttrMask::ACCESS_FLAGS)
        .union(QpAttrMask::PKEY_INDEX),
    resumes: true,
    ..RC
};

/// The sending end of XRC: without attributes of a responder.
const XRC_SEND: Transitions = Transitions {
    rtr: CONNECTED_RTR,
    rts_optional: QpAttrMask::ACCESS_FLAGS,
    sqd_optional: SQD_OPTIONAL
        .difference(QpAttrMask::MAX_DEST_RD_ATOMIC.union(QpAttrMask::MIN_RNR_TIMER)),
    ..RC
};

/// The receiving end of XRC: without attributes of a requester.
const XRC_RECV: Transitions = Transitions {
    rts: QpAttrMask::TIMEOUT.union(QpAttrMask::SQ_PSN),
    sqd_optional: SQD_OPTIONAL.difference(
        QpAttrMask::RETRY_CNT
            .union(QpAttrMask::RNR_RETRY)
            .union(QpAttrMask::MAX_QP_RD_ATOMIC),
    ),
    ..RC
};

/// With a Q_Key instead of a peer.
const UD: Transitions = Transitions {
    init: QpAttrMask::PKEY_INDEX
        .union(QpAttrMask::PORT)
        .union(QpAttrMask::QKEY),
    rtr: NONE,
    rtr_optional: QpAttrMask::PKEY_INDEX.union(QpAttrMask::QKEY),
    rts: QpAttrMask::SQ_PSN,
    rts_optional: QpAttrMask::QKEY,
    sqd_optional: QpAttrMask::PKEY_INDEX.union(QpAttrMask::QKEY),
    resumes: true,
};

impl Transitions {
    const fn of(qp_type: QpType) -> &'static Self {
        match qp_type {
            QpType::Rc => &RC,
            QpType::Uc => &UC,
            QpType::Ud => &UD,
            QpType::XrcSend => &XRC_SEND,
            QpType::XrcRecv => &XRC_RECV,
        }
    }

    /// The required and the optional attributes; `None` if the transition is illegal.
    fn attributes(&self, from: QpState, to: QpState) -> Option<(QpAttrMask, QpAttrMask)> {
        use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
        Some(match (from, to) {
            (_, Reset) => (NONE, NONE),
            (Reset, Init) => (self.init, NONE),
            (Init, Init) => (NONE, self.init),
            (Init, Rtr) => (self.rtr, self.rtr_optional),
            (Rtr, Rts) => (self.rts, self.rts_optional),
            (Rts | Sqd, Rts) => (NONE, self.rts_optional),
            (Sqe, Rts) if self.resumes => (NONE, self.rts_optional),
            (Rts, Sqd) => (NONE, QpAttrMask::EN_SQD_ASYNC_NOTIFY),
            (Sqd, Sqd) => (NONE, self.sqd_optional),
            (from, Err) if from != Reset => (NONE, NONE),
            _ => return None,
        })
    }
}

/// The state after a modify, if the table, the mask and the attributes permit it.
///
/// # Errors
/// `Unsupported` for SQE; `InvalidState` for a transition that is not in the table; `InvalidArgument` for a missing or
/// superfluous attribute, or a value out of range.
pub(super) fn check_modify(
    qp_type: QpType,
    state: QpState,
    attr: &QpAttr,
    mask: QpAttrMask,
    limits: &QpLimits,
) -> Result<QpState> {
    let next = if mask.contains(QpAttrMask::STATE) {
        attr.state
    } else {
        state
    };
    let given = mask - QpAttrMask::STATE;
    let (required, optional) = attributes_of(qp_type, state, next)?;
    let missing = required - given;
    if !missing.is_empty() {
        return Err(mask_error(state, next, "with", missing));
    }
    let superfluous = given - required - optional;
    if !superfluous.is_empty() {
        return Err(mask_error(state, next, "without", superfluous));
    }
    check_ranges(attr, given, limits)?;
    Ok(next)
}

fn attributes_of(qp_type: QpType, from: QpState, to: QpState) -> Result<(QpAttrMask, QpAttrMask)> {
    if to == QpState::Sqe {
        let cause = Cause::Unsupported("a send queue put in error (SQE) by its owner");
        return Err(Error::new(Step::ModifyQp, cause));
    }
    Transitions::of(qp_type)
        .attributes(from, to)
        .ok_or_else(|| {
            let expected = match to {
                QpState::Init => "RESET or INIT (to reach INIT)",
                QpState::Rtr => "INIT (to reach RTR)",
                QpState::Sqd => "RTS or SQD (to reach SQD)",
                QpState::Err => "any other than RESET (to reach ERR)",
                QpState::Rts if qp_type == QpType::Rc || qp_type.is_xrc() => {
                    "RTR, RTS or SQD (to reach RTS)"
                }
                _ => "RTR, RTS, SQD or SQE (to reach RTS)",
            };
            let found = from.name();
            Error::new(Step::ModifyQp, Cause::InvalidState { expected, found })
        })
}

fn mask_error(from: QpState, to: QpState, how: &str, attributes: QpAttrMask) -> Error {
    Error::invalid(
        Step::ModifyQp,
        "attribute mask",
        format_args!("{from} to {to} {how} {attributes:?}"),
        format_args!("{}", if how == "with" { "none" } else { "these" }),
    )
}

/// There is only port 1, and its P_Key table has one entry.
fn check_ranges(attr: &QpAttr, given: QpAttrMask, limits: &QpLimits) -> Result<()> {
    use QpAttrMask as M;
    let check = |bit, what, found: u32, range: RangeInclusive<u32>| {
        if !given.contains(bit) || range.contains(&found) {
            return Ok(());
        }
        let expected = format_args!("{} to {}", range.start(), range.end());
        Err(Error::invalid(Step::ModifyQp, what, expected, found))
    };
    let (mtu, mtu_max) = (attr.path_mtu as u32, limits.max_path_mtu as u32);
    let (initiator_max, responder_max) = (limits.max_rd_atomic, limits.max_dest_rd_atomic);
    let (initiator, responder) = (attr.max_rd_atomic, attr.max_dest_rd_atomic);
    let av_port = attr.ah_attr.port_num;
    check(M::PKEY_INDEX, "pkey_index", attr.pkey_index.into(), 0..=0)?;
    check(M::PORT, "port_num", attr.port_num.into(), 1..=1)?;
    check(M::AV, "ah_attr.port_num", av_port.into(), 1..=1)?;
    check(M::PATH_MTU, "path_mtu", mtu, 1..=mtu_max)?;
    check(
        M::MAX_QP_RD_ATOMIC,
        "max_rd_atomic",
        initiator.into(),
        0..=initiator_max.into(),
    )?;
    check(
        M::MAX_DEST_RD_ATOMIC,
        "max_dest_rd_atomic",
        responder.into(),
        0..=responder_max.into(),
    )?;
    check(
        M::MIN_RNR_TIMER,
        "min_rnr_timer",
        attr.min_rnr_timer.into(),
        0..=31,
    )?;
    check(M::TIMEOUT, "timeout", attr.timeout.into(), 0..=31)?;
    check(M::RETRY_CNT, "retry_cnt", attr.retry_cnt.into(), 0..=7)?;
    check(M::RNR_RETRY, "rnr_retry", attr.rnr_retry.into(), 0..=7)
}

/// Copies the attributes in the mask.
pub(super) fn apply(to: &mut QpAttr, from: &QpAttr, mask: QpAttrMask) {
    macro_rules! copy {
        ($($bit:ident: $field:ident),+ $(,)?) => {
            $(if mask.contains(QpAttrMask::$bit) { to.$field = from.$field; })+
        };
    }
    copy!(
        ACCESS_FLAGS: access,
        PKEY_INDEX: pkey_index,
        PORT: port_num,
        QKEY: qkey,
        AV: ah_attr,
        PATH_MTU: path_mtu,
        TIMEOUT: timeout,
        RETRY_CNT: retry_cnt,
        RNR_RETRY: rnr_retry,
        RQ_PSN: rq_psn,
        MAX_QP_RD_ATOMIC: max_rd_atomic,
        MIN_RNR_TIMER: min_rnr_timer,
        SQ_PSN: sq_psn,
        MAX_DEST_RD_ATOMIC: max_dest_rd_atomic,
        DEST_QPN: dest_qpn,
    );
}

/// A call that the state does not allow.
#[cold]
pub(super) fn wrong_state(step: Step, expected: &'static str, found: QpState) -> Error {
    let found = found.name();
    Error::new(step, Cause::InvalidState { expected, found })
}

#[cfg(test)]
mod tests;
