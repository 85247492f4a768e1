//! Channels, ids and queue pairs with the semantics of `rdma_cm(7)`.

mod channel;
mod datagrams;
mod ending;
mod endpoints;
mod handshake;
mod migration;
mod names;
mod synchronous;
