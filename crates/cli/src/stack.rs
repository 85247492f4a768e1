//! A stack whose size the caller's limits do not choose.

use std::panic::resume_unwind;
use std::thread;

/// What Linux gives a program unless `ulimit -s` says otherwise. Only pages that are used cost memory.
const SIZE: usize = 8 << 20;

/// Runs `body` on a thread with a stack of its own and waits for its end: under a small `ulimit -s` the stack that the
/// process began with is too small for the command line's parser alone.
///
/// Without another thread it runs on this one's stack.
pub(crate) fn on_own<R: Send>(body: impl FnOnce() -> R + Send) -> R {
    // Taken by the thread, or by this one if there is none.
    let mut body = Some(body);
    let slot = &mut body;
    let ran = thread::scope(|scope| {
        let named = thread::Builder::new().name("main".into()).stack_size(SIZE);
        let thread = named.spawn_scoped(scope, || slot.take().map(|body| body()));
        thread
            .ok()?
            .join()
            .unwrap_or_else(|panic| resume_unwind(panic))
    });
    ran.unwrap_or_else(|| body.take().expect("no thread ran it")())
}
