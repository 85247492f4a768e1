//! Queries without an answer, each with the error code of the manual.

use portolan_addrinfo::lookups::{SaService, ServiceRecord};
use portolan_addrinfo::{
    Eai, Family, Flags, Hints, Lookups, PathData, Problem, QpType, RawHints, get_addrinfo,
    get_addrinfo_with,
};
use portolan_provider::error::errno;
use portolan_provider::{Address, Cause};
use portolan_wire::addr::{Gid, PKey, PortSpace};

const EINVAL: Eai = Eai::System(errno::EINVAL);

#[track_caller]
fn refused(node: Option<&str>, service: Option<&str>, hints: &Hints, code: Eai) -> Problem {
    let error = get_addrinfo(node, service, Some(hints)).expect_err("refused");
    assert_eq!(error.code(), code, "{error}");
    assert!(error.to_string().contains(code.name()), "{error}");
    *error.problem
}

fn inet(text: &str) -> Address {
    Address::Inet(text.parse().expect("address"))
}

const NODE: Option<&str> = Some("127.0.0.1");
const PORT: Option<&str> = Some("7471");

#[test]
fn unknown_flags_are_eai_badflags() {
    for unknown in [0x40, 0x0100_0000, 0x8000_0000] {
        let hints = Hints::new().flags(Flags::from_bits_retain(unknown | 2));
        let problem = refused(NODE, PORT, &hints, Eai::BadFlags);
        assert_eq!(problem, Problem::UnknownFlags { unknown });
    }
}

#[test]
fn contradicting_hints_have_different_errors() {
    let hints = Hints::new();
    let sa_and_dns = hints.clone().flags(Flags::SA | Flags::DNS);
    refused(None, PORT, &sa_and_dns, Eai::BadFlags);
    let ud_over_tcp = hints.clone().qp_type(QpType::Ud).port_space(PortSpace::Tcp);
    refused(NODE, PORT, &ud_over_tcp, Eai::QpType);
    let of_two_families = hints.clone().src_addr(inet("127.0.0.1:0"));
    let of_two_families = of_two_families.dst_addr(inet("[::1]:7"));
    refused(None, None, &of_two_families, Eai::AddrFamily);
    let other_family = hints.clone().family(Family::Inet6);
    refused(
        None,
        None,
        &other_family.clone().dst_addr(inet("127.0.0.1:7")),
        Eai::AddrFamily,
    );
    refused(NODE, None, &other_family, Eai::AddrFamily);
    refused(
        Some("localhost"),
        None,
        &hints.clone().numeric_host(),
        Eai::NoName,
    );
    refused(
        Some("::1,sid=7"),
        PORT,
        &hints.family(Family::Ib),
        Eai::Service,
    );
}

#[test]
fn oversized_names_are_unknown_names() {
    let hints = Hints::new();
    refused(Some(&"a".repeat(2000)), PORT, &hints, Eai::NoName);
    refused(NODE, Some(&"a".repeat(40)), &hints, Eai::Service);
    let ib = Hints::new().family(Family::Ib);
    refused(Some(&"1".repeat(2000)), PORT, &ib, Eai::NoName);
    refused(Some("::1"), Some(&"a".repeat(40)), &ib, Eai::Service);
}

#[test]
fn empty_names_and_embedded_nuls_are_refused() {
    for hints in [Hints::new(), Hints::new().family(Family::Ib)] {
        refused(Some(""), PORT, &hints, Eai::NoName);
        refused(Some("::1"), Some(""), &hints, Eai::Service);
        refused(Some("::1\0"), PORT, &hints, Eai::NoName);
        refused(Some("::1"), Some("7471\0"), &hints, Eai::NoName);
    }
}

#[test]
fn a_service_that_is_not_a_port_is_eai_service() {
    let given = Hints::new().dst_addr(inet("127.0.0.1:0"));
    for port in ["65536", "-1", "+7", " 7", "99999999999999999999"] {
        for family in [None, Some(Family::Ib)] {
            let mut hints = Hints::new();
            if let Some(family) = family {
                hints = hints.family(family);
            }
            let node = family.map_or(NODE, |_| Some("::1"));
            refused(node, Some(port), &hints, Eai::Service);
        }
        refused(None, Some(port), &given, Eai::Service);
        refused(None, Some(port), &Hints::new().passive(), Eai::Service);
    }
    // A service id instead of a port.
    let by_ip = Hints::new().port_space(PortSpace::Ib);
    refused(NODE, Some("65536"), &by_ip, Eai::Service);
    refused(None, Some("0x10000"), &given, Eai::Service);
}

