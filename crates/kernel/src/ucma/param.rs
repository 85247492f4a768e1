//! Commands' parameters in the kernel's form.

use std::time::Duration;

use portolan_provider::cm::{ConnParam, Ece, EventType};
use portolan_provider::{Error, Result, Step};

use super::abi::{self, PRIVATE_DATA_LEN};

/// Longest wait that is told to the kernel (`int`, milliseconds).
const TIMEOUT_MAX_MS: u128 = i32::MAX as u128;

/// Milliseconds as the kernel takes them; no time at all is the shortest.
pub(super) fn timeout_ms(timeout: Duration) -> u32 {
    timeout.as_millis().clamp(1, TIMEOUT_MAX_MS) as u32
}

pub(super) fn abi_ece(ece: Ece) -> abi::Ece {
    abi::Ece {
        vendor_id: ece.vendor_id,
        attr_mod: ece.options,
    }
}

pub(super) fn conn_param(step: Step, param: &ConnParam) -> Result<abi::ConnParam> {
    let (private_data, private_data_len) = padded(step, &param.private_data)?;
    Ok(abi::ConnParam {
        qp_num: param.qp_num.value(),
        qkey: 0,
        private_data,
        private_data_len,
        srq: u8::from(param.srq),
        responder_resources: param.responder_resources,
        initiator_depth: param.initiator_depth,
        flow_control: u8::from(param.flow_control),
        retry_count: param.retry_count,
        rnr_retry_count: param.rnr_retry_count,
        valid: 1,
    })
}

/// Private data in the ABI's field, and its length, which has eight bits there. What the message holds
/// is less; the kernel knows how much.
pub(super) fn padded(step: Step, data: &[u8]) -> Result<([u8; PRIVATE_DATA_LEN], u8)> {
    let length = u8::try_from(data.len()).map_err(|_| {
        let (expected, found) = ("at most 255 bytes", format!("{} bytes", data.len()));
        Error::invalid(step, "private data", expected, found)
    })?;
    let mut field = [0; PRIVATE_DATA_LEN];
    field[..data.len()].copy_from_slice(data);
    Ok((field, length))
}

/// Bits of an internal event's argument that tell what it stands for; those above are the caller's.
/// librdmacm has nothing in those, and nobody but who opened the channel sees the event.
pub(super) const INTERNAL_EVENT_BITS: u32 = 8;

/// The argument of an internal event that stands for `event` with the argument `arg`.
pub(super) fn internal_argument(step: Step, event: EventType, arg: u64) -> Result<u64> {
    let shifted = arg << INTERNAL_EVENT_BITS;
    if shifted >> INTERNAL_EVENT_BITS != arg {
        let expected = "less than 2^56";
        return Err(Error::invalid(step, "argument of an event", expected, arg));
    }
    Ok(shifted | u64::from(event as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_data_is_padded_and_its_length_kept_in_eight_bits() {
        let (field, length) = padded(Step::Connect, b"ahoy").unwrap();
        assert_eq!((&field[..5], length), (&b"ahoy\0"[..], 4));
        assert_eq!(padded(Step::Connect, &[7; 255]).unwrap().1, 255);
        assert!(padded(Step::Connect, &[7; 256]).is_err());
    }

    #[test]
    fn waits_are_told_in_milliseconds_that_the_kernel_can_count() {
        let told = [Duration::ZERO, Duration::from_secs(2), Duration::MAX].map(timeout_ms);
        assert_eq!(told, [1, 2000, i32::MAX as u32]);
    }
}
