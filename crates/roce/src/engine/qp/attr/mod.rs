//! Required and optional attributes of each state transition, and the range of each attribute.

use core::ops::RangeInclusive;

use portolan_provider::verbs::{QpAttr, QpAttrMask, QpState, QpType};
use portolan_provider::{Cause, Error, Result, Step};

use crate::engine::QpLimits;

/// One row of the transition table.
struct Transition {
    from: QpState,
    to: QpState,
    /// Required attributes, besides STATE.
    required: QpAttrMask,
    /// Optional attributes.
    optional: QpAttrMask,
}

const NONE: QpAttrMask = QpAttrMask::empty();
const INIT_ATTRS: QpAttrMask = QpAttrMask::PKEY_INDEX
    .union(QpAttrMask::PORT)
    .union(QpAttrMask::ACCESS_FLAGS);
const RTR_ATTRS: QpAttrMask = QpAttrMask::AV
    .union(QpAttrMask::PATH_MTU)
    .union(QpAttrMask::DEST_QPN)
    .union(QpAttrMask::RQ_PSN)
    .union(QpAttrMask::MAX_DEST_RD_ATOMIC)
    .union(QpAttrMask::MIN_RNR_TIMER);
const RTR_OPTIONAL: QpAttrMask = QpAttrMask::ACCESS_FLAGS.union(QpAttrMask::PKEY_INDEX);
const RTS_ATTRS: QpAttrMask = QpAttrMask::TIMEOUT
    .union(QpAttrMask::RETRY_CNT)
    .union(QpAttrMask::RNR_RETRY)
    .union(QpAttrMask::SQ_PSN)
    .union(QpAttrMask::MAX_QP_RD_ATOMIC);
const RTS_OPTIONAL: QpAttrMask = QpAttrMask::ACCESS_FLAGS.union(QpAttrMask::MIN_RNR_TIMER);
const NOTIFY: QpAttrMask = QpAttrMask::EN_SQD_ASYNC_NOTIFY;
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

/// The legal transitions of an RC queue pair (IBTA 10.3.1; Linux `qp_state_table` of `ib_modify_qp_is_ok`). Not listed:
/// every state may go to RESET, and every state except RESET to ERR, without attributes.
const RC_TRANSITIONS: [Transition; 8] = {
    use QpState::{Init, Reset, Rtr, Rts, Sqd};
    [
        transition(Reset, Init, INIT_ATTRS, NONE),
        transition(Init, Init, NONE, INIT_ATTRS),
        transition(Init, Rtr, RTR_ATTRS, RTR_OPTIONAL),
        transition(Rtr, Rts, RTS_ATTRS, RTS_OPTIONAL),
        transition(Rts, Rts, NONE, RTS_OPTIONAL),
        transition(Rts, Sqd, NONE, NOTIFY),
        transition(Sqd, Sqd, NONE, SQD_OPTIONAL),
        transition(Sqd, Rts, NONE, RTS_OPTIONAL),
    ]
};

const CONNECTED_RTR_ATTRS: QpAttrMask = QpAttrMask::AV
    .union(QpAttrMask::PATH_MTU)
    .union(QpAttrMask::DEST_QPN)
    .union(QpAttrMask::RQ_PSN);

const UC_SQD_OPTIONAL: QpAttrMask = QpAttrMask::AV
    .union(QpAttrMask::ACCESS_FLAGS)
    .union(QpAttrMask::PKEY_INDEX);

/// The transitions of a UC queue pair: without attributes of reliability, and a send queue in error may resume.
const UC_TRANSITIONS: [Transition; 9] = {
    use QpState::{Init, Reset, Rtr, Rts, Sqd, Sqe};
    let access = QpAttrMask::ACCESS_FLAGS;
    [
        transition(Reset, Init, INIT_ATTRS, NONE),
        transition(Init, Init, NONE, INIT_ATTRS),
        transition(Init, Rtr, CONNECTED_RTR_ATTRS, RTR_OPTIONAL),
        transition(Rtr, Rts, QpAttrMask::SQ_PSN, access),
        transition(Rts, Rts, NONE, access),
        transition(Rts, Sqd, NONE, NOTIFY),
        transition(Sqd, Sqd, NONE, UC_SQD_OPTIONAL),
        transition(Sqd, Rts, NONE, access),
        transition(Sqe, Rts, NONE, access),
    ]
};

