//! Kinds of errors: what a program decides by, whatever the exact cause is.

use super::{Cause, Error};
use crate::verbs::WcStatus;

impl Error {
    /// Returns whether a deadline or the retries ran out: nothing answered in time.
    ///
    /// A silent peer is both this and [`Error::is_disconnected`].
    pub fn is_timeout(&self) -> bool {
        matches!(
            self.cause,
            Cause::TimedOut { .. }
                | Cause::GroupSilent { .. }
                | Cause::PeerSilent { .. }
                | Cause::WorkFailed(WcStatus::RetryExcErr | WcStatus::RespTimeoutErr)
        )
    }

    /// Returns whether the connection has ended: by either side, by the peer's death or silence, or by a request that
    /// broke it. A new connection may work.
    pub fn is_disconnected(&self) -> bool {
        match self.cause {
            Cause::Disconnected
            | Cause::Closed
            | Cause::PeerDied
            | Cause::PeerSilent { .. }
            | Cause::Displaced
            | Cause::PeerRequestRefused(_)
            | Cause::DeviceRemoved => true,
            Cause::WorkFailed(status) => matches!(
                status,
                WcStatus::WrFlushErr
                    | WcStatus::RetryExcErr
                    | WcStatus::RnrRetryExcErr
                    | WcStatus::RespTimeoutErr
                    | WcStatus::RemAbortErr
            ),
            _ => false,
        }
    }

    /// Returns whether the peer answered, and said no: it rejected the connection or refused the service.
    pub fn is_refused(&self) -> bool {
        matches!(self.cause, Cause::Rejected { .. } | Cause::SidrRefused(_))
    }

    /// Returns whether the network does not reach the destination.
    pub fn is_unreachable(&self) -> bool {
        matches!(
            self.cause,
            Cause::NetworkUnreachable | Cause::HostUnreachable
        )
    }

    /// Returns whether a limit of this side was reached, such as the depth of a queue: nothing was lost, and the step
    /// may succeed once something has ended.
    pub fn is_limit(&self) -> bool {
        matches!(
            self.cause,
            Cause::LimitReached { .. }
                | Cause::DescriptorLimit { .. }
                | Cause::PortsExhausted { .. }
        )
    }

    /// Returns whether the step only found nothing available.
    pub fn is_would_block(&self) -> bool {
        matches!(self.cause, Cause::WouldBlock)
    }

    /// The kind that fits this error best. Where no cause below says otherwise, it is that of [`Error::errno`].
    #[cfg(feature = "std")]
    pub fn kind(&self) -> std::io::ErrorKind {
        use std::io::ErrorKind;
        match &self.cause {
            Cause::LimitReached { .. }
            | Cause::DescriptorLimit { .. }
            | Cause::PortsExhausted { .. } => ErrorKind::QuotaExceeded,
            // ENOTCONN reads as "not connected yet".
            Cause::Disconnected | Cause::Closed => ErrorKind::ConnectionAborted,
            Cause::NoDevice { .. } | Cause::UnusableLibrary { .. } => ErrorKind::NotFound,
            Cause::DeviceRemoved => ErrorKind::ConnectionAborted,
            // EFAULT has no kind of its own.
            Cause::BadMemory { .. } => ErrorKind::InvalidInput,
            Cause::WorkFailed(status) => of_work(*status),
            _ => std::io::Error::from_raw_os_error(self.errno()).kind(),
        }
    }
}

/// The kind of a work request that failed.
#[cfg(feature = "std")]
fn of_work(status: WcStatus) -> std::io::ErrorKind {
    use std::io::ErrorKind;
    match status {
        WcStatus::RetryExcErr | WcStatus::RnrRetryExcErr | WcStatus::RespTimeoutErr => {
            ErrorKind::TimedOut
        }
        WcStatus::WrFlushErr | WcStatus::RemAbortErr => ErrorKind::ConnectionAborted,
        WcStatus::LocProtErr
        | WcStatus::LocAccessErr
        | WcStatus::RemAccessErr
        | WcStatus::MwBindErr => ErrorKind::PermissionDenied,
        WcStatus::LocLenErr
        | WcStatus::LocQpOpErr
        | WcStatus::RemInvReqErr
        | WcStatus::BadRespErr => ErrorKind::InvalidData,
        _ => ErrorKind::Other,
    }
}

#[cfg(feature = "std")]
impl From<Error> for std::io::Error {
    fn from(error: Error) -> Self {
        Self::new(error.kind(), error)
    }
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use std::borrow::ToOwned;
    use std::error::Error as _;
    use std::io::{self, ErrorKind};
    use std::string::ToString;
    use std::{format, vec};

    use portolan_wire::cm::RejectReason;

    use super::*;
    use crate::Step;

    fn of(cause: Cause) -> Error {
        Error::new(Step::Connect, cause)
    }

