//! The C programs of `calls_in_c` under valgrind (package valgrind): no access is invalid, and nothing is lost but what
//! the process keeps.

mod c;

const VALGRIND: [&str; 6] = [
    "valgrind",
    "--quiet",
    "--leak-check=full",
    "--show-leak-kinds=definite,indirect",
    "--errors-for-leak-kinds=definite,indirect",
    "--error-exitcode=9",
];

#[test]
fn the_calls_touch_no_memory_that_is_not_theirs_and_lose_none() {
    c::run("valgrind", include_str!("c/verbs.c"), &VALGRIND);
}

#[test]
fn a_second_end_of_an_object_reads_nothing_of_what_is_gone() {
    c::run("valgrind-twice", include_str!("c/twice.c"), &VALGRIND);
}

#[test]
fn what_is_imported_or_shared_by_a_domain_is_given_back_once() {
    c::run("valgrind-imports", include_str!("c/imports.c"), &VALGRIND);
    c::run("valgrind-xrc", include_str!("c/xrc.c"), &VALGRIND);
}
