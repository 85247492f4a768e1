//! C programs that make the calls which Debian's programs do not, with right and wrong arguments and in forked children,
//! built against our header and run on our library.

mod c;

#[test]
fn every_call_does_what_its_page_says_with_right_and_wrong_arguments() {
    c::run("calls", include_str!("c/verbs.c"), &[]);
}

#[test]
fn what_an_open_devices_descriptor_stands_for_is_shared_in_this_process_alone() {
    c::run("imports", include_str!("c/imports.c"), &[]);
}

#[test]
fn extended_connections_bring_messages_to_the_queues_that_they_name() {
    c::run("xrc", include_str!("c/xrc.c"), &[]);
}

#[test]
fn calls_in_a_forked_child_come_back_whatever_the_parents_threads_were_doing() {
    c::run("forked", include_str!("c/forked.c"), &[]);
}

#[test]
fn a_second_end_of_an_object_is_refused_and_neither_waits_nor_ends_another() {
    c::run("twice", include_str!("c/twice.c"), &[]);
}
