//! `ai_route` and `ai_connect`.

use portolan_addrinfo::{Family, Hints, PathData, RawHints};
use portolan_provider::address::SockaddrIb;
use portolan_provider::{Address, Cause};
use portolan_wire::addr::PortSpace;
use portolan_wire::sa::PathRecord;
use portolan_wire::{Gid, PKey};

use crate::script::*;

/// A path with this service level.
fn path(sl: u8) -> PathData {
    PathData::new(
        PathData::GMP | PathData::PRIMARY | PathData::BIDIRECTIONAL,
        PathRecord {
            sl,
            hop_limit: 1,
            ..PathRecord::default()
        },
    )
}

/// The service levels of the first result's paths.
fn levels(script: &Script, hints: &Hints) -> Vec<u8> {
    let results = script.found("192.0.2.1", hints);
    let paths = results[0].route.iter();
    paths.map(|path| path.record.sl).collect()
}

#[test]
fn over_infiniband_a_result_has_the_fabrics_paths() {
    let script = Script::infiniband(vec![path(1), path(2)]);
    let results = script.found("192.0.2.1", &Hints::new());
    assert_eq!(results[0].route, [path(1), path(2)]);
    assert_eq!(script.asked(), ["route", "device", "paths"]);
    // As an array of ibv_path_data.
    let bytes = results[0]
        .route
        .iter()
        .map(|path| path.to_bytes().unwrap().len());
    assert_eq!(bytes.sum::<usize>(), 2 * 72);
}

#[test]
fn a_route_of_the_hints_without_a_partition_leads_to_the_default_one() {
    for (given, expected) in [(0, 0xFFFF), (0x8001, 0x8001)] {
        let mut route = path(0);
        route.record.pkey = PKey(given);
        (route.record.dgid, route.record.sgid) = (Gid([0xFE; 16]), PORT_GID);
        let hints = Hints {
            route: vec![route],
            ..Hints::new()
        };
        let found = Script::infiniband(vec![path(1)]).resolve(None, Some("7471"), &hints);
        let Some(Address::Ib(to)) = found.unwrap()[0].dst_addr else {
            panic!("a GID");
        };
        assert_eq!(to.pkey, PKey(expected));
    }
}

#[test]
fn over_ethernet_no_path_is_needed_and_none_is_asked_for() {
    let script = Script::ethernet();
    let results = script.found("192.0.2.1", &Hints::new());
    assert!(results[0].route.is_empty() && results[0].src_addr.is_some());
    assert_eq!(script.asked(), ["route", "device"]);
}

#[test]
fn a_path_that_cannot_be_found_is_left_out() {
    let none = Script::infiniband(Vec::new());
    assert_eq!(levels(&none, &Hints::new()), []);
    let mut deaf = Script::infiniband(Vec::new());
    deaf.paths = Err(Cause::TimedOut {
        after_ms: 1,
        retries: 0,
    });
    assert_eq!(levels(&deaf, &Hints::new()), []);
}

#[test]
fn fields_of_a_path_that_hints_set_restrict_the_paths() {
    let script = Script::infiniband(vec![path(1), path(2), path(3)]);
    let wanted = |sl| {
        PathData::new(
            0,
            PathRecord {
                sl,
                ..PathRecord::default()
            },
        )
    };
    let hints = Hints::new().route([wanted(2)]);
    assert_eq!(levels(&script, &hints), [2]);
    let two = Hints::new().route([wanted(3), wanted(1)]);
    assert_eq!(levels(&script, &two), [1, 3]);
    assert_eq!(levels(&script, &Hints::new().route([wanted(9)])), []);
}

#[test]
fn hints_may_have_an_array_of_either_kind_of_record() {
    let script = Script::infiniband(vec![path(1), path(2)]);
    let wanted = PathData::new(
        0,
        PathRecord {
            sl: 2,
            ..PathRecord::default()
        },
    );
    let data = wanted.to_bytes().unwrap();
    for route in [&data[..], &data[8..]] {
        let raw = RawHints {
            route,
            ..RawHints::default()
        };
        assert_eq!(
            levels(&script, &raw.read().unwrap()),
            [2],
            "{} bytes",
            route.len()
        );
    }
}

#[test]
fn results_have_the_connection_data_of_the_hints_and_no_other() {
    let script = Script::ethernet();
    let hints = Hints::new().connect(*b"header");
    for result in script.found(HOST, &hints) {
        assert_eq!(result.connect, b"header");
    }
    for result in script.found(HOST, &Hints::new()) {
        assert!(result.connect.is_empty());
    }
}

