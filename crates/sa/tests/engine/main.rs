//! The engine against an administrator and a network, both made up and on a virtual clock.

mod administrator;
mod bad_input;
mod network;
mod queries;
mod tables;
