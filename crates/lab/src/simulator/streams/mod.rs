//! Streams: two rsocket endpoints over a modelled reliable connection. They run at the end of each run, with their own
//! engines.
//!
//! The connection keeps the order of posts, as RC does. Everything else may lag: delivery, acknowledgement, and the
//! program's polling of completions. A message without a posted receive blocks those after it. At any moment the
//! connection may break or a program may crash.
//!
//! Checks:
//!
//! - A program reads exactly what its peer wrote, in order and completely.
//! - A direction ends only if a program ended it, and a stream fails only if its connection broke.
//! - Unread data, and sent data that is not acknowledged, is never overwritten.
//! - No queue overflows, and nothing is posted after a failure.
//! - Mapped memory is written within its bounds, at the requested offset.
//! - Neither endpoint violates the protocol.
//! - A stream whose programs read and write never stalls, and ends.

mod connection;
mod program;
mod side;

use portolan_rsocket::{Close, Config, Phase, Signalling};

use self::connection::Connection;
use self::program::Program;
use super::failure::{Violation, ensure};
use super::plan::Class;
use super::report::Tally;
use super::rng::Rng;
use super::trace::Trace;

/// Maximum of rounds until a stream ends after its programs start to finish.
const ROUNDS_MAX: u32 = 20_000;

/// The steps of a run and their relative frequencies.
#[derive(Debug)]
struct Plan {
    steps: u64,
    /// Bytes of the longest write or read. Short writes exhaust the credits, long ones the buffers.
    length_max: u64,
    /// Weights of a program's steps, by side.
    writes: [u64; 2],
    reads: [u64; 2],
    looks: [u64; 2],
    /// Weights of deliveries and acknowledgements, by sender.
    deliveries: [u64; 2],
    acknowledgements: [u64; 2],
    keepalives: u64,
    mappings: u64,
    direct_writes: u64,
    /// Per thousand steps.
    closes_permille: u32,
    breaks_permille: u32,
}

impl Plan {
    fn draw(rng: &mut Rng, class: Class) -> Self {
        let mut weights = |choices: &[u64]| [rng.pick(choices), rng.pick(choices)];
        let (writes, reads) = (weights(&[2, 10, 30]), weights(&[1, 10, 30]));
        let (looks, deliveries) = (weights(&[1, 5, 20]), weights(&[5, 20]));
        let acknowledgements = weights(&[2, 10, 20]);
        Self {
            steps: rng.pick(&[100, 400, 1200]),
            length_max: rng.pick(&[8, 80, 4000]),
            writes,
            reads,
            looks,
            deliveries,
            acknowledgements,
            keepalives: rng.pick(&[0, 1, 10]),
            mappings: rng.pick(&[0, 1]),
            direct_writes: rng.pick(&[0, 3]),
            closes_permille: rng.pick(&[0, 1, 5]),
            breaks_permille: match class {
                Class::Calm => 0,
                Class::Lossy => rng.pick(&[0, 0, 1]),
                Class::Chaos => rng.pick(&[0, 1, 3]),
            },
        }
    }
}

/// One step of one side.
#[derive(Clone, Copy, Debug)]
enum Step {
    Write,
    Read,
    Look,
    Deliver,
    Acknowledge,
    Keepalive,
    Map,
    WriteDirect,
}

/// A stream, its programs and their plan.
pub(super) struct Streams {
    rng: Rng,
    plan: Plan,
    connection: Connection,
    programs: [Program; 2],
    trace: Trace,
}

impl Streams {
    pub(super) fn new(rng: &mut Rng, class: Class, trace: Trace) -> Result<Self, Violation> {
        let plan = Plan::draw(rng, class);
        let signalling = rng.pick(&[
            Signalling::Immediate,
            Signalling::Immediate,
            Signalling::Sends,
        ]);
        let configs = [(); 2].map(|()| config(rng, signalling));
        trace.note(0, || format!("streams: {plan:?}, {configs:?}"));
        Ok(Self {
            connection: Connection::new(configs)?,
            programs: Default::default(),
            rng: rng.fork(),
            plan,
            trace,
        })
    }

