//! Connects streams.

use std::net::SocketAddr;

use portolan_provider::Result;

use super::options::StreamOptions;
use super::socket::Connecting;
use super::stream::Stream;
use crate::connection::Race;
use crate::deadline;
use crate::resolve::resolve;

impl Stream {
    /// Connects to `host:port` with default options.
    ///
    /// # Errors
    /// As for [`Stream::connect_with`].
    pub fn connect(destination: &str) -> Result<Self> {
        Self::connect_with(destination, &StreamOptions::default())
    }

    /// Connects to `host:port`. Addresses of a name are tried as by [`Connector::connect`](crate::Connector::connect).
    ///
    /// # Errors
    /// The name is unknown, the destination is unreachable, nothing listens at the address, the peer does not use
    /// rsocket, or the deadline passed.
    pub fn connect_with(destination: &str, options: &StreamOptions) -> Result<Self> {
        let deadline = deadline::after(options.timeout);
        let resolved = resolve(destination)?.into_iter();
        let addresses: Vec<SocketAddr> = resolved.map(|each| each.addr).collect();
        match addresses[..] {
            [only] => Connecting::start(options, only, deadline)?.finish(),
            _ => {
                let start = |address, deadline| Connecting::start(options, address, deadline);
                Race::new(start, destination, addresses, deadline).run()
            }
        }
    }

    /// Connects to an address.
    ///
    /// # Errors
    /// As for [`Stream::connect_with`].
    pub fn connect_to(destination: SocketAddr, options: &StreamOptions) -> Result<Self> {
        let deadline = deadline::after(options.timeout);
        Connecting::start(options, destination, deadline)?.finish()
    }
}
