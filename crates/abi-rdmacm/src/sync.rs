//! Calls whose command is answered by an event. A synchronous id waits for it in the call.

use portolan_kernel::raw;

use crate::guard::Result;
use crate::id::Id;
use crate::layout::CmId;

/// What remains to be done after a call's command. It owns nothing, so a thread that waits with it may be cancelled.
#[derive(Clone, Copy)]
pub(crate) enum Left {
    Nothing,
    /// Wait for the event of a synchronous id.
    Event(*mut CmId),
}

/// Runs a command that an event answers. Only a synchronous id is accessed after the command: another one may be
/// destroyed by the thread that takes the event.
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
