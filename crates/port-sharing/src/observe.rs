//! Observes a group from outside: lists its members and collects their reports.
//!
//! The observer connects to the coordinator as a newcomer would, but asks for no block. The coordinator sends the list
//! of members and its own report, and asks the members for theirs. It passes their answers on as they arrive. The trust
//! rule applies: the coordinator decides whether it answers this user.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use portolan_provider::{Cause, Error, Result, Step};
use rustix::io::Errno;

use super::block::Block;
use super::config::{BACKOFF_MAX, GroupConfig, OBSERVERS_MAX, REPORT_PARTS_MAX};
use super::fork::PrivateFd;
use super::join::{holder_text, os, refused, wait_readable};
use super::message::{MESSAGE_BYTES_MAX, Message, VERSION};
use super::name::{Call, GroupName};
use super::packet::{self, Received};
use super::status::MemberStatus;
use super::stranger::{self, living_members};
use super::trust::{Credentials, Own};

/// The result of observing a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observation {
    /// The coordinator's process id in this PID namespace, 0 if it is not visible.
    pub coordinator_pid: u32,
    /// The coordinator's block.
    pub coordinator_block: Option<Block>,
    /// The coordinator's effective user.
    pub coordinator_uid: u32,
    /// Why this process would not join the coordinator's group, if so. Then the observation is only as trustworthy as
    /// the coordinator.
    pub distrust: Option<Cause>,
    /// What the coordinator's service reports ([`CoordinatorService::report`](super::CoordinatorService::report)).
    pub coordinator_report: Vec<Vec<u8>>,
    /// The members, by block. Their process ids are 0 if the coordinator is in another PID namespace, whose numbers it has.
    pub members: Vec<MemberStatus>,
    /// The reports of the members that answered in time ([`MemberService::report`](super::MemberService::report)).
    pub reports: BTreeMap<Block, Vec<Vec<u8>>>,
}

/// How long to wait for a turn if others observe the group.
const TURN_WAIT: Duration = Duration::from_secs(10);

/// Observes the group of `config.port`. Its members have `timeout` to answer; while too many others observe the group, this
/// waits another 10 s at most. `None` if there is no group.
///
/// # Errors
/// * `GroupDistrusts`: the coordinator does not answer this user.
/// * `GroupNotTrusted`: an untrusted user holds the group's name and does not answer as a coordinator would.
/// * `GroupRefused`: the coordinator uses another version, the group has no coordinator, or too many observe it.
/// * `GroupSilent`: the coordinator did not answer in time.
/// * `Os`: a system call failed.
pub fn observe(config: &GroupConfig, timeout: Duration) -> Result<Option<Observation>> {
    config.check()?;
    let name = GroupName::new(config);
    let turn_until = Instant::now() + TURN_WAIT;
    let mut deadline = Instant::now() + timeout;
    let mut attempts = 0;
    loop {
        let wait = match name.call().map_err(os("connect"))? {
            Call::Connected(connection) => match Observer::ask(connection, config, timeout)? {
                Some(observer) => match observer.collect(&name, config, deadline)? {
                    Answer::All(observation) => return Ok(Some(observation)),
                    Answer::Later if Instant::now() >= turn_until => {
                        return Err(refused(format!(
                            "{OBSERVERS_MAX} others list the members, which is the limit"
                        )));
                    }
                    Answer::Later => {
                        deadline = Instant::now() + timeout;
                        BACKOFF_MAX
                    }
                    Answer::Ended => BACKOFF_MAX,
                },
                None => BACKOFF_MAX,
            },
            Call::Busy => BACKOFF_MAX,
            Call::NobodyListens => {
                if living_members(&name, &config.trust) == 0 && name.holder().is_none() {
                    return Ok(None);
                }
                // An election takes a few milliseconds.
                BACKOFF_MAX
            }
        };
        attempts += 1;
        if stranger::is_time_to_look(attempts)
            && let Some(cause) = stranger::with_name(&name, &config.trust)
        {
            return Err(Error::new(Step::OpenDevice, cause));
        }
        if Instant::now() + wait >= deadline {
            let living = living_members(&name, &config.trust);
            let after_ms = timeout.as_millis();
            return Err(refused(format!(
                "{living} of them live, but none listed the members within {after_ms} ms{}",
                holder_text(&name, &config.trust)
            )));
        }
        std::thread::sleep(wait);
    }
}

/// What a question leads to.
enum Answer {
    All(Observation),
    /// The coordinator answers no more observers now.
    Later,
    /// The coordinator died.
    Ended,
}

/// A connection to the coordinator on which the query was sent.
struct Observer {
    connection: PrivateFd,
    coordinator: Credentials,
    /// Whether the coordinator is in another PID namespace.
    is_elsewhere: bool,
    timeout: Duration,
    seen: Observation,
    /// The coordinator's own report is complete.
    coordinator_done: bool,
    /// Members whose reports are not complete.
    awaited: BTreeMap<Block, Vec<Vec<u8>>>,
}

