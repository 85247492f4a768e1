//! Packets of one queue pair for the kernel: staged, coalesced, and sent with one system call.

#![allow(unsafe_code, reason = "sendmsg(2) by pointers")]

use std::io;
use std::mem::size_of;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use libc::{c_int, cmsghdr, iovec, mmsghdr};
use portolan_wire::rocev2::{ICRC_LEN, MAX_HEADERS_LEN};

use crate::io::net::path::Path;
use crate::io::net::sockopt::{self, SockaddrStorage};

/// The longest packet: a path MTU of 4096 with all headers, padding and ICRC.
pub(crate) const PACKET_LEN_MAX: usize = 4096 + MAX_HEADERS_LEN + 3 + ICRC_LEN;
/// Bytes staged before a system call: two datagrams of the largest size. They stay in cache between the copy, the
/// ICRC and the kernel's copy.
const STAGING_LEN: usize = 128 << 10;
/// Datagrams per system call.
const RUNS_MAX: usize = 32;
/// Maximum of packets in one datagram that the kernel segments (`UDP_MAX_SEGMENTS` until 6.8).
const RUN_PACKETS_MAX: u16 = 64;
/// Bytes of one datagram. IP allows 65,535 with the headers of IP and UDP.
const RUN_LEN_MAX: usize = 65_000;

/// Packets staged for one path.
#[derive(Debug)]
pub(crate) struct SendBatch {
    bytes: Box<[u8]>,
    used: usize,
    runs: Vec<Run>,
}

/// Consecutive packets of one length that form one datagram, which the kernel segments. The last packet may be
/// shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    offset: usize,
    pub(crate) len: usize,
    pub(crate) packet_len: usize,
    pub(crate) packets: u16,
}

impl SendBatch {
    pub(crate) fn new() -> Self {
        let bytes = vec![0; STAGING_LEN].into_boxed_slice();
        Self {
            bytes,
            used: 0,
            runs: Vec::with_capacity(RUNS_MAX),
        }
    }

    /// A batch of one packet.
    pub(crate) fn of(packet: &[u8]) -> Self {
        Self {
            bytes: packet.into(),
            used: packet.len(),
            runs: vec![Run::single(packet.len())],
        }
    }

