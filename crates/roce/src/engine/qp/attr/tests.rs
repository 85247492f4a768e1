use alloc::string::ToString;
use alloc::vec::Vec;

use portolan_provider::error::errno;
use portolan_provider::verbs::Mtu;

use super::*;

const TYPES: [QpType; 5] = [
    QpType::Rc,
    QpType::Uc,
    QpType::Ud,
    QpType::XrcSend,
    QpType::XrcRecv,
];

const STATES: [QpState; 6] = [
    QpState::Reset,
    QpState::Init,
    QpState::Rtr,
    QpState::Rts,
    QpState::Sqd,
    QpState::Err,
];

/// A transition: from, to, required and optional attributes.
type Row = (QpState, QpState, &'static str, &'static str);

/// The legal transitions of RC, transcribed independently from Linux's `qp_state_table`.
const LEGAL: &[Row] = {
    use QpState::*;
    &[
        (Reset, Reset, "", ""),
        (Reset, Init, "ACCESS_FLAGS PKEY_INDEX PORT", ""),
        (Init, Reset, "", ""),
        (Init, Init, "", "ACCESS_FLAGS PKEY_INDEX PORT"),
        (
            Init,
            Rtr,
            "AV PATH_MTU RQ_PSN MIN_RNR_TIMER MAX_DEST_RD_ATOMIC DEST_QPN",
            "ACCESS_FLAGS PKEY_INDEX",
        ),
        (Init, Err, "", ""),
        (Rtr, Reset, "", ""),
        (
            Rtr,
            Rts,
            "TIMEOUT RETRY_CNT RNR_RETRY MAX_QP_RD_ATOMIC SQ_PSN",
            "ACCESS_FLAGS MIN_RNR_TIMER",
        ),
        (Rtr, Err, "", ""),
        (Rts, Reset, "", ""),
        (Rts, Rts, "", "ACCESS_FLAGS MIN_RNR_TIMER"),
        (Rts, Sqd, "", "EN_SQD_ASYNC_NOTIFY"),
        (Sqd, Reset, "", ""),
        (Sqd, Rts, "", "ACCESS_FLAGS MIN_RNR_TIMER"),
        (
            Sqd,
            Sqd,
            "",
            "PORT AV TIMEOUT RETRY_CNT RNR_RETRY MAX_QP_RD_ATOMIC \
             MAX_DEST_RD_ATOMIC ACCESS_FLAGS PKEY_INDEX MIN_RNR_TIMER",
        ),
        (Sqd, Err, "", ""),
        (Rts, Err, "", ""),
        (Err, Reset, "", ""),
        (Err, Err, "", ""),
    ]
};

/// The same for UC.
const LEGAL_UC: &[Row] = {
    use QpState::*;
    &[
        (Reset, Reset, "", ""),
        (Reset, Init, "ACCESS_FLAGS PKEY_INDEX PORT", ""),
        (Init, Reset, "", ""),
        (Init, Init, "", "ACCESS_FLAGS PKEY_INDEX PORT"),
        (
            Init,
            Rtr,
            "AV PATH_MTU RQ_PSN DEST_QPN",
            "ACCESS_FLAGS PKEY_INDEX",
        ),
        (Init, Err, "", ""),
        (Rtr, Reset, "", ""),
        (Rtr, Rts, "SQ_PSN", "ACCESS_FLAGS"),
        (Rtr, Err, "", ""),
        (Rts, Reset, "", ""),
        (Rts, Rts, "", "ACCESS_FLAGS"),
        (Rts, Sqd, "", "EN_SQD_ASYNC_NOTIFY"),
        (Sqd, Reset, "", ""),
        (Sqd, Rts, "", "ACCESS_FLAGS"),
        (Sqd, Sqd, "", "AV ACCESS_FLAGS PKEY_INDEX"),
        (Sqd, Err, "", ""),
        (Rts, Err, "", ""),
        (Sqe, Reset, "", ""),
        (Sqe, Rts, "", "ACCESS_FLAGS"),
        (Sqe, Err, "", ""),
        (Err, Reset, "", ""),
        (Err, Err, "", ""),
    ]
};

/// The same for UD.
const LEGAL_UD: &[Row] = {
    use QpState::*;
    &[
        (Reset, Reset, "", ""),
        (Reset, Init, "PKEY_INDEX PORT QKEY", ""),
        (Init, Reset, "", ""),
        (Init, Init, "", "PKEY_INDEX PORT QKEY"),
        (Init, Rtr, "", "PKEY_INDEX QKEY"),
        (Init, Err, "", ""),
        (Rtr, Reset, "", ""),
        (Rtr, Rts, "SQ_PSN", "QKEY"),
        (Rtr, Err, "", ""),
        (Rts, Reset, "", ""),
        (Rts, Rts, "", "QKEY"),
        (Rts, Sqd, "", "EN_SQD_ASYNC_NOTIFY"),
        (Sqd, Reset, "", ""),
        (Sqd, Rts, "", "QKEY"),
        (Sqd, Sqd, "", "PKEY_INDEX QKEY"),
        (Sqd, Err, "", ""),
        (Rts, Err, "", ""),
        (Sqe, Reset, "", ""),
        (Sqe, Rts, "", "QKEY"),
        (Sqe, Err, "", ""),
        (Err, Reset, "", ""),
        (Err, Err, "", ""),
    ]
};

