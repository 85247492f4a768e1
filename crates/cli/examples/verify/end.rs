//! One end of a connection whose data are verified.

use std::time::Duration;

use portolan::{
    Access, Buffer, Cause, Connection, Done, Options, RemoteMemory, SharedMemory, Transfer,
};

use super::message::{Initiator, Kind, LENGTH_MAX, MESSAGE_LEN, Message, Operation, Outcome, WORD};
use super::pattern::Pattern;
use super::plan::Case;

/// Guard bytes around the data, which must stay unchanged.
const GUARD: usize = 64;
const GUARD_BYTE: u8 = 0xa5;
/// Work in flight: a message in each direction, and the operation.
const DEPTH: u32 = 4;

/// Why a run cannot continue.
#[derive(Debug, thiserror::Error)]
pub(super) enum Broken {
    /// The connection failed.
    #[error(transparent)]
    Connection(#[from] portolan::Error),
    /// The peer violated the protocol.
    #[error("the peer does not speak this protocol: {0}")]
    Protocol(&'static str),
    /// An operation or a message did not complete in time.
    #[error("{what} did not complete within {timeout:?}")]
    Late {
        what: &'static str,
        timeout: Duration,
    },
}

impl Broken {
    fn is_disconnected(&self) -> bool {
        matches!(self, Self::Connection(error) if matches!(error.cause, Cause::Disconnected))
    }
}

/// What was wrong in a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Wrong {
    /// A byte of the data.
    #[error("byte {at} is wrong at {}", whose(.of))]
    Data { at: u64, of: Initiator },
    /// The length of the data.
    #[error("the message does not have the sent length at {}", whose(.of))]
    Length { of: Initiator },
    /// Bytes beside the data.
    #[error("bytes beside the data were changed at {}", whose(.of))]
    Neighbour { of: Initiator },
    /// An atomic returned something else than the word's value.
    #[error("an atomic returned {found:#x}, expected {expected:#x}")]
    Original { expected: u64, found: u64 },
    /// An atomic stored a wrong value.
    #[error("an atomic stored {found:#x}, expected {expected:#x}")]
    Left { expected: u64, found: u64 },
}

fn whose(side: &Initiator) -> &'static str {
    match side {
        Initiator::Asker => "this end",
        Initiator::Asked => "the peer",
    }
}

/// Options of both ends' connections: receives are posted by hand, in the order of the protocol.
pub(super) fn options(timeout: Duration) -> Options {
    Options::default()
        .send_depth(DEPTH)
        .receive_depth(0)
        .posted_receives(DEPTH)
        .timeout(timeout)
}

/// An end, with the memory that its peer accesses.
#[derive(Debug)]
pub(super) struct End {
    connection: Connection,
    area: SharedMemory,
    timeout: Duration,
    /// The receive for the next message.
    next: Option<Transfer>,
    /// The receive for data that will be sent.
    data: Option<Transfer>,
}

impl End {
    /// Wraps a connection made with [`options`]. `timeout` limits each step.
    pub(super) fn new(connection: Connection, timeout: Duration) -> portolan::Result<End> {
        let access = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let area = connection.share(GUARD + (WORD + LENGTH_MAX) as usize + GUARD, access)?;
        Ok(End {
            connection,
            area,
            timeout,
            next: None,
            data: None,
        })
    }

    /// Runs a case as the asker. The outer error ends the run.
    pub(super) fn ask(&mut self, case: &Case, number: u64) -> Result<Result<(), Wrong>, Broken> {
        let request = case.request(number);
        match request.initiator {
            Initiator::Asker => {
                self.expect_message()?;
                self.tell(request)?;
                let ready = self.hear(Kind::Ready)?;
                self.expect_message()?;
                let here = self.carry_out(&request.with_memory(ready.memory()))?;
                self.tell(Message {
                    kind: Kind::Done,
                    ..request
                })?;
                let verdict = self.hear(Kind::Verdict)?;
                Ok(judge_together(&request, here, finding(&verdict)))
            }
            Initiator::Asked => {
                let memory = self.prepare(&request)?;
                self.expect_message()?;
                self.tell(request.with_memory(memory))?;
                let verdict = self.hear(Kind::Verdict)?;
                let here = self.look_at_memory(&request)?;
                Ok(judge_together(&request, finding(&verdict), here))
            }
        }
    }

    /// Serves until the peer disconnects between two requests. Returns the number of requests.
    pub(super) fn serve(&mut self) -> Result<u64, Broken> {
        self.serve_changed(|_| {})
    }

