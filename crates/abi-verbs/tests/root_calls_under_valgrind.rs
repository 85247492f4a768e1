//! The C programs of `calls_in_c` under valgrind (package valgrind): no invalid access, and no leak except what
//! the process keeps on purpose.

mod c;

use std::sync::{Mutex, PoisonError};

const VALGRIND: [&str; 7] = [
    "valgrind",
    "--quiet",
    // Otherwise a thread that polls can keep all others from running.
    "--fair-sched=try",
    "--leak-check=full",
    "--show-leak-kinds=definite,indirect",
    "--errors-for-leak-kinds=definite,indirect",
    "--error-exitcode=9",
];

/// Runs a program under valgrind, one at a time. They share the UDP port, and under valgrind, on a busy machine, a process
/// may not answer another in time.
fn run(name: &str, source: &str) {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    c::run(name, source, &VALGRIND);
}

#[test]
fn the_calls_access_no_invalid_memory_and_leak_none() {
    run("valgrind", include_str!("c/verbs.c"));
}

#[test]
fn destroying_an_object_twice_reads_no_freed_memory() {
    run("valgrind-twice", include_str!("c/twice.c"));
}

#[test]
fn imported_or_shared_objects_are_freed_once() {
    run("valgrind-imports", include_str!("c/imports.c"));
    run("valgrind-xrc", include_str!("c/xrc.c"));
}
