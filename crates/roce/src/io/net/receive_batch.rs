//! Receives many datagrams with one system call, and splits coalesced ones.

#![allow(unsafe_code, reason = "recvmmsg(2) by pointers")]

use std::io;
use std::mem::size_of;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};

use libc::{c_int, c_void, cmsghdr, iovec, mmsghdr};

use crate::io::net::sockopt::{self, IpVersion, SockaddrStorage, set_int};

/// Datagrams per call.
const MESSAGES: usize = 32;
/// Buffer for one datagram, even coalesced. Only the pages that datagrams reach are ever touched.
const BUFFER_LEN: usize = 1 << 16;
/// Room for the control messages: packet information, segment size, and three more with [`tell_ip_fields`].
const CONTROL_LEN: usize = 192;

/// Prepares a socket for [`ReceiveBatch`].
pub(crate) fn prepare(fd: BorrowedFd<'_>, version: IpVersion) -> io::Result<()> {
    match version {
        IpVersion::V4 => {
            set_int(fd, libc::IPPROTO_IP, libc::IP_PKTINFO, 1)?;
            // Only management datagrams and UD queue pairs need these fields
            // (see `tell_ip_fields`).
            set_int(fd, libc::IPPROTO_IP, libc::IP_RECVTOS, 0)?;
            set_int(fd, libc::IPPROTO_IP, libc::IP_RECVTTL, 0)?;
        }
        IpVersion::V6 => {
            set_int(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 1)?;
            // See above.
            set_int(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 0)?;
            set_int(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT, 0)?;
            // rdma_rxe sends UDP checksum zero over IPv6. The ICRC protects those packets.
            set_int(fd, libc::IPPROTO_UDP, UDP_NO_CHECK6_RX, 1)?;
        }
    }
    // Linux before 5.0 cannot coalesce. Packets then arrive one by one.
    let _ = set_int(fd, libc::IPPROTO_UDP, libc::UDP_GRO, 1);
    Ok(())
}

/// Makes a socket report the IP fields that UD receives contain. Connections do not need them, and they slow down
/// each packet.
pub(crate) fn tell_ip_fields(fd: BorrowedFd<'_>, version: IpVersion) -> io::Result<()> {
    match version {
        IpVersion::V4 => {
            set_int(fd, libc::IPPROTO_IP, libc::IP_RECVTOS, 1)?;
            set_int(fd, libc::IPPROTO_IP, libc::IP_RECVTTL, 1)
        }
        IpVersion::V6 => {
            set_int(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT, 1)?;
            set_int(fd, libc::IPPROTO_IPV6, IPV6_FLOWINFO, 1)
        }
    }
}

/// `IPV6_FLOWINFO` of `linux/in6.h`: traffic class and flow label of each packet.
const IPV6_FLOWINFO: c_int = 11;
/// `UDP_NO_CHECK6_RX` of `linux/udp.h`.
const UDP_NO_CHECK6_RX: c_int = 102;

/// Buffers for one call, and the result of the last call.
pub(crate) struct ReceiveBatch {
    bytes: Box<[u8]>,
    names: Box<[SockaddrStorage]>,
    controls: Box<[Control]>,
    /// `headers` points to these.
    _vectors: Box<[iovec]>,
    /// Their pointers lead to the boxes above, which never move or grow.
    headers: Box<[mmsghdr]>,
    received: usize,
}

// SAFETY: the pointers in `headers` and `_vectors` lead only to boxes of the same value.
unsafe impl Send for ReceiveBatch {}

/// A control buffer with the alignment of `cmsghdr`.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Control([u8; CONTROL_LEN]);

/// A datagram as the socket delivered it: one packet, or several of equal length (the last may be shorter) from one
/// sender to one queue pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Coalesced<'a> {
    pub(crate) source: SocketAddr,
    /// Destination address in the IP header.
    pub(crate) destination: IpAddr,
    /// IPv4 type of service or IPv6 traffic class; 0 unless the socket reports it.
    pub(crate) traffic_class: u8,
    /// IPv4 time to live or IPv6 hop limit; 0 unless the socket reports it.
    pub(crate) hop_limit: u8,
    /// IPv6 flow label, 20 bits; 0 unless the socket reports it.
    pub(crate) flow_label: u32,
    /// Length of each packet but the last.
    pub(crate) packet_len: usize,
    pub(crate) bytes: &'a [u8],
}