    #[test]
    fn each_cause_has_the_kind_that_programs_match() {
        let timed_out = Cause::TimedOut {
            after_ms: 5,
            retries: 0,
        };
        let limit = Cause::LimitReached {
            what: "posted sends",
            limit: 64,
        };
        let rejected = Cause::Rejected {
            reason: RejectReason::INVALID_SERVICE_ID,
            private_data: vec![0; 148].into(),
        };
        let cases = [
            (timed_out, ErrorKind::TimedOut),
            (limit, ErrorKind::QuotaExceeded),
            (rejected, ErrorKind::ConnectionRefused),
            (Cause::Disconnected, ErrorKind::ConnectionAborted),
            (Cause::Closed, ErrorKind::ConnectionAborted),
            (Cause::PeerDied, ErrorKind::ConnectionReset),
            (Cause::WouldBlock, ErrorKind::WouldBlock),
            (Cause::HostUnreachable, ErrorKind::HostUnreachable),
            (Cause::AddressInUse { holder: None }, ErrorKind::AddrInUse),
            (Cause::Unsupported("it"), ErrorKind::Unsupported),
            (
                Cause::WorkFailed(WcStatus::RemAccessErr),
                ErrorKind::PermissionDenied,
            ),
            (
                Cause::WorkFailed(WcStatus::RetryExcErr),
                ErrorKind::TimedOut,
            ),
        ];
        for (cause, kind) in cases {
            assert_eq!(of(cause.clone()).kind(), kind, "{cause:?}");
        }
    }

    #[test]
    fn an_io_error_keeps_the_text_and_gives_the_error_back() {
        let error = of(Cause::PeerDied);
        let converted = io::Error::from(error.clone());
        assert_eq!(converted.to_string(), error.to_string());
        let inside = converted.get_ref().unwrap().downcast_ref::<Error>();
        assert_eq!(inside, Some(&error));
    }

    #[test]
    fn earlier_attempts_are_the_sources_of_an_error_and_part_of_its_long_form() {
        let [first, second, third] = [1, 2, 3].map(|after_ms| {
            of(Cause::TimedOut {
                after_ms,
                retries: 0,
            })
        });
        let error = third.after(vec![first.clone(), second.clone()]);
        let before = error.source().unwrap();
        assert_eq!(before.to_string(), second.to_string());
        assert_eq!(before.source().unwrap().to_string(), first.to_string());
        assert!(before.source().unwrap().source().is_none());
        let line = format!("{error:?}");
        let expected = "connect: timed out after 3 ms; before that: connect: timed out after 2 ms; \
                        before that: connect: timed out after 1 ms";
        assert_eq!(line, expected);
        assert_eq!(error.to_string(), "connect: timed out after 3 ms");
    }

    #[test]
    fn debug_is_one_line_without_padding() {
        let error = of(Cause::Rejected {
            reason: RejectReason::INVALID_SERVICE_ID,
            private_data: vec![0; 148].into(),
        });
        let line = format!("{error:?}");
        assert_eq!(line, error.to_string());
        assert!(line.starts_with("connect: rejected by the peer"), "{line}");
        let cause = format!("{:?}", error.cause);
        assert!(cause.ends_with(r#"private_data: b"" }"#), "{cause}");
    }

    #[test]
    fn a_rejection_prints_the_peers_private_data_if_it_is_text_and_its_length() {
        let says = |data: &[u8]| {
            let mut field = data.to_vec();
            field.resize(148, 0);
            let private_data = field.into();
            let reason = RejectReason::CONSUMER_DEFINED;
            let text = of(Cause::Rejected {
                reason,
                private_data,
            });
            let said = format!("connect: rejected by the peer, reason {reason}");
            let text = text.to_string();
            text.strip_prefix(&said).expect("the reason").to_owned()
        };
        assert_eq!(says(b""), "");
        assert_eq!(says(b"don't"), r#", with 5 bytes of private data: "don't""#);
        assert_eq!(says(b"x"), r#", with 1 byte of private data: "x""#);
        assert_eq!(
            says("a \"b\" caf\u{e9}".as_bytes()),
            ", with 11 bytes of private data: \"a \\\"b\\\" caf\u{e9}\""
        );
        // A terminal is not to obey the peer, and binary data is no text.
        for unprintable in [
            &b"line\n\x1b[2J"[..],
            b"\x00\x01",
            b"\xff\xfe",
            "\u{202e}txt".as_bytes(),
        ] {
            let length = unprintable.len();
            assert_eq!(
                says(unprintable),
                format!(", with {length} bytes of private data")
            );
        }
    }

    #[test]
    fn a_silent_peer_is_a_timeout_and_a_disconnect_and_a_full_queue_is_neither() {
        let silent = of(Cause::PeerSilent { after_ms: 7 });
        assert!(silent.is_timeout() && silent.is_disconnected());
        let full = of(Cause::LimitReached {
            what: "posted sends",
            limit: 1,
        });
        assert!(full.is_limit() && !full.is_timeout() && !full.is_disconnected());
    }
}