#[test]
fn a_link_local_address_without_its_zone_is_eai_noname_unless_the_source_has_one() {
    let problem = refused(Some("fe80::1"), PORT, &Hints::new(), Eai::NoName);
    assert!(matches!(problem, Problem::NoZone { .. }), "{problem:?}");
    assert!(problem.to_string().contains("fe80::1%eth0"), "{problem}");
    refused(Some("fe80::1"), PORT, &Hints::new().passive(), Eai::NoName);
    refused(
        None,
        None,
        &Hints::new().dst_addr(inet("[fe80::1]:7")),
        Eai::NoName,
    );
    let hints = Hints::new().src_addr(inet("[fe80::2%1]:0")).no_route();
    let found = get_addrinfo(Some("fe80::1"), PORT, Some(&hints)).expect("in the source's zone");
    assert_eq!(found[0].dst_addr, Some(inet("[fe80::1%1]:7471")));
}

#[test]
fn a_zone_of_a_missing_interface_is_eai_noname() {
    for node in ["fe80::1%no-such-if", "fe80::1%4294967295", "fe80::1%"] {
        refused(Some(node), PORT, &Hints::new(), Eai::NoName);
    }
    let ib = Hints::new().family(Family::Ib);
    refused(Some("fe80::1%no-such-device"), PORT, &ib, Eai::NoName);
    refused(Some("fe80::1%"), PORT, &ib, Eai::NoName);
}

#[test]
fn with_af_ib_a_node_that_is_not_a_gid_is_eai_noname() {
    let ib = Hints::new().family(Family::Ib);
    for node in [
        "localhost",
        "192.0.2.1",
        "::1,pkey=0x10000",
        "::1,lid=1",
        "::1,",
    ] {
        let problem = refused(Some(node), PORT, &ib, Eai::NoName);
        assert!(matches!(problem, Problem::NotGid(_)), "{problem:?}");
    }
}

#[test]
fn routes_and_connection_data_have_their_bounds() {
    let hints = Hints::new().route(vec![PathData::default(); 7]);
    refused(NODE, PORT, &hints, EINVAL);
    refused(NODE, PORT, &Hints::new().connect(vec![0; 93]), EINVAL);
    let most = Hints::new()
        .route(vec![PathData::default(); 6])
        .connect(vec![0; 92]);
    assert!(get_addrinfo(NODE, PORT, Some(&most)).is_ok());
}

#[test]
fn hints_of_numbers_and_bytes_are_read_or_refused_before_anything_is_asked() {
    let bytes = [0xFF; 600];
    for length in 1..bytes.len() {
        for field in 0..3 {
            let mut raw = RawHints::default();
            let slot = match field {
                0 => &mut raw.src_addr,
                1 => &mut raw.dst_addr,
                _ => &mut raw.route,
            };
            *slot = &bytes[..length];
            let code = raw.read().map_err(|error| error.code());
            let fits = field == 2
                && ((length % 64 == 0 && length <= 384) || (length % 72 == 0 && length <= 432));
            match code {
                Ok(hints) => assert!(fits, "{length}: {hints:?}"),
                // Too short for a family, or of family 0xFFFF.
                Err(code) if field < 2 => assert!([EINVAL, Eai::Family].contains(&code)),
                Err(code) => assert_eq!((code, fits), (EINVAL, false), "{length}"),
            }
        }
    }
}

#[test]
fn a_source_of_another_machine_cannot_be_pinned() {
    let hints = Hints::new().src_addr(inet("192.0.2.77:0"));
    let code = Eai::System(errno::EADDRNOTAVAIL);
    refused(NODE, PORT, &hints, code);
}

