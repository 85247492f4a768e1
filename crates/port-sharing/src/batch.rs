//! Reads block 0's sockets: many datagrams with their addresses in one system call.

#![allow(unsafe_code, reason = "recvmmsg(2) by pointers")]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

use super::config::DATAGRAM_BYTES_MAX;
use super::datagram::Datagram;
use super::raw::last_errno;

/// Datagrams read by one system call.
pub(super) const BATCH_DATAGRAMS: usize = 16;

/// Space for the control messages of one datagram: packet info, traffic class, hop limit. Aligned for `cmsghdr`.
type Control = [u64; 16];

/// Buffers for one batch.
pub(super) struct Batch {
    payloads: Box<[[u8; DATAGRAM_BYTES_MAX]; BATCH_DATAGRAMS]>,
    controls: Box<[Control; BATCH_DATAGRAMS]>,
    sources: Box<[libc::sockaddr_in6; BATCH_DATAGRAMS]>,
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batch").finish_non_exhaustive()
    }
}

impl Batch {
    pub(super) fn new() -> Self {
        // SAFETY: `sockaddr_in6` consists of integers, for which zeros are a valid value.
        let no_address: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
        Self {
            payloads: Box::new([[0; DATAGRAM_BYTES_MAX]; BATCH_DATAGRAMS]),
            controls: Box::new([[0; 16]; BATCH_DATAGRAMS]),
            sources: Box::new([no_address; BATCH_DATAGRAMS]),
        }
    }

    /// Reads waiting datagrams, up to one batch, and calls `deliver` for each. `None` means a datagram that is too long
    /// or has no addresses. Returns their number; 0 if none is waiting.
    pub(super) fn receive(
        &mut self,
        socket: BorrowedFd<'_>,
        mut take: impl FnMut(Option<Datagram<'_>>),
    ) -> Result<usize, Errno> {
        // SAFETY: `iovec` and `mmsghdr` consist of integers and pointers, for which zeros are a valid value; the fields
        // in use are set below.
        let mut vectors: [libc::iovec; BATCH_DATAGRAMS] = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        let mut headers: [libc::mmsghdr; BATCH_DATAGRAMS] = unsafe { std::mem::zeroed() };
        let buffers = self
            .payloads
            .iter_mut()
            .zip(self.controls.iter_mut())
            .zip(self.sources.iter_mut());
        for (((payload, control), source), (vector, header)) in
            buffers.zip(vectors.iter_mut().zip(headers.iter_mut()))
        {
            vector.iov_base = payload.as_mut_ptr().cast();
            vector.iov_len = payload.len();
            let header = &mut header.msg_hdr;
            header.msg_name = (&raw mut *source).cast();
            header.msg_namelen = size_of::<libc::sockaddr_in6>() as libc::socklen_t;
            header.msg_iov = &raw mut *vector;
            header.msg_iovlen = 1;
            header.msg_control = control.as_mut_ptr().cast();
            header.msg_controllen = size_of::<Control>() as _;
        }
        // SAFETY: each header points to its own buffers, with their true lengths. The buffers outlive the call and are
        // not used otherwise during it.
        let count = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                headers.as_mut_ptr(),
                BATCH_DATAGRAMS as libc::c_uint,
                libc::MSG_DONTWAIT as _,
                std::ptr::null_mut(),
            )
        };
        let Ok(count) = usize::try_from(count) else {
            return match last_errno() {
                Errno::AGAIN | Errno::INTR => Ok(0),
                errno => Err(errno),
            };
        };
        for (i, message) in headers.iter().take(count).enumerate() {
            let truncated = message.msg_hdr.msg_flags & libc::MSG_TRUNC != 0;
            let payload = self
                .payloads
                .get(i)
                .and_then(|p| p.get(..message.msg_len as usize));
            let datagram = match (payload, self.sources.get(i)) {
                (Some(payload), Some(source)) if !truncated => {
                    // SAFETY: the kernel filled the control buffer and stored its length in the header.
                    unsafe { describe(&message.msg_hdr, source, payload) }
                }
                _ => None,
            };
            take(datagram);
        }
        Ok(count)
    }
}

/// Builds a datagram from its source address and control messages.
///
/// # Safety
/// `header`'s control pointer and length describe control messages that the kernel wrote.
unsafe fn describe<'a>(
    header: &libc::msghdr,
    source: &libc::sockaddr_in6,
    payload: &'a [u8],
) -> Option<Datagram<'a>> {
    let mut destination = None;
    let (mut interface, mut traffic_class, mut hop_limit) = (0, 0, 0);
    // SAFETY: the header's control buffer is valid, as the caller promises.
    let mut control = unsafe { libc::CMSG_FIRSTHDR(header) };
    while !control.is_null() {
        // SAFETY: `CMSG_FIRSTHDR` and `CMSG_NXTHDR` return pointers to whole headers in the buffer.
        let (level, kind) = unsafe { ((*control).cmsg_level, (*control).cmsg_type) };
        // SAFETY: as above; the data follow the header.
        let data = unsafe { libc::CMSG_DATA(control) };
        match (level, kind) {
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                // SAFETY: the kernel sends `in_pktinfo` under this type; it may be unaligned.
                let info = unsafe { data.cast::<libc::in_pktinfo>().read_unaligned() };
                let ip = Ipv4Addr::from(u32::from_be(info.ipi_addr.s_addr));
                destination = Some(IpAddr::V4(ip));
                interface = u32::try_from(info.ipi_ifindex).unwrap_or(0);
            }
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                // SAFETY: the kernel sends `in6_pktinfo` under this type; it may be unaligned.
                let info = unsafe { data.cast::<libc::in6_pktinfo>().read_unaligned() };
                destination = Some(IpAddr::V6(Ipv6Addr::from(info.ipi6_addr.s6_addr)));
                interface = info.ipi6_ifindex;
            }
            (libc::IPPROTO_IP, libc::IP_TOS) => {
                // SAFETY: the kernel sends one byte under this type.
                traffic_class = unsafe { data.read() };
            }
            (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                // SAFETY: the kernel sends an `int` under these types; it may be unaligned.
                let value = unsafe { data.cast::<libc::c_int>().read_unaligned() };
                hop_limit = u8::try_from(value).unwrap_or(0);
            }
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                // SAFETY: as above.
                let value = unsafe { data.cast::<libc::c_int>().read_unaligned() };
                traffic_class = u8::try_from(value).unwrap_or(0);
            }
            _ => {}
        }
        // SAFETY: `control` is a header in the buffer of `header`.
        control = unsafe { libc::CMSG_NXTHDR(header, control) };
    }
    let source = source_address(source)?;
    let destination = destination?;
    Some(Datagram {
        source,
        destination,
        interface,
        traffic_class,
        hop_limit,
        payload,
    })
}

/// The sender's address, decoded according to its family. Both families start with family and port.
fn source_address(address: &libc::sockaddr_in6) -> Option<SocketAddr> {
    let port = u16::from_be(address.sin6_port);
    match i32::from(address.sin6_family) {
        libc::AF_INET => {
            // In `sockaddr_in` the address is where IPv6 has its flow label.
            let ip = Ipv4Addr::from(address.sin6_flowinfo.to_ne_bytes());
            Some(SocketAddr::V4(SocketAddrV4::new(ip, port)))
        }
        libc::AF_INET6 => {
            let ip = Ipv6Addr::from(address.sin6_addr.s6_addr);
            Some(SocketAddr::V6(SocketAddrV6::new(
                ip,
                port,
                0,
                address.sin6_scope_id,
            )))
        }
        _ => None,
    }
}