impl ReceiveBatch {
    pub(crate) fn new() -> Self {
        let mut bytes = vec![0; MESSAGES * BUFFER_LEN].into_boxed_slice();
        let mut names = vec![sockopt::empty_sockaddr(); MESSAGES].into_boxed_slice();
        let mut controls = vec![Control([0; CONTROL_LEN]); MESSAGES].into_boxed_slice();
        let mut vectors: Box<[iovec]> = bytes
            .chunks_exact_mut(BUFFER_LEN)
            .map(|buffer| iovec {
                iov_base: buffer.as_mut_ptr().cast(),
                iov_len: BUFFER_LEN,
            })
            .collect();
        let headers = names
            .iter_mut()
            .zip(controls.iter_mut())
            .zip(vectors.iter_mut())
            .map(|((name, control), vector)| {
                // SAFETY: plain data, for which zeros are a value.
                let mut header: mmsghdr = unsafe { std::mem::zeroed() };
                header.msg_hdr.msg_name = (&raw mut *name).cast();
                header.msg_hdr.msg_control = control.0.as_mut_ptr().cast();
                header.msg_hdr.msg_iov = vector;
                header.msg_hdr.msg_iovlen = 1;
                header
            })
            .collect();
        Self {
            bytes,
            names,
            controls,
            _vectors: vectors,
            headers,
            received: MESSAGES,
        }
    }

    /// Reads the socket without blocking; returns the number of datagrams.
    pub(crate) fn receive(&mut self, fd: BorrowedFd<'_>) -> io::Result<usize> {
        for header in self.headers.iter_mut().take(self.received) {
            header.msg_hdr.msg_namelen = size_of::<SockaddrStorage>() as libc::socklen_t;
            header.msg_hdr.msg_controllen = CONTROL_LEN as _;
            header.msg_hdr.msg_flags = 0;
        }
        self.received = 0;
        let (headers, count) = (self.headers.as_mut_ptr(), self.headers.len() as u32);
        // SAFETY: `headers` are `count` message headers whose names, control buffers and vectors are
        // valid for their lengths, and this is their only borrow.
        let received = unsafe {
            libc::recvmmsg(
                fd.as_raw_fd(),
                headers,
                count,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut(),
            )
        };
        match usize::try_from(received) {
            Ok(received) => {
                self.received = received;
                Ok(received)
            }
            Err(_) => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
                error => Err(error),
            },
        }
    }

    /// Whether the last call filled every buffer, so that more datagrams may be queued.
    pub(crate) fn is_full(&self) -> bool {
        self.received == MESSAGES
    }

    /// A datagram of the last call. `None` if it was truncated or has no destination address.
    #[allow(clippy::unnecessary_cast, reason = "narrower in some C libraries")]
    pub(crate) fn datagram(&self, index: usize) -> Option<Coalesced<'_>> {
        let header = self.headers.get(index).filter(|_| index < self.received)?;
        if header.msg_hdr.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0 {
            return None;
        }
        let buffer = self.bytes.get(index * BUFFER_LEN..)?;
        let bytes = buffer.get(..header.msg_len as usize)?;
        let control = &self.controls.get(index)?.0;
        let control = control.get(..header.msg_hdr.msg_controllen as usize)?;
        let ancillary = Ancillary::parse(control);
        Some(Coalesced {
            source: sockopt::decode(self.names.get(index)?)?,
            destination: ancillary.destination?,
            traffic_class: ancillary.traffic_class,
            hop_limit: ancillary.hop_limit,
            flow_label: ancillary.flow_label,
            packet_len: ancillary.packet_len.unwrap_or(bytes.len()).max(1),
            bytes,
        })
    }
}

impl std::fmt::Debug for ReceiveBatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReceiveBatch")
            .field("received", &self.received)
            .finish_non_exhaustive()
    }
}

