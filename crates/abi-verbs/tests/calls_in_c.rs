//! C programs for calls that Debian's programs do not make, with right and wrong arguments and in forked
//! children. They are built against our header and run on our library.

mod c;

#[test]
fn every_call_works_as_documented_with_right_and_wrong_arguments() {
    c::run("calls", include_str!("c/verbs.c"), &[]);
}

#[test]
fn an_open_devices_descriptor_is_shared_only_within_this_process() {
    c::run("imports", include_str!("c/imports.c"), &[]);
}

/// Not under valgrind, which has a limit of its own.
#[test]
fn a_descriptor_whose_import_failed_still_belongs_to_the_program() {
    c::run("import-limit", include_str!("c/import_limit.c"), &[]);
}

#[test]
fn a_device_is_opened_where_no_file_may_be_written() {
    let limited = "ulimit -f 0; PORTOLAN_LOCAL=off exec \"$0\" \"$@\"";
    let source = include_str!("c/imports.c");
    c::run("no-files", source, &["sh", "-c", limited]);
}

/// Not under valgrind, which has a limit of its own.
#[test]
fn the_soft_limit_on_descriptors_is_raised() {
    c::run("few", include_str!("c/few.c"), &[]);
}

#[test]
fn extended_connections_deliver_messages_to_the_queues_that_they_name() {
    c::run("xrc", include_str!("c/xrc.c"), &[]);
}

#[test]
fn calls_in_a_forked_child_return_whatever_the_parents_threads_were_doing() {
    c::run("forked", include_str!("c/forked.c"), &[]);
}

#[test]
fn destroying_an_object_twice_is_refused_and_affects_no_other_object() {
    c::run("twice", include_str!("c/twice.c"), &[]);
}
