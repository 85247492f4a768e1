//! How a process comes into the group: it finds the hub, or founds the group.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use portolan_provider::{Cause, Error, Result, Step};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, sockopt};

use super::block::{BLOCK_COUNT, Block, BlockSet};
use super::config::GroupConfig;
use super::election::pause;
use super::ground::Ground;
use super::hub::Hub;
use super::inherit::PrivateFd;
use super::member::Uplink;
use super::message::{MESSAGE_BYTES_MAX, Message, Refusal, VERSION};
use super::name::{Call, GroupName};
use super::packet::{self, Received};
use super::service::HubService;
use super::sockets::{self, BlockSocket, Family, FoundError};
use super::state::{Role, State};
use super::trust::{Credentials, Own};
use super::vault::{Vault, VaultError};

/// Attempts at the port while holding the name: another newcomer may be probing it.
const FOUND_ATTEMPTS: u32 = 4;
/// The pause between them.
const FOUND_PAUSE: Duration = Duration::from_millis(1);

/// A member that has just come in.
pub(super) struct Joined {
    pub(super) state: State,
    pub(super) sockets: Vec<BlockSocket>,
}

/// What came of one attempt.
enum Attempt {
    Welcomed(Box<Admission>),
    /// The group is in motion: try again, after the time the hub asked for if it did.
    Again(Duration),
    /// Nobody answers to the name, and somebody has the port.
    PortTaken,
}

/// What a welcome brings, or founding.
struct Admission {
    block: Block,
    vault: Vault,
    block_name: PrivateFd,
    sockets: Vec<BlockSocket>,
    role: AdmittedAs,
}

enum AdmittedAs {
    Founder {
        listener: PrivateFd,
    },
    Member {
        connection: PrivateFd,
        hub: Credentials,
    },
}

/// Joins the group, or founds it.
pub(super) fn join(config: GroupConfig, service: Box<dyn HubService>) -> Result<Joined> {
    config.check()?;
    let name = GroupName::new(&config);
    let started = Instant::now();
    let deadline = started + config.join_timeout;
    // Spreads processes that start at the same time.
    let salt = RandomState::new().build_hasher().finish() as u32;
    let mut port_taken_since: Option<Instant> = None;
    let mut attempts = 0;
    loop {
        let wait = match attempt(&config, &name, deadline)? {
            Attempt::Welcomed(admission) => return settle(config, *admission, service),
            Attempt::Again(wait) => {
                port_taken_since = None;
                wait
            }
            Attempt::PortTaken => {
                let now = Instant::now();
                let since = *port_taken_since.get_or_insert(now);
                let waited = now.saturating_duration_since(since);
                if waited >= config.foreign_port_patience && living_members(&name) == 0 {
                    return Err(owned_elsewhere(config.port));
                }
                Duration::ZERO
            }
        };
        let wait = wait.max(pause(attempts, salt));
        attempts += 1;
        if Instant::now() + wait >= deadline {
            let living = living_members(&name);
            if port_taken_since.is_some() && living == 0 {
                return Err(owned_elsewhere(config.port));
            }
            let after_ms = started.elapsed().as_millis();
            return Err(refused(format!(
                "{living} of them live, but none gave it a place within {after_ms} ms"
            )));
        }
        std::thread::sleep(wait);
    }
}

fn attempt(config: &GroupConfig, name: &GroupName, deadline: Instant) -> Result<Attempt> {
    match name.call().map_err(os("connect"))? {
        Call::Connected(connection) => enter(config, connection, deadline),
        Call::Busy => Ok(Attempt::Again(Duration::ZERO)),
        Call::NobodyListens => found(config, name),
    }
}

/// Founds the group if nobody has the port.
fn found(config: &GroupConfig, name: &GroupName) -> Result<Attempt> {
    // Asked before the name is taken: where a group lives without a hub for the moment, the name
    // is its members' to take.
    if !sockets::port_is_free(config.port).map_err(found_error)? {
        return Ok(Attempt::PortTaken);
    }
    let Some(listener) = name.listen().map_err(os("bind"))? else {
        return Ok(Attempt::Again(Duration::ZERO));
    };
    for _ in 0..FOUND_ATTEMPTS {
        let vault = match sockets::found(config.port) {
            Ok(vault) => vault,
            Err(FoundError::PortTaken) => {
                std::thread::sleep(FOUND_PAUSE);
                continue;
            }
            Err(error) => return Err(found_error(error)),
        };
        for block in Block::members() {
            if let Some(block_name) = name.claim_block(block).map_err(os("bind"))? {
                let sockets = vault.peek(block).map_err(vault_error)?;
                sockets
                    .iter()
                    .for_each(|s| s.activate(config.receive_buffer_bytes));
                let role = AdmittedAs::Founder { listener };
                let admission = Admission {
                    block,
                    vault,
                    block_name,
                    sockets,
                    role,
                };
                return Ok(Attempt::Welcomed(Box::new(admission)));
            }
        }
        return Err(refusal_error(Refusal::Full));
    }
    Ok(Attempt::PortTaken)
}

