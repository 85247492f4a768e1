//! Which lookups libc probably answers from the files of this machine.
//!
//! This only selects the threads for a lookup. Its answer always comes from libc, in the order of nsswitch.conf(5).

use std::fs::File;
use std::io::Read;

use super::{Literal, NameOptions, Plan, plan};

const HOSTS: &str = "/etc/hosts";
/// How much of the file is searched, in bytes. The names of this machine stand first, also in long lists of blocked hosts.
const SEARCHED_MAX: u64 = 64 << 10;

/// Whether a lookup probably needs no server: its host is in `/etc/hosts`, or it asks only for a service.
pub(crate) fn is_local(node: Option<&str>, service: Option<&str>, options: NameOptions) -> bool {
    match (plan(node, service, options), node) {
        (Ok(Plan::Ask { .. }), Some(node)) => {
            options.numeric_host || Literal::parse(node).is_some() || is_listed(node)
        }
        _ => true,
    }
}

fn is_listed(name: &str) -> bool {
    let mut text = Vec::new();
    let read = File::open(HOSTS).and_then(|file| file.take(SEARCHED_MAX).read_to_end(&mut text));
    read.is_ok() && lists(&text, name)
}

/// Whether a file of hosts(5) has the name. Each line is an address and its names; a comment starts with `#`.
fn lists(text: &[u8], name: &str) -> bool {
    let lines = text.split(|byte| *byte == b'\n');
    let mut names = lines.flat_map(|line| {
        let line = line.split(|byte| *byte == b'#').next().unwrap_or_default();
        let words = line.split(u8::is_ascii_whitespace);
        words.filter(|word| !word.is_empty()).skip(1)
    });
    names.any(|listed| listed.eq_ignore_ascii_case(name.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &[u8] = b"127.0.0.1\tlocalhost\n# 192.0.2.1 absent\n192.0.2.77  filed.lab.test filed # old\n\nlonely";

    #[test]
    fn names_and_aliases_are_found_in_any_case_and_comments_and_addresses_are_not() {
        for name in ["localhost", "filed.lab.test", "FILED"] {
            assert!(lists(FILE, name), "{name}");
        }
        for name in ["absent", "old", "192.0.2.77", "lonely", "file", ""] {
            assert!(!lists(FILE, name), "{name}");
        }
    }

    #[test]
    fn services_numbers_and_localhost_are_local_and_other_names_are_not() {
        let is = |node, service| is_local(node, service, NameOptions::default());
        assert!(is(None, Some("http")));
        assert!(is(Some("192.0.2.1"), Some("http")));
        assert!(is(Some("192.0.2.1"), None));
        assert!(!is(Some("surely-in-no-file.test"), None));
    }
}
