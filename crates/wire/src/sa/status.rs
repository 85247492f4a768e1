//! The status of an answer.

use core::fmt;

/// The status of a subnet administration answer: the bits common to all classes (IBTA 13.4.7) and
/// the class's own (IBTA 15.2.3).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Status(pub u16);

/// The meaning of a [`Status`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SaStatus {
    /// Success.
    Ok,
    /// Busy: the request was discarded. Retry later.
    Busy,
    /// Redirect to another address.
    Redirect,
    /// The base or class version is not supported.
    BadVersion,
    /// The method is not supported.
    MethodNotSupported,
    /// The method does not support the attribute.
    MethodAttributeNotSupported,
    /// A field of the attribute or its modifier is invalid.
    InvalidField,
    /// A reserved code of the invalid-field bits (2 to 4).
    ReservedInvalid(u8),
    /// The administrator lacks the resources to answer.
    NoResources,
    /// The request is invalid.
    RequestInvalid,
    /// No records match.
    NoRecords,
    /// More than one record matches a request for one.
    TooManyRecords,
    /// A GID of the request is invalid.
    InvalidGid,
    /// The request specifies too few components.
    InsufficientComponents,
    /// The request is denied.
    Denied,
    /// Another priority is suggested (for inform requests).
    PrioritySuggested,
    /// A reserved code of the class (the high byte).
    Reserved(u8),
}

impl Status {
    /// Success.
    pub const OK: Status = Status(0);
    /// No records match.
    pub const NO_RECORDS: Status = Status(0x0300);

    /// Decodes the status. The bits common to all classes take precedence over the class's own
    /// code.
    pub const fn decode(self) -> SaStatus {
        if self.0 & 1 != 0 {
            return SaStatus::Busy;
        }
        if self.0 & 2 != 0 {
            return SaStatus::Redirect;
        }
        match (self.0 >> 2 & 7) as u8 {
            0 => {}
            1 => return SaStatus::BadVersion,
            2 => return SaStatus::MethodNotSupported,
            3 => return SaStatus::MethodAttributeNotSupported,
            7 => return SaStatus::InvalidField,
            code => return SaStatus::ReservedInvalid(code),
        }
        match (self.0 >> 8) as u8 {
            0 => SaStatus::Ok,
            1 => SaStatus::NoResources,
            2 => SaStatus::RequestInvalid,
            3 => SaStatus::NoRecords,
            4 => SaStatus::TooManyRecords,
            5 => SaStatus::InvalidGid,
            6 => SaStatus::InsufficientComponents,
            7 => SaStatus::Denied,
            8 => SaStatus::PrioritySuggested,
            code => SaStatus::Reserved(code),
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#06x} ({})", self.0, self.decode())
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Status({self})")
    }
}

impl fmt::Display for SaStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ok => "success",
            Self::Busy => "busy",
            Self::Redirect => "redirected",
            Self::BadVersion => "version not supported",
            Self::MethodNotSupported => "method not supported",
            Self::MethodAttributeNotSupported => "method not supported for this attribute",
            Self::InvalidField => "invalid field",
            Self::NoResources => "no resources",
            Self::RequestInvalid => "invalid request",
            Self::NoRecords => "no records",
            Self::TooManyRecords => "too many records",
            Self::InvalidGid => "invalid GID",
            Self::InsufficientComponents => "insufficient components",
            Self::Denied => "denied",
            Self::PrioritySuggested => "other priority suggested",
            Self::ReservedInvalid(code) => return write!(f, "reserved invalid-field code {code}"),
            Self::Reserved(code) => return write!(f, "reserved code {code}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_of_the_standard_has_its_name_and_the_shared_bits_come_first() {
        use SaStatus::*;
        let table = [
            (0x0000, Ok),
            (0x0001, Busy),
            (0x0301, Busy),
            (0x0002, Redirect),
            (0x0004, BadVersion),
            (0x0008, MethodNotSupported),
            (0x000C, MethodAttributeNotSupported),
            (0x0010, ReservedInvalid(4)),
            (0x001C, InvalidField),
            (0x0100, NoResources),
            (0x0200, RequestInvalid),
            (0x0300, NoRecords),
            (0x0400, TooManyRecords),
            (0x0500, InvalidGid),
            (0x0600, InsufficientComponents),
            (0x0700, Denied),
            (0x0800, PrioritySuggested),
            (0x0900, Reserved(9)),
        ];
        for (status, expected) in table {
            assert_eq!(Status(status).decode(), expected, "{status:#06x}");
        }
    }
}
