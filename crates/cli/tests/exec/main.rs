//! `portolan exec` and `portolan cc-env`: C programs built against our headers, run on our libraries.

#[path = "../common/mod.rs"]
mod common;
mod compiler;
mod environment;
mod installation;
mod processes;
mod programs;
