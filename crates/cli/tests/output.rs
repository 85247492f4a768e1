//! Every command reports output that cannot be written.

mod common;

use std::fs::File;

use common::{portolan, stderr};

#[test]
fn a_full_disk_is_an_error() {
    let commands: [&[&str]; 6] = [
        &["cc-env"],
        &["cc-env", "--json"],
        &["exec", "--dry-run", "--", "true"],
        &["resolve", "127.0.0.1"],
        &["resolve", "--json", "127.0.0.1"],
        &["doctor", "--json"],
    ];
    for arguments in commands {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = portolan().args(arguments).stdout(full).output().unwrap();
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(
            said.contains("No space left on device"),
            "{arguments:?}: {said}"
        );
    }
}
