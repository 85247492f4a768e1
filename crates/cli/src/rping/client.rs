//! The client: starts each ping and follows its two messages to the end.

use super::{Advertisement, Error, MESSAGE_LEN};

/// The pinging side of one connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Client {
    source: Advertisement,
    sink: Advertisement,
    awaiting: Awaiting,
}

/// States, named by what they wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Awaiting {
    /// The caller must start a ping.
    Start,
    /// The server's read of the source, which its first message confirms.
    Read,
    /// The server's write to the sink, which its second message confirms.
    Write,
}

/// The next step after a message from the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClientStep {
    /// Send this.
    Send([u8; MESSAGE_LEN]),
    /// The ping is complete: the sink holds the answer.
    Complete,
}

impl Client {
    /// Creates a client whose data the server reads from `source` and writes back to `sink`.
    pub(crate) fn new(source: Advertisement, sink: Advertisement) -> Client {
        Client {
            source,
            sink,
            awaiting: Awaiting::Start,
        }
    }

    /// Starts a ping with the data in the source; returns the message to send.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfTurn`] if the last ping is not complete.
    pub(crate) fn start(&mut self) -> Result<[u8; MESSAGE_LEN], Error> {
        match self.awaiting {
            Awaiting::Start => {
                self.awaiting = Awaiting::Read;
                Ok(self.source.emit())
            }
            awaiting => Err(awaiting.out_of_turn("the next ping")),
        }
    }

    /// Handles a message from the server.
    ///
    /// # Errors
    ///
    /// [`Error::MessageLength`]; [`Error::OutOfTurn`] if no ping is in progress.
    pub(crate) fn message(&mut self, message: &[u8]) -> Result<ClientStep, Error> {
        if message.len() != MESSAGE_LEN {
            return Err(Error::MessageLength { got: message.len() });
        }
        match self.awaiting {
            Awaiting::Start => Err(self.awaiting.out_of_turn("a message")),
            Awaiting::Read => {
                self.awaiting = Awaiting::Write;
                Ok(ClientStep::Send(self.sink.emit()))
            }
            Awaiting::Write => {
                self.awaiting = Awaiting::Start;
                Ok(ClientStep::Complete)
            }
        }
    }
}

impl Awaiting {
    fn out_of_turn(self, what: &'static str) -> Error {
        let awaited = match self {
            Awaiting::Start => "the start of a ping",
            Awaiting::Read => "the server's go-ahead",
            Awaiting::Write => "the server's word that its write is done",
        };
        Error::OutOfTurn { what, awaited }
    }
}
