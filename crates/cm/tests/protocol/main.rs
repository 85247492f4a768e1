//! Tests of the connection protocol from outside: two engines on a virtual clock, and single engines fed with
//! arbitrary messages.

mod cells;
mod datagram_loss;
mod datagrams;
mod destroy;
mod devices;
mod expected_listener;
mod golden;
mod half_open;
mod handshake;
mod hostile;
mod infiniband;
mod listeners;
mod loss;
mod multicast;
mod net;
mod options;
mod peer_death;
mod ports;
mod random_runs;
mod rejection;
mod resolving;
mod scale;
mod stale;
mod transitions;
mod xrc;
