//! Posts several sends together.

use portolan_provider::verbs::{SendData, SendFlags, SendOp, SendWr};
use portolan_provider::{Cause, Error, Step};

use super::item::Item;
use super::pieces::{Gather, Sges};
use super::table::Work;

/// The result of posting a batch.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// The keys of the posted sends, in order.
    pub(crate) posted: Vec<usize>,
    /// Why the others were not posted, and their buffers.
    pub(crate) refused: Option<(Error, Vec<Gather>)>,
}

impl Outcome {
    fn refused(error: Error, items: Vec<Item>) -> Self {
        let gathers = items.into_iter().map(|item| item.gather).collect();
        Self {
            posted: Vec::new(),
            refused: Some((error, gathers)),
        }
    }
}

impl Work {
    /// Posts sends in order, with one doorbell.
    pub(crate) fn post_batch(&self, items: Vec<Item>) -> Outcome {
        let limit = self.depths.gather as usize;
        let places = |item: &Item| item.gather.sges(&self.pd, item.length, limit);
        let sges: Vec<Sges> = match items.iter().map(places).collect() {
            Ok(sges) => sges,
            Err(error) => return Outcome::refused(error, items),
        };
        let ops: Vec<(SendOp, SendFlags)> =
            items.iter().map(|item| (item.op, item.flags)).collect();
        let keys = match self.claim_sends(items.len()) {
            true => self.insert_sends(items.into_iter().map(|item| item.gather)),
            false => {
                let (what, limit) = ("posted sends", u64::from(self.depths.sends));
                let cause = Cause::LimitReached { what, limit };
                return Outcome::refused(Error::new(Step::PostSend, cause), items);
            }
        };
        let requests = keys.iter().zip(&sges).zip(ops);
        let wrs: Vec<SendWr<'_>> = requests
            .map(|((key, sges), (op, flags))| SendWr {
                wr_id: *key as u64,
                op,
                data: SendData::Sges(sges.as_slice()),
                flags: flags | SendFlags::SIGNALED | SendFlags::SOLICITED,
                ud: None,
                srq: None,
            })
            .collect();
        let outcome = self.qp.post_sends(&wrs);
        let mut posted = keys;
        let refused = outcome.err().map(|(count, error)| {
            let others = posted.split_off(count.min(posted.len()));
            (error, self.remove_sends(&others))
        });
        Outcome { posted, refused }
    }
}
