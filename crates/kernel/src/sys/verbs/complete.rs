//! Completions in the provider's form.

use portolan_abi_layout::{self as abi, wc_flags};
use portolan_provider::verbs::{WcOpcode, WcStatus, WorkCompletion};
use portolan_wire::addr::Qpn;

/// Converts a completion. A status of a newer library that the provider's types lack becomes a general error.
pub(super) fn completion(raw: &abi::Wc) -> WorkCompletion {
    let opcode = opcode(raw.opcode);
    let status = match (status(raw.status), opcode) {
        // No operation that is posted here has this opcode.
        (WcStatus::Success, None) => WcStatus::GeneralErr,
        (status, _) => status,
    };
    let is_success = status == WcStatus::Success;
    let has = |flag| is_success && raw.wc_flags & flag != 0;
    WorkCompletion {
        wr_id: raw.wr_id,
        status,
        opcode: opcode.unwrap_or(WcOpcode::Send),
        byte_len: if is_success { raw.byte_len } else { 0 },
        // Network order in both.
        imm_data: has(wc_flags::WITH_IMM).then_some(raw.imm_data),
        qp_num: Qpn::new(raw.qp_num),
        src_qp: Qpn::new(if is_success { raw.src_qp } else { 0 }),
        has_grh: has(wc_flags::GRH),
        sl: if is_success { raw.sl } else { 0 },
        slid: if is_success { raw.slid } else { 0 },
        dlid_path_bits: if is_success { raw.dlid_path_bits } else { 0 },
        invalidated_rkey: has(wc_flags::WITH_INV).then_some(raw.imm_data),
        timestamp_ns: 0,
    }
}

fn status(number: u32) -> WcStatus {
    match number {
        0 => WcStatus::Success,
        1 => WcStatus::LocLenErr,
        2 => WcStatus::LocQpOpErr,
        3 => WcStatus::LocEecOpErr,
        4 => WcStatus::LocProtErr,
        5 => WcStatus::WrFlushErr,
        6 => WcStatus::MwBindErr,
        7 => WcStatus::BadRespErr,
        8 => WcStatus::LocAccessErr,
        9 => WcStatus::RemInvReqErr,
        10 => WcStatus::RemAccessErr,
        11 => WcStatus::RemOpErr,
        12 => WcStatus::RetryExcErr,
        13 => WcStatus::RnrRetryExcErr,
        16 => WcStatus::RemAbortErr,
        19 => WcStatus::FatalErr,
        20 => WcStatus::RespTimeoutErr,
        _ => WcStatus::GeneralErr,
    }
}

fn opcode(number: u32) -> Option<WcOpcode> {
    Some(match number {
        0 => WcOpcode::Send,
        1 => WcOpcode::RdmaWrite,
        2 => WcOpcode::RdmaRead,
        3 => WcOpcode::CompSwap,
        4 => WcOpcode::FetchAdd,
        5 => WcOpcode::BindMw,
        6 => WcOpcode::LocalInv,
        128 => WcOpcode::Recv,
        129 => WcOpcode::RecvRdmaWithImm,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn immediate_data_and_an_invalidated_key_are_distinguished_by_flags() {
        let raw = abi::Wc {
            opcode: 128,
            imm_data: 0x0102_0304,
            wc_flags: wc_flags::WITH_IMM | wc_flags::GRH,
            byte_len: 9,
            ..abi::Wc::zeroed()
        };
        let wc = completion(&raw);
        assert_eq!(
            (wc.imm_data, wc.invalidated_rkey),
            (Some(0x0102_0304), None)
        );
        assert_eq!(
            (wc.opcode, wc.byte_len, wc.has_grh),
            (WcOpcode::Recv, 9, true)
        );
        let raw = abi::Wc {
            imm_data: 77,
            wc_flags: wc_flags::WITH_INV,
            ..raw
        };
        let wc = completion(&raw);
        assert_eq!((wc.imm_data, wc.invalidated_rkey), (None, Some(77)));
    }

    #[test]
    fn a_failed_completion_has_only_name_status_and_queue_pair() {
        let raw = abi::Wc {
            wr_id: 3,
            status: 5,
            opcode: 4711,
            byte_len: 9,
            qp_num: 17,
            wc_flags: u32::MAX,
            ..abi::Wc::zeroed()
        };
        let wc = completion(&raw);
        assert_eq!(
            (wc.wr_id, wc.status, wc.qp_num.value()),
            (3, WcStatus::WrFlushErr, 17)
        );
        assert_eq!((wc.byte_len, wc.imm_data), (0, None));
    }

    #[test]
    fn every_status_of_a_provider_is_the_librarys_of_the_same_number() {
        let known = (0..=13).chain([16, 19, 20, 21]);
        for number in known {
            assert_eq!(status(number) as u32, number);
        }
        assert_eq!(status(4711), WcStatus::GeneralErr);
    }

    #[test]
    fn a_successful_completion_of_an_unknown_kind_is_an_error() {
        let raw = abi::Wc {
            opcode: 4711,
            ..abi::Wc::zeroed()
        };
        assert_eq!(completion(&raw).status, WcStatus::GeneralErr);
    }
}
