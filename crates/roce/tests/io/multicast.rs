//! Datagrams to groups: every attached queue pair gets a copy, in whichever process it is.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use crate::harness::{End, Shape, config, expect, stack, until};
use crate::ud_end::{QKEY, UdEnd};
use portolan_provider::address::ip_to_gid;
use portolan_provider::error::errno;
use portolan_provider::verbs::{QpType, UdDestination};
use portolan_provider::{Cause, Error};
use portolan_roce::io::{Stack, StackConfig};
use portolan_wire::bth::Opcode;
use portolan_wire::eth::DethRepr;
use portolan_wire::icrc::{self, Flow};
use portolan_wire::ip::Ipv4Repr;
use portolan_wire::rocev2::Headers;
use portolan_wire::{Gid, Psn, QKey, Qpn};
use socket2::{Domain, Socket, Type};

/// Longer than a datagram takes to arrive.
const MEANWHILE: Duration = Duration::from_millis(50);

/// A group that no other test uses: it is derived from the test's own port.
fn group(config: &StackConfig) -> IpAddr {
    let [high, low] = config.group.port.to_be_bytes();
    Ipv4Addr::new(239, 66, high, low).into()
}

fn ends(stacks: &[&Arc<Stack>], ip: &str) -> Vec<UdEnd> {
    let ip = ip.parse().unwrap();
    stacks.iter().map(|stack| UdEnd::new(stack, ip)).collect()
}

fn attach(end: &UdEnd, group: IpAddr) {
    end.qp.attach_mcast(&ip_to_gid(group), 0).unwrap();
}

/// Whether this machine is a member of an IPv4 group, on any interface.
fn is_member(group: IpAddr) -> bool {
    let IpAddr::V4(ip) = group else {
        panic!("{group} is not of IPv4")
    };
    // In the kernel's format: the bytes in network order, read as a number in host order.
    let listed = format!("{:08X}", u32::from_ne_bytes(ip.octets()));
    std::fs::read_to_string("/proc/net/igmp")
        .unwrap()
        .contains(&listed)
}

#[test]
fn all_attached_queue_pairs_get_a_copy_but_the_sender_does_not() {
    let config = config();
    let stacks = [stack(&config), stack(&config), stack(&config)];
    let [a, b, c] = stacks.each_ref();
    let group = group(&config);
    // Two in the sender's process, two in another's, and one that is not attached.
    let all = ends(&[a, a, b, b, b], "127.0.0.1");
    for end in &all[..4] {
        attach(end, group);
    }
    for end in &all {
        for round in 0..10 {
            end.receive(round, 4096 + round as usize * 100, 100);
        }
    }
    let ah = all[0].ah(group);
    for round in 0..10u8 {
        all[0].memory.write(0, &[round + 1; 50]);
        all[0].send(100, 0, 50, &*ah, Qpn::MULTICAST);
        expect(all[0].poll(), 100);
        for end in &all[1..4] {
            let wc = expect(end.poll(), round.into());
            assert_eq!((wc.src_qp, wc.byte_len), (all[0].qp.qpn(), 90));
            let at = 4096 + usize::from(round) * 100;
            assert_eq!(end.memory.read(at + 40, 50), [round + 1; 50]);
        }
    }
    std::thread::sleep(MEANWHILE);
    assert_eq!(all[0].try_poll(), None, "the sender got its own datagram");
    assert_eq!(
        all[4].try_poll(),
        None,
        "an unattached queue pair got a copy"
    );
    // The header contains the group as destination.
    let area = all[1].memory.read(4096, 40);
    let IpAddr::V4(destination) = group else {
        panic!("{group} is not of IPv4")
    };
    let mut expected = [0; 20];
    let header = Ipv4Repr {
        tos: 0x48,
        header_len: 20,
        payload_len: 8 + 12 + 8 + 4 + 50 + 2 + 4,
        identification: 0,
        dont_fragment: true,
        more_fragments: false,
        fragment_offset: 0,
        ttl: 9,
        protocol: 17,
        src: Ipv4Addr::LOCALHOST,
        dst: destination,
    };
    header.emit(&mut expected).unwrap();
    assert_eq!(area[20..], expected);
    // A process without attached queue pairs gets no copies.
    assert_eq!(c.counters().received_packets, 0);
}

