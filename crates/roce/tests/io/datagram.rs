//! Datagrams between stacks on loopback: each request's own destination, and the network header in front of
//! received data.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use portolan_provider::Cause;
use portolan_provider::address::ip_to_gid;
use portolan_provider::error::errno;
use portolan_provider::verbs::{
    Access, AhAttr, QpAttr, QpAttrMask, QpState, QpType, RecvWr, SendData, SendFlags, SendOp,
    SendWr, Sge, UdDestination, WcStatus,
};
use portolan_roce::io::Counters;
use portolan_wire::bth::Opcode;
use portolan_wire::eth::{DethRepr, GrhRepr};
use portolan_wire::icrc::{self, Flow};
use portolan_wire::ip::Ipv4Repr;
use portolan_wire::rocev2::Headers;
use portolan_wire::{Psn, QKey, Qpn};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::harness::{End, Pair, Shape, config, expect, pattern, stack, target, until};
use crate::ud_end::{QKEY, UdEnd};

/// Bytes of the UDP header, BTH, DETH and ICRC.
const AROUND_PAYLOAD: usize = 8 + 12 + 8 + 4;

#[test]
fn an_ipv4_datagram_arrives_after_its_ipv4_header() {
    let config = config();
    let stacks = [stack(&config), stack(&config)];
    let ip: IpAddr = "127.0.0.1".parse().unwrap();
    let (a, b) = (UdEnd::new(&stacks[0], ip), UdEnd::new(&stacks[1], ip));
    let data = pattern(1, 500);
    a.memory.write(0, &data);
    b.memory.write(0, &[0xff; 40]);
    b.receive(7, 0, 1000);
    a.send(3, 0, 500, &*a.ah(ip), b.qp.qpn());
    expect(a.poll(), 3);
    let wc = expect(b.poll(), 7);
    assert_eq!((wc.byte_len, wc.imm_data), (540, Some(0x0a0b_0c0d)));
    assert_eq!((wc.src_qp, wc.has_grh, wc.sl), (a.qp.qpn(), true, 8 | 2));
    assert_eq!(b.memory.read(40, 500), data);
    // Twenty zero bytes, then the header as on the wire, with a valid checksum.
    let area = b.memory.read(0, 40);
    assert_eq!(area[..20], [0; 20]);
    let mut expected = [0; 20];
    let header = Ipv4Repr {
        tos: 0x48,
        header_len: 20,
        payload_len: AROUND_PAYLOAD + 4 + 500,
        identification: 0,
        dont_fragment: true,
        more_fragments: false,
        fragment_offset: 0,
        ttl: 9,
        protocol: 17,
        src: [127, 0, 0, 1].into(),
        dst: [127, 0, 0, 1].into(),
    };
    header.emit(&mut expected).unwrap();
    assert_eq!(area[20..], expected);
}

#[test]
fn an_ipv6_datagram_arrives_after_its_ipv6_header() {
    let config = config();
    let stacks = [stack(&config), stack(&config)];
    let ip: IpAddr = "::1".parse().unwrap();
    let (a, b) = (UdEnd::new(&stacks[0], ip), UdEnd::new(&stacks[1], ip));
    b.receive(7, 0, 1000);
    a.send(3, 0, 500, &*a.ah(ip), b.qp.qpn());
    expect(b.poll(), 7);
    let mut expected = [0; 40];
    let header = GrhRepr {
        traffic_class: 0x48,
        flow_label: 0,
        payload_len: (AROUND_PAYLOAD + 4 + 500) as u16,
        next_header: 17,
        hop_limit: 9,
        sgid: ip_to_gid(ip),
        dgid: ip_to_gid(ip),
    };
    header.emit(&mut expected).unwrap();
    let area = b.memory.read(0, 40);
    // The sending kernel chooses the flow label.
    assert_eq!((area[0], area[1] & 0xf0), (expected[0], expected[1] & 0xf0));
    assert_eq!(area[4..], expected[4..]);
}

