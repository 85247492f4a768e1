//! The modelled reliable connection between two sides.

use portolan_rsocket::{Config, ConnData, Op};

use super::super::failure::{Violation, violation};
use super::side::{Completion, Flight, Side};

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) sides: [Side; 2],
    /// The connection broke before a side ended the stream.
    has_broken_off: bool,
}

impl Connection {
    /// The active side starts established. The passive side learns it from the first message or from an RTU.
    pub(super) fn new(configs: [Config; 2]) -> Result<Self, Violation> {
        let mut sides = configs.map(Side::new);
        let private = sides
            .each_ref()
            .map(|side| side.endpoint.conn_data().encode());
        for (side, bytes) in sides.iter_mut().zip(private.into_iter().rev()) {
            let peer = ConnData::decode(&bytes);
            side.endpoint
                .connected(peer.map_err(|error| violation!("private data: {error}"))?);
        }
        sides[0].establish()?;
        let has_broken_off = false;
        Ok(Self {
            sides,
            has_broken_off,
        })
    }

    pub(super) fn is_broken(&self) -> bool {
        self.sides[0].is_broken
    }

    /// Whether the connection broke before a side ended the stream.
    pub(super) fn has_broken_off(&self) -> bool {
        self.has_broken_off
    }

    fn ends(&mut self, sender: usize) -> (&mut Side, &mut Side) {
        let [a, b] = &mut self.sides;
        if sender == 0 { (a, b) } else { (b, a) }
    }

    /// Delivers a side's oldest post. Returns whether something was delivered.
    pub(super) fn deliver(&mut self, sender: usize) -> Result<bool, Violation> {
        let (from, to) = self.ends(sender);
        let Some(flight) = from.posted.front() else {
            // An RTU may arrive before any message.
            if !to.is_established() && !to.is_broken {
                to.establish()?;
                return Ok(true);
            }
            return Ok(false);
        };
        from.check_memory(flight)?;
        let message = match flight.op {
            Op::Write(_) => None,
            Op::WriteWithImmediate(_, number) => Some(number),
            Op::Send => {
                let bytes = flight.bytes.first_chunk::<4>();
                let bytes = *bytes
                    .ok_or_else(|| violation!("a message of {} bytes", flight.bytes.len()))?;
                Some(match to.endpoint.config().big_endian {
                    true => u32::from_be_bytes(bytes),
                    false => u32::from_le_bytes(bytes),
                })
            }
        };
        if message.is_some() && to.receives_posted == 0 {
            from.counts.not_ready += 1;
            return Ok(false);
        }
        if let Op::Write(remote) | Op::WriteWithImmediate(remote, _) = flight.op {
            to.written(remote, &flight.bytes)?;
        }
        if let Some(number) = message {
            to.receives_posted -= 1;
            to.completions.push_back(Completion::Message(number));
        }
        from.delivered.extend(from.posted.pop_front());
        Ok(true)
    }

    /// Acknowledges a side's oldest delivered post. Returns whether there was one.
    pub(super) fn acknowledge(&mut self, sender: usize) -> Result<bool, Violation> {
        let side = &mut self.sides[sender];
        let Some(flight) = side.delivered.pop_front() else {
            return Ok(false);
        };
        side.check_memory(&flight)?;
        let (id, is_success) = (flight.id, true);
        side.completions
            .push_back(Completion::Sent { id, is_success });
        Ok(true)
    }

    /// Ends the connection. Work in flight fails, and both sides get an event. If a side ended it on purpose, delivered
    /// posts are acknowledged first.
    pub(super) fn break_off(&mut self, unexpectedly: bool) {
        if self.is_broken() {
            return;
        }
        self.has_broken_off = unexpectedly;
        for side in &mut self.sides {
            side.is_broken = true;
            side.has_event = true;
            let completed = |is_success| {
                move |flight: Flight| Completion::Sent {
                    id: flight.id,
                    is_success,
                }
            };
            let delivered = side.delivered.drain(..).map(completed(!unexpectedly));
            let lost = side.posted.drain(..).map(completed(false));
            side.completions.extend(delivered.chain(lost));
            let flushed = (0..side.receives_posted).map(|_| Completion::Flushed);
            side.completions.extend(flushed);
            side.receives_posted = 0;
        }
    }
}
