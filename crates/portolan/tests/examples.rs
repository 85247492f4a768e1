//! The examples run to their end and print the documented output.

use std::path::PathBuf;
use std::process::Command;

/// Runs an example, which cargo has built beside this test.
fn output_of(example: &str) -> String {
    let test = std::env::current_exe().unwrap();
    let profile: PathBuf = test.ancestors().nth(2).unwrap().into();
    let program = profile.join("examples").join(example);
    let output = Command::new(&program)
        .output()
        .unwrap_or_else(|error| panic!("{}: {error}", program.display()));
    let (said, complained) = (
        String::from_utf8_lossy(&output.stdout).into_owned(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    );
    assert!(output.status.success(), "{}: {complained}", output.status);
    assert_eq!(complained, "");
    said
}

#[test]
fn the_echo_brings_every_message_back() {
    let expected =
        "ahoy -> ahoy\nfathoms: seven -> fathoms: seven\nland in sight -> land in sight\n";
    assert_eq!(output_of("echo"), expected);
}

#[test]
fn the_rdma_read_prints_the_chart() {
    let expected = "Here the coast bends north, and there is good anchorage.\n";
    assert_eq!(output_of("rdma_read"), expected);
}

#[test]
fn the_store_is_read_by_who_wrote_nothing() {
    assert_eq!(output_of("key_value"), "port: 3 fathoms\nport: 7 fathoms\n");
}

#[cfg(feature = "tokio")]
#[test]
fn fifty_clients_stream_in_both_directions_by_grpc() {
    assert_eq!(output_of("grpc"), "50 clients got 20 answers each\n");
}

#[cfg(feature = "tokio")]
#[test]
fn http_over_a_stream_brings_every_response_whole() {
    assert_eq!(output_of("http"), "200 responses of 100000 bytes\n");
}

#[test]
fn the_file_is_copied() {
    let expected = "sent 10000000 bytes, received 10000000\n";
    assert_eq!(output_of("file_copy"), expected);
}

#[test]
fn the_block_arrives_by_a_write_and_by_tcp() {
    let said = output_of("bulk");
    let subjects: Vec<_> = said
        .lines()
        .filter_map(|line| line.split(':').next())
        .collect();
    assert_eq!(subjects, ["memcpy", "WRITE", "TCP"]);
}

#[test]
fn the_workers_do_every_job_once() {
    assert_eq!(output_of("work_queue"), "4 workers did 500 jobs\n");
}

#[test]
fn the_log_has_every_record_of_every_writer() {
    assert_eq!(output_of("remote_log"), "4 writers appended 400 records\n");
}

#[test]
fn the_tests_without_hardware_pass() {
    assert_eq!(output_of("without_hardware"), "2 tests passed\n");
}

#[test]
fn rpings_protocol_brings_the_text_back() {
    assert_eq!(output_of("with_c"), "ahoy from Rust\n");
}

#[test]
fn the_named_device_is_listed_and_used() {
    let said = output_of("device_by_name");
    assert!(said.contains("sw_lo of software: active"), "{said}");
    assert!(
        said.ends_with("a message went from sw_lo to sw_lo\n"),
        "{said}"
    );
}

#[test]
fn the_echo_works_in_another_runtime() {
    assert_eq!(output_of("other_runtimes"), output_of("echo"));
}

#[cfg(feature = "tokio")]
mod of_tokio {
    use super::output_of;

    #[test]
    fn the_echo_of_tasks_brings_a_thousand_messages_back() {
        assert_eq!(output_of("echo_tokio"), "1000 messages came back\n");
    }

    #[test]
    fn a_thousand_calls_at_once_are_answered() {
        assert_eq!(output_of("rpc"), "1000 calls were answered\n");
    }

    #[test]
    fn the_members_of_the_chat_hear_each_other() {
        let expected = "the other hears: ahoy, who is there?\none hears: the other\n";
        assert_eq!(output_of("chat"), expected);
    }

    #[test]
    fn one_channel_serves_a_thousand_connects() {
        let expected = "1000 connects were rejected, as they should be\n";
        assert_eq!(output_of("connect_many"), expected);
    }
}

#[test]
fn every_example_is_short_and_explains_how_to_run_it() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("examples");
    let mut seen = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let lines = text.lines().count();
        assert!(lines < 160, "{} has {lines} lines", path.display());
        assert!(text.contains("//! `"), "{}", path.display());
        seen += 1;
    }
    assert_eq!(seen, 17);
}

/// The programs that docs/comparison.md compares.
mod compared {
    macro_rules! runs {
        ($name:ident, $file:literal) => {
            mod $name {
                include!(concat!(
                    env!("CARGO_MANIFEST_DIR"),
                    "/../../docs/comparison/portolan/src/bin/",
                    $file
                ));

                #[test]
                fn runs_to_its_end() {
                    main().unwrap();
                }
            }
        };
    }

    runs!(echo, "echo.rs");
    runs!(write, "write.rs");
    runs!(read, "read.rs");
    runs!(counter, "counter.rs");
    runs!(clients, "clients.rs");
}
