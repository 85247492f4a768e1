//! A process of the stress test: a listener or a ping.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit};
use serde_json::Value;

use super::programs::{Language, Programs};
use crate::processes::Speaker;

/// Time limit for a process to report that it listens. All processes share few cores.
const START_TIME_MAX: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug)]
enum Role {
    /// Listens on this port.
    Listens(u16),
    /// Pings a listener of this language on this port.
    Calls(u16, Language),
}

/// A process, killed on drop.
pub(super) struct Member {
    speaker: Speaker,
    started: Instant,
    language: Language,
    role: Role,
    /// How long it took until it listened or was connected.
    ready_after: Option<Duration>,
    new_pings: u64,
    /// Its usual limit on descriptors, while that is lowered.
    limit: Option<Rlimit>,
    /// Its final summary.
    summary: Option<Value>,
}

impl Member {
    /// Starts a listener on a port.
    pub(super) fn listener(programs: &Programs, language: Language, port: u16) -> Result<Self> {
        let speaker = programs.listen(language, port)?;
        Ok(Self::new(speaker, language, Role::Listens(port)))
    }

    /// Starts a ping of a listener.
    pub(super) fn caller(
        programs: &Programs,
        language: Language,
        (port, of): (u16, Language),
    ) -> Result<Self> {
        let speaker = programs.ping(language, port)?;
        Ok(Self::new(speaker, language, Role::Calls(port, of)))
    }

    fn new(speaker: Speaker, language: Language, role: Role) -> Self {
        Self {
            speaker,
            started: Instant::now(),
            language,
            role,
            ready_after: None,
            new_pings: 0,
            limit: None,
            summary: None,
        }
    }

    pub(super) fn language(&self) -> Language {
        self.language
    }

    pub(super) fn is_listener(&self) -> bool {
        matches!(self.role, Role::Listens(_))
    }

    pub(super) fn listens_at(&self) -> Option<u16> {
        match self.role {
            Role::Listens(port) => Some(port),
            Role::Calls(..) => None,
        }
    }

    /// The port and language of a listener that is ready.
    pub(super) fn ready_listener(&self) -> Option<(u16, Language)> {
        let port = self.listens_at().filter(|_| self.is_connected())?;
        Some((port, self.language))
    }

    /// The port that it pings.
    pub(super) fn calls(&self) -> Option<u16> {
        match self.role {
            Role::Listens(_) => None,
            Role::Calls(port, _) => Some(port),
        }
    }

    /// The languages of a ping and of its listener.
    pub(super) fn languages(&self) -> Option<(Language, Language)> {
        match self.role {
            Role::Listens(_) => None,
            Role::Calls(_, listener) => Some((self.language, listener)),
        }
    }

    /// Whether a ping was connected or a listener listened.
    pub(super) fn is_connected(&self) -> bool {
        self.ready_after.is_some()
    }

    /// How long a ping took to connect.
    pub(super) fn connect_time(&self) -> Option<Duration> {
        self.ready_after.filter(|_| !self.is_listener())
    }

    /// Pings answered since the previous call.
    pub(super) fn take_pings(&mut self) -> u64 {
        std::mem::take(&mut self.new_pings)
    }

    /// Interrupts a ping, like Ctrl-C.
    pub(super) fn interrupt(&self) -> Result<()> {
        if !self.is_listener() {
            // It has not been waited for, so its process id is still valid, even if it has ended.
            kill_process(self.process(), Signal::INT)?;
        }
        Ok(())
    }

    pub(super) fn pid(&self) -> u32 {
        self.speaker.child.id()
    }

    fn process(&self) -> Pid {
        Pid::from_child(&self.speaker.child)
    }

    /// Stops it until it is killed.
    pub(super) fn stop(&self) -> Result<()> {
        Ok(kill_process(self.process(), Signal::STOP)?)
    }

    /// Lowers its soft limit to the descriptors that it has, so that its library must raise it. The hard limit stays, since
    /// not even every root could give it back. Returns whether the limit was not lowered already and the process is alive.
    pub(super) fn lower_limit(&mut self) -> Result<bool> {
        if self.limit.is_some() {
            return Ok(false);
        }
        let pid = self.pid();
        let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else {
            return Ok(false);
        };
        let names = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        let used: BTreeSet<u64> = names.collect();
        if used.is_empty() {
            return Ok(false);
        }
        let limit = Rlimit {
            current: (0..).find(|number| !used.contains(number)),
            // It inherited ours.
            maximum: getrlimit(Resource::Nofile).maximum,
        };
        self.limit = Some(prlimit(Some(self.process()), Resource::Nofile, limit)?);
        Ok(true)
    }

    /// Gives it its limit back.
    pub(super) fn restore_limit(&mut self) -> Result<()> {
        if let Some(limit) = self.limit.take() {
            prlimit(Some(self.process()), Resource::Nofile, limit)?;
        }
        Ok(())
    }

    /// Kills it without waiting for its end.
    pub(super) fn kill(&mut self) -> Result<()> {
        Ok(self.speaker.child.kill()?)
    }

    /// Its exit status, if it has ended. All its output has been read then.
    pub(super) fn ended(&mut self) -> Result<Option<ExitStatus>> {
        let status = self.speaker.child.try_wait()?;
        if status.is_some() {
            while let Ok(line) = self.speaker.lines.recv_timeout(START_TIME_MAX) {
                self.hear(&line)?;
            }
        }
        Ok(status)
    }

    /// Whether it succeeded, with every ping answered unchanged.
    pub(super) fn has_finished(&self, status: ExitStatus) -> bool {
        let is_nothing = |key: &str| self.summary.as_ref().is_some_and(|said| said[key] == 0);
        status.success() && is_nothing("lost") && is_nothing("mismatched")
    }

    /// Describes an unexpected end.
    pub(super) fn obituary(mut self, status: ExitStatus) -> Result<String> {
        let mut words = String::new();
        if let Some(mut stderr) = self.speaker.child.stderr.take() {
            stderr.read_to_string(&mut words)?;
        }
        Ok(format!(
            "`{}` ended with {status}: {words}",
            self.speaker.arguments
        ))
    }

    /// Reads its output since the previous call.
    pub(super) fn listen_in(&mut self) -> Result<()> {
        while let Ok(line) = self.speaker.lines.try_recv() {
            self.hear(&line)?;
        }
        // A ping that is not connected by then ends by its own deadline.
        ensure!(
            self.is_connected() || !self.is_listener() || self.started.elapsed() < START_TIME_MAX,
            "`{}` does not listen after {START_TIME_MAX:?}",
            self.speaker.arguments
        );
        Ok(())
    }

    fn hear(&mut self, line: &str) -> Result<()> {
        let object: Value = serde_json::from_str(line)?;
        match object["type"].as_str() {
            Some("listening" | "connected") => self.ready_after = Some(self.started.elapsed()),
            Some("ping") => {
                let is_good = object["error"].is_null();
                ensure!(is_good, "{}: {line}", self.speaker.arguments);
                self.new_pings += 1;
            }
            Some("summary") => self.summary = Some(object),
            _ => {}
        }
        Ok(())
    }
}
