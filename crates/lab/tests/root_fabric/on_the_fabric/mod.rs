//! All tests are in here, so that a run of every test can leave them out by this name.

mod addresses;
mod command;
mod connections;
mod harness;
mod ibacm;
mod paths;
mod services;

/// The program that does what a test has done at a host.
const HOST: &str = env!("CARGO_BIN_EXE_portolan-fabric-host");
