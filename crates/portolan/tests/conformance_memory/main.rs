//! The conformance suite through memory: the two ends of each connection are members of one port-sharing group, like
//! two processes of a host, so their packets use links and their one-sided requests use mapped memory.
//!
//! Each connection is checked for that: with `PORTOLAN_LOCAL=off` every test that connects fails.

#[path = "../conformance/addresses.rs"]
mod addresses;
#[path = "../conformance/by_route.rs"]
mod by_route;
#[path = "../conformance/connections.rs"]
mod connections;
#[path = "../conformance/datagrams.rs"]
mod datagrams;
#[path = "../conformance/events.rs"]
mod events;
#[path = "../conformance/forks.rs"]
mod forks;
#[path = "../conformance/high_layer.rs"]
mod high_layer;
#[path = "../conformance/pair.rs"]
mod pair;
#[path = "../conformance/transfers.rs"]
mod transfers;
mod under_test;
#[path = "../conformance/verbs.rs"]
mod verbs;
#[path = "../conformance/windows.rs"]
mod windows;
#[path = "../conformance/written.rs"]
mod written;
