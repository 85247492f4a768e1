//! The commands that use the library.

mod administrator;
mod bench;
mod datagrams;
mod demo;
mod devices;
mod doctor;
mod events;
mod failure;
mod listen;
mod mcast;
mod messages;
mod path;
mod ping;
mod ps;
mod reach;
mod resolve;
mod service;
mod session;

pub(crate) use bench::peer::run as bench_peer;
pub(crate) use bench::{BenchCommand, run as bench};
pub(crate) use datagrams::{listen as listen_datagrams, ping as ping_datagrams};
pub(crate) use demo::peer::run as demo_peer;
pub(crate) use demo::run as demo;
pub(crate) use devices::run as devices;
pub(crate) use doctor::run as doctor;
pub(crate) use events::run as events;
pub(crate) use listen::run as listen;
pub(crate) use mcast::run as mcast;
pub(crate) use path::run as path;
pub(crate) use ping::run as ping;
pub(crate) use ps::run as ps;
pub(crate) use reach::run as reach;
pub(crate) use resolve::run as resolve;
pub(crate) use service::run as service;
