use std::time::{Duration, UNIX_EPOCH};

use proptest::prelude::*;

use super::*;

/// A record that owns its bytes, so that it outlives the reader.
type Owned = (u64, u64, LinkType, usize, Vec<u8>);

fn read_all(file: &[u8]) -> Result<Vec<Owned>> {
    let mut reader = CaptureReader::new(file)?;
    let mut records = Vec::new();
    while let Some(r) = reader.next_record()? {
        records.push((r.number, r.time_ns, r.link, r.wire_len, r.bytes.to_vec()));
    }
    Ok(records)
}

fn pcap(magic: [u8; 4], link: u32, records: &[(u32, u32, u32, &[u8])]) -> Vec<u8> {
    let big = magic[0] == 0xA1;
    let number = |value: u32| {
        if big {
            value.to_be_bytes()
        } else {
            value.to_le_bytes()
        }
    };
    let mut file = magic.to_vec();
    file.extend(if big { [0, 2, 0, 4] } else { [2, 0, 4, 0] });
    file.extend([0; 8]);
    file.extend(number(65535));
    file.extend(number(link));
    for (seconds, fraction, wire_len, bytes) in records {
        for field in [*seconds, *fraction, bytes.len() as u32, *wire_len] {
            file.extend(number(field));
        }
        file.extend(*bytes);
    }
    file
}

/// A little-endian pcapng block.
fn block(block_type: u32, body: &[u8]) -> Vec<u8> {
    let len = (12 + body.len()) as u32;
    [
        &block_type.to_le_bytes(),
        &len.to_le_bytes(),
        body,
        &len.to_le_bytes(),
    ]
    .concat()
}

fn section() -> Vec<u8> {
    let mut body = 0x1A2B_3C4D_u32.to_le_bytes().to_vec();
    body.extend([1, 0, 0, 0]);
    body.extend([0xFF; 8]);
    block(0x0A0D_0D0A, &body)
}

fn interface(link: u16, options: &[u8]) -> Vec<u8> {
    let mut body = link.to_le_bytes().to_vec();
    body.extend([0, 0]);
    body.extend(0_u32.to_le_bytes());
    body.extend(options);
    block(1, &body)
}

fn enhanced(interface: u32, timestamp: u64, wire_len: u32, bytes: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    for field in [
        interface,
        (timestamp >> 32) as u32,
        timestamp as u32,
        bytes.len() as u32,
        wire_len,
    ] {
        body.extend(field.to_le_bytes());
    }
    body.extend(bytes);
    body.resize(body.len().next_multiple_of(4), 0);
    block(6, &body)
}

#[test]
fn pcap_is_read_in_both_byte_orders_and_both_resolutions() {
    for (magic, fraction_ns) in [
        ([0xA1, 0xB2, 0xC3, 0xD4], 1000),
        ([0xD4, 0xC3, 0xB2, 0xA1], 1000),
        ([0xA1, 0xB2, 0x3C, 0x4D], 1),
        ([0x4D, 0x3C, 0xB2, 0xA1], 1),
    ] {
        let file = pcap(magic, 1, &[(7, 9, 60, b"abc"), (8, 0, 2, b"de")]);
        let expected = vec![
            (
                1,
                7_000_000_000 + 9 * fraction_ns,
                LinkType::ETHERNET,
                60,
                b"abc".to_vec(),
            ),
            (2, 8_000_000_000, LinkType::ETHERNET, 2, b"de".to_vec()),
        ];
        assert_eq!(read_all(&file).unwrap(), expected, "{magic:02x?}");
    }
}

#[test]
fn frame_check_flags_beside_the_link_type_are_ignored() {
    let file = pcap([0xD4, 0xC3, 0xB2, 0xA1], 0x4400_0001, &[(0, 0, 1, b"x")]);
    assert_eq!(read_all(&file).unwrap()[0].2, LinkType::ETHERNET);
}

#[test]
fn pcapng_times_follow_each_interfaces_resolution_and_offset() {
    let nanoseconds = [9, 0, 1, 0, 9, 0, 0, 0];
    let halves = [9, 0, 1, 0, 0x81, 0, 0, 0];
    let mut offset = vec![14, 0, 8, 0];
    offset.extend(100_i64.to_le_bytes());
    let file = [
        section(),
        interface(1, &[]),
        interface(101, &nanoseconds),
        interface(113, &halves),
        interface(276, &offset),
        enhanced(0, 5_000_001, 3, b"abc"),
        enhanced(1, 5_000_000_001, 3, b"abc"),
        enhanced(2, 11, 3, b"abc"),
        enhanced(3, 1, 3, b"abc"),
    ]
    .concat();
    let seen: Vec<_> = read_all(&file)
        .unwrap()
        .into_iter()
        .map(|r| (r.1, r.2))
        .collect();
    assert_eq!(
        seen,
        [
            (5_000_001_000, LinkType::ETHERNET),
            (5_000_000_001, LinkType::RAW),
            (5_500_000_000, LinkType::LINUX_SLL),
            (100_000_001_000, LinkType::LINUX_SLL2),
        ]
    );
}

