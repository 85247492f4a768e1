//! Endpoints in text form: `host:port`, `[v6%zone]:port`, `:port`, `host`.

use std::fmt;
use std::str::FromStr;

use portolan_provider::Cause;

use crate::names::{HOST_MAX, Literal, SERVICE_MAX};

/// The valid forms of an endpoint, for error messages.
const FORMS: &str = "host:port, [ipv6%zone]:port, :port or host";

/// A node, a service, or both, as text for the resolver.
///
/// `Display` prints the form that [`parse_endpoint`] reads; parsing the output returns the same
/// endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    node: Option<String>,
    service: Option<String>,
}

/// Why a text is not an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EndpointError {
    /// The text has neither a node nor a service.
    #[error("an empty text")]
    Empty,
    /// Nothing follows the colon.
    #[error("the port after the colon is missing")]
    EmptyService,
    /// The node is empty.
    #[error("the host is empty")]
    EmptyNode,
    /// The text contains a NUL character.
    #[error("a NUL character is inside")]
    EmbeddedNul,
    /// `[` has no matching `]`.
    #[error("`[` in `{0}` has no closing `]`")]
    UnclosedBracket(String),
    /// The text in brackets is not an IPv6 address.
    #[error("`{0}` in brackets is not an IPv6 address")]
    NotIpv6(String),
    /// The bracket is followed by something other than `:port`.
    #[error("`{0}` after `]` is not `:port`")]
    AfterBracket(String),
    /// Several colons outside brackets that do not form an IPv6 address.
    #[error("`{0}` has several colons: put an IPv6 address in brackets, as in [::1]:7471")]
    SeveralColons(String),
    /// The node is `*`, which other programs write for all addresses.
    #[error("`*` is not a host: leave it out to mean all addresses, as in `:7471`")]
    Star,
    /// The node has characters that are invalid in a host name.
    #[error("`{0}` is not a host: brackets and colons belong to IPv6 addresses only")]
    BadNode(String),
    /// The service has characters that are invalid in a service name.
    #[error("`{0}` is not a port or service name")]
    BadService(String),
    /// A part exceeds its limit.
    #[error("the {what} has {length} bytes, the limit is {limit}")]
    TooLong {
        /// Which part.
        what: &'static str,
        /// Its length, in bytes.
        length: usize,
        /// The limit, in bytes.
        limit: usize,
    },
}

impl From<EndpointError> for Cause {
    fn from(error: EndpointError) -> Self {
        Self::InvalidArgument {
            what: "endpoint",
            expected: FORMS.into(),
            found: error.to_string(),
        }
    }
}

/// Parses an endpoint without resolving names.
///
/// The forms are `host:port`, `[v6%zone]:port`, `:port` (no node), `host` (no service), `[v6]`, and
/// a bare IPv6 address without a port.
///
/// # Errors
/// [`EndpointError`] names the rule that the text breaks.
pub fn parse_endpoint(text: &str) -> Result<Endpoint, EndpointError> {
    let (node, service) = split(text)?;
    Endpoint::new(node, service)
}

impl Endpoint {
    /// Creates an endpoint from its parts, by the rules of [`parse_endpoint`].
    ///
    /// # Errors
    /// [`EndpointError`], as for the text form.
    pub fn new(node: Option<&str>, service: Option<&str>) -> Result<Self, EndpointError> {
        if node.is_none() && service.is_none() {
            return Err(EndpointError::Empty);
        }
        if let Some(node) = node {
            check_node(node)?;
        }
        if let Some(service) = service {
            check_service(service)?;
        }
        Ok(Self {
            node: node.map(Into::into),
            service: service.map(Into::into),
        })
    }

    /// The host: a name or a numeric address; IPv6 without brackets.
    pub fn node(&self) -> Option<&str> {
        self.node.as_deref()
    }

    /// The port number or service name.
    pub fn service(&self) -> Option<&str> {
        self.service.as_deref()
    }
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        parse_endpoint(text)
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.node {
            Some(node) if node.contains(':') => write!(f, "[{node}]")?,
            Some(node) => f.write_str(node)?,
            None => {}
        }
        match &self.service {
            Some(service) => write!(f, ":{service}"),
            None => Ok(()),
        }
    }
}

/// Splits the text into node and service without checking their contents.
fn split(text: &str) -> Result<(Option<&str>, Option<&str>), EndpointError> {
    if let Some(rest) = text.strip_prefix('[') {
        // Use the last bracket: an interface name, and so a zone, may contain one.
        let (inside, after) = rest
            .rsplit_once(']')
            .ok_or_else(|| EndpointError::UnclosedBracket(text.into()))?;
        if !Literal::parse(inside).is_some_and(|literal| literal.address.is_ipv6()) {
            return Err(EndpointError::NotIpv6(inside.into()));
        }
        return match after.strip_prefix(':') {
            Some(service) => Ok((Some(inside), Some(service))),
            None if after.is_empty() => Ok((Some(inside), None)),
            None => Err(EndpointError::AfterBracket(after.into())),
        };
    }
    match text.split_once(':') {
        None => Ok((Some(text).filter(|node| !node.is_empty()), None)),
        Some((_, rest)) if rest.contains(':') => match Literal::parse(text) {
            Some(_) => Ok((Some(text), None)),
            None => Err(EndpointError::SeveralColons(text.into())),
        },
        Some((node, service)) => Ok((Some(node).filter(|node| !node.is_empty()), Some(service))),
    }
}

