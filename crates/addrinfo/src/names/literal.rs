//! Numeric addresses and ports, parsed without the system's resolver.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A numeric address with its zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Literal {
    /// The address.
    pub(crate) address: IpAddr,
    /// What follows `%`, IPv6 only (RFC 4007 section 11).
    pub(crate) zone: Option<Zone>,
}

/// A zone of a scoped address, not yet checked against the machine's interfaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Zone {
    /// An interface index.
    Index(u32),
    /// An interface name.
    Name(String),
}

impl Literal {
    /// Parses `192.0.2.1`, `2001:db8::1`, `fe80::1%eth0` or `fe80::1%2`; nothing else.
    ///
    /// The short, octal and hexadecimal IPv4 forms of inet_aton(3) are left to the system's
    /// resolver, which uses no name service for them.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if let Ok(address) = text.parse::<Ipv4Addr>() {
            return Some(Self {
                address: address.into(),
                zone: None,
            });
        }
        let (address, zone) = match text.split_once('%') {
            Some((address, zone)) => (address, Some(Zone::parse(zone))),
            None => (text, None),
        };
        let address = address.parse::<Ipv6Addr>().ok()?;
        Some(Self {
            address: address.into(),
            zone,
        })
    }
}

impl Zone {
    fn parse(text: &str) -> Self {
        match decimal(text).and_then(|value| u32::try_from(value).ok()) {
            Some(index) => Self::Index(index),
            None => Self::Name(text.into()),
        }
    }
}

/// A service as text, classified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Service<'a> {
    /// A port in host order.
    Port(u16),
    /// Digits that exceed the range of ports.
    OutOfRange,
    /// A name for the system's resolver.
    Name(&'a str),
    /// Neither: a sign, white space, or another character that cannot begin a service name. libc
    /// would read some of these as numbers and truncate them to 16 bits.
    Malformed,
}

impl<'a> Service<'a> {
    pub(crate) fn parse(text: &'a str) -> Self {
        if text.bytes().all(|byte| byte.is_ascii_digit()) && !text.is_empty() {
            return match decimal(text).and_then(|value| u16::try_from(value).ok()) {
                Some(port) => Self::Port(port),
                None => Self::OutOfRange,
            };
        }
        let begins_a_name = |byte: &u8| byte.is_ascii_graphic() && !matches!(byte, b'+' | b'-');
        match text.as_bytes().first() {
            Some(first) if begins_a_name(first) => Self::Name(text),
            _ => Self::Malformed,
        }
    }
}

/// Parses digits only; Rust's own parser also accepts a plus sign.
fn decimal(text: &str) -> Option<u64> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn zones_are_indices_or_names() {
        let zone = |text| Literal::parse(text).expect("literal").zone;
        assert_eq!(zone("fe80::1"), None);
        assert_eq!(zone("fe80::1%2"), Some(Zone::Index(2)));
        assert_eq!(zone("fe80::1%eth0"), Some(Zone::Name("eth0".into())));
        assert_eq!(zone("fe80::1%+2"), Some(Zone::Name("+2".into())));
        assert_eq!(zone("fe80::1%"), Some(Zone::Name(String::new())));
        assert_eq!(
            zone("fe80::1%4294967296"),
            Some(Zone::Name("4294967296".into()))
        );
        assert_eq!(zone("fe80::1%a%b"), Some(Zone::Name("a%b".into())));
    }

    #[test]
    fn text_that_is_not_a_plain_number_is_left_to_the_resolver() {
        for text in [
            "",
            "127.1",
            "0x7f.1",
            "010.0.0.1",
            "1.2.3.4%lo",
            "host",
            "::g",
            "%eth0",
        ] {
            assert_eq!(Literal::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn services_are_sorted_before_libc_can_cut_them_to_16_bits() {
        use Service as S;
        for (text, service) in [
            ("0", S::Port(0)),
            ("7471", S::Port(7471)),
            ("65535", S::Port(65535)),
            ("0080", S::Port(80)),
            ("65536", S::OutOfRange),
            ("99999999999999999999999", S::OutOfRange),
            ("http", S::Name("http")),
            ("3com-tsmux", S::Name("3com-tsmux")),
            ("-1", S::Malformed),
            ("+80", S::Malformed),
            (" 80", S::Malformed),
            ("", S::Malformed),
        ] {
            assert_eq!(S::parse(text), service, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn every_printed_address_is_a_literal(address: IpAddr) {
            let literal = Literal::parse(&address.to_string());
            prop_assert_eq!(literal, Some(Literal { address, zone: None }));
        }

        #[test]
        fn no_text_panics(text: String) {
            let _ = Literal::parse(&text);
            let _ = Service::parse(&text);
        }
    }
}
