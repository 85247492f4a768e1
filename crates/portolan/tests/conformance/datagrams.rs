//! Datagrams to a service and to a group.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use portolan::cm::{CmId, Event};
use portolan::provider::cm::{EventType, JoinKind};
use portolan::provider::error::errno::ENETUNREACH;
use portolan::provider::verbs::{
    SendData, SendFlags, SendOp, SendWr, UdDestination, WcOpcode, WcStatus, WorkCompletion,
};
use portolan::wire::Qpn;
use portolan::wire::cm::SidrStatus;

use crate::pair::*;

/// Bytes in front of the data in a datagram queue pair's receives (IBTA 11.4.1.2).
const GRH_LEN: usize = 40;
/// Largest private data in the answer to a service lookup (rdma_accept(3)).
const ANSWER_LEN: usize = 136;
/// Largest private data in the lookup (rdma_connect(3)).
const QUESTION_LEN: usize = 180;

/// Sends to the destination in an event.
fn send(from: &End, to: &Event, wr_id: u64, len: usize) {
    let ud = to.ud().expect("a datagram event");
    let ah = from.pd.create_ah(&ud.ah_attr).unwrap();
    let sges = [from.sge(0, len)];
    let datagram = SendWr {
        wr_id,
        op: SendOp::SendWithImm(0x0102_0304),
        data: SendData::Sges(&sges),
        flags: SendFlags::empty(),
        ud: Some(UdDestination {
            ah: &*ah,
            qpn: ud.qp_num,
            qkey: ud.qkey,
        }),
        srq: None,
    };
    from.qp.post_send(&datagram).unwrap();
    // The address handle is dropped before the datagram is sent, which is permitted.
}

fn assert_came(received: &WorkCompletion, from: &End, len: usize) {
    assert_eq!(received.status, WcStatus::Success);
    assert_eq!((received.opcode, received.has_grh), (WcOpcode::Recv, true));
    assert_eq!(received.byte_len as usize, GRH_LEN + len);
    assert_eq!(received.src_qp, from.qp.qpn());
    assert_eq!(received.imm_data, Some(0x0102_0304));
}

#[test]
fn a_service_is_resolved_and_datagrams_reach_it() {
    let passive = Passive::listen_for(DATAGRAMS);
    let (channel, id) = routed_for(DATAGRAMS, passive.address);
    let mut active = End::new(channel, id);
    active.id.connect(&param(b"ahoy")).unwrap();

    let event = next(&passive.channel, EventType::ConnectRequest);
    assert_eq!(event.private_data().len(), QUESTION_LEN);
    assert!(event.private_data().starts_with(b"ahoy\0"));
    let child = event.id().clone();
    drop(event);
    let end = passive.end(child);
    end.post_recv(1, 0, 4096);
    end.id.accept(&param(b"welcome")).unwrap();

    let event = next(&active.channel, EventType::Established);
    assert_eq!(event.private_data().len(), ANSWER_LEN);
    assert!(event.private_data().starts_with(b"welcome\0"));
    assert_eq!(event.ud().unwrap().qp_num, end.qp.qpn());
    active.memory[..5].copy_from_slice(b"hello");
    send(&active, &event, 2, 5);
    let sent = active.complete();
    assert_eq!((sent.wr_id, sent.status), (2, WcStatus::Success));
    assert_came(&end.complete(), &active, 5);
    assert_eq!(end.memory[GRH_LEN..][..5], *b"hello");
}

#[test]
fn a_rejecting_or_missing_service_is_unreachable_with_its_status() {
    let passive = Passive::listen_for(DATAGRAMS);
    let ask = |address: SocketAddr| {
        let (channel, id) = routed_for(DATAGRAMS, address);
        let active = End::new(channel, id);
        active.id.connect(&param(b"")).unwrap();
        active
    };
    let active = ask(passive.address);
    passive.request().reject(b"no").unwrap();
    let event = next(&active.channel, EventType::Unreachable);
    assert_eq!(event.status(), i32::from(SidrStatus::REJECT.0));
    assert!(event.private_data().starts_with(b"no\0"));
    drop(event);

    let address = passive.address;
    passive.listener.destroy(PATIENCE).unwrap();
    let active = ask(address);
    let event = next(&active.channel, EventType::Unreachable);
    assert_eq!(event.status(), i32::from(SidrStatus::UNSUPPORTED.0));
}

/// A member of a group, on an IPv4 address of the device under test, because rdma_rxe has no IPv6 groups.
fn member(group: IpAddr, kind: JoinKind) -> (End, Event) {
    let (device, _) = provider().device_of(local_ip()).unwrap();
    let mut gids = device.gids(1).unwrap().into_iter();
    let ipv4: Ipv4Addr = gids
        .find_map(|entry| entry.gid.to_ipv4())
        .expect("the device has an IPv4 address");
    let channel = channel();
    let id = CmId::with_service(&channel, DATAGRAMS).unwrap();
    place(&channel, &id, ipv4.into());
    let end = End::new(channel, id);
    end.id.join_multicast(group, kind, 77).unwrap();
    let event = next(&end.channel, EventType::MulticastJoin);
    assert_eq!(event.membership().unwrap().context(), 77);
    assert_eq!(event.ud().unwrap().qp_num, Qpn::MULTICAST);
    (end, event)
}

#[test]
fn a_datagram_to_a_group_reaches_its_members_until_they_leave() {
    let group: IpAddr = "239.7.4.71".parse().unwrap();
    let (mut sender, joined) = member(group, JoinKind::SendOnlyFullMember);
    let (receiver, receiving) = member(group, JoinKind::FullMember);
    drop(receiving);
    receiver.post_recv(1, 0, 4096);
    receiver.post_recv(2, 0, 4096);
    sender.memory[..5].copy_from_slice(b"all o");
    send(&sender, &joined, 3, 5);
    assert_eq!(sender.complete().status, WcStatus::Success);
    assert_came(&receiver.complete(), &sender, 5);
    assert_eq!(receiver.memory[GRH_LEN..][..5], *b"all o");

    receiver.id.leave_multicast(group, PATIENCE).unwrap();
    let error = receiver.id.leave_multicast(group, PATIENCE).unwrap_err();
    assert!(error.to_string().contains("239.7.4.71"), "{error}");
}

#[test]
fn a_members_queue_pair_is_destroyed_without_leaving_first() {
    let group: IpAddr = "239.7.4.72".parse().unwrap();
    let (receiver, receiving) = member(group, JoinKind::FullMember);
    drop(receiving);
    receiver.qp.destroy().unwrap();
}

#[test]
fn a_group_of_ipv6_is_refused_on_loopback_and_by_linux_on_every_device() {
    let channel = channel();
    let id = CmId::with_service(&channel, DATAGRAMS).unwrap();
    let is_software = provider().name() == "software";
    let local = match is_software {
        true => IpAddr::from(Ipv6Addr::LOCALHOST),
        false => local_ip(),
    };
    place(&channel, &id, local);
    let group = "ff15::7471".parse().unwrap();
    let joined = id.join_multicast(group, JoinKind::FullMember, 0);
    if is_software {
        joined.unwrap();
        // Linux has no route to such groups there by default.
        let event = next(&channel, EventType::MulticastError);
        assert_eq!(event.status(), -ENETUNREACH);
    } else {
        assert!(joined.is_err());
        assert!(id.memberships().is_empty());
    }
}
