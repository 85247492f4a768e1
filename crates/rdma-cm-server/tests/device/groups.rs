//! Memberships of multicast groups.

use portolan_kernel::raw::*;
use rustix::io::Errno;

use crate::support::*;

fn join(device: &Opened, id: u32, join_flags: u16) -> Result<u32, Errno> {
    let (addr, addr_size) = storage("239.7.7.20:0");
    let join = JoinMcast {
        response: 0,
        uid: 50,
        id,
        addr_size,
        join_flags,
        addr,
    };
    let answer = device.ask(number::JOIN_MCAST, join);
    answer.map(|answer: CreateIdResp| answer.id)
}

fn leave(device: &Opened, membership: u32) -> Result<u32, Errno> {
    let leave = DestroyId {
        id: membership,
        ..DestroyId::zeroed()
    };
    let answer = device.ask(number::LEAVE_MCAST, leave);
    answer.map(|answer: EventsReported| answer.events_reported)
}

#[test]
fn a_group_is_joined_and_left_by_the_number_of_the_membership() {
    let device = open_channel();
    let id = device.create(40, UDP);
    assert_eq!(join(&device, id, 0), Err(Errno::INVAL), "not bound");
    device.resolve(id, "127.0.0.1:7174").unwrap();
    device.expect(ADDR_RESOLVED);
    assert_eq!(join(&device, id, 9), Err(Errno::INVAL), "no such kind");
    let membership = join(&device, id, 0).unwrap();
    let joined = device.expect(MULTICAST_JOIN);
    assert_eq!(joined.uid, 50);
    let param = UdParam::from_bytes(&joined.param);
    assert_eq!(param.qp_num, 0xFF_FFFF);
    assert_eq!(param.ah_attr.dgid[12..], [239, 7, 7, 20]);
    let other = open_channel();
    assert_eq!(leave(&other, membership), Err(Errno::INVAL));
    assert_eq!(leave(&device, membership), Ok(1));
    assert_eq!(leave(&device, membership), Err(Errno::NOENT));
    // It also counts for the id, in addition to the address event.
    assert_eq!(device.destroy(id), Ok(2));
}

#[test]
fn the_memberships_of_an_id_end_with_it() {
    let device = open_channel();
    let id = device.create(40, UDP);
    device.resolve(id, "127.0.0.1:7174").unwrap();
    device.expect(ADDR_RESOLVED);
    let membership = join(&device, id, 1).unwrap();
    device.expect(MULTICAST_JOIN);
    assert_eq!(device.destroy(id), Ok(2));
    assert_eq!(leave(&device, membership), Err(Errno::NOENT));
}
