//! The compiler refuses to free, reuse or read a posted buffer. The library's tests show that the buffer comes
//! back when its work ends; a program here that compiles would rebuild all dependencies of the library.

#[test]
fn a_buffer_is_out_of_reach_while_work_on_it_is_posted() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/ui/freed_while_posted.rs");
    cases.compile_fail("tests/ui/written_while_posted.rs");
    cases.compile_fail("tests/ui/posted_twice.rs");
    cases.compile_fail("tests/ui/borrowed_across_a_post.rs");
    cases.compile_fail("tests/ui/shared_memory_gives_no_slice.rs");
    cases.compile_fail("tests/ui/memory_taken_back_while_posted.rs");
    cases.compile_fail("tests/ui/vector_used_while_posted.rs");
    cases.compile_fail("tests/ui/memory_that_may_move.rs");
    cases.compile_fail("tests/ui/options_as_a_literal.rs");
}

#[test]
fn what_was_closed_answered_or_withdrawn_is_out_of_reach() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/ui/connection_used_after_its_close.rs");
    cases.compile_fail("tests/ui/memory_used_after_its_withdrawal.rs");
    cases.compile_fail("tests/ui/memory_withdrawn_under_a_window.rs");
    cases.compile_fail("tests/ui/request_answered_twice.rs");
    cases.compile_fail("tests/ui/batch_posted_twice.rs");
    cases.compile_fail("tests/ui/transfer_waited_for_twice.rs");
    cases.compile_fail("tests/ui/window_used_after_its_close.rs");
}

#[test]
fn what_may_grow_is_made_by_the_library_alone() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/ui/provider_of_the_program.rs");
    cases.compile_fail("tests/ui/result_as_a_literal.rs");
    cases.compile_fail("tests/ui/kinds_of_arrivals_are_not_all_known.rs");
}