/// The same for XRC's sending end (`IB_QPT_XRC_INI`).
const LEGAL_XRC_SEND: &[Row] = {
    use QpState::*;
    &[
        (Reset, Reset, "", ""),
        (Reset, Init, "ACCESS_FLAGS PKEY_INDEX PORT", ""),
        (Init, Reset, "", ""),
        (Init, Init, "", "ACCESS_FLAGS PKEY_INDEX PORT"),
        (
            Init,
            Rtr,
            "AV PATH_MTU RQ_PSN DEST_QPN",
            "ACCESS_FLAGS PKEY_INDEX",
        ),
        (Init, Err, "", ""),
        (Rtr, Reset, "", ""),
        (
            Rtr,
            Rts,
            "TIMEOUT RETRY_CNT RNR_RETRY MAX_QP_RD_ATOMIC SQ_PSN",
            "ACCESS_FLAGS",
        ),
        (Rtr, Err, "", ""),
        (Rts, Reset, "", ""),
        (Rts, Rts, "", "ACCESS_FLAGS"),
        (Rts, Sqd, "", "EN_SQD_ASYNC_NOTIFY"),
        (Sqd, Reset, "", ""),
        (Sqd, Rts, "", "ACCESS_FLAGS"),
        (
            Sqd,
            Sqd,
            "",
            "PORT AV TIMEOUT RETRY_CNT RNR_RETRY MAX_QP_RD_ATOMIC ACCESS_FLAGS PKEY_INDEX",
        ),
        (Sqd, Err, "", ""),
        (Rts, Err, "", ""),
        (Err, Reset, "", ""),
        (Err, Err, "", ""),
    ]
};

/// The same for XRC's receiving end (`IB_QPT_XRC_TGT`).
const LEGAL_XRC_RECV: &[Row] = {
    use QpState::*;
    &[
        (Reset, Reset, "", ""),
        (Reset, Init, "ACCESS_FLAGS PKEY_INDEX PORT", ""),
        (Init, Reset, "", ""),
        (Init, Init, "", "ACCESS_FLAGS PKEY_INDEX PORT"),
        (
            Init,
            Rtr,
            "AV PATH_MTU RQ_PSN MIN_RNR_TIMER MAX_DEST_RD_ATOMIC DEST_QPN",
            "ACCESS_FLAGS PKEY_INDEX",
        ),
        (Init, Err, "", ""),
        (Rtr, Reset, "", ""),
        (Rtr, Rts, "TIMEOUT SQ_PSN", "ACCESS_FLAGS MIN_RNR_TIMER"),
        (Rtr, Err, "", ""),
        (Rts, Reset, "", ""),
        (Rts, Rts, "", "ACCESS_FLAGS MIN_RNR_TIMER"),
        (Rts, Sqd, "", "EN_SQD_ASYNC_NOTIFY"),
        (Sqd, Reset, "", ""),
        (Sqd, Rts, "", "ACCESS_FLAGS MIN_RNR_TIMER"),
        (
            Sqd,
            Sqd,
            "",
            "PORT AV TIMEOUT MAX_DEST_RD_ATOMIC ACCESS_FLAGS PKEY_INDEX MIN_RNR_TIMER",
        ),
        (Sqd, Err, "", ""),
        (Rts, Err, "", ""),
        (Err, Reset, "", ""),
        (Err, Err, "", ""),
    ]
};

fn legal(qp_type: QpType) -> &'static [Row] {
    match qp_type {
        QpType::Rc => LEGAL,
        QpType::Uc => LEGAL_UC,
        QpType::Ud => LEGAL_UD,
        QpType::XrcSend => LEGAL_XRC_SEND,
        QpType::XrcRecv => LEGAL_XRC_RECV,
    }
}

fn mask(names: &str) -> QpAttrMask {
    names
        .split_whitespace()
        .map(|name| QpAttrMask::from_name(name).expect("a known name"))
        .collect()
}

fn check(qp_type: QpType, from: QpState, to: QpState, mask: QpAttrMask) -> Result<QpState> {
    let attr = QpAttr {
        state: to,
        ..QpAttr::default()
    };
    let mask = mask | QpAttrMask::STATE;
    check_modify(qp_type, from, &attr, mask, &QpLimits::default())
}

