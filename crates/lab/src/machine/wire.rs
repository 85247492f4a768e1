//! The wire between two machines.

use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::MachineError;

/// How long a machine may run after its peer ended.
const SURVIVAL_MAX: Duration = Duration::from_secs(60);

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

/// One machine's end of a wire.
#[derive(Debug)]
pub(crate) struct WireEnd<'a> {
    pub(super) socket: UnixStream,
    pub(super) wire: Wire,
    /// The last byte of the interface's hardware address.
    pub(super) number: u8,
    /// When the first of the two machines ended.
    pub(super) first_end: &'a Mutex<Option<Instant>>,
}

impl WireEnd<'_> {
    /// The emulator's arguments for this end. The capture goes to `capture_name`.
    pub(crate) fn emulator_arguments(&self, capture_name: &Path) -> Vec<String> {
        let socket = self.socket.as_raw_fd();
        let number = self.number;
        let mut options = vec![
            ("-netdev", format!("socket,id=wire,fd={socket}")),
            (
                "-device",
                format!("virtio-net-pci,netdev=wire,romfile=,mac=02:00:00:00:07:{number:02x}"),
            ),
        ];
        if self.wire == Wire::Captured {
            let file = capture_name.display();
            let dump = format!("filter-dump,id=dump,netdev=wire,file={file}");
            options.push(("-object", dump));
        }
        options
            .into_iter()
            .flat_map(|(option, value)| [option.to_owned(), value])
            .collect()
    }

    /// Lets programs started after this call inherit the socket.
    pub(crate) fn open_to_children(&self) -> Result<(), MachineError> {
        rustix::io::fcntl_setfd(&self.socket, rustix::io::FdFlags::empty())
            .map_err(|errno| MachineError::io("pass on", Path::new("wire"))(errno.into()))
    }

    /// When this machine must end because its peer has ended.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let first_end = self
            .first_end
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        first_end.map(|ended| ended + SURVIVAL_MAX)
    }

    pub(super) fn has_ended(&self) {
        let mut first_end = self
            .first_end
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        first_end.get_or_insert_with(Instant::now);
    }
}
