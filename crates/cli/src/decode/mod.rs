//! `decode`: prints a capture as text, JSON or a ladder, and verifies every ICRC.

mod describe;
pub(crate) mod dissect;
mod json;
mod print;
pub(crate) mod trace;

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use anyhow::{Context, Result};

use crate::capture::{CaptureError, CaptureReader};
use crate::exit::Outcome;
use crate::output::Output;
use dissect::{Body, Dissected, Icrc, Other, RocePacket, dissect};
use print::Printer;

/// Decodes a capture file, or standard input for `-`.
///
/// # Errors
///
/// The file cannot be opened, read, or parsed; the output cannot be written.
pub(crate) fn run(file: &Path, trace: bool, output: &mut Output) -> Result<Outcome> {
    let name = file.display();
    if file == Path::new("-") {
        return decode(io::stdin().lock(), trace, output).context("standard input");
    }
    let input = File::open(file).with_context(|| format!("cannot open {name}"))?;
    decode(input, trace, output).with_context(|| format!("{name}"))
}

fn decode(input: impl Read, trace: bool, output: &mut Output) -> Result<Outcome> {
    let mut reader = CaptureReader::new(input)?;
    let mut printer = Printer::new(output, trace);
    let mut tally = Tally::default();
    let mut patched = Vec::new();
    let end = loop {
        let record = match reader.next_record() {
            Ok(Some(record)) => record,
            Ok(None) => break Ok(()),
            // Packets before a defect in the file are still shown and counted.
            Err(error) => break Err(error),
        };
        match dissect(&record, &mut patched) {
            Dissected::Roce(packet) => {
                tally.count(&packet);
                printer.packet(record.number, record.time_ns, &packet)?;
            }
            Dissected::Other(other) => {
                tally.count_other(other);
                printer.other(record.time_ns);
            }
        }
    };
    printer.finish(&tally, end.as_ref().err())?;
    end?;
    Ok(match tally.is_sound() {
        true => Outcome::Good,
        false => Outcome::CheckFailed,
    })
}

/// Maximum number of other kinds of frames counted separately; the rest are counted together.
const MAX_OTHER_KINDS: usize = 64;

/// Counts of the frames.
#[derive(Debug, Default)]
struct Tally {
    packets: u64,
    icrc_valid: u64,
    icrc_invalid: u64,
    cut: u64,
    malformed: u64,
    others: Vec<(Other, u64)>,
    further_others: u64,
}

impl Tally {
    fn count(&mut self, packet: &RocePacket<'_>) {
        self.packets += 1;
        match packet.icrc {
            Icrc::Valid => self.icrc_valid += 1,
            Icrc::Invalid(_) => self.icrc_invalid += 1,
            Icrc::Unchecked => {}
        }
        match &packet.body {
            Body::Cut(..) => self.cut += 1,
            _ if packet.icrc == Icrc::Valid && !packet.is_sound() => self.malformed += 1,
            _ => {}
        }
    }

    fn count_other(&mut self, other: Other) {
        if let Some((_, count)) = self.others.iter_mut().find(|(known, _)| *known == other) {
            *count += 1;
        } else if self.others.len() < MAX_OTHER_KINDS {
            self.others.push((other, 1));
        } else {
            self.further_others += 1;
        }
    }

    /// Number of frames without RoCEv2.
    fn other_frames(&self) -> u64 {
        self.others.iter().map(|(_, count)| count).sum::<u64>() + self.further_others
    }

    /// Frames with a malformed IP or UDP header, which may have been RoCEv2.
    fn broken(&self) -> u64 {
        let broken = self
            .others
            .iter()
            .find(|(other, _)| *other == Other::Broken);
        broken.map_or(0, |(_, count)| *count)
    }

    /// Whether every packet has a valid ICRC and well-formed contents.
    fn is_sound(&self) -> bool {
        self.icrc_valid == self.packets && self.malformed == 0
    }
}

#[cfg(test)]
mod tests;