    pub(super) fn run(mut self, tally: &mut Tally) -> Result<(), Violation> {
        for _ in 0..self.plan.steps {
            let (side, step) = self.draw();
            self.take(side, step)?;
            if self.rng.permille(self.plan.closes_permille) {
                let close = self
                    .rng
                    .pick(&[Close::Read, Close::Write, Close::Write, Close::Both]);
                self.close(side, close)?;
            }
            if self.rng.permille(self.plan.breaks_permille) {
                self.trace
                    .note(side, || "the stream's connection breaks".into());
                self.connection.break_off(true);
                if self.rng.percent(30) {
                    tally.count("stream: crash");
                    self.programs[side].crash();
                }
            }
            self.audit()?;
        }
        self.finish(tally)
    }

    fn draw(&mut self) -> (usize, Step) {
        let side = self.rng.below(2) as usize;
        let plan = &self.plan;
        let steps = [
            (Step::Write, plan.writes[side]),
            (Step::Read, plan.reads[side]),
            (Step::Look, plan.looks[side]),
            (Step::Deliver, plan.deliveries[side]),
            (Step::Acknowledge, plan.acknowledgements[side]),
            (Step::Keepalive, plan.keepalives),
            (Step::Map, plan.mappings),
            (Step::WriteDirect, plan.direct_writes),
        ];
        let mut at = self.rng.below(steps.iter().map(|(_, weight)| weight).sum());
        for (step, weight) in steps {
            match at.checked_sub(weight) {
                Some(left) => at = left,
                None => return (side, step),
            }
        }
        (side, Step::Look)
    }

    fn take(&mut self, side: usize, step: Step) -> Result<(), Violation> {
        if self.programs[side].is_dead() && !matches!(step, Step::Deliver | Step::Acknowledge) {
            return Ok(());
        }
        let wanted = self.rng.between(1, self.plan.length_max) as usize;
        match step {
            Step::Write => self.write(side, wanted).map(drop),
            Step::Read => self.read(side, wanted).map(drop),
            Step::Look => self.look(side).map(drop),
            Step::Deliver => self.connection.deliver(side).map(drop),
            Step::Acknowledge => self.connection.acknowledge(side).map(drop),
            Step::Keepalive => self.connection.sides[side].keepalive(),
            Step::Map => {
                let mapped = self.connection.sides[side].map()?;
                self.programs[side].mapped.extend(mapped);
                Ok(())
            }
            Step::WriteDirect => {
                let known = self.programs[1 - side].mapped.len() as u64;
                let chosen = self.rng.below(known) as usize;
                let Some(region) = self.programs[1 - side].mapped.get(chosen).copied() else {
                    return Ok(());
                };
                let skipped = self.rng.below(side::REGION as u64);
                self.connection.sides[side].write_direct(region + skipped, wanted)
            }
        }
    }

    fn write(&mut self, side: usize, wanted: usize) -> Result<usize, Violation> {
        let other = &self.programs[1 - side];
        let may_be_refused = other.has_ended_both() || self.connection.is_broken();
        let written =
            self.programs[side].write(side, &mut self.connection, wanted, may_be_refused)?;
        self.trace.note(side, || {
            format!("stream: wrote {written} of {wanted} bytes")
        });
        Ok(written)
    }

    fn read(&mut self, side: usize, wanted: usize) -> Result<usize, Violation> {
        let [a, b] = &mut self.programs;
        let (reader, writer) = if side == 0 { (a, b) } else { (b, a) };
        let read = reader.read(side, &mut self.connection, writer, wanted)?;
        self.trace
            .note(side, || format!("stream: read {read} of {wanted} bytes"));
        Ok(read)
    }

    fn look(&mut self, side: usize) -> Result<bool, Violation> {
        let looked = self.connection.sides[side].look()?;
        // A program that has ended both directions disconnects once everything is acknowledged.
        let endpoint = &self.connection.sides[side].endpoint;
        let is_over = endpoint.phase() == Phase::Disconnected && endpoint.is_flushed();
        if is_over && self.programs[side].has_ended_both() && !self.connection.is_broken() {
            ensure!(
                self.connection.sides[side].posts_under_way() == 0,
                "h{side}: all has arrived, and work is under way"
            );
            self.trace.note(side, || "stream: disconnects".into());
            self.connection.break_off(false);
            return Ok(true);
        }
        Ok(looked)
    }

    fn close(&mut self, side: usize, which: Close) -> Result<(), Violation> {
        if self.programs[side].is_dead() {
            return Ok(());
        }
        self.trace
            .note(side, || format!("stream: closes {which:?}"));
        self.programs[side].close(which);
        self.connection.sides[side].close(which)
    }