    /// Whether `packets` more packets of any length can be staged.
    pub(crate) fn has_room(&self, packets: usize) -> bool {
        self.runs.len() + packets <= RUNS_MAX
            && self.bytes.len() - self.used >= packets * PACKET_LEN_MAX
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Reserves room for a packet of `len` bytes. Returns it with the packet's future IPv4 identification: an
    /// unconnected socket that forbids fragmentation sends zero, and segmentation counts up from there.
    ///
    /// With `coalesce`, the packet joins the previous ones if the lengths agree. `None` if there is no room (see
    /// [`has_room`](Self::has_room)).
    pub(crate) fn stage(&mut self, len: usize, coalesce: bool) -> Option<(&mut [u8], u16)> {
        let place = self.bytes.get_mut(self.used..self.used + len)?;
        let joined = self
            .runs
            .last_mut()
            .filter(|run| coalesce && run.admits(len));
        let identification = if let Some(run) = joined {
            run.len += len;
            run.packets += 1;
            run.packets - 1
        } else if self.runs.len() < RUNS_MAX {
            self.runs.push(Run {
                offset: self.used,
                ..Run::single(len)
            });
            0
        } else {
            return None;
        };
        self.used += len;
        Some((place, identification))
    }

    /// Removes the packet staged last.
    pub(crate) fn unstage(&mut self, len: usize) {
        self.used -= len;
        if let Some(run) = self.runs.last_mut() {
            run.len -= len;
            run.packets -= 1;
            if run.packets == 0 {
                self.runs.pop();
            }
        }
    }

    /// The staged datagrams.
    pub(crate) fn runs(&self) -> &[Run] {
        &self.runs
    }

    pub(crate) fn bytes(&self, run: &Run) -> &[u8] {
        self.bytes
            .get(run.offset..run.offset + run.len)
            .unwrap_or_default()
    }

    /// The packets of a datagram, mutable.
    pub(crate) fn packets_mut(&mut self, run: &Run) -> impl Iterator<Item = &mut [u8]> {
        let bytes = self
            .bytes
            .get_mut(run.offset..run.offset + run.len)
            .unwrap_or_default();
        bytes.chunks_mut(run.packet_len.max(1))
    }

    pub(crate) fn clear(&mut self) {
        self.used = 0;
        self.runs.clear();
    }

    /// Passes datagrams from `first` on to the kernel. Returns how many it took, at least one.
    pub(crate) fn submit(
        &self,
        fd: BorrowedFd<'_>,
        path: &Path,
        first: usize,
    ) -> io::Result<usize> {
        let runs = self.runs.get(first..).unwrap_or_default();
        match runs {
            [] => Ok(0),
            [run] => send_one(fd, path, run, self.bytes(run)).map(|()| 1),
            _ => self.submit_many(fd, path, runs),
        }
    }

    fn submit_many(&self, fd: BorrowedFd<'_>, path: &Path, runs: &[Run]) -> io::Result<usize> {
        let mut name = sockopt::empty_sockaddr();
        let name_len = sockopt::encode(path.remote, &mut name);
        let mut controls = [Control::EMPTY; RUNS_MAX];
        let mut vectors = [EMPTY_VECTOR; RUNS_MAX];
        // SAFETY: plain data, for which zeros are a value.
        let mut headers: [mmsghdr; RUNS_MAX] = unsafe { std::mem::zeroed() };
        let slots = headers.iter_mut().zip(&mut vectors).zip(&mut controls);
        for (((header, vector), control), run) in slots.zip(runs) {
            control.fill(path, run);
            *vector = vector_of(self.bytes(run));
            header.msg_hdr = message(&mut name, name_len, vector, control);
        }
        let count = runs.len().min(RUNS_MAX) as u32;
        // SAFETY: the first `count` headers point to the name, vectors and control buffers of this frame and to bytes
        // borrowed from `self`. All of them outlive the call.
        let sent = unsafe {
            libc::sendmmsg(
                fd.as_raw_fd(),
                headers.as_mut_ptr(),
                count,
                libc::MSG_DONTWAIT,
            )
        };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }
}

impl Run {
    /// A datagram of one packet.
    pub(crate) fn single(len: usize) -> Self {
        Self {
            offset: 0,
            len,
            packet_len: len,
            packets: 1,
        }
    }

    fn admits(&self, len: usize) -> bool {
        let is_whole = self.len == self.packet_len * usize::from(self.packets);
        is_whole
            && len <= self.packet_len
            && self.packets < RUN_PACKETS_MAX
            && self.len + len <= RUN_LEN_MAX
    }
}

pub(crate) fn send_one(fd: BorrowedFd<'_>, path: &Path, run: &Run, bytes: &[u8]) -> io::Result<()> {
    let mut name = sockopt::empty_sockaddr();
    let name_len = sockopt::encode(path.remote, &mut name);
    let mut control = Control::EMPTY;
    control.fill(path, run);
    let mut vector = vector_of(bytes);
    let header = message(&mut name, name_len, &mut vector, &mut control);
    // SAFETY: `header` points to the name, vector and control buffer of this frame and to `bytes`. All of them
    // outlive the call.
    let sent = unsafe { libc::sendmsg(fd.as_raw_fd(), &header, libc::MSG_DONTWAIT) };
    if sent < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

const EMPTY_VECTOR: iovec = iovec {
    iov_base: std::ptr::null_mut(),
    iov_len: 0,
};

fn vector_of(bytes: &[u8]) -> iovec {
    // The kernel only reads this memory, so the cast from `*const` is sound.
    iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    }
}

fn message(
    name: &mut SockaddrStorage,
    name_len: libc::socklen_t,
    vector: &mut iovec,
    control: &mut Control,
) -> libc::msghdr {
    // SAFETY: plain data, for which zeros are a value.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_name = (&raw mut *name).cast();
    header.msg_namelen = name_len;
    header.msg_iov = vector;
    header.msg_iovlen = 1;
    header.msg_control = control.bytes.as_mut_ptr().cast();
    header.msg_controllen = control.len as _;
    header
}

/// The control messages of one datagram.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Control {
    bytes: [u8; CONTROL_LEN],
    len: usize,
}

/// Room for packet information, segment length, traffic class and hop limit.
const CONTROL_LEN: usize = 128;
/// `CMSG_LEN(0)`.
const CMSG_HEADER_LEN: usize = size_of::<cmsghdr>();
/// `CMSG_ALIGN`.
const CMSG_ALIGN: usize = size_of::<usize>();

