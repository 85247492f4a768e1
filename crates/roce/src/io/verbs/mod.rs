//! The verbs: the objects that a program holds, over the [host](crate::io::host) of queue pairs.

pub(crate) mod ah;
pub(crate) mod channel;
pub(crate) mod cq;
pub(crate) mod device;
pub(crate) mod devices;
pub(crate) mod mr;
pub(crate) mod mw;
pub(crate) mod pd;
pub(crate) mod preview;
pub(crate) mod qp;
pub(crate) mod srq;
pub(crate) mod xrcd;