#[test]
fn a_section_of_the_other_byte_order_is_read_in_its_own() {
    let number = |value: u32| value.to_be_bytes();
    let block = |kind: u32, body: &[u8]| {
        let len = number(body.len() as u32 + 12);
        [&number(kind)[..], &len, body, &len].concat()
    };
    let offset = [&[0, 14, 0, 8][..], &100_i64.to_be_bytes()].concat();
    let packet = [0, 0, 7, 1, 6].map(number).concat();
    let file = [
        section(),
        block(
            0x0A0D_0D0A,
            &[&number(0x1A2B_3C4D)[..], &[0, 1, 0, 0], &[0xFF; 8]].concat(),
        ),
        block(1, &[&[0, 101, 0, 0, 0, 0, 0, 0][..], &offset].concat()),
        block(6, &[&packet[..], b"x\0\0\0"].concat()),
    ]
    .concat();
    let expected = (1, 100_000_007_000, LinkType::RAW, 6, b"x".to_vec());
    assert_eq!(read_all(&file).unwrap(), [expected]);
}

#[test]
fn a_new_pcapng_section_forgets_the_interfaces_of_the_last() {
    let file = [
        section(),
        interface(1, &[]),
        section(),
        enhanced(0, 0, 1, b"x"),
    ]
    .concat();
    let error = read_all(&file).unwrap_err().to_string();
    assert!(error.contains("interface 0, of 0 described"), "{error}");
}

#[test]
fn simple_packets_are_read_and_unknown_blocks_skipped() {
    let mut simple = 4_u32.to_le_bytes().to_vec();
    simple.extend(b"wxyz");
    let file = [
        section(),
        interface(101, &[]),
        block(0x0BAD, &[0; 8192]),
        block(3, &simple),
    ]
    .concat();
    assert_eq!(
        read_all(&file).unwrap(),
        [(1, 0, LinkType::RAW, 4, b"wxyz".to_vec())]
    );
}

#[test]
fn pcapng_of_another_library_reads_back() {
    use pcap_file::DataLink;
    use pcap_file::pcapng::PcapNgWriter;
    use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketBlock;
    use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionBlock;

    let mut writer = PcapNgWriter::new(Vec::new()).unwrap();
    writer
        .write_pcapng_block(InterfaceDescriptionBlock::new(DataLink::ETHERNET, 0))
        .unwrap();
    writer
        .write_pcapng_block(EnhancedPacketBlock {
            interface_id: 0,
            // This library writes raw clock units, by default microseconds.
            timestamp: Duration::from_nanos(1234),
            original_len: 5,
            data: b"hello".as_slice().into(),
            options: vec![],
        })
        .unwrap();
    let file = writer.into_inner();
    let expected = (1, 1_234_000, LinkType::ETHERNET, 5, b"hello".to_vec());
    assert_eq!(read_all(&file).unwrap(), [expected]);
}

#[test]
fn a_written_capture_reads_back_and_another_library_agrees() {
    let time = UNIX_EPOCH + Duration::new(1_700_000_000, 123_456_789);
    let mut file = Vec::new();
    let mut writer = PcapWriter::new(&mut file).unwrap();
    writer.packet(time, b"\x45first").unwrap();
    writer
        .packet(time + Duration::from_nanos(1), b"\x60second")
        .unwrap();
    assert_eq!(writer.packets(), 2);
    writer.flush().unwrap();
    drop(writer);

    let ours = read_all(&file).unwrap();
    let mut theirs = pcap_file::pcap::PcapReader::new(file.as_slice()).unwrap();
    assert_eq!(theirs.header().datalink, pcap_file::DataLink::from(101));
    let mut count = 0;
    while let Some(packet) = theirs.next_packet() {
        let packet = packet.unwrap();
        let (_, time_ns, link, wire_len, bytes) = &ours[count];
        assert_eq!(packet.timestamp, Duration::from_nanos(*time_ns));
        assert_eq!(packet.data.as_ref(), bytes.as_slice());
        assert_eq!(
            (packet.orig_len as usize, *link),
            (*wire_len, LinkType::RAW)
        );
        count += 1;
    }
    assert_eq!((count, ours.len()), (2, 2));
}

