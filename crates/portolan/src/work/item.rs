//! A send before it is posted.

use std::ops::Range;

use portolan_provider::verbs::{RemoteAddr, SendFlags, SendOp};

use super::pieces::Gather;

/// Maximum length of one work request, because some devices accept no more (mlx5: 1 GiB). A longer write or read is an
/// operation of several work requests.
const REQUEST_MAX_BYTES: usize = 1 << 30;

/// A send to be posted.
#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) op: SendOp,
    pub(crate) gather: Gather,
    /// At most the length of `gather`.
    pub(crate) length: usize,
    pub(crate) flags: SendFlags,
}

/// A work request of an item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) op: SendOp,
    /// The range of the item's bytes.
    pub(super) bytes: Range<usize>,
    pub(super) flags: SendFlags,
}

impl Item {
    /// Whether the item needs several work requests.
    pub(super) fn is_long(&self) -> bool {
        self.length > REQUEST_MAX_BYTES && self.parts().len() > 1
    }

    /// The item's work requests, in order. There is at least one.
    pub(super) fn parts(&self) -> Vec<Part> {
        self.parts_of(REQUEST_MAX_BYTES)
    }

    fn parts_of(&self, most: usize) -> Vec<Part> {
        let count = match self.op {
            SendOp::RdmaWrite(_) | SendOp::RdmaWriteWithImm(..) | SendOp::RdmaRead(_) => {
                self.length.div_ceil(most).max(1)
            }
            // A message is not divided.
            _ => 1,
        };
        let part = |number: usize| {
            let (start, is_last) = (number * most, number + 1 == count);
            let end = if is_last { self.length } else { start + most };
            Part {
                op: part_of(self.op, start as u64, is_last),
                bytes: start..end,
                // Only the first part needs the fence, because the others wait behind it.
                flags: match number {
                    0 => self.flags,
                    _ => self.flags - SendFlags::FENCE,
                },
            }
        };
        (0..count).map(part).collect()
    }
}

/// The operation of the part that begins at byte `start` of the item.
fn part_of(op: SendOp, start: u64, is_last: bool) -> SendOp {
    let at = |remote: RemoteAddr| RemoteAddr {
        addr: remote.addr.wrapping_add(start),
        ..remote
    };
    match op {
        SendOp::RdmaWrite(remote) => SendOp::RdmaWrite(at(remote)),
        // Only the last part has the immediate data, because it announces that all bytes have arrived.
        SendOp::RdmaWriteWithImm(remote, _) if !is_last => SendOp::RdmaWrite(at(remote)),
        SendOp::RdmaWriteWithImm(remote, imm) => SendOp::RdmaWriteWithImm(at(remote), imm),
        SendOp::RdmaRead(remote) => SendOp::RdmaRead(at(remote)),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REMOTE: RemoteAddr = RemoteAddr {
        addr: 1000,
        rkey: 7,
    };

    fn item(op: SendOp, length: usize, flags: SendFlags) -> Vec<Part> {
        let gather = Gather::from(vec![0; length]);
        let item = Item {
            op,
            gather,
            length,
            flags,
        };
        item.parts_of(10)
    }

    #[test]
    fn a_long_write_is_divided_and_its_last_part_has_the_immediate_data_and_the_first_the_fence() {
        let flags = SendFlags::FENCE | SendFlags::SOLICITED;
        let at = |addr| RemoteAddr { addr, ..REMOTE };
        let part = |op, bytes, flags| Part { op, bytes, flags };
        let expected = [
            part(SendOp::RdmaWrite(at(1000)), 0..10, flags),
            part(SendOp::RdmaWrite(at(1010)), 10..20, SendFlags::SOLICITED),
            part(
                SendOp::RdmaWriteWithImm(at(1020), 5),
                20..25,
                SendFlags::SOLICITED,
            ),
        ];
        assert_eq!(
            item(SendOp::RdmaWriteWithImm(REMOTE, 5), 25, flags),
            expected
        );
    }

    #[test]
    fn short_and_empty_work_messages_and_whole_multiples_have_no_empty_part() {
        let bytes = |op, length| {
            let parts = item(op, length, SendFlags::empty());
            let ends = parts
                .into_iter()
                .map(|part| (part.bytes.start, part.bytes.end));
            ends.collect::<Vec<_>>()
        };
        assert_eq!(bytes(SendOp::RdmaRead(REMOTE), 0), [(0, 0)]);
        assert_eq!(bytes(SendOp::RdmaRead(REMOTE), 10), [(0, 10)]);
        assert_eq!(bytes(SendOp::RdmaRead(REMOTE), 20), [(0, 10), (10, 20)]);
        assert_eq!(bytes(SendOp::Send, 25), [(0, 25)]);
    }
}
