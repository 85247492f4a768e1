//! The machine with Debian's end: tells it commands over TCP.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use super::super::LIBRARY_PATH;
use super::super::interop::FOLLOWER_PATH;

/// The machine's address: that of the side `kernel` in `guest/judge.sh`.
pub(super) const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 1);
/// The port in `guest/interop_kernel.sh`.
const PORT: u16 = 99;
/// How long the machine may take to boot on a busy host.
const BOOT_MAX: Duration = Duration::from_secs(300);
/// Between two tries to reach the machine while it boots.
const RETRY: Duration = Duration::from_millis(500);
/// Time limit of a connection, and of commands that do not wait for a program.
pub(super) const SOON: Duration = Duration::from_secs(120);

/// The machine at the other end of the tap device of the calling thread's network namespace.
#[derive(Debug)]
pub(super) struct Far;

impl Far {
    /// Waits until the machine obeys and has its device.
    pub(super) fn meet(&self) -> Result<(), String> {
        let started = Instant::now();
        loop {
            match self.tell("await 20 rxe_is_active", SOON) {
                Ok(_) => return Ok(()),
                Err(error) if started.elapsed() > BOOT_MAX => return Err(error),
                Err(_) => thread::sleep(RETRY),
            }
        }
    }

    /// Runs a command in a shell of the machine, with the functions of `guest/interop_kernel.sh` and programs that may run
    /// for `limit`. Returns what it prints.
    ///
    /// # Errors
    /// What it printed if it failed, or why it could not be told.
    pub(super) fn tell(&self, command: &str, limit: Duration) -> Result<String, String> {
        let seconds = limit.as_secs();
        let script = format!(
            "( set -eu; . {LIBRARY_PATH}; . {FOLLOWER_PATH}; program_limit_s={seconds}\n{command}\n) 2>&1; echo \"status $?\"\n"
        );
        let said = exchange(&script)
            .map_err(|error| format!("the machine cannot be told `{command}`: {error}"))?;
        match said.trim_end().strip_suffix("status 0") {
            Some(said) => Ok(said.to_owned()),
            None => Err(format!("`{command}` failed in the machine:\n{said}")),
        }
    }

    /// Ends the machine, if it still obeys.
    pub(super) fn end(&self) {
        // It may be gone before it has answered.
        let _ = exchange("touch /tmp/end\n");
    }
}

/// Passes a script to a shell of the machine and returns what that prints. Each command answers within [`SOON`].
fn exchange(script: &str) -> io::Result<String> {
    let address = SocketAddr::new(IpAddr::V4(ADDRESS), PORT);
    let mut stream = TcpStream::connect_timeout(&address, SOON)?;
    stream.set_read_timeout(Some(2 * SOON))?;
    stream.write_all(script.as_bytes())?;
    stream.shutdown(Shutdown::Write)?;
    let mut said = Vec::new();
    stream.read_to_end(&mut said)?;
    Ok(String::from_utf8_lossy(&said).into_owned())
}
