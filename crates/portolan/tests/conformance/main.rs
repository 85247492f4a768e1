//! Tests that every provider must pass, written against the provider's traits.
//!
//! `PORTOLAN_PROVIDER` chooses the provider (by default the software device), and `PORTOLAN_TEST_ADDRESS` a
//! local address of one of its devices (by default 127.0.0.1). This test program needs nothing else and runs on
//! any machine.

mod addresses;
mod by_route;
mod connections;
mod datagrams;
mod events;
mod forks;
mod high_layer;
mod pair;
mod transfers;
mod under_test;
mod verbs;
mod windows;
mod written;
