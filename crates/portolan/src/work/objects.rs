//! What a connection's work is done with.

use std::sync::Arc;

use portolan_provider::traits::{CompChannel, Cq, Pd, Qp};

/// What a connection's work needs of its device.
pub(crate) struct Objects {
    pub(crate) qp: Arc<dyn Qp>,
    pub(crate) cq: Arc<dyn Cq>,
    pub(crate) channel: Arc<dyn CompChannel>,
    pub(crate) pd: Arc<dyn Pd>,
}

/// Maximum posted work of each kind. The receive queue has room for the sum of the last two, so
/// that the caller's receives never displace the connection's own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Depths {
    pub(crate) sends: u32,
    pub(crate) ring: u32,
    pub(crate) by_hand: u32,
    /// Maximum number of pieces of a send.
    pub(crate) gather: u32,
    /// Maximum number of inline bytes of a send.
    pub(crate) inline: u32,
}
