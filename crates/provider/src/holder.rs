//! The process that holds a name or a port, as far as the kernel reveals it.

use alloc::string::String;
use core::fmt;

/// The process that holds a name or a port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holder {
    /// Its process id in this PID namespace; 0 if it is not visible.
    pub pid: u32,
    /// Its user, if the kernel reports it and the number is unambiguous: not the overflow id of
    /// user_namespaces(7).
    pub uid: Option<u32>,
    /// The program's name (`/proc/PID/comm`), which the process itself chooses; empty if it is not
    /// visible.
    pub program: String,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.pid, self.program.is_empty()) {
            (0, _) => f.write_str("a process")?,
            (pid, true) => write!(f, "process {pid}")?,
            (pid, false) => write!(f, "process {pid} ({})", self.program.escape_debug())?,
        }
        match self.uid {
            Some(uid) => write!(f, " of user {uid}"),
            None => f.write_str(" of an unknown user"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holders_description_has_the_known_facts_and_its_name_cannot_forge_lines() {
        let mut holder = Holder {
            pid: 7,
            uid: Some(1001),
            program: "nc\n\u{1b}[2J".into(),
        };
        let text = alloc::format!("{holder}");
        assert_eq!(text, "process 7 (nc\\n\\u{1b}[2J) of user 1001");
        holder.program.clear();
        assert_eq!(alloc::format!("{holder}"), "process 7 of user 1001");
        holder.pid = 0;
        assert_eq!(alloc::format!("{holder}"), "a process of user 1001");
        let unknown = alloc::format!("{}", Holder::default());
        assert_eq!(unknown, "a process of an unknown user");
    }
}
