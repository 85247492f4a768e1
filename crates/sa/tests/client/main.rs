//! The client and its thread on a scripted transport.

mod administrator;
mod calls;
mod leases;
mod reach;
#[path = "../scripted/mod.rs"]
mod scripted;
mod threads;