/// UCX ends in this way: its receives are posted, and their memory is unmapped.
#[test]
fn a_datagram_for_unmapped_memory_is_lost_without_other_effects() {
    const LEN: usize = 4096;
    let config = config();
    let stacks = [stack(&config), stack(&config)];
    let ip: IpAddr = "127.0.0.1".parse().unwrap();
    let (a, b) = (UdEnd::new(&stacks[0], ip), UdEnd::new(&stacks[1], ip));
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping without references.
    let page = unsafe { mmap_anonymous(std::ptr::null_mut(), LEN, access, MapFlags::PRIVATE) };
    let (page, len) = (page.unwrap(), LEN as u64);
    let addr = page.expose_provenance() as u64;
    // SAFETY: breaks the promise that the memory stays mapped, which is the point of the test.
    let gone = unsafe { b.pd.register(addr, len, Access::LOCAL_WRITE) }.unwrap();
    let (length, lkey) = (LEN as u32, gone.lkey());
    let sges = &[Sge { addr, length, lkey }];
    b.qp.post_recv(&RecvWr { wr_id: 1, sges }).unwrap();
    b.receive(2, 0, 1000);
    // SAFETY: mapped above, and used by nothing else.
    unsafe { munmap(page, LEN) }.unwrap();
    let data = pattern(1, 500);
    a.memory.write(0, &data);
    for wr_id in [3, 4] {
        a.send(wr_id, 0, 500, &*a.ah(ip), b.qp.qpn());
        expect(a.poll(), wr_id);
    }
    expect(b.poll(), 1);
    expect(b.poll(), 2);
    assert_eq!(b.memory.read(40, 500), data);
    gone.deregister().unwrap();
}

#[test]
fn one_queue_pair_sends_to_many_and_receives_from_many() {
    let config = config();
    let coordinator_stack = stack(&config);
    let coordinator = UdEnd::new(&coordinator_stack, "127.0.0.1".parse().unwrap());
    let others: Vec<_> = (0..3).map(|_| stack(&config)).collect();
    // Both IP versions on one queue pair: its GID table has both loopback addresses.
    let ips = ["127.0.0.1", "::1", "127.0.0.1"].map(|ip| ip.parse().unwrap());
    let ends: Vec<UdEnd> = (others.iter().zip(ips))
        .map(|(stack, ip)| UdEnd::new(stack, ip))
        .collect();
    for round in 0..20 {
        let handles: Vec<_> = ends
            .iter()
            .map(|end| coordinator.pd.create_ah(&end.vector(end.ip)).unwrap())
            .collect();
        for (index, end) in ends.iter().enumerate() {
            end.receive(1, 0, 100);
            coordinator
                .memory
                .write(index * 10, &[round * 10 + index as u8; 10]);
            coordinator.send(index as u64, index * 10, 10, &*handles[index], end.qp.qpn());
        }
        for (index, end) in ends.iter().enumerate() {
            let wc = expect(end.poll(), 1);
            assert_eq!(wc.src_qp, coordinator.qp.qpn());
            assert_eq!(end.memory.read(40, 10), [round * 10 + index as u8; 10]);
            expect(coordinator.poll(), index as u64);
        }
        for end in &ends {
            coordinator.receive(9, 1000, 100);
            end.send(2, 0, 10, &*end.ah(end.ip), coordinator.qp.qpn());
            assert_eq!(expect(coordinator.poll(), 9).src_qp, end.qp.qpn());
            expect(end.poll(), 2);
        }
    }
    assert_eq!(coordinator_stack.objects().address_handles, 0);
}

#[test]
fn a_burst_larger_than_a_system_call_arrives_complete_and_in_order() {
    let config = config();
    let stacks = [stack(&config), stack(&config)];
    let ip: IpAddr = "127.0.0.1".parse().unwrap();
    let (a, b) = (UdEnd::new(&stacks[0], ip), UdEnd::new(&stacks[1], ip));
    let ah = a.ah(ip);
    for number in 0..64u8 {
        b.receive(number.into(), usize::from(number) * 2048, 2048);
        a.memory.write(usize::from(number) * 2048, &[number; 2000]);
    }
    for number in 0..64u8 {
        // Lengths that may be sent together, and some that may not.
        let len = if number % 7 == 0 { 2000 } else { 1500 };
        a.send(
            number.into(),
            usize::from(number) * 2048,
            len,
            &*ah,
            b.qp.qpn(),
        );
    }
    for number in 0..64u8 {
        let len = if number % 7 == 0 { 2000 } else { 1500 };
        assert_eq!(expect(b.poll(), number.into()).byte_len, len as u32 + 40);
        let bytes = b.memory.read(usize::from(number) * 2048 + 40, len);
        assert_eq!(bytes, vec![number; len]);
        expect(a.poll(), number.into());
    }
}

/// Two processes create their link after the first datagram, so some of a burst go through sockets and the others through
/// memory.
#[test]
fn datagrams_stay_in_order_while_the_link_through_memory_comes_up() {
    const BURSTS: usize = 200;
    const DATAGRAMS: u64 = 64;
    let ip: IpAddr = "127.0.0.1".parse().unwrap();
    for _ in 0..BURSTS {
        let config = config();
        let stacks = [stack(&config), stack(&config)];
        let (a, b) = (UdEnd::new(&stacks[0], ip), UdEnd::new(&stacks[1], ip));
        let ah = a.ah(ip);
        for number in 0..DATAGRAMS {
            b.receive(number, number as usize * 64, 64);
        }
        for number in 0..DATAGRAMS {
            let offset = number as usize * 8;
            a.memory.write(offset, &[number as u8; 8]);
            a.send(number, offset, 8, &*ah, b.qp.qpn());
            let sent = Instant::now();
            while sent.elapsed() < Duration::from_micros(5) {}
        }
        let arrived = (0..DATAGRAMS).map(|number| {
            expect(b.poll(), number);
            b.memory.read(number as usize * 64 + 40, 1)[0].into()
        });
        assert_eq!(arrived.collect::<Vec<u64>>(), Vec::from_iter(0..DATAGRAMS));
    }
}

