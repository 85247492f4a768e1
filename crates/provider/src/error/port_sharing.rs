//! Texts of errors between processes that share the UDP port: who is in the way, and what to do.

use core::fmt;

use crate::holder::Holder;

/// Displays why a process does not answer, as the end of a sentence, as far as that is known.
pub(super) struct WhySilent {
    pub(super) stopped: bool,
    pub(super) open_files: Option<u64>,
}

impl fmt::Display for WhySilent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.stopped, self.open_files) {
            (true, _) => f.write_str(": it is stopped (SIGSTOP, a debugger)"),
            (false, Some(limit)) => write!(
                f,
                ": it has no descriptors left for this process; its limit of open files (RLIMIT_NOFILE) is {limit}: \
                 start it with a higher one (`ulimit -Hn`, or LimitNOFILE= of a service)"
            ),
            (false, None) => Ok(()),
        }
    }
}

/// Displays the port's holder and the remedy.
pub(super) struct PortHolder<'a>(pub(super) Option<&'a Holder>);

impl fmt::Display for PortHolder<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(holder) => write!(f, "{holder}; end it, or run in another network namespace"),
            None => f.write_str(
                "something else (the kernel's rdma_rxe?); remove its link with `rdma link del` or run \
                 in another network namespace",
            ),
        }
    }
}

/// Displays what an untrusted process does with the group's name, and the remedy.
pub(super) struct NotTrusted<'a> {
    pub(super) holder: &'a Holder,
    pub(super) own_uid: u32,
    pub(super) listens: bool,
}

impl fmt::Display for NotTrusted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let own = self.own_uid;
        match (self.listens, self.holder.uid) {
            (true, Some(uid)) => write!(
                f,
                "leads the processes that share UDP port 4791 and is not trusted by user {own}; to share with user \
                 {uid}, who could then read and answer this process's packets, set PORTOLAN_TRUST={uid}, or run in \
                 another network namespace"
            ),
            (true, None) => write!(
                f,
                "leads the processes that share UDP port 4791, and its user has no number in this user namespace; \
                 set PORTOLAN_TRUST to the number of that user (`portolan exec` then enters no user namespace), or \
                 run in another network namespace"
            ),
            (false, _) => {
                write!(
                    f,
                    "holds the name by which processes share UDP port 4791, leads none, and is not trusted by user {own}; "
                )?;
                f.write_str(match self.holder.pid {
                    0 => "ask root to find it with `ss -xap` and end it",
                    _ => "end it",
                })?;
                f.write_str(", or run in another network namespace")
            }
        }
    }
}

/// Displays that a group does not trust this user, and the remedy.
pub(super) struct Distrusts {
    pub(super) own_uid: u32,
    pub(super) seen_uid: u32,
}

impl fmt::Display for Distrusts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { own_uid, seen_uid } = *self;
        let is_unknown_there = seen_uid == OVERFLOW_UID && own_uid != OVERFLOW_UID;
        let name = if is_unknown_there { own_uid } else { seen_uid };
        write!(
            f,
            "leads the processes that share UDP port 4791 and does not trust user {own_uid}"
        )?;
        if is_unknown_there {
            f.write_str(", who has no number in its user namespace")?;
        }
        write!(
            f,
            "; start it with PORTOLAN_TRUST={name}, or run in another network namespace"
        )
    }
}

/// The overflow user id: how a user namespace shows users that it does not map. The default;
/// `/proc/sys/kernel/overflowuid` may differ.
const OVERFLOW_UID: u32 = 65_534;
