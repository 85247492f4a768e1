//! Where an end of a row runs: on which libraries, and in which network.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail};

use super::case::End;
use super::namespace::{self, Namespace};
use super::valgrind;

/// One end's.
#[derive(Clone, Copy)]
pub(super) enum Side<'a> {
    /// Our libraries and software devices, in a namespace.
    Ours {
        portolan: &'a Path,
        namespace: &'a Namespace,
        files: Files,
        /// Where valgrind writes what it finds, if programs are to run under it.
        checked_in: Option<&'a Path>,
    },
    /// Debian's libraries on this machine's rdma_rxe, in its first namespace: that of Linux 6.1 is only there.
    Kernel,
}

/// What programs see of this machine's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Files {
    Whole,
    /// Without rdma-core's configuration and drivers, and without udev's data: as in most containers.
    Bare,
}

/// Hides folders from a program that is then run.
const HIDE: &str = "for folder in /etc/libibverbs.d /etc/rdma /run/udev /usr/lib/*/libibverbs; do \
    [ ! -d \"$folder\" ] || mount -t tmpfs none \"$folder\"; done; exec \"$@\"";

/// Both ends'.
pub(super) struct Sides<'a> {
    pub(super) server: Side<'a>,
    pub(super) client: Side<'a>,
    /// How long a row may take.
    pub(super) row_time_max: Duration,
}

impl Side<'_> {
    pub(super) fn is_ours(&self) -> bool {
        matches!(self, Self::Ours { .. })
    }

    /// The end as a command.
    ///
    /// # Errors
    /// The kernel has no end of ours.
    pub(super) fn command(&self, end: &End) -> Result<Command> {
        let mut command = self.plain("");
        match (self, end) {
            (
                Self::Ours {
                    portolan,
                    checked_in,
                    ..
                },
                End::C(words),
            ) => {
                command.arg(portolan).args(["exec", "--"]);
                command.args(checked_in.map(valgrind::words).unwrap_or_default());
                command.args(words);
            }
            (Self::Ours { portolan, .. }, End::Sockets(words)) => {
                command.env("PORTOLAN_SOCKETS_REPORT", "-");
                // A busy machine is no reason for TCP.
                command.env("PORTOLAN_SOCKETS_TIMEOUT_MS", "60000");
                command.arg(portolan);
                command.args(["exec", "--sockets", "--"]).args(words);
            }
            (Self::Ours { portolan, .. }, End::Ours(words)) => {
                command.arg(portolan);
                command.args(["--provider", "software"]).args(words);
            }
            (Self::Kernel, End::C(words) | End::Sockets(words)) => {
                command.args(words);
            }
            (Self::Kernel, End::Ours(_)) => bail!("no program of the kernel's"),
        }
        Ok(command)
    }

    /// A program in this end's network, on the libraries that it finds by itself. Without a name the first argument is it.
    pub(super) fn plain(&self, program: &str) -> Command {
        let mut command = match self {
            Self::Ours { namespace, .. } => namespace.command(),
            Self::Kernel => namespace::bound_to_us(),
        };
        if let Self::Ours {
            files: Files::Bare, ..
        } = self
        {
            command.args(["unshare", "--mount", "sh", "-ec", HIDE, "sh"]);
        }
        if !program.is_empty() {
            command.arg(program);
        }
        command
    }

    /// A table of its network in `/proc`.
    pub(super) fn table(&self, name: &str) -> PathBuf {
        match self {
            Self::Ours { namespace, .. } => namespace.table(name),
            Self::Kernel => PathBuf::from(format!("/proc/self/net/{name}")),
        }
    }
}
