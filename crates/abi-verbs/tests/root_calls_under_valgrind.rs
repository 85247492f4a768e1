//! The C programs of `calls_in_c` under valgrind (package valgrind): no invalid access, and no leak except what
//! the process keeps on purpose.

mod c;

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

#[test]
fn the_calls_access_no_invalid_memory_and_leak_none() {
    c::run("valgrind", include_str!("c/verbs.c"), &VALGRIND);
}

#[test]
fn destroying_an_object_twice_reads_no_freed_memory() {
    c::run("valgrind-twice", include_str!("c/twice.c"), &VALGRIND);
}

#[test]
fn imported_or_shared_objects_are_freed_once() {
    c::run("valgrind-imports", include_str!("c/imports.c"), &VALGRIND);
    c::run("valgrind-xrc", include_str!("c/xrc.c"), &VALGRIND);
}