    /// Serves, but changes each request first. Tests use this to see that wrong data are noticed.
    pub(super) fn serve_changed(&mut self, change: fn(&mut Message)) -> Result<u64, Broken> {
        let mut served = 0;
        self.expect_message()?;
        loop {
            let mut request = match self.hear(Kind::Request) {
                Ok(request) => request,
                Err(broken) if broken.is_disconnected() => return Ok(served),
                Err(broken) => return Err(broken),
            };
            change(&mut request);
            let found = match request.initiator {
                Initiator::Asker => {
                    let memory = self.prepare(&request)?;
                    self.expect_message()?;
                    self.tell(Message {
                        kind: Kind::Ready,
                        ..request.with_memory(memory)
                    })?;
                    self.hear(Kind::Done)?;
                    self.expect_message()?;
                    self.look_at_memory(&request)?
                }
                Initiator::Asked => {
                    self.expect_message()?;
                    self.carry_out(&request)?
                }
            };
            served += 1;
            match self.tell(verdict(request, found)) {
                Ok(()) => {}
                // The peer has the verdict; only its acknowledgement was lost, and is not repeated.
                Err(broken) if broken.is_disconnected() => return Ok(served),
                Err(broken) => return Err(broken),
            }
        }
    }

    /// Closes the connection. `timeout` limits the peer's answer.
    pub(super) fn close(self, timeout: Duration) -> portolan::Result<()> {
        self.connection.close(timeout)
    }

    // --- the side that executes the operation ---

    fn carry_out(&self, request: &Message) -> Result<Finding, Broken> {
        let (connection, memory) = (&self.connection, request.memory());
        let pattern = Pattern { seed: request.seed };
        let mut buffer = connection.buffer(request.length as usize)?;
        let posted = match request.operation {
            Operation::Send => {
                pattern.fill(&mut buffer);
                connection.send(buffer)
            }
            Operation::Write => {
                pattern.fill(&mut buffer);
                connection.write(buffer, memory)
            }
            Operation::Read => {
                pattern.fill_with_complement(&mut buffer);
                connection.read(buffer, memory)
            }
            Operation::FetchAdd => connection.fetch_add(buffer, memory, request.operand),
            Operation::CompareSwap => {
                connection.compare_swap(buffer, memory, request.operand, request.swap)
            }
        };
        let done = self.finish("an operation", posted.map_err(portolan::Error::from)?)?;
        Ok(match request.operation {
            Operation::Send | Operation::Write => Finding::Right,
            Operation::Read => Finding::of_data(pattern, &done.buffer),
            Operation::FetchAdd | Operation::CompareSwap => {
                Finding::Word(done.original().unwrap_or_default())
            }
        })
    }

    // --- the side with the memory ---

    /// Prepares memory for the operation of the other side.
    fn prepare(&mut self, request: &Message) -> Result<RemoteMemory, Broken> {
        let (place, length) = (place(request), request.length as usize);
        let pattern = Pattern { seed: request.seed };
        match request.operation {
            Operation::Send => {
                let mut buffer = self.connection.buffer(length)?;
                pattern.fill_with_complement(&mut buffer);
                // Posted before the receive of the next message: receives are taken in order.
                self.data = Some(self.post_receive(buffer)?);
            }
            Operation::Write | Operation::Read => {
                let mut around = vec![GUARD_BYTE; GUARD + length + GUARD];
                if let Some(data) = around.get_mut(GUARD..GUARD + length) {
                    match request.operation {
                        Operation::Read => pattern.fill(data),
                        _ => pattern.fill_with_complement(data),
                    }
                }
                self.area.store(place - GUARD, &around);
            }
            Operation::FetchAdd | Operation::CompareSwap => {
                self.area.store(place, &request.seed.to_ne_bytes());
            }
        }
        let memory = self.area.remote().slice(place, request.length as usize);
        memory.ok_or(Broken::Protocol("an address outside the memory"))
    }

    fn look_at_memory(&mut self, request: &Message) -> Result<Finding, Broken> {
        let (place, length) = (place(request), request.length as usize);
        let pattern = Pattern { seed: request.seed };
        match request.operation {
            Operation::Send => {
                let posted = self.data.take();
                let posted = posted.ok_or(Broken::Protocol("unexpected data"))?;
                let done = self.finish("data", posted)?;
                Ok(match done.length == length {
                    true => Finding::of_data(pattern, &done.buffer),
                    false => Finding::WrongLength,
                })
            }
            Operation::Write | Operation::Read => {
                let mut around = vec![0; GUARD + length + GUARD];
                self.area.load(place - GUARD, &mut around);
                let (before, rest) = around.split_at(GUARD);
                let (data, behind) = rest.split_at(length);
                let is_kept = [before, behind]
                    .concat()
                    .iter()
                    .all(|byte| *byte == GUARD_BYTE);
                Ok(match Finding::of_data(pattern, data) {
                    Finding::Right if !is_kept => Finding::WrongNeighbour,
                    found => found,
                })
            }
            Operation::FetchAdd | Operation::CompareSwap => {
                let mut word = [0; WORD as usize];
                self.area.load(place, &mut word);
                Ok(Finding::Word(u64::from_ne_bytes(word)))
            }
        }
    }

    // --- messages ---

