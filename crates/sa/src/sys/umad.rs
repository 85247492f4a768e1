//! An open user MAD device with one agent (`drivers/infiniband/core/user_mad.c`,
//! `include/uapi/rdma/ib_user_mad.h`).

#![allow(
    unsafe_code,
    reason = "ioctl, poll and fcntl on a descriptor by libc's names"
)]

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use portolan_provider::error::errno;

use super::file::{self, Descriptor, last_errno};

const MAGIC: libc::c_ulong = 0x1b;
/// `IB_USER_MAD_REGISTER_AGENT`: reads and writes a [`Registration`].
const REGISTER_AGENT: libc::c_ulong =
    3 << 30 | (size_of::<Registration>() as libc::c_ulong) << 16 | MAGIC << 8 | 1;
/// `IB_USER_MAD_ENABLE_PKEY`: switches to headers with a partition key index.
const ENABLE_PKEY: libc::c_ulong = MAGIC << 8 | 3;

/// Number of methods in the bit mask.
const METHODS: usize = 128;
const METHOD_BITS_PER_WORD: usize = libc::c_ulong::BITS as usize;

/// `struct ib_user_mad_reg_req`. Its bit mask of longs is aligned to four bytes only.
#[repr(C, packed(4))]
#[derive(Clone, Copy)]
struct Registration {
    id: u32,
    method_mask: [libc::c_ulong; METHODS / METHOD_BITS_PER_WORD],
    qpn: u8,
    mgmt_class: u8,
    mgmt_class_version: u8,
    oui: [u8; 3],
    rmpp_version: u8,
}

/// Attributes of an agent to register.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Agent<'a> {
    /// Management class.
    pub(crate) class: u8,
    /// Version of the class.
    pub(crate) class_version: u8,
    /// Methods whose requests the agent receives. With none it receives only answers to its own
    /// requests.
    pub(crate) methods: &'a [u8],
}

/// Why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ready {
    /// Data is available.
    Data,
    /// The device is gone.
    Gone,
    /// The time limit passed.
    Nothing,
}

/// An open device.
#[derive(Debug)]
pub(crate) struct Umad {
    descriptor: Descriptor,
}

impl Umad {
    /// Opens `/dev/infiniband/umadNUMBER`.
    pub(crate) fn open(number: u32) -> Result<Self, i32> {
        let path = format!("/dev/infiniband/umad{number}");
        let descriptor = file::open(&path, libc::O_RDWR | libc::O_NONBLOCK)?;
        Ok(Self { descriptor })
    }

    /// Returns whether the descriptor is the kernel's.
    ///
    /// A library that emulates the kernel returns a number that is no descriptor: it can only be
    /// polled alone, and its header has no partition key index.
    pub(crate) fn is_kernels(&self) -> bool {
        // SAFETY: F_GETFD only reads the descriptor's flags and takes no third argument.
        unsafe { libc::fcntl(self.descriptor.0, libc::F_GETFD) != -1 }
    }

    /// Switches to headers with a partition key index. Must be the first call on the device.
    pub(crate) fn enable_pkey_index(&self) -> Result<(), i32> {
        // SAFETY: this request takes no argument.
        let result = unsafe { libc::ioctl(self.descriptor.0, ENABLE_PKEY as _, 0) };
        if result == 0 {
            Ok(())
        } else {
            Err(last_errno())
        }
    }

    /// Registers an agent on queue pair 1 and returns its number.
    pub(crate) fn register(&self, agent: &Agent<'_>) -> Result<u32, i32> {
        let mut registration = Registration {
            id: 0,
            method_mask: method_mask(agent.methods),
            qpn: 1,
            mgmt_class: agent.class,
            mgmt_class_version: agent.class_version,
            oui: [0; 3],
            rmpp_version: 0,
        };
        let argument = &raw mut registration;
        // SAFETY: this request reads and writes one `Registration`, whose size is part of the
        // request number.
        let result = unsafe { libc::ioctl(self.descriptor.0, REGISTER_AGENT as _, argument) };
        if result == 0 {
            Ok(registration.id)
        } else {
            Err(last_errno())
        }
    }

    /// Waits until data is available or `waker` is readable.
    pub(crate) fn wait(&self, waker: Option<&OwnedFd>, wait: Duration) -> Result<Ready, i32> {
        let readable = |fd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        };
        // poll(2) ignores a negative descriptor.
        let waker = waker.map_or(-1, AsRawFd::as_raw_fd);
        let mut polled = [readable(self.descriptor.0), readable(waker)];
        let count = if waker < 0 { 1 } else { 2 };
        let wait_ms = wait.as_nanos().div_ceil(1_000_000);
        let wait_ms = libc::c_int::try_from(wait_ms).unwrap_or(libc::c_int::MAX);
        // SAFETY: `polled` has at least `count` elements and outlives the call.
        let result = unsafe { libc::poll(polled.as_mut_ptr(), count, wait_ms) };
        let revents = polled[0].revents;
        match result {
            -1 if last_errno() == errno::EINTR => Ok(Ready::Nothing),
            // An emulated device also reports an error on a spurious wakeup.
            -1 if !self.is_kernels() => Ok(Ready::Nothing),
            -1 => Err(last_errno()),
            _ if revents & libc::POLLIN != 0 => Ok(Ready::Data),
            _ if revents & (libc::POLLERR | libc::POLLHUP | libc::POLLNVAL) != 0 => Ok(Ready::Gone),
            _ => Ok(Ready::Nothing),
        }
    }

    /// Reads one datagram with its header; `None` if none is available.
    pub(crate) fn read(&self, buffer: &mut [u8]) -> Result<Option<usize>, i32> {
        match self.descriptor.read(buffer) {
            Ok(count) => Ok(Some(count)),
            Err(errno::EAGAIN | errno::EINTR) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Sends one datagram with its header.
    pub(crate) fn write(&self, bytes: &[u8]) -> Result<(), i32> {
        // SAFETY: `bytes` is readable for its whole length during the call.
        let count = unsafe { libc::write(self.descriptor.0, bytes.as_ptr().cast(), bytes.len()) };
        match usize::try_from(count) {
            Ok(count) if count == bytes.len() => Ok(()),
            Ok(_) => Err(errno::EIO),
            Err(_) => Err(last_errno()),
        }
    }
}

fn method_mask(methods: &[u8]) -> [libc::c_ulong; METHODS / METHOD_BITS_PER_WORD] {
    let mut mask = [0; METHODS / METHOD_BITS_PER_WORD];
    for method in methods {
        let method = usize::from(*method);
        if let Some(word) = mask.get_mut(method / METHOD_BITS_PER_WORD) {
            *word |= 1 << (method % METHOD_BITS_PER_WORD);
        }
    }
    mask
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ioctl_request_numbers_match_the_systems() {
        assert_eq!(size_of::<Registration>(), 28);
        assert_eq!(REGISTER_AGENT, 0xc01c_1b01);
        assert_eq!(ENABLE_PKEY, 0x1b03);
    }

    #[test]
    fn each_method_is_a_bit() {
        let mask = method_mask(&[0x01, 0x12, 0x7f, 0x80]);
        let bits: Vec<usize> = (0..METHODS)
            .filter(|bit| mask[bit / METHOD_BITS_PER_WORD] >> (bit % METHOD_BITS_PER_WORD) & 1 == 1)
            .collect();
        assert_eq!(bits, [0x01, 0x12, 0x7f]);
    }

    #[test]
    fn a_missing_device_is_an_error() {
        let error = Umad::open(u32::MAX).unwrap_err();
        assert!([errno::ENOENT, errno::ENODEV, errno::ENXIO].contains(&error));
    }
}
