//! The formats RDMA speaks on the wire: IBTA transport headers as RoCEv2 carries them, the
//! invariant CRC, management datagrams and the messages of the connection manager.
//!
//! ```
//! use portolan_wire::bth::{BthRepr, Opcode};
//! use portolan_wire::rocev2::Headers;
//! use portolan_wire::{Psn, Qpn};
//!
//! let mut bytes = [0; 64];
//! let length = Headers::new(Opcode::RcSendOnly, Qpn::new(17), Psn::new(1)).emit(&mut bytes)?;
//! let header = BthRepr::parse(&bytes[..length])?;
//! assert_eq!((header.opcode, header.dest_qp), (Opcode::RcSendOnly, Qpn::new(17)));
//! # Ok::<(), portolan_wire::Error>(())
//! ```
//!
//! Everything here is a pure function of bytes: no allocation, no clock, no socket.
//!
//! # Two shapes
//!
//! A *view* ([`rocev2::Packet`], [`mad::MadPacket`]) borrows a buffer whose lengths were checked
//! once, and reads fields from it. A *repr* ([`rocev2::Headers`], [`cm::ReqRepr`], …) is the
//! high-level value of a header; `parse` makes it from bytes and `emit` writes it. Emitting writes
//! every byte of the header, reserved bits as zero, so a reused buffer leaks nothing. The declaration
//! of a repr has the place of each field, from which both directions are generated.
//!
//! # The no-panic contract
//!
//! Bytes that come from the network never panic, whatever they are. A function that takes a
//! `&[u8]` checks its length and returns [`Error::Truncated`]; a value the standard reserves is
//! [`Error::Unsupported`] or [`Error::Malformed`]. Inside, fields are read from arrays at constant
//! offsets, which the compiler checks. Emitting never panics either: a buffer too short is
//! [`Error::NoRoom`], a value wider than its field [`Error::OutOfRange`].
//!
//! # Byte order
//!
//! Fields of public types are in host order; the wire is big-endian throughout, with the ICRC,
//! which is little-endian, as the one exception.
//!
//! # Features
//!
//! `std` lets the CRC detect carry-less multiplication at run time. The API does not change.

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

pub mod addr;
pub mod bth;
mod bytes;
pub mod cm;
pub mod cma;
mod error;
pub mod eth;
pub mod icrc;
pub mod ip;
pub mod mad;
pub mod rocev2;
pub mod sa;
pub mod timer;

pub use addr::{Gid, PKey, PortSpace, Psn, QKey, Qpn, ServiceId};
pub use error::{Error, Result};