impl Control {
    const EMPTY: Self = Self {
        bytes: [0; CONTROL_LEN],
        len: 0,
    };

    /// Writes the source address, and each other field that differs from the socket's default.
    fn fill(&mut self, path: &Path, run: &Run) {
        let (level, class, hops) = match path.local.to_canonical() {
            IpAddr::V4(local) => {
                // `struct in_pktinfo`: interface, local address, unused.
                let mut info = [0; 12];
                info[..4].copy_from_slice(&path.interface.to_ne_bytes());
                info[4..8].copy_from_slice(&local.octets());
                self.put(libc::IPPROTO_IP, libc::IP_PKTINFO, &info);
                (libc::IPPROTO_IP, libc::IP_TOS, libc::IP_TTL)
            }
            IpAddr::V6(local) => {
                // `struct in6_pktinfo`: source, interface.
                let mut info = [0; 20];
                info[..16].copy_from_slice(&local.octets());
                info[16..].copy_from_slice(&path.interface.to_ne_bytes());
                self.put(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info);
                (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, libc::IPV6_HOPLIMIT)
            }
        };
        if run.packets > 1 {
            let len = run.packet_len as u16;
            self.put(libc::IPPROTO_UDP, libc::UDP_SEGMENT, &len.to_ne_bytes());
        }
        if path.traffic_class != 0 {
            self.put(level, class, &c_int::from(path.traffic_class).to_ne_bytes());
        }
        if path.hop_limit != 0 {
            self.put(level, hops, &c_int::from(path.hop_limit).to_ne_bytes());
        }
    }

    fn put(&mut self, level: c_int, kind: c_int, data: &[u8]) {
        let len = CMSG_HEADER_LEN + data.len();
        let Some(place) = self
            .bytes
            .get_mut(self.len..self.len + len.next_multiple_of(CMSG_ALIGN))
        else {
            debug_assert!(false, "the control buffer is made to hold every message");
            return;
        };
        // SAFETY: plain data, for which zeros are a value. Some systems pad it.
        let mut header: cmsghdr = unsafe { std::mem::zeroed() };
        header.cmsg_len = len as _;
        header.cmsg_level = level;
        header.cmsg_type = kind;
        // SAFETY: `place` has at least `CMSG_HEADER_LEN` bytes. Written without assuming alignment.
        unsafe { place.as_mut_ptr().cast::<cmsghdr>().write_unaligned(header) };
        place[CMSG_HEADER_LEN..len].copy_from_slice(data);
        self.len += place.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn packets_of_one_length_share_a_datagram_and_a_shorter_one_ends_it() {
        let mut batch = SendBatch::new();
        let mut identifications = Vec::new();
        for len in [100, 100, 60, 60, 100] {
            identifications.push(batch.stage(len, true).unwrap().1);
        }
        assert_eq!(identifications, [0, 1, 2, 0, 0]);
        let shapes: Vec<_> = batch
            .runs()
            .iter()
            .map(|run| (run.len, run.packets))
            .collect();
        assert_eq!(shapes, [(260, 3), (60, 1), (100, 1)]);
        batch.unstage(100);
        batch.unstage(60);
        assert_eq!(batch.runs().len(), 1);
        batch.clear();
        assert!(batch.is_empty());
    }

    proptest! {
        #[test]
        fn no_datagram_exceeds_the_kernels_segmentation_limits(
            lens in proptest::collection::vec(1..=PACKET_LEN_MAX, 1..300),
            coalesce: bool,
        ) {
            let mut batch = SendBatch::new();
            let mut staged = 0;
            for len in lens {
                if !batch.has_room(1) {
                    break;
                }
                prop_assert_eq!(batch.stage(len, coalesce).unwrap().0.len(), len);
                staged += 1;
            }
            let mut packets = 0;
            for run in batch.runs() {
                prop_assert!(run.len <= RUN_LEN_MAX && run.packets <= RUN_PACKETS_MAX);
                prop_assert_eq!(run.len.div_ceil(run.packet_len), usize::from(run.packets));
                packets += usize::from(run.packets);
            }
            prop_assert_eq!(packets, staged);
        }
    }
}