/// Says hello to the hub and waits for its answer.
fn enter(config: &GroupConfig, connection: PrivateFd, deadline: Instant) -> Result<Attempt> {
    let hub = Credentials::of_peer(connection.as_fd()).map_err(os("SO_PEERCRED"))?;
    if !config.trust.admits(Own::here(), hub.uid) {
        return Err(refused(format!(
            "the group is led by {hub}, which is not trusted"
        )));
    }
    let mut hello = Vec::new();
    Message::Hello {
        version: VERSION,
        rejoin: None,
    }
    .encode(&mut hello);
    if packet::send(connection.as_fd(), &hello).is_err() {
        return Ok(Attempt::Again(Duration::ZERO));
    }
    if !wait_readable(&connection, deadline)? {
        let cause = Cause::GroupSilent {
            pid: hub.pid,
            stopped: hub.is_stopped(),
            after_ms: config.join_timeout.as_millis() as u64,
        };
        return Err(Error::new(Step::OpenDevice, cause));
    }
    let mut buffer = vec![0; MESSAGE_BYTES_MAX];
    let answer = packet::peek_descriptors(connection.as_fd(), &mut buffer);
    let (received, descriptors) = answer.map_err(os("recvmsg (SCM_RIGHTS)"))?;
    // Looking first leaves a second chance to make room for the descriptors. Now it is taken.
    packet::receive(connection.as_fd(), &mut []).map_err(os("recvmsg"))?;
    let Received::Record(bytes) = received else {
        // The hub died, or gave up founding.
        return Ok(Attempt::Again(Duration::ZERO));
    };
    match Message::decode(buffer.get(..bytes).unwrap_or_default()) {
        Ok(Message::Welcome { block }) => {
            let (vault, block_name, sockets) = unpack(descriptors)?;
            let role = AdmittedAs::Member { connection, hub };
            let admission = Admission {
                block,
                vault,
                block_name,
                sockets,
                role,
            };
            Ok(Attempt::Welcomed(Box::new(admission)))
        }
        Ok(Message::Later { after_ms }) => {
            Ok(Attempt::Again(Duration::from_millis(after_ms.into())))
        }
        Ok(Message::Refused(refusal)) => Err(refusal_error(refusal)),
        Ok(_) => Err(refused(format!(
            "the group is led by {hub}, which speaks out of turn"
        ))),
        Err(malformed) => Err(refused(format!("the group is led by {hub}: {malformed}"))),
    }
}

/// The descriptors of a welcome.
fn unpack(descriptors: Vec<PrivateFd>) -> Result<(Vault, PrivateFd, Vec<BlockSocket>)> {
    let mut descriptors = descriptors.into_iter();
    let (Some(vault), Some(block_name)) = (descriptors.next(), descriptors.next()) else {
        return Err(refused("the welcome came without its descriptors".into()));
    };
    let mut sockets = Vec::new();
    for fd in descriptors {
        let domain = sockopt::socket_domain(&fd).map_err(os("SO_DOMAIN"))?;
        let family = if domain == AddressFamily::INET {
            Family::Ipv4
        } else {
            Family::Ipv6
        };
        sockets.push(BlockSocket::new(family, fd));
    }
    if sockets.is_empty() {
        return Err(refused("the welcome came without sockets".into()));
    }
    Ok((Vault::from_descriptor(vault), block_name, sockets))
}

fn settle(
    config: GroupConfig,
    admission: Admission,
    service: Box<dyn HubService>,
) -> Result<Joined> {
    let Admission {
        block,
        vault,
        block_name,
        sockets,
        role,
    } = admission;
    let mut ground =
        Ground::new(config, block, vault, block_name, service).map_err(os("epoll_create"))?;
    let role = match role {
        AdmittedAs::Founder { listener } => {
            let hub = Hub::open(
                listener,
                BlockSet::EMPTY,
                BlockSet::EMPTY,
                &mut ground,
                Instant::now(),
            );
            Role::Hub(Box::new(hub.map_err(vault_error)?))
        }
        AdmittedAs::Member { connection, hub } => {
            Role::Member(Uplink::joined(connection, hub, &ground).map_err(os("epoll_ctl"))?)
        }
    };
    Ok(Joined {
        state: State::new(ground, role),
        sockets,
    })
}

/// Waits until there is something to read; `false` at the deadline.
pub(super) fn wait_readable(connection: &PrivateFd, deadline: Instant) -> Result<bool> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        let timeout = left.try_into().ok();
        match poll(
            &mut [PollFd::new(connection, PollFlags::IN)],
            timeout.as_ref(),
        ) {
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return Ok(true),
            Err(errno) => return Err(os("poll")(errno)),
        }
    }
}

/// How many processes live that have a block. Where nobody leads the group, it tells members that are
/// slow or stopped from a port that is somebody else's.
pub(super) fn living_members(name: &GroupName) -> usize {
    Block::members()
        .filter(|block| matches!(name.claim_block(*block), Ok(None)))
        .count()
}

fn owned_elsewhere(port: u16) -> Error {
    Error::new(Step::OpenDevice, Cause::PortOwnedElsewhere { port })
}

pub(super) fn refused(why: String) -> Error {
    Error::new(Step::OpenDevice, Cause::GroupRefused(why))
}

pub(super) fn refusal_error(refusal: Refusal) -> Error {
    match refusal {
        Refusal::Full => {
            let limit = BLOCK_COUNT as u64 - 1;
            let what = "processes sharing the UDP port";
            Error::new(Step::OpenDevice, Cause::LimitReached { what, limit })
        }
        refusal => refused(refusal.to_string()),
    }
}

fn found_error(error: FoundError) -> Error {
    match error {
        FoundError::PortTaken => os("bind")(Errno::ADDRINUSE),
        FoundError::Os(call, errno) => os(call)(errno),
    }
}

fn vault_error(error: VaultError) -> Error {
    match error {
        VaultError::Os(errno) => os("recvmsg")(errno),
        VaultError::NoRoom => os("recvmsg (SCM_RIGHTS; RLIMIT_NOFILE)")(Errno::MFILE),
        VaultError::Missing(_) => refused(error.to_string()),
    }
}

pub(super) fn os(call: &'static str) -> impl Fn(Errno) -> Error {
    move |errno| {
        Error::new(
            Step::OpenDevice,
            Cause::Os {
                call,
                errno: errno.raw_os_error(),
            },
        )
    }
}
