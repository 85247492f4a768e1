//! The three output formats of a capture: lines, JSON objects, a ladder; and the final totals.

use std::io;
use std::time::Duration;

use serde_json::json;

use super::dissect::RocePacket;
use super::trace::Tracer;
use super::{CaptureError, Tally, describe, json};
use crate::output::Output;
use crate::terminal::Paint;

/// Prints packets as they are read, or collects them for the ladder.
#[derive(Debug)]
pub(super) struct Printer<'a> {
    output: &'a mut Output,
    tracer: Option<Tracer>,
    /// Time of the capture's first frame, nanoseconds since the epoch.
    start_ns: Option<u64>,
    /// Widest addresses so far, to keep columns straight.
    src_width: usize,
    dst_width: usize,
}

impl<'a> Printer<'a> {
    pub(super) fn new(output: &'a mut Output, trace: bool) -> Printer<'a> {
        Printer {
            tracer: trace.then(Tracer::new),
            output,
            start_ns: None,
            src_width: 0,
            dst_width: 0,
        }
    }

    /// Handles a packet.
    pub(super) fn packet(
        &mut self,
        number: u64,
        time_ns: u64,
        packet: &RocePacket<'_>,
    ) -> io::Result<()> {
        let since_start = self.since_start(time_ns);
        if let Some(tracer) = &mut self.tracer {
            tracer.packet(since_start, packet);
        } else if !self.output.json {
            let line = self.packet_line(since_start, packet);
            self.output.line(&line)?;
        }
        if self.output.json {
            self.output.object(&json::object(number, time_ns, packet))?;
        }
        Ok(())
    }

    /// Records a frame without RoCEv2, because times are relative to the first frame of any kind.
    pub(super) fn other(&mut self, time_ns: u64) {
        self.since_start(time_ns);
    }

    fn since_start(&mut self, time_ns: u64) -> Duration {
        let start_ns = *self.start_ns.get_or_insert(time_ns);
        Duration::from_nanos(time_ns.saturating_sub(start_ns))
    }

    fn packet_line(&mut self, since_start: Duration, packet: &RocePacket<'_>) -> String {
        let (src, dst) = (packet.src.ip().to_string(), packet.dst.ip().to_string());
        self.src_width = self.src_width.max(src.len());
        self.dst_width = self.dst_width.max(dst.len());
        let theme = &self.output.theme;
        let time = format!(
            "{:>3}.{:06}",
            since_start.as_secs(),
            since_start.subsec_micros()
        );
        let paint = match (packet.is_sound(), describe::kind(packet)) {
            (false, _) => Paint::Bad,
            (true, kind) => kind.into(),
        };
        format!(
            "{} {src:>src_width$} {} {dst:<dst_width$}  {}",
            theme.paint(Paint::Dim, &time),
            theme.pick("→", "->"),
            theme.paint(paint, &describe::in_full(packet)),
            src_width = self.src_width,
            dst_width = self.dst_width,
        )
    }

    /// Prints the ladder, if requested, and the totals.
    pub(super) fn finish(self, tally: &Tally, error: Option<&CaptureError>) -> io::Result<()> {
        let output = self.output;
        if output.json {
            output.object(&summary_object(tally, error))?;
            return output.flush();
        }
        if let Some(tracer) = self.tracer {
            for line in tracer.finish(&output.theme) {
                output.line(&line)?;
            }
        }
        if output.verbose {
            for (other, count) in &tally.others {
                output.line(&format!("{count:>6}  {other}"))?;
            }
            if tally.further_others > 0 {
                output.line(&format!("{:>6}  of further kinds", tally.further_others))?;
            }
        }
        for note in notes(tally) {
            output.line(&note)?;
        }
        let paint = if tally.is_sound() {
            Paint::Good
        } else {
            Paint::Bad
        };
        let sum = format!("{} packets, {} ICRC valid", tally.packets, tally.icrc_valid);
        let sum = output.theme.paint(paint, &sum);
        output.line(&sum)?;
        output.flush()
    }
}

/// Details that the totals do not show.
fn notes(tally: &Tally) -> Vec<String> {
    let mut notes = Vec::new();
    let mut note = |count: u64, what: &str| {
        if count > 0 {
            notes.push(format!("{count} {what}"));
        }
    };
    note(tally.other_frames(), "other frames, without RoCEv2");
    note(tally.broken(), "of them with a broken IP or UDP header");
    note(tally.icrc_invalid, "with a wrong ICRC");
    note(
        tally.cut,
        "cut by the capture: their ICRC cannot be checked (capture with snaplen 0)",
    );
    note(tally.malformed, "malformed, though their ICRC is valid");
    notes
}

fn summary_object(tally: &Tally, error: Option<&CaptureError>) -> serde_json::Value {
    json!({
        "type": "summary",
        "packets": tally.packets,
        "icrc_valid": tally.icrc_valid,
        "icrc_invalid": tally.icrc_invalid,
        "cut": tally.cut,
        "malformed": tally.malformed,
        "other_frames": tally.other_frames(),
        "broken_frames": tally.broken(),
        "error": error.map(ToString::to_string),
    })
}
