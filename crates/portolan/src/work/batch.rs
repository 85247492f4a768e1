//! Posts several requests together, each as an operation of its own or all as one.

use portolan_provider::verbs::{SendData, SendFlags, SendOp, SendWr};
use portolan_provider::{Cause, Error, Result, Step};

use super::item::{Item, Part};
use super::outcome::Failed;
use super::pieces::{Gather, Sges};
use super::slot::{Kind, MORE, Owner, Slot};
use super::table::Work;

/// The result of posting a batch.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// The keys of the posted sends, in order.
    pub(crate) posted: Vec<usize>,
    /// Why the others were not posted, and their buffers.
    pub(crate) refused: Option<(Error, Vec<Gather>)>,
}

/// Work requests of one item.
type Requests = Vec<(Part, Sges)>;

impl Work {
    /// Posts several operations in order, with one doorbell.
    pub(crate) fn post_batch(&self, items: Vec<Item>) -> Outcome {
        let requests = match self.prepare(&items) {
            Ok(requests) => requests,
            Err(error) => {
                let gathers = items.into_iter().map(|item| item.gather).collect();
                return Outcome {
                    posted: Vec::new(),
                    refused: Some((error, gathers)),
                };
            }
        };
        let slot = |(item, requests): (Item, &Requests)| {
            Slot::new(item.gather, Kind::Send, requests.len() as u32, item.length)
        };
        let mut posted = self.insert_sends(items.into_iter().zip(&requests).map(slot));
        let numbered = posted.iter().zip(&requests);
        let numbers = numbered.flat_map(|(key, requests)| numbers(*key, requests.len()));
        let outcome = self.post_requests(&requests, &numbers.collect::<Vec<_>>());
        let refused = outcome.err().map(|(count, error)| {
            let (mut left, mut whole) = (count, 0);
            for requests in &requests {
                match left.checked_sub(requests.len()) {
                    Some(rest) => (left, whole) = (rest, whole + 1),
                    None => break,
                }
            }
            let mut others = posted.split_off(whole);
            if left > 0 {
                self.leave_to_device(others.remove(0));
            }
            (error, self.remove_sends(&others))
        });
        Outcome { posted, refused }
    }

    /// Posts requests in order, with one doorbell, as one operation. Only the last one is signaled.
    pub(crate) fn post_as_one(&self, items: Vec<Item>) -> std::result::Result<usize, Failed> {
        let prepared = match items.is_empty() {
            false => self.prepare(&items),
            true => {
                let (what, expected) = ("requests of a batch", "1 or more");
                Err(Error::invalid(Step::PostSend, what, expected, 0))
            }
        };
        let length = items.iter().map(|item| item.length).sum();
        let pieces = Gather::joined(items.into_iter().map(|item| item.gather));
        let requests = match prepared {
            Ok(requests) => requests,
            Err(error) => return Err(pieces.failed(error)),
        };
        let count = requests.iter().map(Vec::len).sum::<usize>();
        let slot = Slot::new(pieces, Kind::Send, count as u32, length);
        let keys = self.insert_sends(std::iter::once(slot));
        let key = keys[0];
        let numbers: Vec<u64> = numbers(key, count).collect();
        match self.post_requests(&requests, &numbers) {
            Ok(()) => Ok(key),
            Err((0, error)) => {
                let pieces = Gather::joined(self.remove_sends(&keys).into_iter());
                Err(pieces.failed(error))
            }
            Err((_, error)) => {
                self.leave_to_device(key);
                let (buffer, more) = (None, Box::default());
                Err(Failed {
                    error,
                    buffer,
                    more,
                })
            }
        }
    }

    /// The work requests of each item. Reserves slots for all of them.
    fn prepare(&self, items: &[Item]) -> Result<Vec<Requests>> {
        let limit = self.depths.gather as usize;
        let requests = |item: &Item| {
            if item.is_long() {
                // Each request could be lost alone, without a sign of it.
                self.transport
                    .check_has("a write of more than 1 GiB on an unreliable connection (UC)")?;
            }
            let place = |part: Part| {
                let sges = item.gather.sges(&self.pd, part.bytes.clone(), limit)?;
                Ok((part, sges))
            };
            item.parts().into_iter().map(place).collect()
        };
        let prepared: Vec<Requests> = items.iter().map(requests).collect::<Result<_>>()?;
        let count = prepared.iter().map(Vec::len).sum();
        if self.claim_sends(count) {
            return Ok(prepared);
        }
        let (what, limit) = ("posted sends", u64::from(self.depths.sends));
        Err(Error::new(
            Step::PostSend,
            Cause::LimitReached { what, limit },
        ))
    }

    fn post_requests(
        &self,
        requests: &[Requests],
        numbers: &[u64],
    ) -> std::result::Result<(), (usize, Error)> {
        let requests = requests.iter().flatten().zip(numbers);
        let wrs: Vec<SendWr<'_>> = requests
            .map(|((part, sges), number)| SendWr {
                wr_id: *number,
                op: part.op,
                data: SendData::Sges(sges.as_slice()),
                flags: part.flags | flags(part.op, number & MORE == 0),
                ud: None,
                srq: None,
            })
            .collect();
        self.qp.post_sends(&wrs)
    }

    /// Abandons an operation after the device accepted only some of its requests. Those are unsignaled, so their end is
    /// not reported, and the buffers stay until the queue pair is destroyed.
    fn leave_to_device(&self, key: usize) {
        if let Some(slot) = self.state.lock().slots.get_mut(key) {
            slot.owner = Owner::Nobody;
        }
    }
}

/// The flags that decide whether a request signals its completion on this side, and whether it wakes the peer.
fn flags(op: SendOp, is_last: bool) -> SendFlags {
    let signals = match is_last {
        true => SendFlags::SIGNALED,
        false => SendFlags::empty(),
    };
    let wakes = match op {
        SendOp::RdmaWrite(_) | SendOp::RdmaRead(_) if !is_last => SendFlags::empty(),
        _ => SendFlags::SOLICITED,
    };
    signals | wakes
}

/// The numbers of an operation's requests.
fn numbers(key: usize, count: usize) -> impl Iterator<Item = u64> {
    let number = move |at| match at + 1 == count {
        true => key as u64,
        false => key as u64 | MORE,
    };
    (0..count).map(number)
}
