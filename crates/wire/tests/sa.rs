//! Records and datagrams of subnet administration from arbitrary bytes.

use portolan_wire::mad::{MAD_LEN, MadHeaderRepr, Method, MgmtClass, RmppHeader};
use portolan_wire::sa::{
    McMemberRecord, NodeRecord, PathRecord, Query, Record, SA_DATA_LEN, SaHeader, SaPacket,
    Selected, ServiceRecord,
};
use portolan_wire::{Error, Gid, PKey, ServiceId};
use proptest::collection::vec;
use proptest::prelude::*;

/// Fills output buffers before emitting, so that an unwritten byte is noticed.
const POISON: u8 = 0xA5;

/// Any bytes of sufficient length parse as a record and are emitted unchanged in meaning; fewer are
/// an error.
fn any_bytes_read_back<R: Record + PartialEq + std::fmt::Debug>(bytes: &[u8]) {
    let Ok(record) = R::parse(bytes) else {
        assert!(bytes.len() < R::LEN);
        return;
    };
    let (mut out, mut complement) = (vec![POISON; R::LEN + 1], vec![!POISON; R::LEN + 1]);
    assert_eq!(record.emit(&mut out), Ok(R::LEN));
    assert_eq!(record.emit(&mut complement), Ok(R::LEN));
    assert_eq!(out[..R::LEN], complement[..R::LEN], "a byte was left out");
    assert_eq!(out[R::LEN], POISON, "wrote beyond its length");
    assert_eq!(R::parse(&out), Ok(record));
    assert!(record.emit(&mut out[..R::LEN - 1]).is_err());
}

proptest! {
    #[test]
    fn any_bytes_are_a_record_that_emits_what_reads_the_same(bytes in vec(any::<u8>(), 0..256)) {
        any_bytes_read_back::<PathRecord>(&bytes);
        any_bytes_read_back::<ServiceRecord>(&bytes);
        any_bytes_read_back::<McMemberRecord>(&bytes);
        any_bytes_read_back::<NodeRecord>(&bytes);
        let _ = PathRecord::parse(&bytes).map(|record| record.to_string());
        let _ = ServiceRecord::parse(&bytes).map(|record| record.to_string());
        let _ = McMemberRecord::parse(&bytes).map(|record| record.to_string());
        let _ = NodeRecord::parse(&bytes).map(|record| record.to_string());
    }

    #[test]
    fn no_bytes_break_the_view_and_what_it_shows_is_emitted_again(
        mut bytes in vec(any::<u8>(), 200..300),
        right: bool,
    ) {
        if right {
            bytes.resize(MAD_LEN, 0);
            bytes[..3].copy_from_slice(&[1, 3, 2]);
        }
        let view = SaPacket::new_checked(&bytes);
        prop_assert!(view.is_ok() || !right);
        if let Ok(view) = view {
            let _ = view.status().to_string();
            let again = SaPacket::emit(view.mad(), view.sa(), view.data()).unwrap();
            let reread = SaPacket::new_checked(&again).unwrap();
            prop_assert_eq!(reread, view);
        }
    }
}

fn header() -> MadHeaderRepr {
    MadHeaderRepr {
        base_version: 0,
        mgmt_class: MgmtClass(0),
        class_version: 0,
        method: Method::GET_TABLE,
        status: 0,
        class_specific: 0,
        tid: 0x0102_0304_0506_0708,
        attribute_id: 0x35,
        attribute_modifier: 0,
    }
}

#[test]
fn a_datagram_has_its_headers_at_the_standards_offsets() {
    let sa = SaHeader {
        rmpp: RmppHeader::INACTIVE,
        sm_key: 0x1112_1314_1516_1718,
        attribute_offset: 8,
        component_mask: 0x2122_2324_2526_2728,
    };
    let mad = SaPacket::emit(&header(), &sa, &[0x99; SA_DATA_LEN]).unwrap();
    assert_eq!(mad[..4], [1, 3, 2, 0x12]);
    assert_eq!(mad[24..36], [0; 12]);
    assert_eq!(mad[36..44], 0x1112_1314_1516_1718u64.to_be_bytes());
    assert_eq!(mad[44..48], [0, 8, 0, 0]);
    assert_eq!(mad[48..56], 0x2122_2324_2526_2728u64.to_be_bytes());
    assert_eq!(mad[56..], [0x99; SA_DATA_LEN]);
    let too_long = SaPacket::emit(&header(), &sa, &[0; SA_DATA_LEN + 1]);
    assert!(matches!(too_long, Err(Error::OutOfRange { .. })));
}

#[test]
fn another_class_or_version_is_not_subnet_administration() {
    let sa = SaHeader {
        rmpp: RmppHeader::INACTIVE,
        sm_key: 0,
        attribute_offset: 0,
        component_mask: 0,
    };
    let mad = SaPacket::emit(&header(), &sa, &[]).unwrap();
    assert!(SaPacket::new_checked(&mad).is_ok());
    for at in 0..3 {
        let mut other = mad;
        other[at] ^= 0x40;
        let refused = SaPacket::new_checked(&other);
        assert!(matches!(refused, Err(Error::Unsupported { .. })), "{at}");
    }
    assert!(SaPacket::new_checked(&mad[..255]).is_err());
}

#[test]
fn a_query_sets_the_standards_bit_for_each_component() {
    let path = Query::<PathRecord>::new()
        .dgid(Gid([1; 16]))
        .sgid(Gid([2; 16]))
        .reversible(true)
        .numb_path(1)
        .pkey(PKey(0x8001));
    assert_eq!(path.mask().0, 0b11_1000_0000_1100);
    assert_eq!(path.record().sgid, Gid([2; 16]));
    let mtu = Query::<PathRecord>::new().mtu(Selected::exactly(4));
    assert_eq!(mtu.mask().0, 0x3_0000);
    let name = ServiceRecord::name_field("harbour").unwrap();
    let service = Query::<ServiceRecord>::new()
        .service_id(ServiceId(7))
        .name(name);
    assert_eq!(service.mask().0, 1 | 1 << 6);
    let data = Query::<ServiceRecord>::new()
        .data8([0; 16])
        .data16([0; 8])
        .data32([0; 4])
        .data64([0; 2]);
    assert_eq!(data.mask().0, (1 << 37) - (1 << 7));
    let group = Query::<McMemberRecord>::new()
        .mgid(Gid([3; 16]))
        .port_gid(Gid([4; 16]))
        .rate(Selected::exactly(3));
    assert_eq!(group.mask().0, 0x303);
    assert_eq!(Query::<NodeRecord>::new().lid(3).mask().0, 1);
}