/// A GID of the fabric.
const FAR: &str = "fe80::10:2";

fn ib(address: Option<Address>) -> SockaddrIb {
    match address {
        Some(Address::Ib(ib)) => ib,
        other => panic!("expected an InfiniBand address: {other:?}"),
    }
}

#[test]
fn a_gid_of_the_fabric_has_the_port_that_leads_there_and_its_paths() {
    let script = Script::infiniband(vec![path(1)]);
    let hints = Hints::new().family(Family::Ib).connect(*b"mine");
    let found = script.resolve(Some(&format!("{FAR},pkey=0x8001")), Some("7471"), &hints);
    let result = &found.unwrap()[0];
    assert_eq!(script.asked(), ["port", "paths"]);
    assert_eq!(result.route, [path(1)]);
    let (from, to) = (ib(result.src_addr), ib(result.dst_addr));
    assert_eq!(from.gid, PORT_GID);
    assert_eq!((to.pkey.0, from.pkey.0), (0x8001, 0x8001));
    assert_eq!(to.sid, 0x0106_1D2F);
    assert_eq!(result.connect, b"mine");
    // The same with the device name of the port.
    let script = Script::infiniband(vec![path(1)]);
    let found = script.found(&format!("{FAR}%ib0"), &Hints::new().family(Family::Ib));
    assert_eq!(script.asked(), ["device", "paths"]);
    assert_eq!(found[0].route, [path(1)]);
    assert_eq!(ib(found[0].src_addr).gid, PORT_GID);
}

#[test]
fn a_route_of_the_hints_leads_over_the_fabric_from_its_source() {
    let mut like = path(1);
    like.record.sgid = Gid([&PORT_GID.0[..15], &[9]].concat().try_into().unwrap());
    like.record.dgid = Gid([&PORT_GID.0[..15], &[2]].concat().try_into().unwrap());
    let script = Script::infiniband(vec![path(2), like]);
    let hints = Hints::new().route([like]);
    let results = script.resolve(None, None, &hints).unwrap();
    assert_eq!(results[0].route, [like]);
    assert_eq!(ib(results[0].src_addr).gid, like.record.sgid);
    assert_eq!(ib(results[0].dst_addr).gid, like.record.dgid);
    // Without routes no lookup is made.
    let script = Script::infiniband(vec![path(2), like]);
    let results = script.resolve(None, None, &hints.no_route()).unwrap();
    assert!(results[0].route.is_empty() && script.asked().is_empty());
}

#[test]
fn a_wildcard_source_leaves_the_choice_to_the_zone_and_to_the_route_of_the_hints() {
    let (sid, sid_mask) = SockaddrIb::service(PortSpace::Tcp, 77);
    let any = SockaddrIb {
        pkey: PKey::DEFAULT,
        flowinfo: 0,
        gid: Gid::UNSPECIFIED,
        sid,
        sid_mask,
        scope_id: 0,
    };
    let hints = Hints::new().family(Family::Ib).src_addr(Address::Ib(any));
    let script = Script::infiniband(vec![path(1)]);
    for node in [FAR.to_owned(), format!("{FAR}%ib0")] {
        let source = ib(script.found(&node, &hints)[0].src_addr);
        assert_eq!((source.gid, source.sid), (PORT_GID, sid), "{node}");
    }
    let mut like = path(1);
    like.record.sgid = Gid([&PORT_GID.0[..15], &[9]].concat().try_into().unwrap());
    like.record.dgid = Gid([&PORT_GID.0[..15], &[2]].concat().try_into().unwrap());
    let script = Script::infiniband(vec![like]);
    let results = script.resolve(None, None, &hints.route([like])).unwrap();
    let source = ib(results[0].src_addr);
    assert_eq!((source.gid, source.sid), (like.record.sgid, sid));
}

#[test]
fn a_gid_that_no_fabric_port_reaches_is_resolved_over_roce() {
    let script = Script::infiniband(vec![path(1)]);
    let results = script.found("fd00::2", &Hints::new().family(Family::Ib));
    assert_eq!(script.asked(), ["route", "device", "paths"]);
    let script = Script::ethernet();
    assert_eq!(
        script
            .found("fd00::2", &Hints::new().family(Family::Ib))
            .len(),
        results.len()
    );
    assert_eq!(script.asked(), ["route", "device"]);
}
