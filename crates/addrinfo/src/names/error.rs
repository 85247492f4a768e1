//! Why a name did not resolve, with the EAI code that C programs expect.

use portolan_provider::Cause;
use portolan_provider::error::{Error, Step, errno};

use super::{ADDRESSES_MAX, HOST_MAX, SERVICE_MAX};

macro_rules! codes {
    ($($(#[$doc:meta])* $code:ident = $number:literal, $name:literal, $text:literal;)*) => {
        /// Codes of getaddrinfo(3), with Linux's numbers (`netdb.h`; glibc and musl agree).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        #[allow(
            missing_docs,
            reason = "each is the EAI code of its name; `text` explains it"
        )]
        pub enum Eai {
            $($(#[$doc])* $code,)*
            /// A system call failed with this errno.
            System(i32),
            /// An unknown code.
            Other(i32),
        }

        impl Eai {
            /// Converts a code that getaddrinfo returned; `errno` is only used for `EAI_SYSTEM`.
            pub fn from_code(code: i32, errno: i32) -> Self {
                match code {
                    $($number => Self::$code,)*
                    SYSTEM => Self::System(errno),
                    other => Self::Other(other),
                }
            }

            /// The number (negative on Linux).
            pub fn code(self) -> i32 {
                match self {
                    $(Self::$code => $number,)*
                    Self::System(_) => SYSTEM,
                    Self::Other(code) => code,
                }
            }

            /// The code's name in the manual, such as `EAI_NONAME`.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$code => $name,)*
                    Self::System(_) => "EAI_SYSTEM",
                    Self::Other(_) => "EAI_?",
                }
            }

            /// The code's meaning and the remedy.
            pub fn text(self) -> &'static str {
                match self {
                    $(Self::$code => $text,)*
                    Self::System(_) => "a system call of the resolver failed",
                    Self::Other(_) => "the resolver failed with a code unknown here",
                }
            }
        }
    };
}

/// `EAI_SYSTEM`.
const SYSTEM: i32 = -11;

codes! {
    BadFlags = -1, "EAI_BADFLAGS", "the flags contradict each other";
    NoName = -2, "EAI_NONAME",
        "name or service not known; check the spelling, /etc/hosts and DNS";
    Again = -3, "EAI_AGAIN", "the name server did not answer or failed for the moment";
    Fail = -4, "EAI_FAIL",
        "the name server refused or failed for good; check /etc/resolv.conf and the server";
    NoData = -5, "EAI_NODATA", "the name exists but has no address of the requested family";
    Family = -6, "EAI_FAMILY", "the address family is not supported on this machine";
    /// `EAI_QPTYPE` of rdma_getaddrinfo(3), which `netdb.h` lacks. It equals `EAI_SOCKTYPE`, so
    /// that gai_strerror(3) prints a fitting text.
    QpType = -7, "EAI_QPTYPE",
        "the queue pair type is not supported, or not in this port space: RC, UC and XRC belong to \
         RDMA_PS_TCP, UD to RDMA_PS_UDP and RDMA_PS_IPOIB, all of them to RDMA_PS_IB";
    Service = -8, "EAI_SERVICE",
        "the service is not known for this socket type; give a port number or add it to \
         /etc/services";
    AddrFamily = -9, "EAI_ADDRFAMILY", "the host has no address of the requested family";
    Memory = -10, "EAI_MEMORY", "out of memory";
    Overflow = -12, "EAI_OVERFLOW", "an answer was longer than its limit";
}

/// A failed name lookup: the query and the reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {reason}", asked(.node.as_deref(), .service.as_deref()))]
pub struct NameError {
    /// The requested node.
    pub node: Option<String>,
    /// The requested service.
    pub service: Option<String>,
    /// Why it failed.
    pub reason: Reason,
}

