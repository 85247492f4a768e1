//! Connecting as a future.

use std::net::SocketAddr;

use portolan_addrinfo::names::pool::DEADLINE_MAX;
use portolan_provider::{Result, Step};

use super::connection::AsyncConnection;
use super::race::race;
use super::runtime::{runtime, within};
use crate::connection::{Connecting, Connector};
use crate::deadline;
use crate::resolve::resolve_async;

impl Connector {
    /// Connects to `host:port`; see [`Connector::connect`].
    ///
    /// # Errors
    /// As for [`Connector::connect`]; `InvalidState` outside of a runtime.
    pub async fn connect_async(&self, destination: &str) -> Result<AsyncConnection> {
        runtime(Step::Connect)?;
        let deadline = deadline::after(self.timeout_of_connect());
        let resolved = resolve_async(destination, deadline::left(deadline).min(DEADLINE_MAX));
        let resolved = within(deadline, Step::ResolveName, resolved).await?;
        let addresses = resolved.into_iter().map(|each| each.addr);
        self.connect_any(destination, addresses.collect(), deadline)
            .await
    }

    /// Connects to an address; see [`Connector::connect_to`].
    ///
    /// # Errors
    /// As for [`Connector::connect_async`].
    pub async fn connect_to_async(&self, destination: SocketAddr) -> Result<AsyncConnection> {
        let deadline = deadline::after(self.timeout_of_connect());
        self.connect_any("nobody", vec![destination], deadline)
            .await
    }

    async fn connect_any(
        &self,
        name: &str,
        addresses: Vec<SocketAddr>,
        deadline: std::time::Instant,
    ) -> Result<AsyncConnection> {
        let connector = self.clone();
        let start = move |address, deadline| Connecting::start(&connector, address, deadline);
        AsyncConnection::new(race(start, name, addresses, deadline).await?)
    }
}
