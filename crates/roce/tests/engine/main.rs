//! The queue pair engine: two queue pairs on a virtual clock and a virtual network.

mod acknowledge;
mod atomic;
mod compact;
mod datagram;
mod direct;
mod draining;
mod ending;
mod errors;
mod forged;
mod golden;
mod harness;
mod loss;
mod malformed;
mod model;
mod no_room;
mod not_ready;
mod placed;
mod post_send_only;
mod pulled;
mod send_only;
mod shared_receives;
mod states;
mod transfer;
mod unreliable;
mod windows;
mod xrc;
