//! Setters of [`Options`].

use std::time::Duration;

use super::options::Options;
use crate::domain::Domain;
use crate::work::{Keepalive, SharedReceiveQueue};

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

    /// Sets [`Options::receive_size`].
    #[must_use]
    pub fn receive_size(mut self, receive_size: usize) -> Self {
        self.receive_size = receive_size;
        self
    }

    /// Sets [`Options::held_messages`].
    #[must_use]
    pub fn held_messages(mut self, held_messages: u32) -> Self {
        self.held_messages = held_messages;
        self
    }

    /// Sets [`Options::shared_receives`].
    #[must_use]
    pub fn shared_receives(
        mut self,
        shared_receives: impl Into<Option<SharedReceiveQueue>>,
    ) -> Self {
        self.shared_receives = shared_receives.into();
        self
    }

    /// Sets [`Options::inline`].
    #[must_use]
    pub fn inline(mut self, inline: u32) -> Self {
        self.inline = inline;
        self
    }

    /// Sets [`Options::gather`].
    #[must_use]
    pub fn gather(mut self, gather: u32) -> Self {
        self.gather = gather;
        self
    }

    /// Sets [`Options::domain`].
    #[must_use]
    pub fn domain(mut self, domain: impl Into<Option<Domain>>) -> Self {
        self.domain = domain.into();
        self
    }

    /// Sets [`Options::posted_receives`].
    #[must_use]
    pub fn posted_receives(mut self, posted_receives: u32) -> Self {
        self.posted_receives = posted_receives;
        self
    }

    /// Sets [`Options::responder_resources`].
    #[must_use]
    pub fn responder_resources(mut self, responder_resources: u8) -> Self {
        self.responder_resources = responder_resources;
        self
    }

    /// Sets [`Options::initiator_depth`].
    #[must_use]
    pub fn initiator_depth(mut self, initiator_depth: u8) -> Self {
        self.initiator_depth = initiator_depth;
        self
    }

    /// Sets [`Options::retry_count`].
    #[must_use]
    pub fn retry_count(mut self, retry_count: u8) -> Self {
        self.retry_count = retry_count;
        self
    }

    /// Sets [`Options::rnr_retry_count`].
    #[must_use]
    pub fn rnr_retry_count(mut self, rnr_retry_count: u8) -> Self {
        self.rnr_retry_count = rnr_retry_count;
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

    /// Sets [`Options::keepalive`].
    #[must_use]
    pub fn keepalive(mut self, keepalive: impl Into<Option<Keepalive>>) -> Self {
        self.keepalive = keepalive.into();
        self
    }

    /// Sets [`Options::type_of_service`].
    #[must_use]
    pub fn type_of_service(mut self, type_of_service: impl Into<Option<u8>>) -> Self {
        self.type_of_service = type_of_service.into();
        self
    }
}
