//! The client and its thread on a scripted transport.

mod administrator;
mod calls;
mod leases;
mod reach;
mod threads;
