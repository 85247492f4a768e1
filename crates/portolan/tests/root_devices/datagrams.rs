//! Datagram rsockets and UDP datagrams whose senders do not exist.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::time::{Duration, Instant};

use portolan::datagram::{Options, Rsocket};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, SendFlags, SocketFlags, SocketType, ipproto, sendto, socket_with,
};

use crate::harness::*;
use crate::on_interfaces;

const SERVER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 9, 7, 1), 7700);
/// Resolving the address of a host that does not answer takes two seconds.
const CALL_MAX: Duration = Duration::from_secs(1);
const STRANGERS: u8 = 5;

/// An IPv4 packet with the UDP datagram in which an rsocket announces its queue pair. The kernel sets the checksum.
fn announcement(from: Ipv4Addr) -> Vec<u8> {
    let mut datagram = b"UUUU\x04\0\x10\0\0\0\x12\x34".to_vec();
    datagram.extend(from.octets());
    datagram.extend(b"ahoy");
    let length = |extra: usize| ((datagram.len() + extra) as u16).to_be_bytes();
    let mut packet = vec![0x45, 0];
    packet.extend(length(28));
    packet.extend([0, 0, 0, 0, 64, 17, 0, 0]);
    packet.extend(from.octets());
    packet.extend(SERVER.ip().octets());
    packet.extend(SERVER.port().to_be_bytes());
    packet.extend(SERVER.port().to_be_bytes());
    packet.extend(length(8));
    packet.extend([0, 0]);
    packet.extend(datagram);
    packet
}

#[test]
fn senders_that_do_not_exist_delay_no_call_of_a_datagram_rsocket() {
    let interfaces = "link add tlink type veth peer name tpeer
        addr add 10.9.7.1/24 dev tlink
        link set tpeer up
        link set tlink up";
    on_interfaces(interfaces, || {
        for of in ["all", "lo"] {
            std::fs::write(format!("/proc/sys/net/ipv4/conf/{of}/rp_filter"), "0").unwrap();
        }
        let provider = own_provider();
        let open = || Rsocket::new_on(provider.clone(), false, Options::default()).unwrap();
        let server = open();
        server.bind(SERVER.into()).unwrap();
        let flags = SocketFlags::CLOEXEC;
        let raw = socket_with(
            AddressFamily::INET,
            SocketType::RAW,
            flags,
            Some(ipproto::RAW),
        );
        let raw = raw.unwrap();
        for number in 0..STRANGERS {
            let packet = announcement(Ipv4Addr::new(10, 9, 7, 100 + number));
            sendto(&raw, &packet, SendFlags::empty(), &SERVER).unwrap();
        }
        let (peeks, waits) = (false, false);
        let mut bytes = [0; 64];
        let mut take = |server: &Rsocket| -> (Vec<u8>, SocketAddr) {
            let until = Instant::now() + PATIENCE;
            loop {
                let started = Instant::now();
                let taken = server.receive_from(&mut bytes, peeks, waits);
                assert!(started.elapsed() < CALL_MAX, "{:?}", started.elapsed());
                match taken {
                    Ok((length, from)) => return (bytes[..length].to_vec(), from),
                    Err(_) if Instant::now() < until => std::thread::yield_now(),
                    Err(error) => panic!("{error}"),
                }
            }
        };
        for number in 0..STRANGERS {
            let (data, from) = take(&server);
            assert_eq!((&data[..], from.port()), (&b"ahoy"[..], SERVER.port()));
            assert_eq!(from.ip(), Ipv4Addr::new(10, 9, 7, 100 + number));
        }
        // A client that exists is served meanwhile.
        let client = open();
        client.connect(SERVER.into()).unwrap();
        for turn in 0..20u8 {
            client.send(&[turn], true).unwrap();
            let (data, from) = take(&server);
            assert_eq!(data, [turn]);
            server.send_to(&[turn, 1], from, true).unwrap();
            assert_eq!(take(&client).0, [turn, 1]);
        }
        eventually("datagrams by queue pairs", || {
            client.send(b"by", true).unwrap();
            std::thread::sleep(Duration::from_millis(20));
            let by_udp = server.udp().peek_from(&mut [0; 64]).is_ok();
            assert_eq!(take(&server).0, b"by");
            !by_udp
        });
        // The strangers are given up after two seconds.
        std::thread::sleep(Duration::from_millis(2500));
        eventually("a quiet descriptor", || {
            assert!(!server.is_readable().unwrap());
            let quiet = Timespec {
                tv_sec: 0,
                tv_nsec: 300_000_000,
            };
            poll(&mut [PollFd::new(&server, PollFlags::IN)], Some(&quiet)).unwrap() == 0
        });
    });
}