#[test]
fn impossible_address_handles_and_destinations_are_refused_by_name() {
    let config = config();
    let stack = stack(&config);
    let end = UdEnd::new(&stack, "127.0.0.1".parse().unwrap());
    let good = end.vector(end.ip);
    for (wrong, word) in [
        (
            AhAttr {
                sgid_index: 99,
                ..good
            },
            "sgid_index",
        ),
        (
            AhAttr {
                port_num: 2,
                ..good
            },
            "port_num",
        ),
        (
            AhAttr {
                dgid: ip_to_gid("::1".parse().unwrap()),
                ..good
            },
            "dgid",
        ),
        (
            AhAttr {
                dgid: ip_to_gid("0.0.0.0".parse().unwrap()),
                ..good
            },
            "dgid",
        ),
    ] {
        let error = end.pd.create_ah(&wrong).unwrap_err();
        assert!(
            matches!(error.cause, Cause::InvalidArgument { .. }),
            "{error}"
        );
        assert!(error.to_string().contains(word), "{error}");
    }
    assert_eq!(end.ah(end.ip).attr(), good);
    let (host, group) = (end.ah(end.ip), end.ah("239.1.2.3".parse().unwrap()));
    let sge = end.sge(0, 8);
    for (ah, qpn) in [(&host, Qpn::MULTICAST), (&group, end.qp.qpn())] {
        let to = UdDestination {
            ah: &**ah,
            qpn,
            qkey: QKEY,
        };
        let error = end.try_send(1, sge, to).unwrap_err();
        assert!(error.to_string().contains("0xffffff"), "{error}");
    }
    // A handle of another stack's device is not one of this device.
    let other = crate::harness::stack(&config);
    let stranger = UdEnd::new(&other, end.ip);
    let ah = stranger.ah(end.ip);
    let to = UdDestination {
        ah: &*ah,
        qpn: end.qp.qpn(),
        qkey: QKEY,
    };
    let error = end.try_send(1, sge, to).unwrap_err();
    assert!(matches!(error.cause, Cause::NoSuchObject(_)), "{error}");
}

#[test]
fn a_connected_queue_pair_takes_no_destination() {
    let pair = Pair::new("127.0.0.1", Shape::default());
    let end = UdEnd::new(&pair.stacks[0], pair.a.ip);
    let ah = end.ah(end.ip);
    let error = pair
        .a
        .qp
        .post_send(&SendWr {
            wr_id: 1,
            op: SendOp::Send,
            data: SendData::Inline(b"x"),
            flags: SendFlags::empty(),
            ud: Some(UdDestination {
                ah: &*ah,
                qpn: Qpn::new(5),
                qkey: QKEY,
            }),
            srq: None,
        })
        .unwrap_err();
    assert!(
        matches!(error.cause, Cause::InvalidArgument { .. }),
        "{error}"
    );
}

/// A forged datagram of eight bytes.
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
fn strangers_reach_a_queue_pair_only_with_its_q_key_and_junk_is_dropped() {
    let config = config();
    let stack = stack(&config);
    let end = UdEnd::new(&stack, "127.0.0.1".parse().unwrap());
    end.receive(1, 0, 100);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let (from, to) = (socket.local_addr().unwrap(), target(&config, end.ip));
    let counted = |bytes: &[u8], counter: fn(&Counters) -> u64| {
        let before = counter(&stack.counters());
        socket.send_to(bytes, to).unwrap();
        until("the packet is counted", || {
            counter(&stack.counters()) == before + 1
        });
    };
    let good = packet(from, to, end.qp.qpn(), QKEY);
    // A truncated DETH, a flipped bit, no headers, a multicast number sent to a host.
    counted(&good[..16], |counters| counters.dropped_malformed);
    let mut flipped = good.clone();
    flipped[22] ^= 1;
    counted(&flipped, |counters| counters.dropped_icrc);
    counted(&packet(from, to, end.qp.qpn(), QKey(1)), |counters| {
        counters.received_packets
    });
    // 127.0.0.2 belongs to this host, but is not an address of the device.
    let elsewhere = SocketAddr::new("127.0.0.2".parse().unwrap(), to.port());
    let astray = packet(from, elsewhere, end.qp.qpn(), QKEY);
    let before = stack.counters().dropped_spoofed;
    socket.send_to(&astray, elsewhere).unwrap();
    until("the misdirected packet is counted", || {
        stack.counters().dropped_spoofed == before + 1
    });
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(end.try_poll(), None);
    assert_eq!(end.memory.read(0, 100), [0; 100]);
    socket.send_to(&good, to).unwrap();
    let wc = expect(end.poll(), 1);
    assert_eq!((wc.status, wc.src_qp), (WcStatus::Success, Qpn::new(0x77)));
    assert_eq!(end.memory.read(40, 8), [0x66; 8]);
}

