//! The client: starts each ping and learns from two messages that it is over.

use super::{Advertisement, Error, MESSAGE_LEN};

/// The pinging side of one connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Client {
    source: Advertisement,
    sink: Advertisement,
    awaiting: Awaiting,
}

/// States are named for what they await.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Awaiting {
    /// The caller, who starts a ping.
    Start,
    /// The server's read of the source, told by its first message.
    Read,
    /// The server's write into the sink, told by its second message.
    Write,
}

/// What to do after a message of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClientStep {
    /// Send this.
    Send([u8; MESSAGE_LEN]),
    /// The ping is complete: the sink holds the answer.
    Complete,
}

impl Client {
    /// A client whose data is read from `source` and written back to `sink`.
    pub(crate) fn new(source: Advertisement, sink: Advertisement) -> Client {
        Client {
            source,
            sink,
            awaiting: Awaiting::Start,
        }
    }

    /// Starts a ping with the data that the source holds: the message to send.
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

    /// Takes a message of the server.
    ///
    /// # Errors
    ///
    /// [`Error::MessageLength`]; [`Error::OutOfTurn`] if no ping is under way.
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
