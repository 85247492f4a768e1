//! Addresses with their devices.

use std::net::SocketAddr;

use portolan::provider::Address;
use portolan::resolve::{Decision, Eai, Family, Flags, Hints, Request, get_addrinfo, resolve};
use portolan::resolve::{Machine, resolve_passive};
use portolan_addrinfo::lookups::{DeviceAnswer, DeviceQuestion, Lookups};

use crate::harness::*;

fn inet(text: &str) -> Address {
    Address::Inet(text.parse().expect("address"))
}

#[test]
fn a_source_is_bound_to_a_device_that_exists() {
    let request = Request::parse("127.0.0.1:7471").unwrap();
    for request in [request.clone(), request.provider(provider())] {
        let found: Vec<_> = request.addresses().unwrap().collect();
        let [result] = &found[..] else {
            panic!("one address: {found:?}")
        };
        assert_eq!(result.src_addr, Some(inet("127.0.0.1:0")));
        let device = result
            .explain
            .decisions()
            .iter()
            .find_map(|decision| match decision {
                Decision::Device(device) => Some(device.clone()),
                _ => None,
            });
        let device = device.expect("the device is told");
        assert_eq!(device.name, "sw_lo");
        assert_eq!(device.gid.to_string(), "::ffff:127.0.0.1");
        let devices = provider().devices().unwrap();
        let lo = devices.iter().find(|device| device.name() == "sw_lo");
        let gids = lo.expect("loopback has a device").gids(1).unwrap();
        let entry = gids.iter().find(|entry| entry.gid == device.gid);
        assert_eq!(entry.map(|entry| entry.index), Some(device.gid_index));
    }
}

#[test]
fn without_an_open_provider_the_list_has_the_devices_that_it_would_have() {
    let devices = provider().devices().unwrap();
    let (closed, open) = (Machine::default(), Machine::on(provider()));
    for device in devices {
        let question = DeviceQuestion::Named {
            name: device.name().into(),
        };
        let found = closed.device(&question);
        assert!(matches!(found, DeviceAnswer::Found(_)), "{found:?}");
        assert_eq!(found, open.device(&question));
        let by_index = DeviceQuestion::Named {
            name: device.index().to_string(),
        };
        assert_eq!(closed.device(&by_index), found);
    }
    let missing = DeviceQuestion::Named {
        name: "mlx5_no_such".into(),
    };
    for machine in [closed, open] {
        assert!(matches!(
            machine.device(&missing),
            DeviceAnswer::None { .. }
        ));
    }
}

#[test]
fn the_zone_of_a_gid_names_the_device_whose_gid_is_the_source() {
    let hints = Hints::new().family(Family::Ib);
    let found = get_addrinfo(
        Some("fe80::1%sw_lo,pkey=0x8001"),
        Some("7471"),
        Some(&hints),
    );
    let found = found.expect("sw_lo exists");
    let (Some(Address::Ib(to)), Some(Address::Ib(from))) = (found[0].dst_addr, found[0].src_addr)
    else {
        panic!("{found:?}")
    };
    assert_eq!((to.sid, to.sid_mask), (0x0106_1D2F, u64::MAX));
    assert_eq!((to.pkey.0, from.pkey.0), (0x8001, 0x8001));
    assert_ne!(to.scope_id, 0);
    assert_eq!(to.scope_id, from.scope_id);
    assert!(from.gid.to_ip().is_loopback(), "{found:?}");
    let missing = get_addrinfo(Some("fe80::1%no_such"), Some("7471"), Some(&hints));
    assert_eq!(missing.expect_err("refused").code(), Eai::NoName);
}

#[test]
fn text_resolves_to_connect_and_to_listen() {
    let to: SocketAddr = "127.0.0.1:7471".parse().unwrap();
    let found = resolve("127.0.0.1:7471").unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].addr, to);
    assert_eq!(found[0].source, Some("127.0.0.1:0".parse().unwrap()));
    assert_eq!(found[0].canonical_name.as_deref(), Some("127.0.0.1"));
    assert!(
        found[0].explain.to_string().contains("sw_lo"),
        "{}",
        found[0].explain
    );
    let found = resolve_passive(":7471").unwrap();
    assert!(found.iter().all(|each| each.addr.ip().is_unspecified()));
    assert!(found.iter().all(|each| each.source.is_none()));
}

#[test]
fn a_request_without_text_resolves_from_its_hints() {
    let hints = Hints::new()
        .dst_addr(inet("127.0.0.1:0"))
        .flags(Flags::NOROUTE);
    let found = Request::new(None, Some("9")).hints(hints).run().unwrap();
    let found: Vec<_> = found.map(|info| info.dst_addr).collect();
    assert_eq!(found, [Some(inet("127.0.0.1:9"))]);
    let nothing = Request::new(None, None).run().unwrap_err();
    assert_eq!(nothing.code(), Eai::NoName);
}
