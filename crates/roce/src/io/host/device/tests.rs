use super::*;
use portolan_provider::Cause;
use portolan_wire::Gid;
use std::net::Ipv4Addr;

fn interface(addresses: &[&str]) -> Interface {
    Interface {
        name: "eth7".into(),
        index: 7,
        mtu: 1500,
        mac: Some([0x52, 0x54, 0, 0x12, 0x34, 0x56]),
        running: true,
        addresses: addresses.iter().map(|ip| ip.parse().unwrap()).collect(),
    }
}

fn core(interface: &Interface) -> Arc<DeviceCore> {
    DeviceCore::new(interface, &[], 8).unwrap()
}

#[test]
fn an_address_keeps_its_slot_while_others_are_added_and_removed() {
    let device = core(&interface(&[]));
    let index = |ip: &str| device.gid_index(ip.parse().unwrap());
    device.update(&interface(&["10.0.0.1", "10.0.0.2", "fe80::1"]));
    assert_eq!(index("fe80::1"), Some(2));
    device.update(&interface(&["10.0.0.2", "fe80::1"]));
    assert_eq!((index("10.0.0.1"), index("10.0.0.2")), (None, Some(1)));
    device.update(&interface(&[
        "fe80::1",
        "10.0.0.9",
        "10.0.0.2",
        "10.0.0.10",
    ]));
    let slots = [
        index("10.0.0.9"),
        index("10.0.0.2"),
        index("fe80::1"),
        index("10.0.0.10"),
    ];
    assert_eq!(slots, [Some(0), Some(1), Some(2), Some(3)]);
}

#[test]
fn an_address_without_room_in_the_table_is_known_until_there_is_room() {
    let all: Vec<_> = (0..GID_TABLE_LEN + 1)
        .map(|number| format!("10.0.{}.{}", number / 250, number % 250 + 1))
        .collect();
    let mut addresses: Vec<&str> = all.iter().map(String::as_str).collect();
    let (first, last) = (addresses[0], addresses[GID_TABLE_LEN]);
    let device = core(&interface(&addresses));
    let leaves_out = |ip: &str| device.leaves_out(ip.parse().unwrap());
    assert!(leaves_out(last) && !leaves_out(first));
    assert_eq!(device.gid_index(last.parse().unwrap()), None);
    addresses.remove(0);
    device.update(&interface(&addresses));
    assert!(!leaves_out(last) && !leaves_out(first));
    assert_eq!(device.gid_index(last.parse().unwrap()), Some(0));
}

#[test]
fn the_guid_is_the_eui_64_or_a_stable_local_one() {
    let mut of = interface(&[]);
    assert_eq!(node_guid(&of, |_| false), 0x5054_00ff_fe12_3456);
    assert_ne!(
        node_guid(&of, |guid| guid == 0x5054_00ff_fe12_3456),
        0x5054_00ff_fe12_3456,
        "another device's number was taken"
    );
    of.mac = None;
    assert_eq!(node_guid(&of, |_| false), node_guid(&of, |_| false));
    assert_eq!(node_guid(&of, |_| false) >> 56 & 3, 2);
}

#[test]
fn a_duplicate_device_name_gets_the_interfaces_number() {
    let of = interface(&[]);
    assert_eq!(device_name(&of, |_| false), "sw_eth7");
    assert_eq!(device_name(&of, |name| name == "sw_eth7"), "sw_eth7_7");
}

#[test]
fn an_update_reports_each_change_once() {
    let mut of = interface(&["10.0.0.1"]);
    let device = core(&interface(&[]));
    let nothing = Updated::default();
    assert_eq!(
        device.update(&of),
        Updated {
            gids: true,
            ..nothing
        }
    );
    assert_eq!(device.update(&of), nothing);
    of.running = false;
    assert_eq!(
        device.update(&of),
        Updated {
            active: Some(false),
            ..nothing
        }
    );
    of.running = true;
    of.mac = Some([2, 0, 0, 0, 0, 9]);
    of.mtu = 9000;
    of.name = "renamed".into();
    let expected = Updated {
        active: Some(true),
        hardware_address: true,
        ..nothing
    };
    assert_eq!(device.update(&of), expected);
    assert_eq!(device.max_mtu(), Mtu::Mtu4096);
    assert_eq!(
        device.name(),
        "sw_eth7",
        "the device's name must not change"
    );
    assert_eq!(device.update(&of), nothing);
    of.mtu = 100;
    assert_eq!(device.update(&of), nothing);
    assert_eq!(device.max_mtu(), Mtu::Mtu256);
    of.addresses.clear();
    assert_eq!(
        device.update(&of),
        Updated {
            gids: true,
            ..nothing
        }
    );
}

#[test]
fn an_address_vector_becomes_a_path_or_an_error_that_names_the_cause() {
    let device = core(&interface(&[]));
    device.update(&interface(&["10.0.0.1", "fe80::1"]));
    let vector = |sgid_index, to: &str| AhAttr {
        dgid: Gid::from_ip(to.parse().unwrap()),
        sgid_index,
        flow_label: 0,
        hop_limit: 3,
        traffic_class: 5,
        sl: 0,
        port_num: 1,
        local_route: None,
    };
    let step = Step::ModifyQp;
    let path = device.path(step, &vector(0, "10.0.0.2"), 4791).unwrap();
    assert_eq!(path.local, IpAddr::from(Ipv4Addr::new(10, 0, 0, 1)));
    assert_eq!(
        (path.hop_limit, path.traffic_class, path.interface),
        (3, 5, 0)
    );
    let link_local = device.path(step, &vector(1, "fe80::2"), 4791).unwrap();
    assert_eq!(link_local.interface, 7);
    for (sgid_index, to) in [
        (2, "10.0.0.2"),
        (1, "10.0.0.2"),
        (0, "fe80::2"),
        (0, "0.0.0.0"),
        (0, "239.1.2.3"),
    ] {
        let refused = device
            .path(step, &vector(sgid_index, to), 4791)
            .unwrap_err();
        assert!(
            matches!(refused.cause, Cause::InvalidArgument { .. }),
            "{refused}"
        );
    }
}

#[test]
fn a_path_to_a_group_leaves_through_the_interface_of_its_device() {
    let device = core(&interface(&[]));
    device.update(&interface(&["10.0.0.1", "2001:db8::1"]));
    for (sgid_index, group) in [(0, "239.1.2.3"), (1, "ff0e::7")] {
        let vector = AhAttr {
            dgid: Gid::from_ip(group.parse().unwrap()),
            sgid_index,
            ..portolan_provider::verbs::QpAttr::default().ah_attr
        };
        let path = device.path_to_any(Step::CreateAh, &vector, 4791).unwrap();
        assert_eq!(path.remote.ip(), group.parse::<IpAddr>().unwrap());
        assert_eq!(path.interface, 7);
    }
}
