//! A stack large enough regardless of the caller's limits.

use std::fs;
use std::panic::resume_unwind;
use std::thread;

/// Linux's default stack size. Only touched pages cost memory.
const SIZE: u64 = 8 << 20;

/// Runs `body` on a stack of at least [`SIZE`] and waits for its end. With a small `ulimit -s`, the initial stack is
/// too small even for the command line parser.
///
/// Uses the process's own stack if it may grow that far, or if no other thread can be started. Another thread would
/// have its own memory arena, which grows by a system call every few pages (malloc(3)).
pub(crate) fn large_enough<R: Send>(body: impl FnOnce() -> R + Send) -> R {
    let limit = limit(&fs::read_to_string("/proc/self/limits").unwrap_or_default());
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

/// The stack limit in `/proc/self/limits`; `None` if the stack is unlimited. The file is readable even in a service
/// that may not call getrlimit(2) (`@resources` in systemd.exec(5)).
fn limit(limits: &str) -> Option<u64> {
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max stack size"))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_is_read_and_unlimited_is_none() {
        let limits = |soft| {
            format!(
                "Limit                     Soft Limit           Hard Limit           Units\n\
                 Max stack size            {soft}              unlimited            bytes\n"
            )
        };
        assert_eq!(limit(&limits("65536")), Some(65536));
        assert_eq!(limit(&limits("unlimited")), None);
        assert_eq!(limit(""), None);
    }
}
