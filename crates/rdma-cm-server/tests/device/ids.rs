//! Ids alone: refused commands, queries, and written events.

use std::thread;
use std::time::Duration;

use portolan_kernel::raw::*;
use rustix::io::Errno;

use crate::support::*;

#[test]
fn an_incomplete_or_unknown_command_is_refused() {
    let device = open_channel();
    let nothing = |number| device.write(number, &[], 0, &[]).unwrap_err();
    assert_eq!(nothing(number::BIND), Errno::INVAL);
    assert_eq!(nothing(25), Errno::INVAL);
    for old in [2, 3, 5, 13, 16] {
        assert_eq!(nothing(old), Errno::NOSYS, "{old}");
    }
    let create = CreateId {
        uid: 1,
        ps: TCP,
        ..CreateId::zeroed()
    };
    let written = device.write(number::CREATE_ID, &create.to_bytes(), 3, &[]);
    assert_eq!(written.unwrap_err(), Errno::NOSPC);
    // The answer's address is invalid.
    let written = device.write(number::CREATE_ID, &create.to_bytes(), 4, &[]);
    assert_eq!(written.unwrap_err(), Errno::FAULT);
}

#[test]
fn bytes_without_a_whole_header_are_refused() {
    struct Nowhere;
    impl portolan_rdma_cm_server::Memory for Nowhere {
        fn read(&self, _: u64, _: usize) -> Result<Vec<u8>, Errno> {
            Err(Errno::FAULT)
        }
        fn write(&self, _: u64, _: &[u8]) -> Result<(), Errno> {
            Err(Errno::FAULT)
        }
    }
    let device = open_channel();
    let header = Header {
        cmd: number::LISTEN,
        in_len: 8,
        out_len: 0,
    };
    let bytes = [header.to_bytes(), vec![0; 7]].concat();
    for length in 0..bytes.len() {
        let written = device.channel.write(&bytes[..length], &Nowhere);
        assert_eq!(written, Err(Errno::INVAL), "{length}");
    }
}

#[test]
fn an_unknown_id_and_one_of_another_channel_have_different_errors() {
    let (device, other) = (open_channel(), open_channel());
    let id = device.create(1, TCP);
    assert_eq!(other.bind(id, "127.0.0.1:0"), Err(Errno::INVAL));
    assert_eq!(other.destroy(id), Err(Errno::INVAL));
    assert_eq!(device.destroy(id), Ok(0));
    assert_eq!(device.destroy(id), Err(Errno::NOENT));
    assert_eq!(device.bind(id, "127.0.0.1:0"), Err(Errno::NOENT));
}

#[test]
fn unknown_port_spaces_and_types_are_refused() {
    let device = open_channel();
    let create = |ps, qp_type| {
        let create = CreateId {
            uid: 1,
            ps,
            qp_type,
            ..CreateId::zeroed()
        };
        device.ask::<_, CreateIdResp>(number::CREATE_ID, create)
    };
    // RDMA_PS_IB uses the given type; the others have fixed types.
    let in_ib = [2, 4, 9, 10].map(|qp_type| (0x013F, qp_type));
    let fixed = [(TCP, 99), (UDP, 99), (0x0002, 0)];
    for (ps, qp_type) in fixed.into_iter().chain(in_ib) {
        assert!(create(ps, qp_type).is_ok(), "{ps:x} {qp_type}");
    }
    for (ps, qp_type) in [(0x9999, 2), (0x013F, 0), (0x013F, 8)] {
        assert_eq!(create(ps, qp_type), Err(Errno::INVAL), "{ps:x} {qp_type}");
    }
}

#[test]
fn an_id_knows_its_address_once_it_is_bound_and_on_loopback_its_device_once_it_is_resolved() {
    let device = open_channel();
    let id = device.create(1, TCP);
    let known: QueryAddrResp = device.query(id, QUERY_ADDR).unwrap();
    assert_eq!((known.src_size, known.dst_size, known.port_num), (0, 0, 0));
    device.bind(id, "127.0.0.1:0").unwrap();
    let known: QueryAddrResp = device.query(id, QUERY_ADDR).unwrap();
    assert_eq!(
        (known.src_size, known.dst_size, known.port_num),
        (16, 16, 0)
    );
    assert_eq!(device.bind(id, "127.0.0.1:0"), Err(Errno::INVAL));
    device.resolve(id, "127.0.0.1:7174").unwrap();
    device.expect(ADDR_RESOLVED);
    let known: QueryAddrResp = device.query(id, QUERY_ADDR).unwrap();
    assert_eq!(
        (known.src_size, known.dst_size, known.port_num),
        (16, 16, 1)
    );
    assert_ne!((known.node_guid, known.ibdev_index), (0, 0));
    assert_eq!(&known.src_addr[4..8], [127, 0, 0, 1]);
    let gids: QueryAddrResp = device.query(id, QUERY_GID).unwrap();
    assert_eq!(&gids.src_addr[8 + 10..8 + 16], [255, 255, 127, 0, 0, 1]);
    let paths: QueryPathResp = device.query(id, QUERY_PATH).unwrap();
    assert_eq!(paths.num_paths, 0);
    let service = ResolveIbService {
        id,
        ..ResolveIbService::zeroed()
    };
    assert_eq!(device.command(&service), Err(Errno::OPNOTSUPP));
}

