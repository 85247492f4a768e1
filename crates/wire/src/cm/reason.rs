//! Why a connection or a service resolution was refused.

use core::fmt;

macro_rules! codes {
    ($(#[$outer:meta])* $name:ident($repr:ty): $($(#[$doc:meta])* $code:ident = $value:literal, $text:literal;)*) => {
        $(#[$outer])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
        pub struct $name(pub $repr);

        $crate::bytes::wrappers!($name($repr));

        impl $name {
            $($(#[$doc])* pub const $code: $name = $name($value);)*

            /// The meaning of the code; `None` if it is unknown.
            pub const fn explanation(self) -> Option<&'static str> {
                Some(match self.0 {
                    $($value => $text,)*
                    _ => return None,
                })
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}: {}", self.0, self.explanation().unwrap_or("unknown code"))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }
    };
}

pub(super) use codes;

codes! {
    /// The reason code of a REJ (IBTA 12.6.7.2; Linux `enum ib_cm_rej_reason`).
    RejectReason(u16):
    /// No queue pair available.
    NO_QP = 1, "no queue pair available";
    /// No end-to-end context available.
    NO_EEC = 2, "no end-to-end context available";
    /// No resources available.
    NO_RESOURCES = 3, "no resources available";
    /// The sender received no answer in time.
    TIMEOUT = 4, "timeout (the peer received no answer in time)";
    /// Unsupported request.
    UNSUPPORTED = 5, "unsupported request";
    /// The communication id is not known to the sender.
    INVALID_COMM_ID = 6, "invalid communication id";
    /// The communication ids do not belong to one connection.
    INVALID_COMM_INSTANCE = 7, "invalid communication instance";
    /// No listener has the service id.
    INVALID_SERVICE_ID = 8, "invalid service id (nothing listens there)";
    /// The service is not offered by this transport.
    INVALID_TRANSPORT_TYPE = 9, "invalid transport service type";
    /// One side still holds an earlier connection of the same queue pair.
    STALE_CONN = 10, "stale connection (an earlier one of the same queue pair is still held)";
    /// The reliable datagram channel does not exist.
    RDC_NOT_EXIST = 11, "reliable datagram channel does not exist";
    /// The primary path's remote GID is rejected; the additional information may suggest another.
    INVALID_GID = 12, "primary remote GID rejected";
    /// The primary path's remote LID is rejected; the additional information may suggest another.
    INVALID_LID = 13, "primary remote LID rejected";
    /// Service level of the primary path.
    INVALID_SL = 14, "invalid primary service level";
    /// Traffic class of the primary path.
    INVALID_TRAFFIC_CLASS = 15, "invalid primary traffic class";
    /// Hop limit of the primary path.
    INVALID_HOP_LIMIT = 16, "invalid primary hop limit";
    /// Packet rate of the primary path.
    INVALID_PACKET_RATE = 17, "invalid primary packet rate";
    /// The alternate path's remote GID is rejected; the additional information may suggest another.
    INVALID_ALT_GID = 18, "alternate remote GID rejected";
    /// The alternate path's remote LID is rejected; the additional information may suggest another.
    INVALID_ALT_LID = 19, "alternate remote LID rejected";
    /// Service level of the alternate path.
    INVALID_ALT_SL = 20, "invalid alternate service level";
    /// Traffic class of the alternate path.
    INVALID_ALT_TRAFFIC_CLASS = 21, "invalid alternate traffic class";
    /// Hop limit of the alternate path.
    INVALID_ALT_HOP_LIMIT = 22, "invalid alternate hop limit";
    /// Packet rate of the alternate path.
    INVALID_ALT_PACKET_RATE = 23, "invalid alternate packet rate";
    /// Redirect to the connection manager and port in the additional information.
    PORT_CM_REDIRECT = 24, "redirected to another connection manager and port";
    /// Redirect to the port in the additional information.
    PORT_REDIRECT = 25, "redirected to another port";
    /// The path MTU is rejected; the additional information may suggest a smaller one.
    INVALID_MTU = 26, "invalid path MTU";
    /// Fewer responder resources than needed.
    INSUFFICIENT_RESP_RESOURCES = 27, "insufficient responder resources";
    /// The application rejected the connection.
    CONSUMER_DEFINED = 28, "rejected by the application";
    /// The RNR retry count is rejected.
    INVALID_RNR_RETRY = 29, "invalid RNR retry count";
    /// The communication id is in use by another connection of the same peer.
    DUPLICATE_LOCAL_COMM_ID = 30, "duplicate local communication id";
    /// The class version is not supported; the additional information may give the highest
    /// supported one.
    INVALID_CLASS_VERSION = 31, "unsupported class version";
    /// Flow label of the primary path.
    INVALID_FLOW_LABEL = 32, "invalid primary flow label";
    /// Flow label of the alternate path.
    INVALID_ALT_FLOW_LABEL = 33, "invalid alternate flow label";
    /// A vendor's option is not supported.
    VENDOR_OPTION_NOT_SUPPORTED = 35, "vendor option not supported";
}

codes! {
    /// The status of a SIDR response (IBTA 12.11.2; Linux `enum ib_cm_sidr_status`).
    SidrStatus(u8):
    /// Resolved: the response has the queue pair and queue key.
    SUCCESS = 0, "success";
    /// No listener has the service id.
    UNSUPPORTED = 1, "service id not supported (nothing listens there)";
    /// The application rejected the request.
    REJECT = 2, "rejected by the application";
    /// No queue pair available.
    NO_QP = 3, "no queue pair available";
    /// Redirect; see the additional information.
    REDIRECT = 4, "redirected";
    /// The class version is not supported.
    UNSUPPORTED_VERSION = 5, "unsupported class version";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_prints_its_meaning_and_an_unknown_one_is_marked() {
        assert_eq!(
            RejectReason::INVALID_SERVICE_ID.to_string(),
            "8: invalid service id (nothing listens there)"
        );
        assert_eq!(RejectReason(999).to_string(), "999: unknown code");
        assert_eq!(SidrStatus::NO_QP.to_string(), "3: no queue pair available");
    }
}