#[test]
fn exactly_the_legal_transitions_are_allowed() {
    for (qp_type, from) in TYPES.into_iter().flat_map(|qp_type| {
        // The send queue of a reliable connection is never in error alone.
        let in_error = matches!(qp_type, QpType::Uc | QpType::Ud).then_some(QpState::Sqe);
        let from = STATES.into_iter().chain(in_error);
        from.map(move |from| (qp_type, from))
    }) {
        for to in STATES {
            let mut rows = legal(qp_type).iter();
            match rows.find(|row| (row.0, row.1) == (from, to)) {
                Some((.., required, _)) => {
                    assert_eq!(check(qp_type, from, to, mask(required)).ok(), Some(to));
                }
                None => {
                    let none = QpAttrMask::empty();
                    let error = check(qp_type, from, to, none).expect_err("illegal");
                    assert_eq!(error.errno(), errno::EINVAL);
                    assert!(matches!(error.cause, Cause::InvalidState { .. }), "{error}");
                    assert!(error.to_string().contains(to.name()), "{error}");
                }
            }
        }
    }
}

#[test]
fn every_required_attribute_must_be_given_and_no_other_than_the_optional_ones() {
    let rows = TYPES
        .into_iter()
        .flat_map(|qp_type| legal(qp_type).iter().map(move |row| (qp_type, row)));
    for (qp_type, (from, to, required, optional)) in rows {
        let (required, optional) = (mask(required), mask(optional));
        assert!(check(qp_type, *from, *to, required | optional).is_ok());
        for (name, bit) in QpAttrMask::all().iter_names() {
            let given = if required.contains(bit) {
                required - bit
            } else {
                required | bit
            };
            let allowed = bit == QpAttrMask::STATE || optional.contains(bit);
            let result = check(qp_type, *from, *to, given);
            assert_eq!(
                result.is_ok(),
                allowed,
                "{qp_type}, {from} to {to}, {name}: {result:?}"
            );
            if let Err(error) = result {
                assert!(error.to_string().contains(name), "{error}");
            }
        }
    }
}

#[test]
fn without_state_in_the_mask_the_state_stays() {
    let attr = QpAttr {
        state: QpState::Err,
        ..QpAttr::default()
    };
    let mask = QpAttrMask::ACCESS_FLAGS;
    let next = check_modify(QpType::Rc, QpState::Rts, &attr, mask, &QpLimits::default());
    assert_eq!(next.ok(), Some(QpState::Rts));
}

#[test]
fn an_owner_cannot_put_only_the_send_queue_in_error() {
    for qp_type in TYPES {
        let refused = check(qp_type, QpState::Rts, QpState::Sqe, QpAttrMask::empty());
        let error = refused.expect_err("not offered");
        assert_eq!(error.errno(), errno::EOPNOTSUPP);
    }
}

#[test]
fn attributes_out_of_range_are_refused_by_name() {
    let base = QpAttr::default();
    let mut wrong_port = base.ah_attr;
    wrong_port.port_num = 2;
    let cases: Vec<(QpState, &str, QpAttr)> = alloc::vec![
        (
            QpState::Init,
            "pkey_index",
            QpAttr {
                pkey_index: 1,
                ..base
            }
        ),
        (
            QpState::Init,
            "port_num",
            QpAttr {
                port_num: 0,
                ..base
            }
        ),
        (
            QpState::Init,
            "port_num",
            QpAttr {
                port_num: 2,
                ..base
            }
        ),
        (
            QpState::Rtr,
            "ah_attr.port_num",
            QpAttr {
                ah_attr: wrong_port,
                ..base
            }
        ),
        (
            QpState::Rtr,
            "path_mtu",
            QpAttr {
                path_mtu: Mtu::Mtu4096,
                ..base
            }
        ),
        (
            QpState::Rtr,
            "max_dest_rd_atomic",
            QpAttr {
                max_dest_rd_atomic: 129,
                ..base
            }
        ),
        (
            QpState::Rtr,
            "min_rnr_timer",
            QpAttr {
                min_rnr_timer: 32,
                ..base
            }
        ),
        (
            QpState::Rts,
            "timeout",
            QpAttr {
                timeout: 32,
                ..base
            }
        ),
        (
            QpState::Rts,
            "retry_cnt",
            QpAttr {
                retry_cnt: 8,
                ..base
            }
        ),
        (
            QpState::Rts,
            "rnr_retry",
            QpAttr {
                rnr_retry: 8,
                ..base
            }
        ),
        (
            QpState::Rts,
            "max_rd_atomic",
            QpAttr {
                max_rd_atomic: 129,
                ..base
            }
        ),
    ];
    let limits = QpLimits {
        max_path_mtu: Mtu::Mtu1024,
        ..QpLimits::default()
    };
    for (to, name, attr) in cases {
        let (from, _, required, _) = LEGAL
            .iter()
            .find(|row| row.1 == to && row.0 != to)
            .expect("a transition to it");
        let attr = QpAttr { state: to, ..attr };
        let given = mask(required) | QpAttrMask::STATE;
        let error =
            check_modify(QpType::Rc, *from, &attr, given, &limits).expect_err("out of range");
        assert_eq!(error.errno(), errno::EINVAL);
        assert!(error.to_string().contains(name), "{error}");
        // An attribute outside the mask is ignored.
        let elsewhere = check_modify(
            QpType::Rc,
            QpState::Rts,
            &attr,
            QpAttrMask::ACCESS_FLAGS,
            &limits,
        );
        assert!(elsewhere.is_ok());
    }
}
