//! Serves one connection: rping's server over the library's asynchronous interface.

use portolan::tasks::AsyncConnection;
use portolan::{Buffer, Cause, RemoteMemory};

use super::messages::Outbox;
use crate::rping::{self, Advertisement, GO_AHEAD, MESSAGE_LEN, Server, ServerStep};

/// Why a session ended, other than by a disconnect between two pings.
#[derive(Debug, thiserror::Error)]
pub(super) enum Broken {
    /// The connection failed.
    #[error(transparent)]
    Connection(#[from] portolan::Error),
    /// The peer does not speak rping's protocol.
    #[error("the peer does not speak rping's protocol: {0}")]
    Protocol(#[from] rping::Error),
    /// The peer disconnected during a ping.
    #[error("the peer disconnected in the middle of a ping")]
    MidPing,
}

/// A connection being served.
#[derive(Debug)]
pub(super) struct Session {
    connection: AsyncConnection,
    server: Server,
    outbox: Outbox,
    /// The data of the current ping, with exactly its length; reused for the next ping.
    data: Option<Buffer>,
}

impl Session {
    pub(super) fn new(connection: AsyncConnection) -> Session {
        Session {
            connection,
            server: Server::new(),
            outbox: Outbox::new(MESSAGE_LEN),
            data: None,
        }
    }

    /// Pings that were answered.
    pub(super) fn pings(&self) -> u64 {
        self.server.pings()
    }

    /// Serves until the peer disconnects.
    pub(super) async fn serve(&mut self) -> Result<(), Broken> {
        loop {
            let step = match self.connection.receive().await {
                Ok(message) => self.server.message(&message)?,
                Err(error) if matches!(error.cause, Cause::Disconnected) => {
                    return if self.server.is_busy() {
                        Err(Broken::MidPing)
                    } else {
                        Ok(())
                    };
                }
                Err(error) => return Err(error.into()),
            };
            match step {
                ServerStep::Read(source) => {
                    let buffer = self.buffer(source.size)?;
                    let posted = self.connection.read(buffer, remote(source));
                    let read = posted.map_err(|failed| failed.error)?.await;
                    self.data = Some(read.map_err(|failed| failed.error)?.buffer);
                    self.server.read_done()?;
                }
                ServerStep::Write(sink) => {
                    let buffer = self.buffer(sink.size)?;
                    let posted = self.connection.write(buffer, remote(sink));
                    let write = posted.map_err(|failed| failed.error)?.await;
                    self.data = Some(write.map_err(|failed| failed.error)?.buffer);
                    self.server.write_done()?;
                }
            }
            self.go_ahead().await?;
        }
    }

    /// The stored buffer if it has this length, otherwise a new one.
    fn buffer(&mut self, size: u32) -> portolan::Result<Buffer> {
        let size = size as usize;
        match self.data.take().filter(|buffer| buffer.len() == size) {
            Some(buffer) => Ok(buffer),
            None => self.connection.get_ref().buffer(size),
        }
    }

    async fn go_ahead(&mut self) -> portolan::Result<()> {
        let buffer = match self.outbox.full() {
            None => None,
            Some(transfer) => {
                let done = self.connection.finish(transfer).await;
                Some(done.map_err(|failed| failed.error)?.buffer)
            }
        };
        self.outbox
            .post(self.connection.get_ref(), &GO_AHEAD, buffer)
    }
}

fn remote(advertised: Advertisement) -> RemoteMemory {
    RemoteMemory::new(advertised.addr, u64::from(advertised.size), advertised.rkey)
}