#[test]
fn a_member_that_only_sends_joins_nothing() {
    let config = config();
    let stacks = [stack(&config), stack(&config)];
    let (sender, receiver) = (
        &ends(&[&stacks[0]], "127.0.0.1")[0],
        &ends(&[&stacks[1]], "127.0.0.1")[0],
    );
    let group = group(&config);
    let ah = sender.ah(group);
    sender.send(1, 0, 8, &*ah, Qpn::MULTICAST);
    expect(sender.poll(), 1);
    assert!(!is_member(group));
    attach(receiver, group);
    assert!(is_member(group));
    receiver.receive(2, 0, 100);
    sender.send(3, 0, 8, &*ah, Qpn::MULTICAST);
    expect(receiver.poll(), 2);
}

#[test]
fn after_detaching_nothing_arrives_and_the_group_is_left() {
    let config = config();
    let stacks = [stack(&config), stack(&config)];
    let (sender, pair) = (
        &ends(&[&stacks[0]], "127.0.0.1")[0],
        ends(&[&stacks[1], &stacks[1]], "127.0.0.1"),
    );
    let group = group(&config);
    let gid = ip_to_gid(group);
    for end in &pair {
        attach(end, group);
        // A second attachment changes nothing: one copy arrives, and one detachment ends it.
        attach(end, group);
        end.receive(1, 0, 100);
        end.receive(2, 0, 100);
    }
    let ah = sender.ah(group);
    sender.send(1, 0, 8, &*ah, Qpn::MULTICAST);
    for end in &pair {
        expect(end.poll(), 1);
    }
    pair[0].qp.detach_mcast(&gid, 0).unwrap();
    let error = pair[0].qp.detach_mcast(&gid, 0).unwrap_err();
    assert!(matches!(error.cause, Cause::NoSuchObject(_)), "{error}");
    sender.send(2, 0, 8, &*ah, Qpn::MULTICAST);
    expect(pair[1].poll(), 2);
    assert_eq!(pair[0].try_poll(), None);
    assert!(is_member(group));
    // Destroying detaches.
    pair[1].qp.destroy().unwrap();
    assert!(!is_member(group));
    assert!(
        pair[1].qp.attach_mcast(&gid, 0).is_err(),
        "still attached after its end"
    );
    assert!(!is_member(group));
}

#[test]
fn a_membership_needs_no_queue_pair_and_counts_together_with_attachments() {
    let config = config();
    let stack = stack(&config);
    let group = group(&config);
    let (device, _) = stack.device_of("127.0.0.1".parse().unwrap(), 0).unwrap();
    let first = stack.join_group(&device, group).unwrap();
    let second = stack.join_group(&device, group).unwrap();
    assert!(is_member(group));
    let end = &ends(&[&stack], "127.0.0.1")[0];
    attach(end, group);
    drop(first);
    end.qp.detach_mcast(&ip_to_gid(group), 0).unwrap();
    assert!(is_member(group));
    drop(second);
    assert!(!is_member(group));
    let error = stack.join_group(&device, "10.0.0.1".parse().unwrap());
    assert_eq!(error.unwrap_err().errno(), errno::EINVAL);
}

