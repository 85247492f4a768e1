//! Skipped destinations, which every result lists.

use portolan_provider::Address;

use crate::error::Problem;
use crate::explain::Decision;

/// Maximum number of destinations to list. A name may have a thousand addresses, and each result lists the skipped
/// ones.
const LISTED_MAX: usize = 8;

/// The skipped destinations and the reasons.
#[derive(Clone, Debug, Default)]
pub(super) struct Skipped {
    listed: Vec<Decision>,
    more: usize,
}

impl Skipped {
    pub(super) fn add(&mut self, address: Option<Address>, why: &Problem) {
        let Some(address) = address else { return };
        if self.listed.len() == LISTED_MAX {
            self.more += 1;
            return;
        }
        let why = why.to_string();
        self.listed.push(Decision::Skipped { address, why });
    }

    pub(super) fn decisions(&self) -> impl Iterator<Item = Decision> {
        let more = Some(self.more).filter(|more| *more > 0);
        let more = more.map(|count| Decision::SkippedMore { count });
        self.listed.iter().cloned().chain(more)
    }
}
