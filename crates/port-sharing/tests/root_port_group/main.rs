//! The group with processes of several users, which only root can start.

mod descriptors;
#[path = "../port_group/harness.rs"]
#[allow(dead_code, reason = "shared with the tests that need no root")]
mod harness;
mod limits;
#[path = "../port_group/process.rs"]
#[allow(dead_code, reason = "shared with the tests that need no root")]
mod process;
mod squat;
mod users;
