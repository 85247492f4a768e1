//! Identifiers on the fabric: GIDs, partition and queue keys, queue pair and packet sequence
//! numbers, service ids.

mod gid;
mod key;
mod number;
mod service;

pub use gid::Gid;
pub use key::{PKey, QKey};
pub use number::{Psn, Qpn};
pub use service::{PortSpace, ServiceId};
