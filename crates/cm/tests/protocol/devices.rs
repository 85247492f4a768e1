//! Removed devices and changed hardware addresses, with ids in every state.

use std::net::SocketAddr;
use std::time::Duration;

use portolan_cm::{BoundDevice, Config, DropReason, Neighbour, State, TableSizes};
use portolan_provider::cm::{CmEvent, EventParam, EventType, IdNumber, IdOption, UserId};
use portolan_provider::error::errno::{ENXIO, ETIMEDOUT};
use portolan_provider::verbs::QpState;
use portolan_wire::cm::AttributeId;

use crate::net::*;

/// The device index of each host's ids; each host has its own device.
const DEVICE: u32 = 0;
const OTHER_DEVICE: u32 = 1;

/// The events of a host's ids, in the order of the ids.
fn told(net: &mut Net, host: usize) -> Vec<(IdNumber, EventType, i32)> {
    net.drain();
    let told = net.hosts[host].events.drain(..);
    let mut told: Vec<_> = told
        .map(|event| (event.id, event.event, event.status))
        .collect();
    told.sort_by_key(|(id, ..)| *id);
    told
}

fn changed(host: usize) -> Neighbour {
    Neighbour {
        link_address: [2, 0, 0, 0, 0, 0x99],
        ..neighbour(host)
    }
}

#[test]
fn a_removed_device_is_reported_once_and_the_id_can_only_be_destroyed() {
    let mut net = Net::new();
    net.listen(0);
    let (active, passive) = net.connected();
    let (now, sent) = (net.now, net.log.len());
    net.cm(1).device_removed(now, DEVICE);
    net.drain();
    let event = net.expect(1, EventType::DeviceRemoval);
    let expected = CmEvent {
        uid: UserId(20),
        id: passive,
        event: EventType::DeviceRemoval,
        status: 0,
        param: EventParam::None,
        ece: Default::default(),
    };
    assert_eq!(event, expected);
    net.cm(1).device_removed(now, DEVICE);
    net.drain();
    net.expect_silence(1);
    let cm = net.cm(1);
    let refused = [
        cm.disconnect(now, passive),
        cm.listen(now, passive, 0),
        cm.set_option(passive, IdOption::Tos(1)),
        cm.init_qp_attr(passive, QpState::Rtr).map(|_| ()),
    ];
    for error in refused.map(Result::unwrap_err) {
        assert_eq!(error.errno(), ENXIO, "{error}");
        assert!(error.context.local.is_some(), "{error}");
    }
    cm.destroy_id(now, passive).unwrap();
    net.exchange();
    assert_eq!(
        net.log.len(),
        sent,
        "a message was sent over a removed device"
    );
    net.assert_state(0, active, State::Established);
}

#[test]
fn ids_of_other_devices_and_wildcard_listeners_continue() {
    let mut net = Net::new();
    net.listen(0);
    let (active, passive) = net.connected();
    let now = net.now;
    net.cm(1).device_removed(now, OTHER_DEVICE);
    net.drain();
    net.expect_silence(1);
    net.assert_state(1, passive, State::Established);
    net.cm(1).device_removed(now, DEVICE);
    net.drain();
    net.expect(1, EventType::DeviceRemoval);
    net.cm(1).destroy_id(now, passive).unwrap();
    // The listener serves any address of the host.
    let again = net.resolved(30);
    net.cm(0)
        .connect(now, again, &param(0x11, b""), Default::default())
        .unwrap();
    net.exchange();
    net.expect(1, EventType::ConnectRequest);
    net.assert_state(0, active, State::Established);
}

#[test]
fn a_listener_of_the_device_gets_an_event_and_its_address_is_free_for_another() {
    let mut net = Net::new();
    let local = SocketAddr::new(ip(1), PORT);
    let old = net.listen_on(local, 0);
    // One request that the owner has not taken, and one that it has taken but not answered.
    let (_, taken) = net.requested();
    net.cm(1).request_taken(taken);
    net.connecting(11, 0x11);
    net.exchange();
    let untaken = net.expect(1, EventType::ConnectRequest).id;
    let now = net.now;
    net.cm(1).device_removed(now, DEVICE);
    // Children have no user id before they are accepted, so they have no events.
    assert_eq!(told(&mut net, 1), [(old, EventType::DeviceRemoval, 0)]);
    for child in [taken, untaken] {
        let accepted = net
            .cm(1)
            .accept(now, child, UserId(7), &param(9, b""), Default::default());
        assert_eq!(accepted.unwrap_err().errno(), ENXIO);
    }
    let new = net.listen_on(local, 0);
    net.cm(1).destroy_id(now, old).unwrap();
    net.cm(1).destroy_id(now, taken).unwrap();
    assert_eq!(
        net.hosts[1].cm.table_sizes().ids,
        1,
        "a child outlived its listener"
    );
    net.connecting(12, 0x12);
    net.exchange();
    let event = net.hosts[1]
        .events
        .pop_front()
        .expect("the new listener is found");
    assert_eq!(
        (event.event, event.uid),
        (EventType::ConnectRequest, LISTENER_UID)
    );
    net.cm(1).destroy_id(now, new).unwrap();
}