impl Observer {
    /// Sends the query; `None` if the coordinator died.
    fn ask(connection: PrivateFd, config: &GroupConfig, timeout: Duration) -> Result<Option<Self>> {
        let coordinator = Credentials::of_peer(connection.as_fd()).map_err(os("SO_PEERCRED"))?;
        let own = Own::here();
        let is_trusted = config.trust.admits(own, coordinator.uid);
        let mut question = Vec::new();
        Message::Observe { version: VERSION }.encode(&mut question);
        if packet::send(connection.as_fd(), &question).is_err() {
            return Ok(None);
        }
        Ok(Some(Self {
            connection,
            coordinator,
            is_elsewhere: false,
            timeout,
            seen: Observation {
                coordinator_pid: coordinator.pid,
                coordinator_uid: coordinator.uid,
                distrust: (!is_trusted).then(|| stranger::not_trusted(coordinator, own)),
                ..Observation::default()
            },
            coordinator_done: false,
            awaited: BTreeMap::new(),
        }))
    }

    /// Receives answers until all are complete or time is up.
    fn collect(
        mut self,
        name: &GroupName,
        config: &GroupConfig,
        deadline: Instant,
    ) -> Result<Answer> {
        let mut buffer = vec![0; MESSAGE_BYTES_MAX];
        while !(self.coordinator_done && self.awaited.is_empty()) {
            if !wait_readable(&self.connection, deadline)? {
                return match self.coordinator_done {
                    // Members that did not answer have no report.
                    true => Ok(Answer::All(self.seen)),
                    false => Err(self.silent()),
                };
            }
            let bytes = match packet::receive(self.connection.as_fd(), &mut buffer) {
                Ok(Received::Record(bytes)) => buffer.get(..bytes).unwrap_or_default(),
                Ok(Received::Nothing) => continue,
                Ok(Received::TooLong) => return Err(self.garbled("a message too long")),
                Ok(Received::Closed) | Err(Errno::CONNRESET) => return Ok(Answer::Ended),
                Err(errno) => return Err(os("recvmsg")(errno)),
            };
            match Message::decode(bytes) {
                Ok(Message::Refused { refusal }) => {
                    let (coordinator, trust) = (self.coordinator, &config.trust);
                    let cause = stranger::refusal_cause(refusal, coordinator, name, trust);
                    return Err(Error::new(Step::OpenDevice, cause));
                }
                Ok(Message::Later { .. }) => return Ok(Answer::Later),
                Ok(message) => self.take(&message)?,
                Err(malformed) => return Err(self.garbled(&malformed.to_string())),
            }
        }
        Ok(Answer::All(self.seen))
    }

    fn take(&mut self, message: &Message<'_>) -> Result<()> {
        match *message {
            Message::Roster { block, pid, uid } if !self.coordinator_done => {
                // The coordinator comes first, with the number that it has in its own PID namespace.
                let pid = if self.seen.members.is_empty() {
                    self.seen.coordinator_block = Some(block);
                    self.is_elsewhere = pid != self.coordinator.pid;
                    self.coordinator.pid
                } else if self.is_elsewhere {
                    0
                } else {
                    pid
                };
                self.seen.members.push(MemberStatus { block, pid, uid });
                self.awaited.insert(block, Vec::new());
            }
            Message::Report {
                block: Block::COORDINATOR,
                last,
                payload,
                ..
            } if !self.coordinator_done
                && self.seen.coordinator_report.len() < REPORT_PARTS_MAX =>
            {
                self.seen.coordinator_report.push(payload.to_vec());
                self.coordinator_done = last;
            }
            Message::Report {
                block,
                last,
                payload,
                ..
            } => match self.awaited.get_mut(&block) {
                Some(parts) if parts.len() < REPORT_PARTS_MAX => {
                    parts.push(payload.to_vec());
                    if last && let Some(parts) = self.awaited.remove(&block) {
                        self.seen.reports.insert(block, parts);
                    }
                }
                _ => return Err(self.garbled("a report of a process that is not a member")),
            },
            _ => return Err(self.garbled("an answer to another question")),
        }
        Ok(())
    }

    fn garbled(&self, what: &str) -> Error {
        if let Some(cause) = &self.seen.distrust {
            return Error::new(Step::OpenDevice, cause.clone());
        }
        refused(format!(
            "the group is led by {}, which sent {what}",
            self.coordinator
        ))
    }

    fn silent(&self) -> Error {
        if let Some(cause) = &self.seen.distrust {
            return Error::new(Step::OpenDevice, cause.clone());
        }
        let cause = Cause::GroupSilent {
            pid: self.coordinator.pid,
            stopped: self.coordinator.is_stopped(),
            open_files: self.coordinator.reached_open_files(),
            after_ms: self.timeout.as_millis() as u64,
        };
        Error::new(Step::OpenDevice, cause)
    }
}