/// Why a name did not resolve.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// The query has neither a node nor a service.
    #[error("a host, a service or both must be given")]
    Nothing,
    /// The node is the empty string.
    #[error("the host is empty; leave it out to mean this machine")]
    EmptyNode,
    /// The service is the empty string.
    #[error("the service is empty; leave it out to mean port 0")]
    EmptyService,
    /// The node is longer than `NI_MAXHOST` allows.
    #[error("the host has {length} bytes, the limit is {HOST_MAX}")]
    NodeTooLong {
        /// Its length, in bytes.
        length: usize,
    },
    /// The service is longer than `NI_MAXSERV` allows.
    #[error("the service has {length} bytes, the limit is {SERVICE_MAX}")]
    ServiceTooLong {
        /// Its length, in bytes.
        length: usize,
    },
    /// The text contains a NUL character, at which C would silently truncate it.
    #[error("the {0} has a NUL character inside")]
    EmbeddedNul(&'static str),
    /// The port exceeds 65535.
    #[error("the port is out of range: ports are 0 to 65535")]
    PortOutOfRange,
    /// The service is neither a number nor a service name.
    #[error("the service is neither a port (0 to 65535) nor a service name")]
    MalformedService,
    /// The zone after `%` is not an interface of this machine.
    #[error("no network interface is named `{zone}`; `ip link` lists those of this machine")]
    NoSuchZone {
        /// The zone as written.
        zone: String,
    },
    /// A numeric address of the other family.
    #[error("the address is {found}, but {expected} is requested")]
    WrongFamily {
        /// The requested family.
        expected: &'static str,
        /// The family of the address.
        found: &'static str,
    },
    /// The node is not numeric, but must be.
    #[error("the host is not a numeric address, and only those are allowed here")]
    NotNumeric,
    /// The name has too many addresses.
    #[error("the name has more than {ADDRESSES_MAX} addresses")]
    TooManyAddresses,
    /// The resolver failed.
    #[error("{}", .0.text())]
    Resolver(Eai),
}

impl NameError {
    pub(crate) fn new(node: Option<&str>, service: Option<&str>, reason: Reason) -> Self {
        Self {
            node: node.map(Into::into),
            service: service.map(Into::into),
            reason,
        }
    }

    /// The EAI code for C programs.
    pub fn eai(&self) -> Eai {
        self.reason.eai()
    }
}

impl Reason {
    /// The EAI code for C programs.
    pub fn eai(&self) -> Eai {
        match self {
            Self::Nothing | Self::EmptyNode | Self::EmbeddedNul(_) | Self::NotNumeric => {
                Eai::NoName
            }
            Self::NoSuchZone { .. } => Eai::NoName,
            Self::EmptyService | Self::PortOutOfRange | Self::MalformedService => Eai::Service,
            Self::NodeTooLong { .. } | Self::ServiceTooLong { .. } | Self::TooManyAddresses => {
                Eai::Overflow
            }
            Self::WrongFamily { .. } => Eai::AddrFamily,
            Self::Resolver(eai) => *eai,
        }
    }
}

impl From<NameError> for Cause {
    fn from(error: NameError) -> Self {
        let found = error.to_string();
        let quoted = |text: &Option<String>| format!("{:?}", clip(text.as_deref().unwrap_or("")));
        let invalid = |what, expected: &str, found: String| Self::InvalidArgument {
            what,
            expected: expected.into(),
            found,
        };
        let host = |expected: &str| invalid("host", expected, quoted(&error.node));
        let service = |expected: &str| invalid("service", expected, quoted(&error.service));
        let long = |what, limit: usize, length: usize| {
            let expected = format!("at most {limit} bytes");
            invalid(what, &expected, length.to_string())
        };
        match &error.reason {
            Reason::Nothing => invalid("name", "a host, a service or both", "neither".into()),
            Reason::EmptyNode => host("a name or an address, or none to mean this machine"),
            Reason::EmptyService => service("a port or a service name, or none to mean port 0"),
            Reason::EmbeddedNul(part) => invalid(part, "no NUL character", "one".into()),
            Reason::NodeTooLong { length } => long("host", HOST_MAX, *length),
            Reason::ServiceTooLong { length } => long("service", SERVICE_MAX, *length),
            Reason::PortOutOfRange => service("a port from 0 to 65535"),
            Reason::MalformedService => service("a port (0 to 65535) or a service name"),
            Reason::NotNumeric => host("a numeric address"),
            Reason::WrongFamily { expected, .. } => {
                host(&format!("an address of the requested family, {expected}"))
            }
            Reason::NoSuchZone { .. } => Self::NoDevice { why: found },
            Reason::TooManyAddresses => Self::LimitReached {
                what: "addresses of one name",
                limit: ADDRESSES_MAX as u64,
            },
            Reason::Resolver(eai) => match eai {
                Eai::Again => Self::NameTemporaryFailure(found),
                Eai::System(errno) => Self::Os {
                    call: "getaddrinfo",
                    errno: *errno,
                },
                Eai::Memory => Self::Os {
                    call: "getaddrinfo",
                    errno: errno::ENOMEM,
                },
                Eai::BadFlags | Eai::QpType => invalid("name", "flags that agree", found),
                _ => Self::NameNotKnown(found),
            },
        }
    }
}

