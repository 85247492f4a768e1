//! Setters of [`Options`].

use std::time::Duration;

use super::Options;

impl Options {
    /// Sets [`Options::send_depth`].
    #[must_use]
    pub fn send_depth(mut self, send_depth: u32) -> Self {
        self.send_depth = send_depth;
        self
    }

    /// Sets [`Options::receive_depth`].
    #[must_use]
    pub fn receive_depth(mut self, receive_depth: u32) -> Self {
        self.receive_depth = receive_depth;
        self
    }

    /// Sets [`Options::private_data`].
    #[must_use]
    pub fn private_data(mut self, private_data: impl Into<Vec<u8>>) -> Self {
        self.private_data = private_data.into();
        self
    }

    /// Sets [`Options::timeout`].
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }
}