#[test]
fn addresses_of_a_wrong_length_are_refused() {
    let device = open_channel();
    let id = device.create(1, TCP);
    let (addr, _) = storage("127.0.0.1:0");
    for addr_size in [0, 15, 17, 28, 128, u16::MAX] {
        let bind = Bind {
            id,
            addr_size,
            reserved: 0,
            addr,
        };
        assert_eq!(device.command(&bind), Err(Errno::INVAL), "{addr_size}");
    }
    // AF_IB.
    let mut addr = [0; 128];
    addr[..2].copy_from_slice(&27u16.to_ne_bytes());
    let bind = Bind {
        id,
        addr_size: 48,
        reserved: 0,
        addr,
    };
    assert_eq!(device.command(&bind), Err(Errno::AFNOSUPPORT));
}

#[test]
fn options_are_set_by_values_of_their_own_length() {
    let device = open_channel();
    let id = device.create(1, TCP);
    let set = |level, name, value: &[u8]| device.set_option(id, level, name, value);
    let yes = 1u32.to_ne_bytes();
    assert_eq!(set(OPTION_LEVEL_ID, OPTION_TOS, &[8]), Ok(()));
    assert_eq!(set(OPTION_LEVEL_ID, OPTION_TOS, &yes), Err(Errno::INVAL));
    assert_eq!(set(OPTION_LEVEL_ID, OPTION_REUSEADDR, &yes), Ok(()));
    assert_eq!(set(OPTION_LEVEL_ID, OPTION_AFONLY, &yes), Ok(()));
    assert_eq!(set(OPTION_LEVEL_ID, OPTION_AFONLY, &[1]), Err(Errno::INVAL));
    assert_eq!(set(OPTION_LEVEL_ID, OPTION_ACK_TIMEOUT, &[14]), Ok(()));
    assert_eq!(set(OPTION_LEVEL_ID, 99, &yes), Err(Errno::NOSYS));
    assert_eq!(set(99, 0, &yes), Err(Errno::NOSYS));
    assert_eq!(set(1, 1, &[0; 71]), Err(Errno::INVAL));
}

#[test]
fn a_route_that_is_given_must_be_between_the_ids_gids() {
    let device = open_channel();
    let id = device.create(1, TCP);
    device.resolve(id, "127.0.0.1:7471").unwrap();
    device.expect(ADDR_RESOLVED);
    let mut path = PathData {
        flags: 1 | 2 | 8 | 32,
        ..PathData::zeroed()
    };
    let gid = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 127, 0, 0, 1];
    path.path_rec[8..24].copy_from_slice(&gid);
    assert_eq!(
        device.set_option(id, 1, 1, &path.to_bytes()),
        Err(Errno::INVAL)
    );
    path.path_rec[24..40].copy_from_slice(&gid);
    device.set_option(id, 1, 1, &path.to_bytes()).unwrap();
    device.expect(ROUTE_RESOLVED);
    let paths: QueryPathResp = device.query(id, QUERY_PATH).unwrap();
    assert_eq!(paths.num_paths, 1);
    assert_eq!(paths.path_data[0].flags, path.flags);
    assert_eq!(paths.path_data[0].path_rec[24..40], gid);
}

#[test]
fn written_events_are_returned_and_events_for_foreign_ids_are_refused() {
    let device = open_channel();
    let id = device.create(9, TCP);
    let write = |event, arg| {
        device.command(&WriteCmEvent {
            id,
            event,
            status: (-5i32).cast_unsigned(),
            arg,
            ..WriteCmEvent::zeroed()
        })
    };
    assert_eq!(write(ESTABLISHED, 0), Err(Errno::INVAL));
    assert_eq!(write(EVENT_INTERNAL, 9), Err(Errno::INVAL));
    assert_eq!(write(EVENT_INTERNAL, 18), Err(Errno::INVAL));
    write(USER, u64::MAX).unwrap();
    write(EVENT_INTERNAL, 5 << 8 | 16).unwrap();
    for (event, arg) in [(USER, u64::MAX), (EVENT_INTERNAL, 5 << 8 | 16)] {
        let found = device.event();
        assert_eq!((found.uid, found.id, found.event), (9, id, event));
        assert_eq!(found.status.cast_signed(), -5);
        assert_eq!(u64::from_bytes(&found.param), arg);
    }
    assert!(!device.is_ready());
    assert_eq!(device.destroy(id), Ok(2));
}

#[test]
fn taking_an_event_waits_for_it_unless_the_descriptor_is_nonblocking() {
    let device = open_channel();
    let id = device.create(9, TCP);
    thread::scope(|scope| {
        let taker = scope.spawn(|| device.get_event().unwrap());
        // It gets the event whether or not it is already waiting.
        thread::sleep(Duration::from_millis(20));
        let user = WriteCmEvent {
            id,
            event: USER,
            arg: 3,
            ..WriteCmEvent::zeroed()
        };
        device.command(&user).unwrap();
        assert_eq!(taker.join().unwrap().event, USER);
    });
    device.make_nonblocking();
    assert_eq!(device.get_event().unwrap_err(), Errno::AGAIN);
}
