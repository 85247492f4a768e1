//! The server: reads the client's advertised buffer and writes it back.

use super::{Advertisement, Error, MAX_SIZE};

/// The serving side of one connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Server {
    awaiting: Awaiting,
    /// Data length of the current ping.
    size: u32,
    pings: u64,
}

/// States, named by what they wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Awaiting {
    /// The client's first message: its source.
    Source,
    /// The completion of our read.
    ReadDone,
    /// The client's second message: its sink.
    Sink,
    /// The completion of our write.
    WriteDone,
}

/// The work to post; report its completion by [`Server::read_done`] or [`Server::write_done`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ServerStep {
    /// RDMA READ this whole buffer.
    Read(Advertisement),
    /// RDMA WRITE the data that was read to the start of this buffer; `size` is its length.
    Write(Advertisement),
}

impl Server {
    /// Creates a server that waits for its first ping.
    pub(crate) fn new() -> Server {
        Server {
            awaiting: Awaiting::Source,
            size: 0,
            pings: 0,
        }
    }

    /// Number of completed pings.
    pub(crate) fn pings(&self) -> u64 {
        self.pings
    }

    /// Whether a ping is in progress.
    pub(crate) fn is_busy(&self) -> bool {
        self.awaiting != Awaiting::Source
    }

    /// Handles a message from the client.
    ///
    /// # Errors
    ///
    /// [`Error::MessageLength`], [`Error::Size`], [`Error::SinkTooSmall`]; [`Error::OutOfTurn`] if the client was not
    /// waiting for our last message.
    pub(crate) fn message(&mut self, message: &[u8]) -> Result<ServerStep, Error> {
        let advertised = Advertisement::parse(message)?;
        match self.awaiting {
            Awaiting::Source => {
                if advertised.size == 0 || advertised.size > MAX_SIZE {
                    return Err(Error::Size {
                        got: advertised.size,
                        max: MAX_SIZE,
                    });
                }
                self.size = advertised.size;
                self.awaiting = Awaiting::ReadDone;
                Ok(ServerStep::Read(advertised))
            }
            Awaiting::Sink => {
                if advertised.size < self.size {
                    return Err(Error::SinkTooSmall {
                        source_size: self.size,
                        sink: advertised.size,
                    });
                }
                self.awaiting = Awaiting::WriteDone;
                Ok(ServerStep::Write(Advertisement {
                    size: self.size,
                    ..advertised
                }))
            }
            Awaiting::ReadDone | Awaiting::WriteDone => Err(self.awaiting.out_of_turn("a message")),
        }
    }

    /// Handles the completion of the read. Then send [`super::GO_AHEAD`].
    ///
    /// # Errors
    ///
    /// [`Error::OutOfTurn`] if no read was requested.
    pub(crate) fn read_done(&mut self) -> Result<(), Error> {
        if self.awaiting != Awaiting::ReadDone {
            return Err(self.awaiting.out_of_turn("the completion of a read"));
        }
        self.awaiting = Awaiting::Sink;
        Ok(())
    }

    /// Handles the completion of the write, which ends the ping. Then send [`super::GO_AHEAD`].
    ///
    /// # Errors
    ///
    /// [`Error::OutOfTurn`] if no write was requested.
    pub(crate) fn write_done(&mut self) -> Result<(), Error> {
        if self.awaiting != Awaiting::WriteDone {
            return Err(self.awaiting.out_of_turn("the completion of a write"));
        }
        self.awaiting = Awaiting::Source;
        self.pings += 1;
        Ok(())
    }
}

impl Awaiting {
    fn out_of_turn(self, what: &'static str) -> Error {
        let awaited = match self {
            Awaiting::Source => "the client's source",
            Awaiting::ReadDone => "the completion of our read",
            Awaiting::Sink => "the client's sink",
            Awaiting::WriteDone => "the completion of our write",
        };
        Error::OutOfTurn { what, awaited }
    }
}