/// The transitions of the sending end of XRC: without attributes of a responder.
const XRC_SEND_TRANSITIONS: [Transition; 8] = {
    use QpState::{Init, Reset, Rtr, Rts, Sqd};
    let access = QpAttrMask::ACCESS_FLAGS;
    let sqd_optional =
        SQD_OPTIONAL.difference(QpAttrMask::MAX_DEST_RD_ATOMIC.union(QpAttrMask::MIN_RNR_TIMER));
    [
        transition(Reset, Init, INIT_ATTRS, NONE),
        transition(Init, Init, NONE, INIT_ATTRS),
        transition(Init, Rtr, CONNECTED_RTR_ATTRS, RTR_OPTIONAL),
        transition(Rtr, Rts, RTS_ATTRS, access),
        transition(Rts, Rts, NONE, access),
        transition(Rts, Sqd, NONE, NOTIFY),
        transition(Sqd, Sqd, NONE, sqd_optional),
        transition(Sqd, Rts, NONE, access),
    ]
};

/// The transitions of the receiving end of XRC: without attributes of a requester.
const XRC_RECV_TRANSITIONS: [Transition; 8] = {
    use QpState::{Init, Reset, Rtr, Rts, Sqd};
    let rts_attrs = QpAttrMask::TIMEOUT.union(QpAttrMask::SQ_PSN);
    let requesters = QpAttrMask::RETRY_CNT
        .union(QpAttrMask::RNR_RETRY)
        .union(QpAttrMask::MAX_QP_RD_ATOMIC);
    [
        transition(Reset, Init, INIT_ATTRS, NONE),
        transition(Init, Init, NONE, INIT_ATTRS),
        transition(Init, Rtr, RTR_ATTRS, RTR_OPTIONAL),
        transition(Rtr, Rts, rts_attrs, RTS_OPTIONAL),
        transition(Rts, Rts, NONE, RTS_OPTIONAL),
        transition(Rts, Sqd, NONE, NOTIFY),
        transition(Sqd, Sqd, NONE, SQD_OPTIONAL.difference(requesters)),
        transition(Sqd, Rts, NONE, RTS_OPTIONAL),
    ]
};

const UD_INIT_ATTRS: QpAttrMask = QpAttrMask::PKEY_INDEX
    .union(QpAttrMask::PORT)
    .union(QpAttrMask::QKEY);
const UD_RTR_OPTIONAL: QpAttrMask = QpAttrMask::PKEY_INDEX.union(QpAttrMask::QKEY);

/// The transitions of a UD queue pair, which has a Q_Key instead of a peer.
const UD_TRANSITIONS: [Transition; 9] = {
    use QpState::{Init, Reset, Rtr, Rts, Sqd, Sqe};
    let qkey = QpAttrMask::QKEY;
    [
        transition(Reset, Init, UD_INIT_ATTRS, NONE),
        transition(Init, Init, NONE, UD_INIT_ATTRS),
        transition(Init, Rtr, NONE, UD_RTR_OPTIONAL),
        transition(Rtr, Rts, QpAttrMask::SQ_PSN, qkey),
        transition(Rts, Rts, NONE, qkey),
        transition(Rts, Sqd, NONE, NOTIFY),
        transition(Sqd, Sqd, NONE, UD_RTR_OPTIONAL),
        transition(Sqd, Rts, NONE, qkey),
        transition(Sqe, Rts, NONE, qkey),
    ]
};

fn transitions_of(qp_type: QpType) -> &'static [Transition] {
    match qp_type {
        QpType::Rc => &RC_TRANSITIONS,
        QpType::Uc => &UC_TRANSITIONS,
        QpType::Ud => &UD_TRANSITIONS,
        QpType::XrcSend => &XRC_SEND_TRANSITIONS,
        QpType::XrcRecv => &XRC_RECV_TRANSITIONS,
    }
}

const fn transition(
    from: QpState,
    to: QpState,
    required: QpAttrMask,
    optional: QpAttrMask,
) -> Transition {
    Transition {
        from,
        to,
        required,
        optional,
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
    match to {
        QpState::Reset => return Ok((NONE, NONE)),
        QpState::Err if from != QpState::Reset => return Ok((NONE, NONE)),
        QpState::Sqe => {
            let cause = Cause::Unsupported("a send queue put in error (SQE) by its owner");
            return Err(Error::new(Step::ModifyQp, cause));
        }
        _ => {}
    }
    transitions_of(qp_type)
        .iter()
        .find(|row| row.from == from && row.to == to)
        .map(|row| (row.required, row.optional))
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
pub(super) fn wrong_state(step: Step, expected: &'static str, found: QpState) -> Error {
    let found = found.name();
    Error::new(step, Cause::InvalidState { expected, found })
}

#[cfg(test)]
mod tests;