#[test]
fn a_truncated_file_is_reported_with_its_offset_and_never_yields_a_broken_packet() {
    let pcap = pcap(
        [0xD4, 0xC3, 0xB2, 0xA1],
        1,
        &[(7, 9, 3, b"abc"), (8, 0, 2, b"de")],
    );
    let pcapng = [section(), interface(1, &[]), enhanced(0, 1, 3, b"abc")].concat();
    for (file, boundaries) in [(&pcap, vec![24, 43]), (&pcapng, vec![28, 48])] {
        for len in 1..file.len() {
            let result = read_all(&file[..len]);
            if boundaries.contains(&len) {
                assert!(result.unwrap().len() < 2);
            } else {
                let error = result.unwrap_err();
                assert!(matches!(error, CaptureError::Cut { .. }), "{len}: {error}");
            }
        }
    }
}

#[test]
fn absurd_lengths_are_refused_before_memory_is_taken_for_them() {
    let mut file = pcap([0xD4, 0xC3, 0xB2, 0xA1], 1, &[(0, 0, 0, b"")]);
    let captured_len = file.len() - 8..file.len() - 4;
    file[captured_len].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(matches!(read_all(&file), Err(CaptureError::TooLong { .. })));

    let mut huge = 6_u32.to_le_bytes().to_vec();
    huge.extend(0x7FFF_FFFC_u32.to_le_bytes());
    let file = [section(), huge, vec![0; 24]].concat();
    assert!(matches!(read_all(&file), Err(CaptureError::TooLong { .. })));
}

#[test]
fn errors_of_other_files_describe_them() {
    let error = |file: &[u8]| read_all(file).unwrap_err().to_string();
    assert!(error(b"\x7fELF....").contains("not a capture file"));
    assert!(error(&[0x1F, 0x8B, 8, 0]).contains("gzip"));
    assert!(error(b"\xa1\xb2").contains("ends inside a file header at offset 0: 2 bytes"));
    assert!(error(b"").contains("the file is empty"));
    let draft = [section(), interface(1, &[]), block(2, &[0; 20])].concat();
    assert!(error(&draft).contains("editcap"));
}

#[test]
fn the_ip_packet_is_found_behind_every_link_layer() {
    let ip = b"\x45ip";
    let behind = |link, header: &[u8]| {
        let frame = [header, ip].concat();
        ip_packet(link, &frame).map(<[u8]>::to_vec)
    };
    let mut vlan = [0; 22].to_vec();
    vlan[12..14].copy_from_slice(&[0x88, 0xA8]);
    vlan[16..18].copy_from_slice(&[0x81, 0x00]);
    vlan[20..22].copy_from_slice(&[0x08, 0x00]);
    let mut ethernet = [0; 14].to_vec();
    ethernet[12..].copy_from_slice(&[0x86, 0xDD]);
    let mut cooked = [0; 16].to_vec();
    cooked[14..].copy_from_slice(&[0x08, 0x00]);
    let mut cooked_2 = [0; 20].to_vec();
    cooked_2[..2].copy_from_slice(&[0x86, 0xDD]);
    for (link, header) in [
        (LinkType::RAW, vec![]),
        (LinkType::ETHERNET, ethernet),
        (LinkType::ETHERNET, vlan),
        (LinkType::NULL, vec![2, 0, 0, 0]),
        (LinkType::NULL, vec![0, 0, 0, 30]),
        (LinkType::LOOP, vec![0, 0, 0, 24]),
        (LinkType::LINUX_SLL, cooked),
        (LinkType::LINUX_SLL2, cooked_2),
    ] {
        assert_eq!(behind(link, &header).unwrap(), ip, "{link} {header:02x?}");
        if let Some(short) = header.len().checked_sub(1) {
            assert_eq!(
                ip_packet(link, &header[..short]),
                Err(NotIp::Short),
                "{link}"
            );
        }
    }
    let mut arp = [0; 14];
    arp[12..].copy_from_slice(&[0x08, 0x06]);
    assert_eq!(
        ip_packet(LinkType::ETHERNET, &arp),
        Err(NotIp::EtherType(0x0806))
    );
    assert_eq!(ip_packet(LinkType(147), ip), Err(NotIp::Link(147)));
}

proptest! {
    #[test]
    fn random_bytes_after_a_magic_number_never_panic(
        magic in prop::sample::select(vec![
            vec![0xD4, 0xC3, 0xB2, 0xA1, 2, 0, 4, 0],
            section(),
            [section(), interface(1, &[])].concat(),
        ]),
        rest in prop::collection::vec(prop_oneof![Just(0_u8), 0_u8..16, any::<u8>()], 0..200),
    ) {
        let _ = read_all(&[magic, rest].concat());
    }

    #[test]
    fn random_frames_never_panic(link in prop_oneof![0_u32..300], frame: Vec<u8>) {
        let _ = ip_packet(LinkType(link), &frame);
    }
}