#[test]
fn impossible_attachments_are_refused_by_name() {
    let mut config = config();
    config.limits.max_mcast_grp = 2;
    config.limits.max_mcast_qp_attach = 1;
    let stack = stack(&config);
    let pair = ends(&[&stack, &stack], "127.0.0.1");
    let attr = pair[0].device.attr().unwrap();
    assert_eq!((attr.max_mcast_grp, attr.max_mcast_qp_attach), (2, 1));
    let gid = |last| ip_to_gid(Ipv4Addr::new(239, 67, 0, last).into());
    let refused = |error: Error, word: &str| assert!(error.to_string().contains(word), "{error}");
    let host = Gid::from_ip(pair[0].ip);
    refused(pair[0].qp.attach_mcast(&host, 0).unwrap_err(), "multicast");
    let connected = End::of_type(&stack, pair[0].ip, Shape::default(), QpType::Uc);
    refused(connected.qp.attach_mcast(&gid(1), 0).unwrap_err(), "UD");
    pair[0].qp.attach_mcast(&gid(1), 0).unwrap();
    let full = pair[1].qp.attach_mcast(&gid(1), 0).unwrap_err();
    assert!(
        matches!(full.cause, Cause::LimitReached { limit: 1, .. }),
        "{full}"
    );
    pair[1].qp.attach_mcast(&gid(2), 0).unwrap();
    let full = pair[1].qp.attach_mcast(&gid(3), 0).unwrap_err();
    assert!(
        matches!(full.cause, Cause::LimitReached { limit: 2, .. }),
        "{full}"
    );
    pair[0].qp.detach_mcast(&gid(1), 0).unwrap();
    pair[1].qp.attach_mcast(&gid(3), 0).unwrap();
}

/// A forged datagram of eight bytes to a group.
fn packet(from: SocketAddr, to: SocketAddr, qpn: Qpn, qkey: QKey) -> Vec<u8> {
    let mut headers = Headers::new(Opcode::UdSendOnly, qpn, Psn::new(1));
    headers.deth = Some(DethRepr {
        qkey,
        src_qp: Qpn::new(0x77),
    });
    let mut packet = vec![0x66; headers.len() + 8 + 4];
    headers.emit(&mut packet).unwrap();
    icrc::append(&Flow::between(from, to).unwrap(), 0, &mut packet).unwrap();
    packet
}

#[test]
fn junk_sent_to_a_group_is_dropped_and_good_datagrams_of_strangers_arrive() {
    let config = config();
    let stack = stack(&config);
    let end = &ends(&[&stack], "127.0.0.1")[0];
    let group = group(&config);
    attach(end, group);
    end.receive(1, 0, 100);
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
    socket
        .bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into())
        .unwrap();
    socket.set_multicast_if_v4(&Ipv4Addr::LOCALHOST).unwrap();
    let from = socket.local_addr().unwrap().as_socket().unwrap();
    let to = SocketAddr::new(group, config.group.port);
    let send = |bytes: &[u8]| {
        socket.send_to(bytes, &to.into()).unwrap();
    };
    let good = packet(from, to, Qpn::MULTICAST, QKEY);
    let mut flipped = good.clone();
    flipped[22] ^= 1;
    send(&good[..14]);
    send(&flipped);
    // For one queue pair, but sent to all.
    send(&packet(from, to, end.qp.qpn(), QKEY));
    send(&packet(from, to, Qpn::MULTICAST, QKey(3)));
    until("all are counted", || {
        let counters = stack.counters();
        (counters.dropped_malformed, counters.dropped_icrc) == (1, 1)
            && (counters.dropped_no_queue_pair, counters.received_packets) == (1, 2)
    });
    assert_eq!(end.try_poll(), None);
    send(&good);
    assert_eq!(expect(end.poll(), 1).src_qp, Qpn::new(0x77));
    assert_eq!(end.memory.read(40, 8), [0x66; 8]);
}

#[test]
fn groups_keep_arriving_while_a_poller_holds_the_device() {
    let config = config();
    let stacks = [stack(&config), stack(&config)];
    let (sender, receiver) = (
        &ends(&[&stacks[0]], "127.0.0.1")[0],
        &ends(&[&stacks[1]], "127.0.0.1")[0],
    );
    let group = group(&config);
    attach(receiver, group);
    let ah = sender.ah(group);
    // Polled without a pause from the first datagram to the last.
    for round in 0..500 {
        receiver.receive(round, 0, 100);
        let to = UdDestination {
            ah: &*ah,
            qpn: Qpn::MULTICAST,
            qkey: QKEY,
        };
        sender.try_send(round, sender.sge(0, 8), to).unwrap();
        expect(receiver.poll(), round);
        expect(sender.poll(), round);
    }
}
