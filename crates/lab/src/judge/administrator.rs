//! The client of the subnet administrator over the kernel's user MAD devices: tables of many
//! packets between two rxe ports, with a test administrator at one of them.

use crate::machine::Step;

use super::step;

/// The program that plays both roles.
pub(super) const PROGRAM: &str = "umad_administrator";
const SCRIPT: &str = include_str!("guest/administrator.sh");
/// Segments of the tables: one, two, several full windows, and many.
const SEGMENTS: &str = "1 2 100 400";
/// Segments of the tables on a network that loses packets.
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
