//! `ai_flags`, `ai_family`, and addresses for the passive side.

use portolan_addrinfo::lookups::{Answer, SaService, ServiceRecord};
use portolan_addrinfo::{Eai, Family, Flags, Hints, Plan, Question};
use portolan_provider::Address;
use portolan_wire::{Gid, PKey};

use crate::script::*;

#[test]
fn passive_gives_addresses_to_listen_at_and_no_destination() {
    let script = Script::ethernet();
    let results = script.found(HOST, &Hints::new().passive());
    let expected = ["[fd00::2]:7471", "10.0.0.2:7471", "10.0.0.3:7471"];
    assert_eq!(sources(&results), expected);
    for result in &results {
        assert_eq!((result.flags, result.dst_addr), (Flags::PASSIVE, None));
    }
    let wildcards = script
        .resolve(None, Some("7471"), &Hints::new().passive())
        .unwrap();
    assert!(
        wildcards
            .iter()
            .all(|one| one.src_addr.unwrap().is_unspecified())
    );
    // Without the flag the addresses are for connecting.
    let active = script.found(HOST, &Hints::new());
    assert!(
        active
            .iter()
            .all(|one| one.flags.is_empty() && one.dst_addr.is_some())
    );
}

#[test]
fn numerichost_takes_numeric_addresses_alone_and_asks_no_name_service() {
    let script = Script::ethernet();
    let hints = Hints::new().numeric_host();
    let error = script.resolve(Some(HOST), Some("1"), &hints).unwrap_err();
    assert_eq!(error.code(), Eai::NoName);
    assert!(error.to_string().contains("numeric"), "{error}");
    for node in ["192.0.2.1", "2001:db8::1"] {
        assert_eq!(script.found(node, &hints).len(), 1);
    }
    assert!(!script.asked().contains(&"names"), "{:?}", script.asked());
}

#[test]
fn noroute_looks_up_no_route_device_or_path() {
    let script = Script::infiniband(Vec::new());
    let results = script.found("192.0.2.1", &Hints::new().no_route());
    assert_eq!(sources(&results), ["-"]);
    assert!(results[0].route.is_empty());
    assert_eq!(script.asked(), [""; 0]);
    let pinned = Hints::new()
        .no_route()
        .src_addr(inet("10.0.0.9:0").unwrap());
    assert_eq!(sources(&script.found("192.0.2.1", &pinned)), ["10.0.0.9:0"]);
    assert!(!script.asked().contains(&"route"));
}

#[test]
fn the_family_of_the_hints_says_how_to_read_the_node_with_rai_family_alone() {
    let script = Script::ethernet();
    let with = |family| Hints::new().family(family);
    let v4 = script.found(HOST, &with(Family::Inet));
    assert_eq!(destinations(&v4), ["10.0.0.2:7471", "10.0.0.3:7471"]);
    let v6 = script.found(HOST, &with(Family::Inet6));
    assert_eq!(destinations(&v6), ["[fd00::2]:7471"]);
    let ib = script.found("fd00::2", &with(Family::Ib));
    assert!(matches!(ib[0].dst_addr, Some(Address::Ib(_))));

    let without = |family| Hints {
        family: Some(family),
        ..Hints::new()
    };
    for family in [Family::Inet, Family::Inet6, Family::Ib] {
        let results = script.found(HOST, &without(family));
        assert_eq!(results.len(), 3, "{family} counted without RAI_FAMILY");
    }
}

#[test]
fn the_family_of_a_result_is_that_of_both_of_its_addresses() {
    let script = Script::ethernet();
    for hints in [Hints::new(), Hints::new().passive()] {
        for result in script.found(HOST, &hints) {
            for address in [result.src_addr, result.dst_addr].into_iter().flatten() {
                assert_eq!(Family::of(&address), result.family);
            }
        }
    }
}

#[test]
fn services_of_the_subnet_administrator_have_destinations_and_are_not_passive() {
    let record = ServiceRecord {
        id: 0x1000,
        gid: Gid([2; 16]),
        pkey: PKey::DEFAULT,
        local_gid: PORT_GID,
    };
    for flags in [Flags::SA, Flags::SA | Flags::PASSIVE] {
        let hints = Hints::new().flags(flags);
        let mut plan = Plan::new(None, Some("0x1000"), Some(&hints)).unwrap();
        plan.answer(Answer::ServiceRecords(Ok(vec![record])));
        let results = plan.finish().unwrap();
        assert!(results[0].dst_addr.is_some());
        assert_eq!(results[0].flags, Flags::SA, "for {flags:?}");
    }
}

#[test]
fn rai_sa_takes_the_name_of_a_service_or_its_id() {
    let hints = Hints::new().flags(Flags::SA);
    for (service, expected) in [
        ("storage", SaService::Name("storage".into())),
        ("0x1000", SaService::Id(0x1000)),
        ("4096", SaService::Id(4096)),
    ] {
        let plan = Plan::new(None, Some(service), Some(&hints)).unwrap();
        let question = Question::ServiceRecords(expected);
        assert_eq!(plan.question(), Some(&question));
    }
    let script = Script::ethernet();
    let refused = |node, service| {
        let error = script.resolve(node, service, &hints).unwrap_err();
        error.code()
    };
    const EINVAL: i32 = 22;
    const EOPNOTSUPP: i32 = 95;
    assert_eq!(refused(None, None), Eai::System(EINVAL));
    assert_eq!(refused(Some(HOST), Some("1")), Eai::System(EOPNOTSUPP));
}
