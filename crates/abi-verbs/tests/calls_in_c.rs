//! A C program that makes the calls which Debian's programs do not, with right and wrong arguments, built against our
//! header and run on our library.

mod c;

#[test]
fn every_call_does_what_its_page_says_with_right_and_wrong_arguments() {
    c::run("calls", &[]);
}
