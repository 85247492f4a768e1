//! The engine against a simulated administrator and network on a virtual clock.

mod administrator;
mod bad_input;
mod network;
mod queries;
mod tables;
