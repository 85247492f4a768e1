//! rping's client over the library's blocking interface.

use std::time::{Duration, Instant};

use anyhow::Result;
use portolan::provider::verbs::Access;
use portolan::{Cause, Connection, SharedMemory};

use crate::commands::messages::Outbox;
use crate::interrupt::Interrupt;
use crate::rping::{self, Advertisement, Client, ClientStep, MESSAGE_LEN, Mismatch};

/// Maximum delay until Ctrl-C is noticed.
const INTERRUPT_CHECK: Duration = Duration::from_millis(100);
/// How long the current ping may continue after Ctrl-C, so that the peer sees a clean end.
const INTERRUPT_GRACE: Duration = Duration::from_secs(1);

/// Why a ping failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Broken {
    /// The connection failed.
    #[error(transparent)]
    Connection(#[from] portolan::Error),
    /// The peer violates rping's protocol.
    #[error("the peer does not speak rping's protocol: {0}")]
    Protocol(#[from] rping::Error),
    /// The peer is silent.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// Ctrl-C, and the peer is silent.
    #[error("interrupted")]
    Interrupted,
}

/// The pings of one connection.
pub(super) struct Pinger<'a> {
    connection: &'a Connection,
    timeout: Duration,
    client: Client,
    source: SharedMemory,
    sink: SharedMemory,
    outbox: Outbox,
    sent: Vec<u8>,
    got: Vec<u8>,
}

impl Pinger<'_> {
    pub(super) fn new(connection: &Connection, size: u32, timeout: Duration) -> Result<Pinger<'_>> {
        let source = connection.share(size as usize, Access::REMOTE_READ)?;
        let sink = connection.share(size as usize, Access::REMOTE_WRITE)?;
        let advertised = |memory: &SharedMemory| {
            let remote = memory.remote();
            Advertisement {
                addr: remote.addr,
                rkey: remote.rkey,
                size,
            }
        };
        Ok(Pinger {
            connection,
            timeout,
            client: Client::new(advertised(&source), advertised(&sink)),
            source,
            sink,
            outbox: Outbox::new(MESSAGE_LEN),
            sent: vec![0; size as usize],
            got: vec![0; size as usize],
        })
    }

    /// One ping: returns its time, and whether the data was unchanged.
    pub(super) fn ping(
        &mut self,
        seq: u64,
        interrupt: &Interrupt,
    ) -> Result<(Duration, Result<(), Mismatch>), Broken> {
        rping::fill(&mut self.sent, seq);
        self.source.store(0, &self.sent);
        let start = Instant::now();
        let first = self.client.start()?;
        self.send(&first)?;
        while let ClientStep::Send(message) = self.next_step(start, interrupt)? {
            self.send(&message)?;
        }
        let time = start.elapsed();
        self.sink.load(0, &mut self.got);
        Ok((time, rping::compare(&self.sent, &self.got)))
    }

    fn send(&mut self, message: &[u8; MESSAGE_LEN]) -> Result<(), Broken> {
        Ok(self.outbox.post_or_wait(self.connection, message)?)
    }

    /// Waits for the peer's next message, checking for Ctrl-C regularly.
    fn next_step(&mut self, start: Instant, interrupt: &Interrupt) -> Result<ClientStep, Broken> {
        let mut raised: Option<Instant> = None;
        loop {
            let left = self.timeout.saturating_sub(start.elapsed());
            if interrupt.is_raised()
                && raised.get_or_insert_with(Instant::now).elapsed() >= INTERRUPT_GRACE
            {
                return Err(Broken::Interrupted);
            }
            match self.connection.receive_within(left.min(INTERRUPT_CHECK)) {
                Ok(message) => return Ok(self.client.message(&message)?),
                Err(error) if matches!(error.cause, Cause::TimedOut { .. }) => {
                    if left <= INTERRUPT_CHECK {
                        return Err(Broken::Timeout(self.timeout));
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Waits until `time`, or for Ctrl-C.
pub(super) fn sleep_until(time: Instant, interrupt: &Interrupt) {
    loop {
        let left = time.saturating_duration_since(Instant::now());
        if left.is_zero() || interrupt.is_raised() {
            return;
        }
        std::thread::sleep(left.min(INTERRUPT_CHECK));
    }
}
