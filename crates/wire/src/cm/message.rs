//! Any CM message, as a management datagram.

use core::fmt;

use super::body::BODY_LEN;
use super::{
    AprRepr, DrepRepr, DreqRepr, LapRepr, MraRepr, RejRepr, RepRepr, ReqRepr, RtuRepr, SidrRepRepr,
    SidrReqRepr,
};
use crate::bytes::{Value, expect};
use crate::mad::{BASE_VERSION, MAD_LEN, MadHeaderRepr, MadPacket, Method, MgmtClass};
use crate::{Error, Result};

/// The version of the CM class format.
pub const CLASS_VERSION: u8 = 2;

macro_rules! messages {
    ($($(#[$doc:meta])* $name:ident($repr:ident) = $id:literal;)*) => {
        /// The message type of a MAD of class CM (IBTA 16.7).
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u16)]
        pub enum AttributeId {
            $($(#[$doc])* $name = $id,)*
        }

        impl AttributeId {
            /// All message types, by value. The values are consecutive.
            pub const ALL: &[AttributeId] = &[$(AttributeId::$name,)*];

            /// The attribute with this value.
            pub const fn from_value(value: u16) -> Option<AttributeId> {
                Some(match value {
                    $($id => AttributeId::$name,)*
                    _ => return None,
                })
            }
        }

        /// A message of the communication manager.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum CmMessage {
            $($(#[$doc])* $name($repr),)*
        }

        impl CmMessage {
            /// The type of the message.
            pub const fn attribute_id(&self) -> AttributeId {
                match self {
                    $(CmMessage::$name(_) => AttributeId::$name,)*
                }
            }

            fn read(id: AttributeId, body: &[u8; BODY_LEN]) -> CmMessage {
                match id {
                    $(AttributeId::$name => CmMessage::$name(Value::read(body)),)*
                }
            }

            fn write(&self, body: &mut [u8; BODY_LEN]) -> Result<()> {
                match self {
                    $(CmMessage::$name(message) => message.write(stringify!($name), body),)*
                }
            }
        }

        impl fmt::Display for CmMessage {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("CM ")?;
                match self {
                    $(CmMessage::$name(message) => message.fmt(f),)*
                }
            }
        }

        $(impl From<$repr> for CmMessage {
            fn from(message: $repr) -> CmMessage {
                CmMessage::$name(message)
            }
        })*
    };
}

messages! {
    /// Connection request.
    Req(ReqRepr) = 0x10;
    /// Message receipt acknowledgement.
    Mra(MraRepr) = 0x11;
    /// Reject.
    Rej(RejRepr) = 0x12;
    /// Reply.
    Rep(RepRepr) = 0x13;
    /// Ready to use.
    Rtu(RtuRepr) = 0x14;
    /// Disconnect request.
    Dreq(DreqRepr) = 0x15;
    /// Disconnect reply.
    Drep(DrepRepr) = 0x16;
    /// Service id resolution request.
    SidrReq(SidrReqRepr) = 0x17;
    /// Service id resolution response.
    SidrRep(SidrRepRepr) = 0x18;
    /// Load alternate path.
    Lap(LapRepr) = 0x19;
    /// Alternate path response.
    Apr(AprRepr) = 0x1A;
}

impl CmMessage {
    /// Reads a management datagram of class CM.
    ///
    /// # Errors
    ///
    /// [`Error::Truncated`] and [`Error::Malformed`] if it is not [`MAD_LEN`] bytes long;
    /// [`Error::Unsupported`] if the base version, class, class version, method or attribute is not
    /// that of a CM message. To answer such a datagram, read its header with [`MadPacket`].
    pub fn parse(mad: &[u8]) -> Result<(MadHeaderRepr, CmMessage)> {
        let mad = MadPacket::new_checked(mad)?;
        let header = mad.header();
        expect("MAD base version", header.base_version, BASE_VERSION)?;
        expect("MAD class", header.mgmt_class.0, MgmtClass::CM.0)?;
        expect("CM class version", header.class_version, CLASS_VERSION)?;
        expect("CM method", header.method.0, Method::SEND.0)?;
        let id = AttributeId::from_value(header.attribute_id).ok_or(Error::Unsupported {
            what: "CM attribute",
            got: header.attribute_id.into(),
        })?;
        let mut message = CmMessage::read(id, mad.data());
        if let CmMessage::Req(ReqRepr { ece, .. })
        | CmMessage::Rep(RepRepr { ece, .. })
        | CmMessage::SidrRep(SidrRepRepr { ece, .. }) = &mut message
        {
            ece.options = header.attribute_modifier;
        }
        Ok((header, message))
    }

    /// Writes the message as a management datagram with transaction id `tid`.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] for a value wider than its field, with `mad` unchanged.
    pub fn emit(&self, tid: u64, mad: &mut [u8; MAD_LEN]) -> Result<()> {
        let mut body = [0; BODY_LEN];
        self.write(&mut body)?;
        let header = MadHeaderRepr {
            base_version: BASE_VERSION,
            mgmt_class: MgmtClass::CM,
            class_version: CLASS_VERSION,
            method: Method::SEND,
            status: 0,
            class_specific: 0,
            tid,
            attribute_id: self.attribute_id() as u16,
            attribute_modifier: self.ece_options(),
        };
        let at = header.emit(mad)?;
        crate::bytes::put("CM message", &body, mad.get_mut(at..).unwrap_or_default())?;
        Ok(())
    }

    /// The vendor's options in the attribute modifier.
    const fn ece_options(&self) -> u32 {
        match self {
            CmMessage::Req(ReqRepr { ece, .. })
            | CmMessage::Rep(RepRepr { ece, .. })
            | CmMessage::SidrRep(SidrRepRepr { ece, .. }) => ece.options,
            _ => 0,
        }
    }

    /// The sender's communication id; in SIDR messages, the request id.
    pub const fn local_comm_id(&self) -> u32 {
        match self {
            CmMessage::Req(message) => message.local_comm_id,
            CmMessage::Mra(message) => message.local_comm_id,
            CmMessage::Rej(message) => message.local_comm_id,
            CmMessage::Rep(message) => message.local_comm_id,
            CmMessage::Rtu(message) => message.local_comm_id,
            CmMessage::Dreq(message) => message.local_comm_id,
            CmMessage::Drep(message) => message.local_comm_id,
            CmMessage::SidrReq(message) => message.request_id,
            CmMessage::SidrRep(message) => message.request_id,
            CmMessage::Lap(message) => message.local_comm_id,
            CmMessage::Apr(message) => message.local_comm_id,
        }
    }

    /// The receiver's communication id, which identifies the connection at the receiver; in a SIDR
    /// response, the request id. `None` in REQ and SIDR REQ, which start an exchange.
    pub const fn remote_comm_id(&self) -> Option<u32> {
        Some(match self {
            CmMessage::Req(_) | CmMessage::SidrReq(_) => return None,
            CmMessage::Mra(message) => message.remote_comm_id,
            CmMessage::Rej(message) => message.remote_comm_id,
            CmMessage::Rep(message) => message.remote_comm_id,
            CmMessage::Rtu(message) => message.remote_comm_id,
            CmMessage::Dreq(message) => message.remote_comm_id,
            CmMessage::Drep(message) => message.remote_comm_id,
            CmMessage::SidrRep(message) => message.request_id,
            CmMessage::Lap(message) => message.remote_comm_id,
            CmMessage::Apr(message) => message.remote_comm_id,
        })
    }
}
