//! Options of a listener.

use std::sync::Arc;

use portolan_provider::traits::Provider;

use super::transport::Transport;

/// Options of a [`Listener`](crate::Listener).
///
/// ```
/// use portolan::{ListenOptions, Listener};
///
/// let options = ListenOptions::default().backlog(1024);
/// let listener = Listener::bind_with("127.0.0.1:0", &options)?;
/// # Ok::<(), portolan::Error>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ListenOptions {
    /// Transport service of the listener's connections.
    pub transport: Transport,
    /// Maximum number of queued connection requests. Further ones are dropped, and the peers repeat them.
    pub backlog: u32,
    /// Provider; `None`: the address decides ([`crate::provider::at`]), and the wildcard address has all.
    pub provider: Option<Arc<dyn Provider>>,
}

impl Default for ListenOptions {
    fn default() -> Self {
        Self {
            transport: Transport::default(),
            backlog: 128,
            provider: None,
        }
    }
}

impl ListenOptions {
    /// Sets [`ListenOptions::transport`].
    #[must_use]
    pub fn transport(mut self, transport: Transport) -> Self {
        self.transport = transport;
        self
    }

    /// Sets [`ListenOptions::backlog`].
    #[must_use]
    pub fn backlog(mut self, backlog: u32) -> Self {
        self.backlog = backlog;
        self
    }

    /// Sets [`ListenOptions::provider`].
    #[must_use]
    pub fn provider(mut self, provider: Arc<dyn Provider>) -> Self {
        self.provider = Some(provider);
        self
    }
}
