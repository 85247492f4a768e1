//! All tests of the fabric, in one module so that a run of all tests can exclude them by its name.

mod addresses;
mod command;
mod connections;
mod harness;
mod ibacm;
mod paths;
mod services;

/// The program that tests run at a host.
const HOST: &str = env!("CARGO_BIN_EXE_portolan-fabric-host");
