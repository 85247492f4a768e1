//! When a buffer is replaced by a larger one.
//!
//! Most streams carry little, and a large buffer makes connecting slower: its memory is allocated and registered. A
//! buffer that was full several times while there was more to send is too small for the distance, or for processes that take turns.

/// Counts how often a buffer limits the rate.
#[derive(Debug)]
pub(crate) struct Stalls {
    /// Bytes of the larger buffer. `None` once there is one, or if there never will be.
    larger: Option<u32>,
    is_stalled: bool,
    count: u32,
    needed: u32,
}

impl Stalls {
    /// `larger`: bytes of the larger buffer; 0 for none.
    pub(crate) fn new(larger: u32, needed: u32) -> Self {
        Self {
            larger: (larger > 0).then_some(larger),
            is_stalled: false,
            count: 0,
            needed,
        }
    }

    /// The buffer is full.
    pub(crate) fn begin(&mut self) {
        self.is_stalled = true;
    }

    /// A part of it is free again.
    pub(crate) fn end(&mut self) {
        self.count += u32::from(core::mem::take(&mut self.is_stalled));
    }

    /// The size of the larger buffer, if it is wanted.
    pub(crate) fn wanted(&self) -> Option<u32> {
        self.larger.filter(|_| self.count >= self.needed)
    }

    /// Returns the size of the larger buffer, which is used from now on.
    pub(crate) fn grow(&mut self) -> Option<u32> {
        self.larger.take()
    }

    /// There will be no larger buffer.
    pub(crate) fn stay(&mut self) {
        self.larger = None;
    }
}
