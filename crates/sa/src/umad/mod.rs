//! Linux's user MAD devices as a transport.

pub(crate) mod header;
mod sysfs;
mod wake;

use std::sync::Arc;
use std::time::Duration;

use portolan_provider::error::errno;
use portolan_wire::mad::{Method, MgmtClass};

use crate::port::Port;
use crate::sys::umad::{Agent, Ready, Umad};
use crate::transport::{Mad, MadAddress, Received, Transport, TransportError, Wake};
use header::{Layout, READ_LEN};
use wake::Waker;

/// Attempts to send a datagram that the kernel refuses with EINVAL.
///
/// While the kernel still sends a datagram, it refuses another one of the same transaction, class,
/// direction and destination (`is_duplicate` in its user_mad.c), which the segments of one table
/// are. The refusal is over within a moment; after this many attempts EINVAL means a real error.
const SENDING_LOOKS: u32 = 20;
/// Pause between two attempts.
const SENDING_PAUSE: Duration = Duration::from_millis(1);

/// A user MAD device: one port of an RDMA device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Device number: the N of `/dev/infiniband/umadN`.
    pub number: u32,
    /// RDMA device name.
    pub device: String,
    /// Port number, from 1.
    pub port_num: u8,
}

/// The user MAD devices of this machine, by number. Empty if there are none or the driver is
/// missing.
///
/// # Errors
/// [`TransportError::Os`] if the system does not allow listing them.
pub fn devices() -> Result<Vec<Device>, TransportError> {
    sysfs::devices()
}

/// The datagrams that a transport sends and receives.
#[derive(Clone, Copy, Debug)]
pub struct Class<'a> {
    /// The management class.
    pub mgmt_class: MgmtClass,
    /// Version of the class.
    pub version: u8,
    /// Methods whose requests the transport receives. On each port only one program, or the kernel,
    /// receives the requests of a method. With none the transport receives only answers.
    pub requests: &'a [Method],
}

impl Class<'static> {
    /// Subnet administration, as a client.
    pub const SUBNET_ADMINISTRATION: Class<'static> = Class {
        mgmt_class: MgmtClass::SUBN_ADM,
        version: 2,
        requests: &[],
    };
    /// Connection management, on a port that the kernel's connection manager does not use.
    pub const CONNECTIONS: Class<'static> = Class {
        mgmt_class: MgmtClass::CM,
        version: 2,
        requests: &[Method::SEND],
    };
}

impl Device {
    /// The port's current attributes.
    ///
    /// # Errors
    /// [`TransportError::Gone`] if the port no longer exists.
    pub fn port(&self) -> Result<Port, TransportError> {
        sysfs::port(self)
    }

    /// Opens the device for datagrams of one class.
    ///
    /// # Errors
    /// [`TransportError::Os`]: EACCES without permission for the device; EINVAL or EBUSY if another
    /// agent receives the requests of this class.
    pub fn open(&self, class: &Class<'_>) -> Result<UmadTransport, TransportError> {
        UmadTransport::open(self.clone(), class)
    }
}

/// A transport through a user MAD device.
#[derive(Debug)]
pub struct UmadTransport {
    device: Device,
    umad: Umad,
    layout: Layout,
    agent: u32,
    waker: Option<Arc<Waker>>,
}

impl UmadTransport {
    fn open(device: Device, class: &Class<'_>) -> Result<Self, TransportError> {
        let os = |call| move |errno| TransportError::Os { call, errno };
        let umad = Umad::open(device.number).map_err(os("open a user MAD device"))?;
        let layout = if umad.is_kernels() {
            umad.enable_pkey_index()
                .map_err(os("enable partition keys on a user MAD device"))?;
            Layout::PkeyIndex
        } else {
            Layout::NoPkeyIndex
        };
        let methods: Vec<u8> = class.requests.iter().map(|method| method.0).collect();
        let agent = Agent {
            class: class.mgmt_class.0,
            class_version: class.version,
            methods: &methods,
        };
        let agent = umad
            .register(&agent)
            .map_err(os("register an agent with a user MAD device"))?;
        let waker = match layout {
            Layout::PkeyIndex => Some(Arc::new(Waker::new().map_err(os("make an eventfd"))?)),
            // An emulated descriptor can only be polled alone.
            Layout::NoPkeyIndex => None,
        };
        Ok(Self {
            device,
            umad,
            layout,
            agent,
            waker,
        })
    }

    fn failure(&self, call: &'static str, errno: i32) -> TransportError {
        match errno {
            errno::ENODEV | errno::ENXIO | errno::EIO => self.gone(call),
            _ => TransportError::Os { call, errno },
        }
    }

    fn gone(&self, why: &str) -> TransportError {
        TransportError::Gone {
            device: self.device.device.clone(),
            port_num: self.device.port_num,
            why: why.into(),
        }
    }
}

impl Transport for UmadTransport {
    fn port(&mut self) -> Result<Port, TransportError> {
        self.device.port()
    }

    fn send(
        &mut self,
        to: &MadAddress,
        mad: &Mad,
        answer_within: Duration,
    ) -> Result<(), TransportError> {
        let timeout_ms = answer_within.as_nanos().div_ceil(1_000_000);
        let timeout_ms = u32::try_from(timeout_ms).unwrap_or(u32::MAX);
        let (bytes, len) = self.layout.encode(self.agent, to, mad, timeout_ms);
        let bytes = bytes.get(..len).unwrap_or_default();
        let mut written = self.umad.write(bytes);
        for _ in 0..SENDING_LOOKS {
            if written != Err(errno::EINVAL) {
                break;
            }
            std::thread::sleep(SENDING_PAUSE);
            written = self.umad.write(bytes);
        }
        written.map_err(|errno| self.failure("write to a user MAD device", errno))
    }

    fn receive(&mut self, wait: Duration) -> Result<Option<Received>, TransportError> {
        let waker = self.waker.as_deref().map(Waker::descriptor);
        let ready = self.umad.wait(waker, wait);
        let ready = ready.map_err(|errno| self.failure("poll a user MAD device", errno))?;
        if let Some(waker) = &self.waker {
            waker.clear();
        }
        match ready {
            Ready::Nothing => return Ok(None),
            Ready::Gone => return Err(self.gone("poll reports it")),
            Ready::Data => {}
        }
        let mut buffer = [0; READ_LEN];
        match self.umad.read(&mut buffer) {
            Ok(Some(count)) => Ok(self.layout.decode(buffer.get(..count).unwrap_or_default())),
            Ok(None) => Ok(None),
            Err(errno) if is_stuck(errno) => {
                Err(self.gone("it delivers more than the longest datagram"))
            }
            Err(errno) => Err(self.failure("read from a user MAD device", errno)),
        }
    }

    fn wake(&self) -> Option<Arc<dyn Wake>> {
        let waker = self.waker.clone()?;
        Some(waker)
    }
}

/// Returns whether a read failed because its buffer is too short.
///
/// The kernel puts such a datagram back at the head of its queue, so only opening the device again
/// gets rid of it.
const fn is_stuck(errno: i32) -> bool {
    matches!(errno, errno::EINVAL | libc::ENOSPC)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_datagram_that_cannot_be_read_requires_another_descriptor() {
        assert!(is_stuck(libc::EINVAL) && is_stuck(libc::ENOSPC));
        assert!(!is_stuck(libc::EAGAIN) && !is_stuck(libc::EIO));
    }
}
