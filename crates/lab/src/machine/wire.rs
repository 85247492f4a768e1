//! A machine's interface `eth0` and what is at its other end: another machine, or this host.

use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::MachineError;

/// How long a machine may run after the other end of its wire.
const SURVIVAL_MAX: Duration = Duration::from_secs(60);
/// Options of an interface whose frames this host's network gets: each is whole and has its checksums.
const WITHOUT_OFFLOADS: &str = "csum=off,guest_csum=off,gso=off,host_tso4=off,host_tso6=off,\
     host_ecn=off,host_ufo=off,guest_tso4=off,guest_tso6=off,guest_ecn=off,guest_ufo=off";

/// The link between two machines' interfaces `eth0`. It loses no frame: a sender that is too fast
/// waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wire {
    /// Without a capture.
    #[default]
    Plain,
    /// Each end captures the traffic ([`Outcome::wire_capture`](super::Outcome::wire_capture)).
    Captured,
}

/// A tap device of this host, in the network namespace of the thread that boots a machine at it: the machine's interface
/// `eth0` is its other end.
#[derive(Debug)]
pub struct Tap {
    name: &'static str,
    first_end: FirstEnd,
}

impl Tap {
    /// The tap device `name`, which exists.
    #[must_use]
    pub fn new(name: &'static str) -> Self {
        Self {
            name,
            first_end: FirstEnd::default(),
        }
    }

    /// This host has no more to do with the machine, which has a minute to end.
    pub fn leave(&self) {
        self.first_end.note();
    }
}

/// When the first end of a wire ended.
#[derive(Debug, Default)]
pub(crate) struct FirstEnd(Mutex<Option<Instant>>);

impl FirstEnd {
    pub(super) fn note(&self) {
        let mut first = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert_with(Instant::now);
    }

    /// When the other end must end.
    fn deadline(&self) -> Option<Instant> {
        let first = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        first.map(|ended| ended + SURVIVAL_MAX)
    }
}

/// What a machine's interface `eth0` is connected to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Link<'a> {
    /// The machine has no interface.
    None,
    /// Another machine.
    Machine(&'a WireEnd<'a>),
    /// This host.
    Tap(&'a Tap),
}

impl Link<'_> {
    /// The emulator's arguments. A capture goes to `capture_name`.
    pub(crate) fn emulator_arguments(self, capture_name: &Path) -> Vec<String> {
        let options = match self {
            Self::None => vec![("-nic", "none".to_owned())],
            Self::Machine(end) => end.emulator_options(capture_name),
            Self::Tap(tap) => {
                let name = tap.name;
                let netdev = format!("tap,id=wire,ifname={name},script=no,downscript=no");
                let device = format!("{},{WITHOUT_OFFLOADS}", device(1));
                vec![("-netdev", netdev), ("-device", device)]
            }
        };
        options
            .into_iter()
            .flat_map(|(option, value)| [option.to_owned(), value])
            .collect()
    }

    /// Lets programs started after this call inherit what they need.
    pub(crate) fn open_to_children(self) -> Result<(), MachineError> {
        match self {
            Self::Machine(end) => end.open_to_children(),
            Self::None | Self::Tap(_) => Ok(()),
        }
    }

    /// When the machine must end because the other end has ended.
    pub(crate) fn deadline(self) -> Option<Instant> {
        match self {
            Self::None => None,
            Self::Machine(end) => end.first_end.deadline(),
            Self::Tap(tap) => tap.first_end.deadline(),
        }
    }
}

/// The interface, as the emulator's device. `number` is the last byte of its hardware address.
fn device(number: u8) -> String {
    format!("virtio-net-pci,netdev=wire,romfile=,mac=02:00:00:00:07:{number:02x}")
}

/// One machine's end of a wire.
#[derive(Debug)]
pub(crate) struct WireEnd<'a> {
    pub(super) socket: UnixStream,
    pub(super) wire: Wire,
    /// The last byte of the interface's hardware address.
    pub(super) number: u8,
    /// When the first of the two machines ended.
    pub(super) first_end: &'a FirstEnd,
}

impl WireEnd<'_> {
    fn emulator_options(&self, capture_name: &Path) -> Vec<(&'static str, String)> {
        let socket = self.socket.as_raw_fd();
        let mut options = vec![
            ("-netdev", format!("socket,id=wire,fd={socket}")),
            ("-device", device(self.number)),
        ];
        if self.wire == Wire::Captured {
            let file = capture_name.display();
            let dump = format!("filter-dump,id=dump,netdev=wire,file={file}");
            options.push(("-object", dump));
        }
        options
    }

    /// Lets programs started after this call inherit the socket.
    fn open_to_children(&self) -> Result<(), MachineError> {
        rustix::io::fcntl_setfd(&self.socket, rustix::io::FdFlags::empty())
            .map_err(|errno| MachineError::io("pass on", Path::new("wire"))(errno.into()))
    }
}
