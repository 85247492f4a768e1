//! What arrives at a datagram socket: announcements over UDP, and data between queue pairs. A header is refused or read
//! as it would be written; the data after it are what followed it.
#![no_main]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use portolan_rsocket::datagram::{Announcement, source_header, split_source};

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    arrived: &'a [u8],
    is_ipv6: bool,
    has_data: bool,
    qpn: u32,
    port: u16,
    flow: u32,
    addr: [u8; 16],
    data: &'a [u8],
}

fuzz_target!(|input: Input<'_>| {
    read(input.arrived, input.is_ipv6);
    let ip: IpAddr = match input.is_ipv6 {
        true => Ipv6Addr::from(input.addr).into(),
        false => {
            let [a, b, c, d, ..] = input.addr;
            Ipv4Addr::new(a, b, c, d).into()
        }
    };
    let announcement = Announcement {
        has_data: input.has_data,
        qpn: input.qpn & 0xFF_FFFF,
        addr: ip,
    };
    let datagram = [announcement.encode().bytes(), input.data].concat();
    let found = Announcement::decode(&datagram, input.is_ipv6);
    assert_eq!(found, Some((announcement, input.data)));
    let source = match ip {
        IpAddr::V4(_) => SocketAddr::new(ip, input.port),
        IpAddr::V6(ip) => SocketAddrV6::new(ip, input.port, input.flow, 0).into(),
    };
    let datagram = [source_header(source).bytes(), input.data].concat();
    assert_eq!(split_source(&datagram), Some((source, input.data)));
});

/// What arrives is refused, or written again it says the same.
fn read(arrived: &[u8], is_ipv6: bool) {
    if let Some((announcement, data)) = Announcement::decode(arrived, is_ipv6) {
        assert!(arrived.ends_with(data));
        let again = [announcement.encode().bytes(), data].concat();
        let found = Announcement::decode(&again, is_ipv6);
        assert_eq!(found, Some((announcement, data)));
    }
    if let Some((source, data)) = split_source(arrived) {
        assert!(arrived.ends_with(data));
        let again = [source_header(source).bytes(), data].concat();
        assert_eq!(split_source(&again), Some((source, data)));
    }
}
