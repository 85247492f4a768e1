//! A stack large enough regardless of the caller's limits.

use std::panic::resume_unwind;
use std::thread;

use rustix::process::{Resource, getrlimit};

/// Linux's default stack size. Only touched pages cost memory.
const SIZE: u64 = 8 << 20;

/// Runs `body` on a stack of at least [`SIZE`] and waits for its end. With a small `ulimit -s`, the initial stack is
/// too small even for the command line parser.
///
/// Uses the process's own stack if it may grow that far, or if no other thread can be started. Another thread would
/// have its own memory arena, which grows by a system call every few pages (malloc(3)).
pub(crate) fn large_enough<R: Send>(body: impl FnOnce() -> R + Send) -> R {
    let limit = getrlimit(Resource::Stack).current;
    if limit.is_none_or(|limit| limit >= SIZE) {
        return body();
    }
    // The thread takes it; if no thread starts, this one does.
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