    /// Posts the receive for the next message.
    fn expect_message(&mut self) -> portolan::Result<()> {
        let buffer = self.connection.buffer(MESSAGE_LEN)?;
        self.next = Some(self.post_receive(buffer)?);
        Ok(())
    }

    fn tell(&self, message: Message) -> Result<(), Broken> {
        let buffer = self.connection.buffer_from(&message.to_bytes())?;
        let posted = self
            .connection
            .send(buffer)
            .map_err(portolan::Error::from)?;
        self.finish("sending a message", posted)?;
        Ok(())
    }

    fn hear(&mut self, kind: Kind) -> Result<Message, Broken> {
        let posted = self.next.take();
        let posted = posted.ok_or(Broken::Protocol("an unexpected message"))?;
        let done = self.finish("a message", posted)?;
        let bytes = done.buffer.get(..done.length).unwrap_or_default();
        let message = Message::from_bytes(bytes).ok_or(Broken::Protocol("a malformed message"))?;
        match message.kind == kind {
            true => Ok(message),
            false => Err(Broken::Protocol("a message out of order")),
        }
    }

    fn post_receive(&self, buffer: Buffer) -> portolan::Result<Transfer> {
        self.connection.post_receive(buffer).map_err(Into::into)
    }

    fn finish(&self, what: &'static str, posted: Transfer) -> Result<Done, Broken> {
        let timeout = self.timeout;
        match posted.wait_within(timeout) {
            Err(_) => Err(Broken::Late { what, timeout }),
            Ok(ended) => Ok(ended.map_err(portolan::Error::from)?),
        }
    }
}

/// The findings of one side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Finding {
    Right,
    WrongData(u64),
    WrongLength,
    WrongNeighbour,
    /// For an atomic: the value that it returned or stored.
    Word(u64),
}

impl Finding {
    fn of_data(pattern: Pattern, data: &[u8]) -> Finding {
        match pattern.first_wrong(data) {
            None => Finding::Right,
            Some(at) => Finding::WrongData(at as u64),
        }
    }

    fn wrong(self, of: Initiator) -> Option<Wrong> {
        match self {
            Finding::Right | Finding::Word(_) => None,
            Finding::WrongData(at) => Some(Wrong::Data { at, of }),
            Finding::WrongLength => Some(Wrong::Length { of }),
            Finding::WrongNeighbour => Some(Wrong::Neighbour { of }),
        }
    }
}

/// The asked side's verdict.
fn verdict(request: Message, found: Finding) -> Message {
    let verdict = Message {
        kind: Kind::Verdict,
        ..request
    };
    let wrong = |outcome| Message { outcome, ..verdict };
    match found {
        Finding::Right => verdict,
        Finding::Word(operand) => Message { operand, ..verdict },
        Finding::WrongData(offset) => Message {
            offset,
            ..wrong(Outcome::WrongData)
        },
        Finding::WrongLength => wrong(Outcome::WrongLength),
        Finding::WrongNeighbour => wrong(Outcome::WrongNeighbour),
    }
}

/// The asked side's finding.
fn finding(verdict: &Message) -> Finding {
    match verdict.outcome {
        Outcome::Right if verdict.operation.is_atomic() => Finding::Word(verdict.operand),
        Outcome::Right => Finding::Right,
        Outcome::WrongData => Finding::WrongData(verdict.offset),
        Outcome::WrongLength => Finding::WrongLength,
        Outcome::WrongNeighbour => Finding::WrongNeighbour,
    }
}

/// Judges the findings of both sides together: of the one that executed, and of the one with the memory.
fn judge_together(request: &Message, initiator: Finding, target: Finding) -> Result<(), Wrong> {
    let (by, of) = match request.initiator {
        Initiator::Asker => (Initiator::Asker, Initiator::Asked),
        Initiator::Asked => (Initiator::Asked, Initiator::Asker),
    };
    if let Some(wrong) = initiator.wrong(by).or(target.wrong(of)) {
        return Err(wrong);
    }
    let (before, operand) = (request.seed, request.operand);
    let after = match request.operation {
        Operation::FetchAdd => before.wrapping_add(operand),
        Operation::CompareSwap if before == operand => request.swap,
        Operation::CompareSwap => before,
        Operation::Send | Operation::Write | Operation::Read => return Ok(()),
    };
    let word = |finding| match finding {
        Finding::Word(word) => word,
        _ => 0,
    };
    let (original, left) = (word(initiator), word(target));
    if original != before {
        let (expected, found) = (before, original);
        return Err(Wrong::Original { expected, found });
    }
    if left != after {
        let (expected, found) = (after, left);
        return Err(Wrong::Left { expected, found });
    }
    Ok(())
}

/// Offset of a request's data in the area. Words must be aligned, other data need not be.
fn place(request: &Message) -> usize {
    let offset = match request.operation.is_atomic() {
        // Checked when the message was parsed.
        true => request.offset as usize,
        false => (request.length % WORD) as usize,
    };
    GUARD + offset
}
