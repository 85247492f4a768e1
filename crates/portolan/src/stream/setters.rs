//! Setters of [`StreamOptions`].

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use portolan_provider::traits::Provider;

use super::options::StreamOptions;

impl StreamOptions {
    /// Sets [`StreamOptions::send_buffer`].
    #[must_use]
    pub fn send_buffer(mut self, send_buffer: u32) -> Self {
        self.send_buffer = send_buffer;
        self
    }

    /// Sets [`StreamOptions::receive_buffer`].
    #[must_use]
    pub fn receive_buffer(mut self, receive_buffer: u32) -> Self {
        self.receive_buffer = receive_buffer;
        self
    }

    /// Sets [`StreamOptions::send_queue`].
    #[must_use]
    pub fn send_queue(mut self, send_queue: u16) -> Self {
        self.send_queue = send_queue;
        self
    }

    /// Sets [`StreamOptions::receive_queue`].
    #[must_use]
    pub fn receive_queue(mut self, receive_queue: u16) -> Self {
        self.receive_queue = receive_queue;
        self
    }

    /// Sets [`StreamOptions::inline`].
    #[must_use]
    pub fn inline(mut self, inline: u32) -> Self {
        self.inline = inline;
        self
    }

    /// Sets [`StreamOptions::iomaps`].
    #[must_use]
    pub fn iomaps(mut self, iomaps: u16) -> Self {
        self.iomaps = iomaps;
        self
    }

    /// Sets [`StreamOptions::timeout`].
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets [`StreamOptions::keepalive`].
    #[must_use]
    pub fn keepalive(mut self, keepalive: impl Into<Option<Duration>>) -> Self {
        self.keepalive = keepalive.into();
        self
    }

    /// Sets [`StreamOptions::source`].
    #[must_use]
    pub fn source(mut self, source: impl Into<Option<SocketAddr>>) -> Self {
        self.source = source.into();
        self
    }

    /// Sets [`StreamOptions::route`].
    #[must_use]
    pub fn route(mut self, route: impl Into<Option<Arc<[u8]>>>) -> Self {
        self.route = route.into();
        self
    }

    /// Sets [`StreamOptions::provider`].
    #[must_use]
    pub fn provider(mut self, provider: Arc<dyn Provider>) -> Self {
        self.provider = Some(provider);
        self
    }
}