fn check_node(node: &str) -> Result<(), EndpointError> {
    if node.is_empty() {
        return Err(EndpointError::EmptyNode);
    }
    if node == "*" {
        return Err(EndpointError::Star);
    }
    check_text("host", node, HOST_MAX)?;
    if node.contains([':', '[', ']']) && Literal::parse(node).is_none() {
        return Err(EndpointError::BadNode(node.into()));
    }
    Ok(())
}

fn check_service(service: &str) -> Result<(), EndpointError> {
    if service.is_empty() {
        return Err(EndpointError::EmptyService);
    }
    check_text("service", service, SERVICE_MAX)?;
    if service.contains([':', '[', ']']) || service.contains(char::is_whitespace) {
        return Err(EndpointError::BadService(service.into()));
    }
    Ok(())
}

fn check_text(what: &'static str, text: &str, limit: usize) -> Result<(), EndpointError> {
    if text.contains('\0') {
        return Err(EndpointError::EmbeddedNul);
    }
    if text.len() > limit {
        return Err(EndpointError::TooLong {
            what,
            length: text.len(),
            limit,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parts(text: &str) -> (Option<String>, Option<String>) {
        let endpoint = parse_endpoint(text).expect(text);
        (endpoint.node, endpoint.service)
    }

    #[test]
    fn each_documented_form_is_read() {
        let of = |node: Option<&str>, service: Option<&str>| {
            (node.map(String::from), service.map(String::from))
        };
        assert_eq!(parts("host:7471"), of(Some("host"), Some("7471")));
        assert_eq!(parts("192.0.2.1:rdma"), of(Some("192.0.2.1"), Some("rdma")));
        assert_eq!(
            parts("[fe80::1%eth0]:80"),
            of(Some("fe80::1%eth0"), Some("80"))
        );
        assert_eq!(
            parts("[fe80::1%a]b]:80"),
            of(Some("fe80::1%a]b"), Some("80"))
        );
        assert_eq!(parts("[::1]"), of(Some("::1"), None));
        assert_eq!(parts("::1"), of(Some("::1"), None));
        assert_eq!(parts("fe80::2%3"), of(Some("fe80::2%3"), None));
        assert_eq!(parts(":7471"), of(None, Some("7471")));
        assert_eq!(parts("host"), of(Some("host"), None));
    }

    #[test]
    fn each_broken_form_has_its_own_error() {
        use EndpointError as E;
        let cases = [
            ("", E::Empty),
            (":", E::EmptyService),
            ("host:", E::EmptyService),
            ("[::1]:", E::EmptyService),
            ("[::1", E::UnclosedBracket("[::1".into())),
            ("[host]:1", E::NotIpv6("host".into())),
            ("[127.0.0.1]:1", E::NotIpv6("127.0.0.1".into())),
            ("[]:1", E::NotIpv6(String::new())),
            ("[::1]7471", E::AfterBracket("7471".into())),
            ("a:b:c", E::SeveralColons("a:b:c".into())),
            ("*:7471", E::Star),
            ("*", E::Star),
            ("ho[st:1", E::BadNode("ho[st".into())),
            ("host:a b", E::BadService("a b".into())),
            ("host\0:1", E::EmbeddedNul),
            ("host:1\0", E::EmbeddedNul),
        ];
        for (text, error) in cases {
            assert_eq!(parse_endpoint(text), Err(error), "{text:?}");
        }
    }

    #[test]
    fn parts_longer_than_the_resolver_takes_are_refused() {
        let long_node = "a".repeat(HOST_MAX + 1);
        let long_service = "7".repeat(SERVICE_MAX + 1);
        assert!(parse_endpoint(&"a".repeat(HOST_MAX)).is_ok());
        for text in [long_node, format!("host:{long_service}")] {
            let error = parse_endpoint(&text).expect_err("too long");
            assert!(matches!(error, EndpointError::TooLong { .. }), "{error:?}");
        }
    }

    fn node() -> impl Strategy<Value = String> {
        prop_oneof![
            "[a-z0-9.*-]{1,40}".prop_filter("not a host", |node| node != "*"),
            any::<std::net::Ipv4Addr>().prop_map(|address| address.to_string()),
            any::<std::net::Ipv6Addr>().prop_map(|address| address.to_string()),
            (any::<std::net::Ipv6Addr>(), "[a-z0-9:%\\]\\[]{1,15}")
                .prop_map(|(address, zone)| format!("{address}%{zone}")),
        ]
    }

    proptest! {
        #[test]
        fn printed_text_parses_to_the_same_value(
            node in proptest::option::of(node()),
            service in proptest::option::of("[a-z0-9_-]{1,20}"),
        ) {
            prop_assume!(node.is_some() || service.is_some());
            let endpoint = Endpoint::new(node.as_deref(), service.as_deref()).expect("valid parts");
            prop_assert_eq!(parse_endpoint(&endpoint.to_string()), Ok(endpoint));
        }

        #[test]
        fn any_text_is_refused_or_survives_printing(text in "[\\[\\]:%.a-f0-9\\x00 é]{0,24}") {
            if let Ok(endpoint) = parse_endpoint(&text) {
                prop_assert_eq!(parse_endpoint(&endpoint.to_string()), Ok(endpoint));
            }
        }
    }
}
