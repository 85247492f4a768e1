//! Messages of the communication manager (IBTA 12.6, 12.8 and 12.11; class version 2), one file per
//! family.
//!
//! [`CmMessage`] parses and emits whole management datagrams. Every message has private data. The
//! wire does not carry its length: the receiver sees the whole area, including trailing zeros.

mod body;
mod disconnect;
mod lap;
mod message;
mod mra;
mod path;
mod private_data;
mod reason;
mod rej;
mod rep;
mod req;
mod rtu;
mod sidr;

pub use body::{BODY_LEN, Ece};
pub use disconnect::{DrepRepr, DreqRepr};
pub use lap::{AprRepr, AprStatus, LapRepr};
pub use message::{AttributeId, CLASS_VERSION, CmMessage};
pub use mra::{MraMessage, MraRepr};
pub use path::{PathMtu, PathRepr};
pub use private_data::{AdditionalInfo, PrivateData};
pub use reason::{RejectReason, SidrStatus};
pub use rej::{RejMessage, RejRepr};
pub use rep::RepRepr;
pub use req::{EXTENDED_XRC, ReqRepr, TransportService};
pub use rtu::RtuRepr;
pub use sidr::{SidrRepRepr, SidrReqRepr};

#[cfg(test)]
mod tests;
