//! What is done as the process ends by itself.

/// Has `farewell` called when the process ends by exit(3), or the library is unloaded (atexit(3)); in children that were
/// forked off since, too. Without memory for that it is not.
pub(crate) fn at_exit(farewell: extern "C" fn()) {
    // SAFETY: a function of the library, which libc calls before it is gone.
    unsafe { libc::atexit(farewell) };
}