#[test]
fn rai_sa_without_infiniband_is_an_error_and_takes_no_node() {
    let sa = Hints::new().flags(Flags::SA);
    refused(NODE, PORT, &sa, Eai::System(errno::EOPNOTSUPP));
    refused(None, None, &sa, EINVAL);
    refused(None, Some(""), &sa, EINVAL);
    refused(None, Some(&"a".repeat(64)), &sa, EINVAL);
    refused(None, Some("a\0b"), &sa, Eai::NoName);
    // This machine has no InfiniBand port for the query.
    refused(None, Some("storage"), &sa, Eai::System(errno::ENOENT));
}

/// A subnet administrator that knows one service.
struct Administrator;

impl Lookups for Administrator {
    fn service_records(&self, service: &SaService) -> Result<Vec<ServiceRecord>, Cause> {
        const ID: u64 = 0x1000_0000_0000_0001;
        let record = ServiceRecord {
            id: ID,
            gid: Gid([0xFE; 16]),
            pkey: PKey(0x8001),
            local_gid: Gid([0xFD; 16]),
        };
        match service {
            SaService::Id(ID) => Ok(vec![record]),
            SaService::Name(name) if name == "storage" => Ok(vec![record]),
            SaService::Name(name) if name == "timeout" => Err(Cause::TimedOut {
                after_ms: 2000,
                retries: 0,
            }),
            _ => Ok(Vec::new()),
        }
    }
}

#[test]
fn rai_sa_gives_the_records_of_a_service_as_results() {
    let sa = Hints::new().flags(Flags::SA);
    let ask = |service: &str| get_addrinfo_with(&Administrator, None, Some(service), Some(&sa));
    for service in ["storage", "0x1000000000000001", "1152921504606846977"] {
        let found = ask(service).expect(service);
        let (Some(Address::Ib(to)), Some(Address::Ib(from))) =
            (found[0].dst_addr, found[0].src_addr)
        else {
            panic!("{found:?}")
        };
        assert_eq!((to.sid, to.sid_mask), (0x1000_0000_0000_0001, u64::MAX));
        assert_eq!((from.sid, from.sid_mask), (0x013F_0000, !0xFFFF));
        assert_eq!((to.gid.0, from.gid.0), ([0xFE; 16], [0xFD; 16]));
        assert_eq!((to.pkey, from.pkey), (PKey(0x8001), PKey(0x8001)));
        assert_eq!(found[0].flags, Flags::SA);
        assert_eq!(found[0].port_space, PortSpace::Ib);
        assert_eq!(found[0].family, Family::Ib);
    }
    let code = |service| ask(service).expect_err(service).code();
    assert_eq!(code("unknown"), Eai::System(errno::ENOENT));
    assert_eq!(code("timeout"), Eai::System(errno::ETIMEDOUT));
}

/// Routing that answers in the other family.
struct Crossed;

impl Lookups for Crossed {
    fn route(&self, query: &portolan_addrinfo::Query) -> Result<portolan_addrinfo::Route, Cause> {
        Ok(portolan_addrinfo::Route {
            destination: query.destination,
            kind: portolan_addrinfo::RouteKind::Unicast,
            source: "2001:db8::1".parse().expect("address"),
            interface_index: 1,
            gateway: None,
            mtu: None,
            hop_limit: None,
            table: 254,
        })
    }
}

#[test]
fn a_source_of_another_family_than_the_destination_is_ignored() {
    let found = get_addrinfo_with(&Crossed, NODE, PORT, None).expect("an address");
    assert_eq!(found[0].src_addr, None);
    assert_eq!(found[0].dst_addr, Some(inet("127.0.0.1:7471")));
}

#[test]
fn a_look_up_that_needs_nothing_gives_what_a_plan_gives() {
    let source = inet("127.0.0.1:0");
    for hints in [
        Hints::new().no_route(),
        Hints::new().no_route().src_addr(source),
        Hints::new().no_route().passive(),
        Hints::new().no_route().family(Family::Inet6),
        Hints::new().no_route().src_addr(inet("[::1]:5")),
    ] {
        let planned = portolan_addrinfo::Plan::new(NODE, PORT, Some(&hints)).and_then(|plan| {
            assert_eq!(plan.question(), None);
            plan.finish()
        });
        assert_eq!(get_addrinfo(NODE, PORT, Some(&hints)), planned, "{hints:?}");
    }
}