#[test]
fn reset_and_destroyed_queue_pairs_receive_no_datagrams() {
    let config = config();
    let stacks = [stack(&config), stack(&config)];
    let ip: IpAddr = "127.0.0.1".parse().unwrap();
    let (a, b) = (UdEnd::new(&stacks[0], ip), UdEnd::new(&stacks[1], ip));
    let ah = a.ah(ip);
    b.receive(1, 0, 100);
    let attr = QpAttr::default();
    b.qp.modify(&attr, QpAttrMask::STATE).unwrap();
    for (round, destroy) in [false, true].into_iter().enumerate() {
        if destroy {
            b.qp.destroy().unwrap();
        }
        let before = stacks[1].counters().dropped_no_queue_pair;
        a.send(round as u64, 0, 8, &*ah, b.qp.qpn());
        expect(a.poll(), round as u64);
        until("it is dropped", || {
            stacks[1].counters().dropped_no_queue_pair == before + 1
        });
    }
    assert_eq!(b.try_poll(), None);
}

#[test]
fn an_unreliable_connection_carries_messages_between_stacks() {
    let config = config();
    let stacks = [stack(&config), stack(&config)];
    let ip: IpAddr = "127.0.0.1".parse().unwrap();
    let shape = Shape::default();
    let ends = [0, 1].map(|index| End::of_type(&stacks[index], ip, shape, QpType::Uc));
    ends[0].connect(ip, ends[1].qp.qpn(), shape);
    ends[1].connect(ip, ends[0].qp.qpn(), shape);
    let data = pattern(3, 30_000);
    ends[0].memory.write(0, &data);
    ends[1].receive(1, ends[1].sge(0, 40_000));
    ends[0].post(2, SendOp::Send, ends[0].sge(0, 30_000));
    let there = ends[1].remote(100_000);
    ends[0].post(3, SendOp::RdmaWrite(there), ends[0].sge(0, 30_000));
    ends[0].expect(2);
    ends[0].expect(3);
    assert_eq!(ends[1].expect(1).byte_len, 30_000);
    assert_eq!(ends[1].memory.read(0, 30_000), data);
    until("the write arrives", || {
        ends[1].memory.byte(129_999) == data[29_999]
    });
    assert_eq!(ends[1].memory.read(100_000, 30_000), data);
    assert_eq!(stacks[1].counters().sent_packets, 0, "an answer was sent");
}

#[test]
fn a_controlled_q_key_needs_a_capability() {
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

    let config = config();
    let stack = stack(&config);
    let end = UdEnd::new(&stack, "127.0.0.1".parse().unwrap());
    let with_key = |qkey| {
        let attr = QpAttr {
            state: QpState::Rts,
            qkey: QKey(qkey),
            ..QpAttr::default()
        };
        end.qp.modify(&attr, QpAttrMask::STATE | QpAttrMask::QKEY)
    };
    // Capabilities are per thread, so dropping them here affects no other test.
    std::thread::scope(|scope| {
        let without = scope.spawn(|| {
            let mut sets = capabilities(None).unwrap();
            sets.effective.remove(CapabilitySet::NET_RAW);
            set_capabilities(None, sets).unwrap();
            for controlled in [0x8000_0000, QKey::GSI.0] {
                let error = with_key(controlled).unwrap_err();
                assert_eq!(error.errno(), errno::EPERM, "{error}");
                assert!(error.to_string().contains("CAP_NET_RAW"), "{error}");
                assert_ne!(end.qp.query().unwrap().0.qkey.0, controlled);
            }
            with_key(0x7fff_ffff).unwrap();
        });
        without.join().unwrap();
    });
    assert_eq!(end.qp.query().unwrap().0.qkey, QKey(0x7fff_ffff));
    let effective = capabilities(None).unwrap().effective;
    if effective.contains(CapabilitySet::NET_RAW) {
        with_key(0x8765_4321).unwrap();
        assert_eq!(end.qp.query().unwrap().0.qkey, QKey(0x8765_4321));
    }
}
