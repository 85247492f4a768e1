use super::*;

use proptest::prelude::*;

const DEFAULT: NameOptions = NameOptions {
    passive: false,
    numeric_host: false,
    family: None,
    socket_type: SocketType::Stream,
    canonical_name: false,
    configured_only: false,
};

#[test]
fn numeric_text_is_decided_without_the_resolver() {
    for node in ["127.0.0.1", "::1", "fe80::1%lo", "255.255.255.255"] {
        for service in [None, Some("0"), Some("65535")] {
            let plan = plan(Some(node), service, DEFAULT);
            assert!(
                matches!(plan, Ok(Plan::Numeric { .. })),
                "{node} {service:?}: {plan:?}"
            );
        }
    }
}

#[test]
fn wildcards_are_decided_without_the_resolver_and_match_libc() {
    for family in [None, Some(Family::V4), Some(Family::V6)] {
        for (numeric_host, canonical_name) in [(false, false), (true, false), (false, true)] {
            let options = NameOptions {
                passive: true,
                numeric_host,
                family,
                canonical_name,
                ..DEFAULT
            };
            let plan = plan(None, Some("7471"), options);
            assert_eq!(plan, Ok(Plan::Wildcard { port: 7471 }));
            let short = resolve(None, Some("7471"), options).unwrap();
            let long = sys::ask(None, PlannedService::Port(7471), options);
            assert_eq!(Ok(short), long, "{family:?}");
        }
    }
}

#[test]
fn wildcards_that_depend_on_the_machine_or_on_service_names_are_queried() {
    let passive = NameOptions {
        passive: true,
        ..DEFAULT
    };
    let configured_only = NameOptions {
        configured_only: true,
        ..passive
    };
    let questions = [
        (Some("https"), passive),
        (Some("443"), configured_only),
        (Some("443"), DEFAULT),
    ];
    for (service, options) in questions {
        let plan = plan(None, service, options);
        assert!(
            matches!(plan, Ok(Plan::Ask { .. })),
            "{service:?}: {plan:?}"
        );
    }
}

#[test]
fn bad_questions_are_refused_before_anything_is_asked() {
    let long = "a".repeat(HOST_MAX + 1);
    let long_service = "a".repeat(SERVICE_MAX + 1);
    let v4 = NameOptions {
        family: Some(Family::V4),
        ..DEFAULT
    };
    let cases = [
        (None, None, DEFAULT, Reason::Nothing),
        (Some(""), Some("1"), DEFAULT, Reason::EmptyNode),
        (Some("a"), Some(""), DEFAULT, Reason::EmptyService),
        (Some("a\0b"), None, DEFAULT, Reason::EmbeddedNul("host")),
        (None, Some("1\0"), DEFAULT, Reason::EmbeddedNul("service")),
        (
            Some(&*long),
            None,
            DEFAULT,
            Reason::NodeTooLong {
                length: HOST_MAX + 1,
            },
        ),
        (
            None,
            Some(&*long_service),
            DEFAULT,
            Reason::ServiceTooLong {
                length: SERVICE_MAX + 1,
            },
        ),
        (None, Some("65536"), DEFAULT, Reason::PortOutOfRange),
        (None, Some("-1"), DEFAULT, Reason::MalformedService),
        (
            Some("::1"),
            None,
            v4,
            Reason::WrongFamily {
                expected: "IPv4",
                found: "IPv6",
            },
        ),
    ];
    for (node, service, options, reason) in cases {
        assert_eq!(
            plan(node, service, options),
            Err(reason),
            "{node:?} {service:?}"
        );
    }
}

proptest! {
    /// The fast path for numeric text returns what libc returns.
    #[test]
    fn numeric_text_gives_what_libc_gives(
        address: IpAddr,
        port: u16,
        in_zone: bool,
        canonical_name: bool,
    ) {
        let zone = if in_zone && address.is_ipv6() { "%1" } else { "" };
        // libc drops the zone of a mapped address.
        prop_assume!(!in_zone || !matches!(address, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some()));
        let node = format!("{address}{zone}");
        let options = NameOptions { numeric_host: true, canonical_name, ..DEFAULT };
        let short = resolve(Some(&node), Some(&port.to_string()), options);
        let long = sys::ask(Some(&node), PlannedService::Port(port), options);
        prop_assert_eq!(short.map_err(|error| error.reason), long);
    }
}
