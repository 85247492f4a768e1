//! Results for people: a table, with explanations.

use anyhow::Result;
use portolan::provider::Address;
use portolan::resolve::{AddrInfo, Decision};

use super::target::Target;
use crate::output::Output;
use crate::terminal::Paint;

/// The columns' names.
const HEAD: [&str; 6] = [
    "destination",
    "source",
    "device",
    "family",
    "qp",
    "port space",
];
/// Placeholder for an empty cell.
const NOTHING: &str = "-";

/// Writes a heading with the target.
pub(super) fn heading(target: &Target, output: &mut Output) -> Result<()> {
    let text = output.theme.paint(Paint::Bold, &target.to_string());
    Ok(output.line(&text)?)
}

/// Writes the results of a target, one per line.
pub(super) fn results(results: &[AddrInfo], explain: bool, output: &mut Output) -> Result<()> {
    let theme = output.theme;
    let rows: Vec<_> = results.iter().map(row).collect();
    let widths = widths(rows.iter().map(|row| row.each_ref().map(String::as_str)));
    output.line(&theme.paint(Paint::Dim, &aligned(HEAD, widths)))?;
    for (row, result) in rows.iter().zip(results) {
        output.line(&aligned(row.each_ref().map(String::as_str), widths))?;
        if explain {
            for decision in result.explain.decisions().iter() {
                output.line(&format!("    {decision}"))?;
            }
        }
    }
    for name in names(results) {
        output.line(&format!("canonical name {name}"))?;
    }
    if output.verbose {
        details(results, output)?;
    }
    Ok(())
}

/// Paths and connection data, which have no column.
fn details(results: &[AddrInfo], output: &mut Output) -> Result<()> {
    for result in results {
        for path in &result.route {
            output.line(&format!("path {path}"))?;
        }
        if !result.connect.is_empty() {
            let data = crate::text::hex(&result.connect);
            output.line(&format!("connection data {data}"))?;
        }
    }
    Ok(())
}

fn row(result: &AddrInfo) -> [String; 6] {
    let text =
        |address: Option<Address>| address.map_or(NOTHING.to_owned(), |found| found.to_string());
    [
        text(result.dst_addr),
        text(result.src_addr),
        device(result),
        result.family.to_string(),
        result.qp_type.to_string(),
        result.port_space.to_string(),
    ]
}

/// The device with the source address.
fn device(result: &AddrInfo) -> String {
    let decisions = result.explain.decisions();
    let device = decisions.iter().rev().find_map(|decision| match decision {
        Decision::Device(device) => Some(device),
        _ => None,
    });
    device.map_or(NOTHING.to_owned(), |device| {
        format!("{} gid {}", device.name, device.gid_index)
    })
}

/// The canonical names that differ from the addresses, each once.
fn names(results: &[AddrInfo]) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for result in results {
        let pairs = [
            (&result.src_canonname, result.src_addr),
            (&result.dst_canonname, result.dst_addr),
        ];
        for (name, address) in pairs {
            let Some(name) = name.as_deref() else {
                continue;
            };
            let is_address = address
                .and_then(|address| address.inet())
                .is_some_and(|address| address.ip().to_string() == name);
            if !is_address && !names.contains(&name) {
                names.push(name);
            }
        }
    }
    names
}

fn widths<'a>(rows: impl Iterator<Item = [&'a str; 6]>) -> [usize; 6] {
    rows.chain([HEAD]).fold([0; 6], |mut widths, row| {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
        widths
    })
}

fn aligned(row: [&str; 6], widths: [usize; 6]) -> String {
    let cells = row
        .iter()
        .zip(widths)
        .map(|(cell, width)| format!("{cell:<width$}"));
    cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let row = ["192.0.2.1:7471", "-", "a", "b", "c", "d"];
        let widths = widths([row].into_iter());
        assert_eq!(
            aligned(row, widths),
            "192.0.2.1:7471  -       a       b       c   d"
        );
        assert_eq!(
            aligned(HEAD, widths),
            "destination     source  device  family  qp  port space"
        );
    }
}