impl From<NameError> for Error {
    fn from(error: NameError) -> Self {
        Self::new(Step::ResolveName, error.into())
    }
}

/// The query, for the start of the message. Quoted with escapes because it may be any text.
pub(crate) fn asked(node: Option<&str>, service: Option<&str>) -> String {
    match (node, service) {
        (Some(node), Some(service)) => format!("{:?} service {:?}", clip(node), clip(service)),
        (Some(node), None) => format!("{:?}", clip(node)),
        (None, Some(service)) => format!("service {:?}", clip(service)),
        (None, None) => "no name".into(),
    }
}

/// The first characters of a text of arbitrary length.
fn clip(text: &str) -> &str {
    const SHOWN_MAX: usize = 80;
    text.char_indices()
        .nth(SHOWN_MAX)
        .and_then(|(end, _)| text.get(..end))
        .unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_survive_the_round_trip_through_numbers() {
        for code in -14..=1 {
            assert_eq!(Eai::from_code(code, 5).code(), code);
        }
        assert_eq!(Eai::from_code(-11, 5), Eai::System(5));
    }

    #[test]
    fn an_error_names_the_query_and_a_remedy() {
        let error = NameError::new(Some("nowhere"), Some("7471"), Reason::Resolver(Eai::NoName));
        let text = error.to_string();
        assert!(
            text.contains("\"nowhere\"") && text.contains("/etc/hosts"),
            "{text}"
        );
        let long = NameError::new(
            Some(&"é".repeat(5000)),
            None,
            Reason::NodeTooLong { length: 10_000 },
        );
        assert!(long.to_string().len() < 400, "a message stays readable");
    }

    #[test]
    fn an_invalid_argument_shows_the_wrong_part_alone() {
        let cause = |host, service, reason| {
            Cause::from(NameError::new(Some(host), Some(service), reason)).to_string()
        };
        assert_eq!(
            cause("127.0.0.1", "99999", Reason::PortOutOfRange),
            "service: expected a port from 0 to 65535, found \"99999\""
        );
        assert_eq!(
            cause("a\0b", "1", Reason::EmbeddedNul("host")),
            "host: expected no NUL character, found one"
        );
        let length = HOST_MAX + 1;
        assert_eq!(
            cause("a", "1", Reason::NodeTooLong { length }),
            format!("host: expected at most {HOST_MAX} bytes, found {length}")
        );
    }

    #[test]
    fn failures_become_the_causes_that_callers_act_on() {
        let cause = |reason| Cause::from(NameError::new(Some("n"), None, reason));
        assert!(matches!(
            cause(Reason::Resolver(Eai::NoName)),
            Cause::NameNotKnown(_)
        ));
        assert!(matches!(
            cause(Reason::Resolver(Eai::Again)),
            Cause::NameTemporaryFailure(_)
        ));
        assert!(matches!(
            cause(Reason::Resolver(Eai::System(5))),
            Cause::Os { errno: 5, .. }
        ));
        assert!(matches!(
            cause(Reason::PortOutOfRange),
            Cause::InvalidArgument { .. }
        ));
        assert!(matches!(
            cause(Reason::NoSuchZone { zone: "x".into() }),
            Cause::NoDevice { .. }
        ));
    }
}
