//! Names through the system's resolver, and numeric text without it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use portolan_addrinfo::names::{Eai, Family, Reason, SocketType};
use portolan_addrinfo::{NameError, NameOptions, NameResult, resolve};
use portolan_provider::{Cause, Error, Step};

fn addresses(results: &[NameResult]) -> Vec<SocketAddr> {
    results.iter().map(|result| result.addr).collect()
}

fn reason(node: Option<&str>, service: Option<&str>, options: NameOptions) -> Reason {
    resolve(node, service, options).expect_err("refused").reason
}

#[test]
fn localhost_is_loopback_with_the_port_asked_for() {
    let results = resolve(Some("localhost"), Some("7471"), NameOptions::default());
    let addresses = addresses(&results.expect("every machine resolves localhost"));
    assert!(!addresses.is_empty());
    for address in addresses {
        assert!(
            address.ip().is_loopback() && address.port() == 7471,
            "{address}"
        );
    }
}

#[test]
fn a_family_restricts_the_results() {
    let options = NameOptions {
        family: Some(Family::V4),
        ..Default::default()
    };
    let results = resolve(Some("localhost"), None, options).expect("localhost");
    assert!(results.iter().all(|result| result.addr.is_ipv4()));
}

#[test]
fn numeric_text_keeps_address_port_and_scope() {
    let lo = resolve(Some("fe80::1%lo"), Some("80"), NameOptions::default()).expect("literal");
    let SocketAddr::V6(addr) = lo[0].addr else {
        panic!("IPv6")
    };
    assert_ne!(addr.scope_id(), 0, "the zone is kept");
    let by_index = format!("fe80::1%{}", addr.scope_id());
    let again = resolve(Some(&by_index), Some("80"), NameOptions::default());
    assert_eq!(again.expect("literal"), lo);
}

#[test]
fn without_a_node_listening_means_any_and_connecting_means_loopback() {
    let passive = NameOptions {
        passive: true,
        ..Default::default()
    };
    let any = resolve(None, Some("7471"), passive).expect("wildcard");
    assert!(
        any.iter().all(|result| result.addr.ip().is_unspecified()),
        "{any:?}"
    );
    let loopback = resolve(None, Some("7471"), NameOptions::default()).expect("loopback");
    assert!(
        loopback.iter().all(|result| result.addr.ip().is_loopback()),
        "{loopback:?}"
    );
    for result in any.iter().chain(&loopback) {
        assert_eq!(result.addr.port(), 7471);
    }
}

#[test]
fn a_canonical_name_is_returned_only_when_requested() {
    for node in ["localhost", "127.0.0.1"] {
        let options = NameOptions {
            canonical_name: true,
            ..Default::default()
        };
        let results = resolve(Some(node), Some("1"), options).expect(node);
        assert!(results[0].canonical_name.is_some(), "{node}");
        let results = resolve(Some(node), Some("1"), NameOptions::default()).expect(node);
        assert!(
            results.iter().all(|result| result.canonical_name.is_none()),
            "{node}"
        );
    }
    // Without a node there is no name; libc would reject the flag.
    let options = NameOptions {
        canonical_name: true,
        ..Default::default()
    };
    assert!(resolve(None, Some("1"), options).is_ok());
}

#[test]
fn numeric_hosts_only_means_no_name_is_ever_looked_up() {
    let options = NameOptions {
        numeric_host: true,
        ..Default::default()
    };
    assert_eq!(reason(Some("localhost"), None, options), Reason::NotNumeric);
    // The other numeric forms of inet_aton(3) are numeric too.
    let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 9));
    for node in ["127.0.0.1", "127.1", "0x7f000001", "2130706433"] {
        let results = resolve(Some(node), Some("9"), options).expect(node);
        assert_eq!(addresses(&results), [loopback], "{node}");
    }
}

#[test]
fn nonsense_has_a_typed_error_with_the_code_of_the_manual() {
    let any = NameOptions::default();
    let v6 = NameOptions {
        family: Some(Family::V6),
        ..any
    };
    let cases: [(Option<&str>, Option<&str>, NameOptions, Eai); 9] = [
        (None, None, any, Eai::NoName),
        (Some(""), Some("1"), any, Eai::NoName),
        (Some("a\0b"), Some("1"), any, Eai::NoName),
        (Some("127.0.0.1"), Some(""), any, Eai::Service),
        (Some("127.0.0.1"), Some("65536"), any, Eai::Service),
        (Some("127.0.0.1"), Some("-1"), any, Eai::Service),
        (
            Some("127.0.0.1"),
            Some("no-such-service"),
            any,
            Eai::Service,
        ),
        (Some("127.0.0.1"), Some("1"), v6, Eai::AddrFamily),
        (Some("fe80::1%no-such-if"), Some("1"), any, Eai::NoName),
    ];
    for (node, service, options, eai) in cases {
        let error = resolve(node, service, options).expect_err("refused");
        assert_eq!(error.eai(), eai, "{error}");
        let error = Error::from(error);
        assert_eq!(error.step, Step::ResolveName);
    }
    let oversized = resolve(Some(&"a".repeat(2000)), None, any).expect_err("refused");
    assert_eq!(oversized.eai(), Eai::Overflow);
}

#[test]
fn the_zone_of_a_missing_interface_is_named() {
    for (node, service) in [
        ("fe80::1%no-such-if", None),
        ("fe80::1%4294967295", Some("1")),
        ("fe80::1%", None),
        ("fe80::1%no-such-if", Some("no-such-service")),
    ] {
        let error = resolve(Some(node), service, NameOptions::default()).expect_err(node);
        assert!(
            matches!(error.reason, Reason::NoSuchZone { .. }),
            "{error:?}"
        );
        assert!(matches!(Cause::from(error), Cause::NoDevice { .. }));
    }
}

#[test]
fn a_name_reserved_to_be_unknown_is_unknown() {
    // RFC 6761: `.invalid` never resolves. Without a name server the failure is temporary.
    let error: NameError =
        resolve(Some("name.invalid"), Some("1"), NameOptions::default()).expect_err("unknown");
    assert!(
        matches!(error.eai(), Eai::NoName | Eai::NoData | Eai::Again),
        "{error}"
    );
    assert!(error.to_string().contains("name.invalid"), "{error}");
    let cause = Cause::from(error);
    assert!(
        matches!(
            cause,
            Cause::NameNotKnown(_) | Cause::NameTemporaryFailure(_)
        ),
        "{cause}"
    );
}

#[test]
fn datagram_services_are_looked_up_as_such() {
    let options = NameOptions {
        socket_type: SocketType::Datagram,
        ..Default::default()
    };
    let results = resolve(Some("::1"), Some("53"), options).expect("literal");
    let expected = SocketAddr::from((IpAddr::from(Ipv6Addr::LOCALHOST), 53));
    assert_eq!(addresses(&results), [expected]);
}
