//! The statements of rdma_getaddrinfo(3) in order, tested with scripted look-ups; see `docs/promises.md`.

mod arguments;
mod errors;
mod flags;
mod routes;
mod script;
mod sources;
