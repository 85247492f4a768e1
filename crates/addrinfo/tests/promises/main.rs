//! The statements of rdma_getaddrinfo(3), one after the other, with look-ups that answer from a script:
//! see `docs/promises.md`.

mod arguments;
mod errors;
mod flags;
mod routes;
mod script;
mod sources;
