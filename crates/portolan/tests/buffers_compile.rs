//! A posted buffer can be neither freed, nor reused, nor looked into: the compiler says so.

#[test]
fn a_buffer_is_out_of_reach_while_work_on_it_is_posted() {
    let cases = trybuild::TestCases::new();
    cases.pass("tests/ui/a_buffer_comes_back.rs");
    cases.compile_fail("tests/ui/freed_while_posted.rs");
    cases.compile_fail("tests/ui/written_while_posted.rs");
    cases.compile_fail("tests/ui/posted_twice.rs");
    cases.compile_fail("tests/ui/borrowed_across_a_post.rs");
    cases.compile_fail("tests/ui/shared_memory_gives_no_slice.rs");
}
