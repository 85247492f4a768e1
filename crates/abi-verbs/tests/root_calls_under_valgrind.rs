//! The C program of `calls_in_c` under valgrind (package valgrind): no access is invalid, and nothing is lost but what
//! the process keeps.

mod c;

#[test]
fn the_calls_touch_no_memory_that_is_not_theirs_and_lose_none() {
    let valgrind = [
        "valgrind",
        "--quiet",
        "--leak-check=full",
        "--show-leak-kinds=definite,indirect",
        "--errors-for-leak-kinds=definite,indirect",
        "--error-exitcode=9",
    ];
    c::run("valgrind", include_str!("c/verbs.c"), &valgrind);
}