    /// Checks the invariants that hold at any moment.
    fn audit(&mut self) -> Result<(), Violation> {
        for side in [0, 1] {
            let phase = self.connection.sides[side].endpoint.phase();
            let [a, b] = &mut self.programs;
            let (own, other) = if side == 0 { (a, b) } else { (b, a) };
            own.check_phase(side, phase, other, self.connection.has_broken_off())?;
        }
        Ok(())
    }

    /// Both programs write the remaining data, end their directions, and read to the end.
    fn finish(&mut self, tally: &mut Tally) -> Result<(), Violation> {
        // A small buffer moves few bytes per round.
        let mut left = [1, 0].map(|receiver: usize| {
            let buffer = self.connection.sides[receiver].endpoint.config();
            let most = u64::from(buffer.receive_buffer) * 20;
            self.rng.below(most.min(20_000)) as usize
        });
        let mut rounds = 0;
        while !self.is_over() {
            rounds += 1;
            ensure!(
                rounds < ROUNDS_MAX,
                "a stream does not end: {:?}",
                self.programs
            );
            let mut moved = false;
            for side in [0, 1] {
                if self.programs[side].is_dead() {
                    continue;
                }
                if left[side] > 0 {
                    let written = self.write(side, left[side])?;
                    left[side] -= written;
                    moved |= written > 0;
                    if !self.programs[side].may_write() {
                        left[side] = 0;
                    }
                } else if self.programs[side].may_write() {
                    self.close(side, Close::Write)?;
                    moved = true;
                }
                let wanted = self.rng.between(1, 3000) as usize;
                moved |= self.read(side, wanted)? > 0;
                moved |= self.connection.deliver(side)?;
                moved |= self.connection.acknowledge(side)?;
                moved |= self.look(side)?;
                if self.programs[side].has_read_all() && !self.programs[side].has_ended_both() {
                    self.close(side, Close::Both)?;
                    moved = true;
                }
            }
            self.audit()?;
            ensure!(
                moved || self.is_over(),
                "a stream is stuck with {left:?} bytes left: {:?}, {:?}",
                self.programs,
                self.connection.sides.each_ref().map(|side| &side.endpoint)
            );
        }
        self.count(tally);
        Ok(())
    }

    /// Whether each side has ended or crashed.
    fn is_over(&self) -> bool {
        let sides = self.connection.sides.iter().zip(&self.programs);
        let mut each = sides.map(|(side, program)| {
            let phase = side.endpoint.phase();
            let is_over = matches!(phase, Phase::Disconnected | Phase::Failed);
            program.is_dead() || is_over && side.is_quiet() && program.has_read_all()
        });
        each.all(|is_over| is_over)
    }

    fn count(&self, tally: &mut Tally) {
        for (side, program) in self.connection.sides.iter().zip(&self.programs) {
            tally.count(match side.endpoint.phase() {
                Phase::Disconnected => "stream: ended in order",
                _ => "stream: failed",
            });
            tally.add("stream: bytes read", program.bytes_read());
            tally.add("stream: keepalive", side.counts.keepalives);
            tally.add("stream: write to mapped memory", side.counts.direct_writes);
            tally.add("stream: larger buffer", side.counts.grown);
            tally.add("stream: receiver not ready", side.counts.not_ready);
            tally.add("stream: flushed work", side.counts.flushed);
            tally.digest(self.trace.now(), &program.bytes_read().to_le_bytes());
        }
    }
}

fn config(rng: &mut Rng, signalling: Signalling) -> Config {
    let inline = rng.pick(&[0, 4, 16, 64]);
    let longest = rng.pick(&[2200, 9000]);
    let send_buffer = rng.between(2048, longest) as u32;
    Config {
        send_buffer,
        receive_buffer: rng.between(2, rng.clone().pick(&[60, 1000, 5000])) as u32,
        grown_send_buffer: rng.pick(&[0, send_buffer + 100, 20_000]),
        grown_receive_buffer: rng.pick(&[0, 1000, 10_000]),
        stalls: rng.pick(&[1, 2, 8]),
        send_queue: rng.between(16, 40) as u16,
        receive_queue: rng.between(16, 40) as u16,
        // Messages of four bytes must fit inline.
        inline: if signalling == Signalling::Sends {
            inline.max(4)
        } else {
            inline
        },
        iomaps: rng.pick(&[0, side::REGIONS as u16]),
        signalling,
        big_endian: rng.percent(30),
    }
}
