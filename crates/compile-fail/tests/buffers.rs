//! A posted buffer can be neither freed, nor reused, nor looked into: the compiler says so. That it comes back
//! when its work ends is a test of the library's; a program here that compiles would have all that the library
//! uses built once more.

#[test]
fn a_buffer_is_out_of_reach_while_work_on_it_is_posted() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/ui/freed_while_posted.rs");
    cases.compile_fail("tests/ui/written_while_posted.rs");
    cases.compile_fail("tests/ui/posted_twice.rs");
    cases.compile_fail("tests/ui/borrowed_across_a_post.rs");
    cases.compile_fail("tests/ui/shared_memory_gives_no_slice.rs");
}
