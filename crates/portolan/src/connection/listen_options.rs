//! Options of a listener.

use std::sync::Arc;

use portolan_provider::traits::Provider;

use super::transport::Transport;
use crate::setters::setters;

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
    /// Whether the address of all of IPv6 (`[::]`) leaves IPv4 to others. By default it serves IPv4, too, as a socket without
    /// `IPV6_V6ONLY` does. Without effect for other addresses.
    pub only_v6: bool,
}

impl Default for ListenOptions {
    fn default() -> Self {
        Self {
            transport: Transport::default(),
            backlog: 128,
            provider: None,
            only_v6: false,
        }
    }
}

setters! {
    ListenOptions {
        transport: Transport,
        backlog: u32,
        provider: Arc<dyn Provider>,
        only_v6: bool,
    }
}
