//! Listeners for tasks, and accepting.

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};

use ::tokio::io::unix::AsyncFd;
use portolan_provider::{Result, Step};

use super::connection::AsyncConnection;
use super::runtime::{Waited, Watched, off_runtime, ready, watch, within};
use crate::connection::{Connection, Incoming, Listener, Options, accept_outcome, unconfirmed};
use crate::deadline;

/// A [`Listener`] for tokio tasks.
///
/// ```
/// use portolan::tasks::AsyncListener;
/// use portolan::{Connector, Options};
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let listener = AsyncListener::bind("127.0.0.1:0").await?;
/// let address = listener.local_addr()?.to_string();
/// let connector = Connector::new();
/// let accept = async { listener.accept().await?.accept_async(&Options::default()).await };
/// let (client, server) = tokio::join!(connector.connect_async(&address), accept);
/// # drop((client?, server?));
/// # Ok::<(), portolan::Error>(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
pub struct AsyncListener {
    listener: AsyncFd<Watched<Listener>>,
}

impl Waited for Listener {
    fn number(&self) -> Result<RawFd> {
        self.descriptor().map(|fd| fd.as_raw_fd())
    }
}

impl AsyncListener {
    /// Listens on `addr:port`, `name:port` or `:port`, without a port on a free one; see [`Listener::bind`].
    ///
    /// # Errors
    /// As for [`Listener::bind`]; `InvalidState` outside of a runtime.
    pub async fn bind(address: &str) -> Result<Self> {
        let address = address.to_owned();
        Self::new(off_runtime(Step::Listen, move || Listener::bind(&address)).await?)
    }

    /// Registers a listener with the current runtime.
    ///
    /// # Errors
    /// There is no runtime (`InvalidState`), or it cannot watch the listener's descriptor.
    pub fn new(listener: Listener) -> Result<Self> {
        let listener = watch(listener, Step::Listen)?;
        Ok(Self { listener })
    }

    /// The underlying listener, for operations that do not wait.
    pub fn get_ref(&self) -> &Listener {
        &self.listener.get_ref().0
    }

    /// The listening address, with its port.
    ///
    /// # Errors
    /// As for [`Listener::local_addr`].
    pub fn local_addr(&self) -> Result<SocketAddr> {
        self.get_ref().local_addr()
    }

    /// Waits for the next connection request.
    ///
    /// # Errors
    /// As for [`Listener::accept`].
    pub async fn accept(&self) -> Result<Incoming> {
        ready(&self.listener, Listener::try_accept).await
    }
}

impl Incoming {
    /// Accepts the request and waits until the peer confirms; see [`Incoming::accept_with`].
    ///
    /// # Errors
    /// As for [`Incoming::accept_with`]; `InvalidState` outside of a runtime.
    pub async fn accept_async(self, options: &Options) -> Result<AsyncConnection> {
        let deadline = deadline::after(options.timeout);
        super::runtime::runtime(Step::Accept)?;
        let (inner, request) = self.start_accept(options, deadline)?;
        let events = watch(inner.events.clone(), Step::Accept)?;
        loop {
            let event = ready(&events, |events| events.try_next_event());
            let event = within(deadline, Step::Accept, event)
                .await
                .map_err(|error| unconfirmed(&inner, options, error))?;
            if let Some(outcome) = accept_outcome(&inner, &event) {
                outcome?;
                // The connection registers the same descriptor, which tokio accepts only once.
                drop(events);
                let private_data = request.private_data.into_vec();
                return AsyncConnection::new(Connection::new(inner, private_data));
            }
        }
    }
}
