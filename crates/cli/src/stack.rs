//! A stack whose size the caller's limits do not choose.

use std::panic::resume_unwind;
use std::thread;

use rustix::process::{Resource, getrlimit};

/// What Linux gives a program unless `ulimit -s` says otherwise. Only pages that are used cost memory.
const SIZE: u64 = 8 << 20;

/// Runs `body` on a stack of at least [`SIZE`] and waits for its end: under a small `ulimit -s` the stack that the
/// process began with is too small for the command line's parser alone.
///
/// The process's own stack serves if it may grow that far, or if there is no other thread to be had. Another thread
/// has a memory arena of its own, which grows by a system call for every few pages (malloc(3)).
pub(crate) fn large_enough<R: Send>(body: impl FnOnce() -> R + Send) -> R {
    let limit = getrlimit(Resource::Stack).current;
    if limit.is_none_or(|limit| limit >= SIZE) {
        return body();
    }
    // Taken by the thread, or by this one if there is none.
    let mut body = Some(body);
    let slot = &mut body;
    let ran = thread::scope(|scope| {
        let named = thread::Builder::new()
            .name("main".into())
            .stack_size(SIZE as usize);
        let thread = named.spawn_scoped(scope, || slot.take().map(|body| body()));
        thread
            .ok()?
            .join()
            .unwrap_or_else(|panic| resume_unwind(panic))
    });
    ran.unwrap_or_else(|| body.take().expect("no thread ran it")())
}
