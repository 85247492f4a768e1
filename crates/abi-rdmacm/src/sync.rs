//! Calls whose command is answered by an event. A synchronous id waits for it within the call.

use portolan_kernel::raw;

use crate::guard::Result;
use crate::id::Id;
use crate::layout::CmId;

/// What is left of a call once its command was carried out. It has nothing to drop, so that a thread which waits with it
/// may be cancelled.
#[derive(Clone, Copy)]
pub(crate) enum Left {
    Nothing,
    /// The event of a synchronous id.
    Event(*mut CmId),
}

/// Runs what writes a command whose answer is an event. Another id than a synchronous one is not touched after the
/// command: the thread that takes the event may have destroyed it.
///
/// # Errors
/// Those of `command`.
pub(crate) fn begun(id: &Id, command: impl FnOnce(&raw::Channel) -> Result<()>) -> Result<Left> {
    let is_sync = id.is_sync();
    command(&*id.commands()?)?;
    Ok(match is_sync {
        true => Left::Event(id.as_c()),
        false => Left::Nothing,
    })
}