/// The contents of the control messages.
#[derive(Debug, Default, PartialEq, Eq)]
struct Ancillary {
    destination: Option<IpAddr>,
    packet_len: Option<usize>,
    traffic_class: u8,
    hop_limit: u8,
    flow_label: u32,
}

impl Ancillary {
    /// Parses control messages as in cmsg(3). Stops at one that does not fit.
    #[allow(clippy::unnecessary_cast, reason = "narrower in some C libraries")]
    fn parse(mut control: &[u8]) -> Self {
        let mut found = Self::default();
        while let Some((header, body)) = control.split_at_checked(CMSG_HEADER_LEN) {
            // SAFETY: plain data, read from enough bytes without assuming alignment.
            let header = unsafe { header.as_ptr().cast::<cmsghdr>().read_unaligned() };
            let len = header.cmsg_len as usize;
            let Some(body) = len
                .checked_sub(CMSG_HEADER_LEN)
                .and_then(|len| body.get(..len))
            else {
                break;
            };
            match (header.cmsg_level, header.cmsg_type) {
                (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                    // `struct in_pktinfo`: interface, local address, destination in the header.
                    found.destination = array::<4>(body, 8).map(|ip| Ipv4Addr::from(ip).into());
                }
                (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                    // `struct in6_pktinfo`: destination, interface.
                    found.destination = array::<16>(body, 0).map(|ip| Ipv6Addr::from(ip).into());
                }
                (libc::IPPROTO_IP, libc::IP_TOS) => {
                    found.traffic_class = body.first().copied().unwrap_or(0);
                }
                (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                    // The field has 8 bits, the message 32.
                    found.hop_limit =
                        array(body, 0).map_or(0, |hops| c_int::from_ne_bytes(hops) as u8);
                }
                (libc::IPPROTO_IPV6, IPV6_FLOWINFO) => {
                    // Network order: four unused bits, traffic class, flow label.
                    let info = array(body, 0).map_or(0, u32::from_be_bytes);
                    found.traffic_class = (info >> 20) as u8;
                    found.flow_label = info & 0xF_FFFF;
                }
                (libc::IPPROTO_UDP, libc::UDP_GRO) => {
                    let len = array::<4>(body, 0).map(c_int::from_ne_bytes);
                    found.packet_len = len.and_then(|len| usize::try_from(len).ok());
                }
                _ => {}
            }
            let Some(rest) = control.get(len.next_multiple_of(size_of::<usize>())..) else {
                break;
            };
            control = rest;
        }
        found
    }
}

/// `CMSG_LEN(0)`.
const CMSG_HEADER_LEN: usize = size_of::<cmsghdr>();
const _: () = assert!(CMSG_HEADER_LEN.is_multiple_of(size_of::<usize>()));
const _: () = assert!(size_of::<*mut c_void>() == size_of::<usize>());

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    #[test]
    fn datagrams_have_both_addresses_and_keep_their_order() {
        for (loopback, version) in [("127.0.0.1:0", IpVersion::V4), ("[::1]:0", IpVersion::V6)] {
            let receiver = UdpSocket::bind(loopback).unwrap();
            prepare(receiver.as_fd(), version).unwrap();
            let sender = UdpSocket::bind(loopback).unwrap();
            let target = receiver.local_addr().unwrap();
            for number in 0..40u8 {
                sender.send_to(&[number; 5], target).unwrap();
            }
            let mut batch = ReceiveBatch::new();
            let mut taken = Vec::new();
            while batch.receive(receiver.as_fd()).unwrap() > 0 {
                for index in 0..MESSAGES {
                    let Some(datagram) = batch.datagram(index) else {
                        break;
                    };
                    assert_eq!(datagram.source, sender.local_addr().unwrap());
                    assert_eq!(datagram.destination, target.ip());
                    taken.extend(datagram.bytes.chunks(datagram.packet_len).map(|p| p[0]));
                }
            }
            assert_eq!(taken, (0..40).collect::<Vec<u8>>());
        }
    }

    proptest! {
        #[test]
        fn any_control_bytes_are_read_without_panic(bytes: Vec<u8>) {
            Ancillary::parse(&bytes);
        }
    }
}