#[test]
fn a_pending_query_and_repetition_end_with_the_device() {
    let mut net = Net::new();
    net.disturb(|_| Fate::Drop);
    let (now, service) = (net.now, net.service);
    let connecting = net.connecting(5, 0x10);
    net.drain();
    let asking = net.cm(0).create_id(UserId(6), service).unwrap();
    let cm = net.cm(0);
    cm.bind(now, asking, SocketAddr::new(ip(0), 5000), Some(device(0)))
        .unwrap();
    let destination = SocketAddr::new(ip(1), PORT);
    cm.resolve_addr(now, asking, None, destination, Duration::from_secs(2))
        .unwrap();
    cm.device_removed(now, DEVICE);
    assert_eq!(cm.poll_query(), None, "no query is left");
    assert_eq!(cm.poll_timeout(), None, "no deadline is left");
    let removal = EventType::DeviceRemoval;
    assert_eq!(
        told(&mut net, 0),
        [(connecting, removal, 0), (asking, removal, 0)]
    );
    let sent = net.sent(0, AttributeId::Req);
    net.run_for(Duration::from_secs(60));
    assert_eq!(net.sent(0, AttributeId::Req), sent);
    net.expect_silence(0);
}

#[test]
fn every_id_gets_the_removal_even_if_the_event_queue_is_full_but_hints_are_dropped() {
    let mut net = Net::with_config(Config {
        max_events_queued: 2,
        ..Config::default()
    });
    let now = net.now;
    let service = net.service;
    let cm = net.cm(0);
    for port in 5000..5010 {
        let id = cm.create_id(UserId(port.into()), service).unwrap();
        cm.bind(now, id, SocketAddr::new(ip(0), port), Some(device(0)))
            .unwrap();
    }
    cm.hardware_address_changed(DEVICE);
    assert_eq!(cm.counters().dropped(DropReason::EventsFull), 8);
    cm.device_removed(now, DEVICE);
    let told = told(&mut net, 0);
    let count = |event| told.iter().filter(|told| told.1 == event).count();
    assert_eq!(count(EventType::AddrChange), 2);
    assert_eq!(count(EventType::DeviceRemoval), 10);
}

#[test]
fn a_changed_hardware_address_is_reported_only_to_ids_of_that_device() {
    let mut net = Net::new();
    net.listen(0);
    let (active, _) = net.connected();
    let (now, service) = (net.now, net.service);
    let elsewhere = net.cm(0).create_id(UserId(6), service).unwrap();
    let device = BoundDevice {
        device_index: OTHER_DEVICE,
        ..device(0)
    };
    let local = SocketAddr::new(ip(0), 5000);
    net.cm(0).bind(now, elsewhere, local, Some(device)).unwrap();
    net.cm(0).hardware_address_changed(DEVICE);
    assert_eq!(told(&mut net, 0), [(active, EventType::AddrChange, 0)]);
    net.cm(0).hardware_address_changed(OTHER_DEVICE);
    assert_eq!(told(&mut net, 0), [(elsewhere, EventType::AddrChange, 0)]);
    net.assert_state(0, active, State::Established);
}

#[test]
fn a_neighbours_new_address_is_reported_once_to_connections_through_it() {
    let mut net = Net::new();
    net.listen(0);
    let (active, _) = net.connected();
    let resolved = net.resolved(6);
    let hear = |net: &mut Net, neighbour: Neighbour| {
        net.cm(0).neighbour_changed(&neighbour);
        told(net, 0)
    };
    assert_eq!(hear(&mut net, neighbour(0)), [], "the known address");
    for other in [
        Neighbour {
            interface_index: 9,
            ..changed(0)
        },
        Neighbour {
            address: ip(0),
            ..changed(0)
        },
    ] {
        assert_eq!(hear(&mut net, other), [], "{other:?} is not a next hop");
    }
    let unreachable = |id| (id, EventType::Unreachable, -ETIMEDOUT);
    let both = [unreachable(active), unreachable(resolved)];
    assert_eq!(hear(&mut net, changed(0)), both);
    assert_eq!(hear(&mut net, changed(0)), [], "told before");
    assert_eq!(hear(&mut net, neighbour(0)), both, "changed back");
    net.assert_state(0, active, State::Established);
    assert_eq!(net.hosts[0].cm.table_sizes().neighbours, 1);
    let now = net.now;
    net.cm(0).destroy_id(now, active).unwrap();
    net.cm(0).device_removed(now, DEVICE);
    assert_eq!(net.hosts[0].cm.table_sizes().neighbours, 0);
}

#[test]
fn a_thousand_removals_leave_nothing_behind() {
    let mut net = Net::new();
    let listener = net.listen(0);
    let before = net.hosts[0].cm.table_sizes();
    for _ in 0..1000 {
        let (active, passive) = net.connected();
        let now = net.now;
        for (host, id) in [(0, active), (1, passive)] {
            net.cm(host).device_removed(now, DEVICE);
            net.drain();
            net.expect(host, EventType::DeviceRemoval);
            net.cm(host).destroy_id(now, id).unwrap();
        }
        net.exchange();
    }
    let now = net.now;
    net.cm(1).destroy_id(now, listener).unwrap();
    // Remembered connections are forgotten when their time-wait ends.
    net.run_for(Duration::from_secs(60));
    net.listen(0);
    assert_eq!(net.hosts[0].cm.table_sizes(), before);
    let sizes = net.hosts[1].cm.table_sizes();
    let expected = TableSizes {
        ids: 1,
        listeners: 1,
        remembered: sizes.remembered,
        ..TableSizes::default()
    };
    assert_eq!(sizes, expected);
}
