//! Completion channels: a descriptor that reports which completion queue has completions.

use std::any::Any;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use portolan_provider::traits::CompChannel;
use portolan_provider::{Result, Step};

use crate::io::host::completion_channel::ChannelCore;
use crate::io::host::entry::Entry;
use crate::io::host::errors::foreign;

/// A completion channel. Its descriptor is readable exactly while an event is queued.
#[derive(Debug)]
pub struct SoftChannel {
    core: Arc<ChannelCore>,
    entry: Arc<Entry>,
}

impl SoftChannel {
    pub(crate) fn new(entry: Arc<Entry>) -> Result<Self> {
        let core = Arc::new(ChannelCore::new()?);
        Ok(Self { core, entry })
    }

    /// The channel behind a trait object.
    pub(crate) fn core_of(channel: &Arc<dyn CompChannel>) -> Result<Arc<ChannelCore>> {
        let channel = channel.as_any().downcast_ref::<Self>();
        channel
            .map(|channel| Arc::clone(&channel.core))
            .ok_or_else(|| foreign(Step::CreateCq, "completion channel of this device"))
    }
}

impl portolan_provider::sealed::Sealed for SoftChannel {}

impl CompChannel for SoftChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.core.as_fd()
    }

    fn descriptor(&self) -> Result<BorrowedFd<'_>> {
        self.core.descriptor()
    }

    fn take_event(&self) -> Result<Option<u64>> {
        // A forked child shares the descriptor with its parent, and would take the parent's event.
        self.entry.check(Step::PollCq)?;
        Ok(self.core.take())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
