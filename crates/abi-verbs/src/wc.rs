//! Converts a work completion's fields to C's.

use portolan_provider::verbs::WorkCompletion;

use crate::layout::wc_flags;

/// Immediate data in network order, or the invalidated key.
#[inline]
pub(crate) fn immediate(from: &WorkCompletion) -> u32 {
    let immediate = from.imm_data;
    immediate.or(from.invalidated_rkey).unwrap_or(0)
}

/// `enum ibv_wc_flags`.
#[inline]
pub(crate) fn flags(from: &WorkCompletion) -> u32 {
    let flag = |is_set, flag| if is_set { flag } else { 0 };
    flag(from.has_grh, wc_flags::GRH)
        | flag(from.imm_data.is_some(), wc_flags::WITH_IMM)
        | flag(from.invalidated_rkey.is_some(), wc_flags::WITH_INV)
}
