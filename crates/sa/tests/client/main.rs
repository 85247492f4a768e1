//! The client and its thread over a scripted transport.

mod administrator;
mod calls;
mod leases;
mod reach;
mod threads;
