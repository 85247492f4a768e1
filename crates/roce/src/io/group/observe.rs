//! A look at a group from outside: who is in it, and what each of them says of itself.
//!
//! The observer calls the hub as a newcomer would, and asks for no block. The hub tells who the
//! members are, what it knows itself, and passes the question on; what the members answer it passes
//! back as it comes. The trust rule holds: the hub decides whether it answers this user.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use portolan_provider::{Cause, Error, Result, Step};
use rustix::io::Errno;

use super::block::Block;
use super::config::{BACKOFF_MAX, GroupConfig, REPORT_PARTS_MAX};
use super::inherit::PrivateFd;
use super::join::{living_members, os, refusal_error, refused, wait_readable};
use super::message::{MESSAGE_BYTES_MAX, Message, VERSION};
use super::name::{Call, GroupName};
use super::packet::{self, Received};
use super::status::MemberStatus;
use super::trust::Credentials;

/// What an observer saw of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observation {
    /// The hub's process id as seen from here, 0 if it is out of sight.
    pub hub_pid: u32,
    /// The hub's effective user.
    pub hub_uid: u32,
    /// What the hub's service reports ([`HubService::report`](super::HubService::report)).
    pub hub_report: Vec<Vec<u8>>,
    /// The members, by block.
    pub members: Vec<MemberStatus>,
    /// What each member that answered in time reports of itself
    /// ([`MemberService::report`](super::MemberService::report)).
    pub reports: BTreeMap<Block, Vec<Vec<u8>>>,
}

/// Looks at the group of `config.port`, within `timeout`, and gives its members this time to answer.
/// `None` if there is no group.
///
/// # Errors
/// * `GroupRefused`: the hub will not answer this user, or nobody leads the group.
/// * `GroupSilent`: the hub does not answer in time.
/// * `Os`: a system call failed.
pub fn observe(config: &GroupConfig, timeout: Duration) -> Result<Option<Observation>> {
    config.check()?;
    let name = GroupName::new(config);
    let deadline = Instant::now() + timeout;
    loop {
        let wait = match name.call().map_err(os("connect"))? {
            Call::Connected(connection) => match Observer::ask(connection, timeout)? {
                Some(observer) => match observer.collect(deadline)? {
                    Some(observation) => return Ok(Some(observation)),
                    None => BACKOFF_MAX,
                },
                None => BACKOFF_MAX,
            },
            Call::Busy => BACKOFF_MAX,
            Call::NobodyListens => match living_members(&name) {
                0 => return Ok(None),
                // An election is over in a few milliseconds.
                _ => BACKOFF_MAX,
            },
        };
        if Instant::now() + wait >= deadline {
            let living = living_members(&name);
            let after_ms = timeout.as_millis();
            return Err(refused(format!(
                "{living} of them live, but none told of the others within {after_ms} ms"
            )));
        }
        std::thread::sleep(wait);
    }
}

/// A connection to the hub on which the question was asked.
struct Observer {
    connection: PrivateFd,
    hub: Credentials,
    timeout: Duration,
    seen: Observation,
    /// The hub has told all that it knows itself.
    hub_done: bool,
    /// Members whose reports are not complete.
    awaited: BTreeMap<Block, Vec<Vec<u8>>>,
}

impl Observer {
    /// Asks; `None` if the hub died meanwhile.
    fn ask(connection: PrivateFd, timeout: Duration) -> Result<Option<Self>> {
        let hub = Credentials::of_peer(connection.as_fd()).map_err(os("SO_PEERCRED"))?;
        let mut question = Vec::new();
        Message::Observe { version: VERSION }.encode(&mut question);
        if packet::send(connection.as_fd(), &question).is_err() {
            return Ok(None);
        }
        Ok(Some(Self {
            connection,
            hub,
            timeout,
            seen: Observation {
                hub_pid: hub.pid,
                hub_uid: hub.uid,
                ..Observation::default()
            },
            hub_done: false,
            awaited: BTreeMap::new(),
        }))
    }

    /// Takes answers until all are there or time is up; `None` if the hub died meanwhile.
    fn collect(mut self, deadline: Instant) -> Result<Option<Observation>> {
        let mut buffer = vec![0; MESSAGE_BYTES_MAX];
        while !(self.hub_done && self.awaited.is_empty()) {
            if !wait_readable(&self.connection, deadline)? {
                return match self.hub_done {
                    // Whoever has not answered is left without a report.
                    true => Ok(Some(self.seen)),
                    false => Err(self.silent()),
                };
            }
            let bytes = match packet::receive(self.connection.as_fd(), &mut buffer) {
                Ok(Received::Record(bytes)) => buffer.get(..bytes).unwrap_or_default(),
                Ok(Received::Nothing) => continue,
                Ok(Received::TooLong) => return Err(self.garbled("a message too long")),
                Ok(Received::Closed) | Err(Errno::CONNRESET) => return Ok(None),
                Err(errno) => return Err(os("recvmsg")(errno)),
            };
            match Message::decode(bytes) {
                Ok(Message::Refused(refusal)) => return Err(refusal_error(refusal)),
                Ok(Message::Later { .. }) => return Ok(None),
                Ok(message) => self.take(&message)?,
                Err(malformed) => return Err(self.garbled(&malformed.to_string())),
            }
        }
        Ok(Some(self.seen))
    }

    fn take(&mut self, message: &Message<'_>) -> Result<()> {
        match *message {
            Message::Roster { block, pid, uid } if !self.hub_done => {
                self.seen.members.push(MemberStatus { block, pid, uid });
                self.awaited.insert(block, Vec::new());
            }
            Message::Report {
                block: Block::HUB,
                last,
                payload,
                ..
            } if !self.hub_done && self.seen.hub_report.len() < REPORT_PARTS_MAX => {
                self.seen.hub_report.push(payload.to_vec());
                self.hub_done = last;
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
                _ => return Err(self.garbled("a report of somebody who is no member")),
            },
            _ => return Err(self.garbled("an answer to another question")),
        }
        Ok(())
    }

    fn garbled(&self, what: &str) -> Error {
        refused(format!(
            "the group is led by {}, which says {what}",
            self.hub
        ))
    }

    fn silent(&self) -> Error {
        let cause = Cause::GroupSilent {
            pid: self.hub.pid,
            stopped: self.hub.is_stopped(),
            after_ms: self.timeout.as_millis() as u64,
        };
        Error::new(Step::OpenDevice, cause)
    }
}
