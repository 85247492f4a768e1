//! A target to resolve.

use std::fmt;

use portolan::resolve::parse_endpoint;

/// A host, a service or both; with hints it may have neither.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) node: Option<String>,
    pub(super) service: Option<String>,
}

impl Target {
    pub(super) fn new(node: Option<String>, service: Option<String>) -> Self {
        Self { node, service }
    }

    /// Parses `host:port`, `host` or `:port`.
    ///
    /// # Errors
    /// The text has none of these forms.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let endpoint = parse_endpoint(text).map_err(|error| error.to_string())?;
        let owned = |part: Option<&str>| part.map(str::to_owned);
        Ok(Self::new(owned(endpoint.node()), owned(endpoint.service())))
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.node.as_deref(), self.service.as_deref()) {
            (Some(node), Some(service)) if node.contains(':') => write!(f, "[{node}]:{service}"),
            (Some(node), Some(service)) => write!(f, "{node}:{service}"),
            (Some(node), None) => f.write_str(node),
            (None, Some(service)) => write!(f, ":{service}"),
            (None, None) => f.write_str("the hints"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_a_host_a_service_or_both_and_prints_as_it_was_written() {
        for text in ["localhost:7471", "[::1]:80", "host", ":9"] {
            assert_eq!(Target::parse(text).unwrap().to_string(), text);
        }
        assert!(Target::parse("b:c:d").is_err());
    }
}
