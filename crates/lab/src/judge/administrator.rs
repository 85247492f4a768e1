//! The client of the subnet administrator over the kernel's own user MAD devices: tables in many packets between two
//! rxe ports, with an administrator of the tests' at one.

use crate::machine::Step;

use super::step;

/// The program that has both ends.
pub(super) const PROGRAM: &str = "umad_administrator";
const SCRIPT: &str = include_str!("guest/administrator.sh");
/// Segments of the tables: one alone, two, some windows full, and many.
const SEGMENTS: &str = "1 2 100 400";
/// Segments of the tables of which packets are lost.
const SEGMENTS_LOST: &str = "1 2 100";

pub(super) fn steps() -> Vec<Step> {
    [
        (
            "tables over the kernel's user MADs",
            format!("tables {SEGMENTS}"),
        ),
        (
            "tables over the kernel's user MADs, through loss and reordering",
            format!("tables_through_loss {SEGMENTS_LOST}"),
        ),
    ]
    .map(|(name, run)| step(name.to_owned(), &format!("{SCRIPT}\n{run}")))
    .into()
}
