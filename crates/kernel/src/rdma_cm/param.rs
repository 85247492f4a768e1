//! Parameters of commands in the kernel's format.

use std::time::Duration;

use portolan_provider::cm::{self, Ece, EventType};
use portolan_provider::{Error, Result, Step};
use portolan_wire::addr::Qpn;

use super::abi::{self, ConnParam, PRIVATE_DATA_LEN};

/// Maximum timeout of the kernel (`int`, milliseconds).
const TIMEOUT_MAX_MS: u128 = i32::MAX as u128;

/// Milliseconds for the kernel; a zero timeout becomes the shortest one.
pub(super) fn timeout_ms(timeout: Duration) -> u32 {
    timeout.as_millis().clamp(1, TIMEOUT_MAX_MS) as u32
}

pub(super) fn abi_ece(ece: Ece) -> abi::Ece {
    abi::Ece {
        vendor_id: ece.vendor_id,
        attr_mod: ece.options,
    }
}

/// The parameters of a command.
pub(super) fn conn_param(step: Step, param: &cm::ConnParam) -> Result<ConnParam> {
    let data = &param.private_data;
    let padded = padded(data).ok_or_else(|| too_long(step, data))?;
    Ok(ConnParam::of(param, padded, 1))
}

impl ConnParam {
    /// A connection's parameters in the device's format, with private data from [`padded`]. `valid` marks them as
    /// present in a command, and is 0 in events.
    pub fn of(
        param: &cm::ConnParam,
        (private_data, private_data_len): ([u8; PRIVATE_DATA_LEN], u8),
        valid: u8,
    ) -> Self {
        Self {
            qp_num: param.qp_num.value(),
            qkey: 0,
            private_data,
            private_data_len,
            srq: param.srq.into(),
            responder_resources: param.responder_resources,
            initiator_depth: param.initiator_depth,
            flow_control: param.flow_control.into(),
            retry_count: param.retry_count,
            rnr_retry_count: param.rnr_retry_count,
            valid,
        }
    }
}

impl From<&ConnParam> for cm::ConnParam {
    fn from(param: &ConnParam) -> Self {
        let private_data = &param.private_data[..param.private_data_len.into()];
        Self {
            private_data: private_data.into(),
            responder_resources: param.responder_resources,
            initiator_depth: param.initiator_depth,
            flow_control: param.flow_control != 0,
            retry_count: param.retry_count,
            rnr_retry_count: param.rnr_retry_count,
            srq: param.srq != 0,
            qp_num: Qpn::new(param.qp_num),
        }
    }
}

/// Private data in the ABI's field, and its length (eight bits); `None` if it does not fit. A message's own limit is
/// smaller; the kernel checks it.
pub fn padded(data: &[u8]) -> Option<([u8; PRIVATE_DATA_LEN], u8)> {
    let length = u8::try_from(data.len()).ok()?;
    let mut field = [0; PRIVATE_DATA_LEN];
    field[..data.len()].copy_from_slice(data);
    Some((field, length))
}

/// The error of private data that does not fit.
pub(super) fn too_long(step: Step, data: &[u8]) -> Error {
    let (expected, found) = ("at most 255 bytes", format!("{} bytes", data.len()));
    Error::invalid(step, "private data", expected, found)
}

/// Number of low bits of an internal event's argument that hold the represented event; the bits above are the caller's.
/// librdmacm leaves those zero, and only the channel's owner sees the event.
pub(super) const INTERNAL_EVENT_BITS: u32 = 8;

/// The argument of an internal event that represents `event` with the argument `arg`.
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
        let (field, length) = padded(b"ahoy").unwrap();
        assert_eq!((&field[..5], length), (&b"ahoy\0"[..], 4));
        assert_eq!(padded(&[7; 255]).unwrap().1, 255);
        assert!(padded(&[7; 256]).is_none());
        let error = too_long(Step::Connect, &[7; 256]);
        assert!(error.to_string().contains("256 bytes"), "{error}");
    }

    #[test]
    fn waits_are_sent_as_milliseconds_in_the_kernels_range() {
        let told = [Duration::ZERO, Duration::from_secs(2), Duration::MAX].map(timeout_ms);
        assert_eq!(told, [1, 2000, i32::MAX as u32]);
    }
}
