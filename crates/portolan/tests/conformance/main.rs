//! What every provider keeps, written once against the provider's traits.
//!
//! `PORTOLAN_PROVIDER` chooses the provider (the software device by default), and
//! `PORTOLAN_TEST_ADDRESS` a local address that one of its devices serves (127.0.0.1 by default). The
//! program of these tests runs by itself on any machine.

mod addresses;
mod by_route;
mod connections;
mod datagrams;
mod events;
mod forks;
mod pair;
mod transfers;
mod verbs;
mod windows;
mod written;
