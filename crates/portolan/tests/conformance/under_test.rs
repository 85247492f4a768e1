//! The provider under test: both ends of a connection use the same one.

use std::sync::Arc;

use portolan::provider::default_provider;
use portolan::provider::traits::Provider;
use portolan::wire::Qpn;

/// The provider of passive ends, and of everything that has no peer.
pub(crate) fn provider() -> Arc<dyn Provider> {
    default_provider().unwrap()
}

/// The provider of active ends.
pub(crate) fn active_provider() -> Arc<dyn Provider> {
    provider()
}

/// Called with both queue pairs of each new connection: active, passive.
pub(crate) fn established(_: [Qpn; 2]) {}
