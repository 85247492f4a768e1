//! The libraries and the network of an end of a row.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail};

use super::case::End;
use super::namespace::{self, Namespace};
use super::valgrind;

/// The libraries and the network of one end.
#[derive(Clone, Copy)]
pub(super) enum Side<'a> {
    /// Our libraries and software devices, in a namespace.
    Ours {
        portolan: &'a Path,
        namespace: &'a Namespace,
        files: Files,
        /// The folder for valgrind's reports, if the programs run under it.
        checked_in: Option<&'a Path>,
        /// Whether UCX must use the link-local GID, because the other end does.
        is_link_local: bool,
    },
    /// Debian's libraries on this machine's rdma_rxe, in the initial namespace: Linux 6.1 supports it only there.
    Kernel,
}

/// Which of this machine's files the programs see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Files {
    Whole,
    /// All except rdma-core's configuration and drivers and udev's data, as in most containers.
    Bare,
}

/// A shell script that hides folders and then runs a program.
const HIDE: &str = "for folder in /etc/libibverbs.d /etc/rdma /run/udev /usr/lib/*/libibverbs; do \
    [ ! -d \"$folder\" ] || mount -t tmpfs none \"$folder\"; done; exec \"$@\"";

/// libfabric's datagrams use the GID at this index, by default 0. The kernel's device has its link-local GID there, and
/// the IPv4 address at 1; a software device has the IPv4 address at 0. An address handle needs two GIDs of one family.
const GID_INDEX: (&str, &str) = ("FI_VERBS_GID_IDX", "1");

/// UCX drops all datagrams from IPv4 GIDs of rdma_rxe, which does not set `wc.sl`. So both ends use the link-local GID,
/// which rdma_rxe has at index 0 and a software device of ours at 1.
const UCX_GID_INDEX: &str = "UCX_IB_GID_INDEX";

/// The libraries and the networks of both ends.
pub(super) struct Sides<'a> {
    pub(super) server: Side<'a>,
    pub(super) client: Side<'a>,
    /// Time limit of a row.
    pub(super) row_time_max: Duration,
}

impl Side<'_> {
    pub(super) fn is_ours(&self) -> bool {
        matches!(self, Self::Ours { .. })
    }

    /// The command that runs an end.
    ///
    /// # Errors
    /// The end needs our libraries, but this side is the kernel's.
    pub(super) fn command(&self, end: &End) -> Result<Command> {
        let mut command = self.plain("");
        match (self, end) {
            (
                Self::Ours {
                    portolan,
                    checked_in,
                    is_link_local,
                    ..
                },
                End::C(words),
            ) => {
                if *is_link_local {
                    command.env(UCX_GID_INDEX, "1");
                }
                command.arg(portolan).args(["exec", "--"]);
                command.args(checked_in.map(valgrind::words).unwrap_or_default());
                command.args(words);
            }
            (Self::Ours { portolan, .. }, End::Sockets(words)) => {
                command.env("PORTOLAN_SOCKETS_REPORT", "-");
                // A slow machine must not cause fallback to TCP.
                command.env("PORTOLAN_SOCKETS_TIMEOUT_MS", "60000");
                command.arg(portolan);
                command.args(["exec", "--sockets", "--"]).args(words);
            }
            (Self::Ours { portolan, .. }, End::Ours(words)) => {
                command.arg(portolan);
                command.args(["--provider", "software"]).args(words);
            }
            (Self::Kernel, End::C(words) | End::Sockets(words)) => {
                command.env(GID_INDEX.0, GID_INDEX.1);
                command.env(UCX_GID_INDEX, "0");
                command.args(words);
            }
            (Self::Kernel, End::Ours(_)) => bail!("no program of the kernel's"),
        }
        Ok(command)
    }

    /// A program in this end's network, with the system's libraries. If `program` is empty, the first argument is the
    /// program.
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

    /// The path of a table in `/proc` of this end's network.
    pub(super) fn table(&self, name: &str) -> PathBuf {
        match self {
            Self::Ours { namespace, .. } => namespace.table(name),
            Self::Kernel => PathBuf::from(format!("/proc/self/net/{name}")),
        }
    }
}
