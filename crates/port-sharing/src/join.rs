//! Joining: a process finds the coordinator, or founds the group.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use portolan_provider::{Cause, Error, Result, Step};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, sockopt};

use super::backoff::pause;
use super::block::{Block, BlockSet};
use super::config::GroupConfig;
use super::context::RoleContext;
use super::coordinator::Coordinator;
use super::descriptor_store::{DescriptorStore, DescriptorStoreError};
use super::fork::PrivateFd;
use super::founding::{self, FoundError};
use super::message::{MESSAGE_BYTES_MAX, Message, VERSION};
use super::name::{self, Call, GroupName};
use super::packet::{self, Received};
use super::room;
use super::service::CoordinatorService;
use super::sockets::{BlockSocket, Family};
use super::state::{MemberState, Role};
use super::stranger::{self, living_members};
use super::trust::{Credentials, Own, Trust};
use super::uplink::Uplink;
use super::witness;

/// Attempts to bind the port while holding the name, because another newcomer may be probing the port.
const FOUND_ATTEMPTS: u32 = 4;
/// Pause between these attempts.
const FOUND_PAUSE: Duration = Duration::from_millis(1);

/// A process that just joined.
pub(super) struct Joined {
    pub(super) state: MemberState,
    pub(super) sockets: Vec<BlockSocket>,
}

/// The result of one attempt.
enum Attempt {
    Welcomed(Box<Admission>),
    /// The group is changing: retry, after the time that the coordinator asked for, if any.
    Again(Duration),
    /// Nothing answers under the name, but the port is in use.
    PortTaken,
}

/// What a welcome or founding provides.
struct Admission {
    block: Block,
    store: DescriptorStore,
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
        coordinator: Credentials,
    },
}

/// Joins the group, or founds it.
pub(super) fn join(config: GroupConfig, service: Box<dyn CoordinatorService>) -> Result<Joined> {
    config.check()?;
    let name = GroupName::new(&config);
    let started = Instant::now();
    let deadline = started + config.join_timeout;
    // Spreads the attempts of processes that start at the same time.
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
                if waited >= config.foreign_port_patience
                    && living_members(&name, &config.trust) == 0
                {
                    return Err(owned_elsewhere(config.port));
                }
                Duration::ZERO
            }
        };
        if stranger::is_time_to_look(attempts)
            && let Some(cause) = stranger::with_name(&name, &config.trust)
        {
            return Err(Error::new(Step::OpenDevice, cause));
        }
        let wait = wait.max(pause(attempts, salt));
        attempts += 1;
        if Instant::now() + wait >= deadline {
            let living = living_members(&name, &config.trust);
            if port_taken_since.is_some() && living == 0 {
                return Err(owned_elsewhere(config.port));
            }
            let after_ms = started.elapsed().as_millis();
            return Err(refused(format!(
                "{living} of them live, but none admitted it within {after_ms} ms{}",
                holder_text(&name, &config.trust)
            )));
        }
        std::thread::sleep(wait);
    }
}

fn attempt(config: &GroupConfig, name: &GroupName, deadline: Instant) -> Result<Attempt> {
    match name.call().map_err(os("connect"))? {
        Call::Connected(connection) => enter(config, name, connection, deadline),
        Call::Busy => Ok(Attempt::Again(Duration::ZERO)),
        Call::NobodyListens => found(config, name),
    }
}

/// Founds the group if the port is free.
fn found(config: &GroupConfig, name: &GroupName) -> Result<Attempt> {
    // Checked before the name is bound. If a group is temporarily without a coordinator, its members must be able to
    // bind the name.
    if !founding::port_is_free(config.port).map_err(found_error)? {
        return Ok(Attempt::PortTaken);
    }
    let Some(listener) = name.listen().map_err(os("bind"))? else {
        return Ok(Attempt::Again(Duration::ZERO));
    };
    for _ in 0..FOUND_ATTEMPTS {
        let store = match founding::found(config.port) {
            Ok(store) => store,
            Err(FoundError::PortTaken) => {
                std::thread::sleep(FOUND_PAUSE);
                continue;
            }
            Err(error) => return Err(found_error(error)),
        };
        for block in Block::members() {
            if let Some(block_name) = name.claim_block(block).map_err(os("bind"))? {
                let sockets = store.peek(block).map_err(store_error)?;
                sockets
                    .iter()
                    .for_each(|s| s.activate(config.receive_buffer_bytes));
                let role = AdmittedAs::Founder { listener };
                let admission = Admission {
                    block,
                    store,
                    block_name,
                    sockets,
                    role,
                };
                return Ok(Attempt::Welcomed(Box::new(admission)));
            }
        }
        let cause = stranger::no_place(name, &config.trust);
        return Err(Error::new(Step::OpenDevice, cause));
    }
    Ok(Attempt::PortTaken)
}

/// Sends a hello to the coordinator and waits for its answer.
fn enter(
    config: &GroupConfig,
    name: &GroupName,
    connection: PrivateFd,
    deadline: Instant,
) -> Result<Attempt> {
    let coordinator = Credentials::of_peer(connection.as_fd()).map_err(os("SO_PEERCRED"))?;
    let own = Own::here();
    if !config.trust.admits(own, coordinator.uid) {
        let cause = stranger::not_trusted(coordinator, own);
        return Err(Error::new(Step::OpenDevice, cause));
    }
    name::trust_descriptors(&connection).map_err(os("SO_PASSRIGHTS"))?;
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
            pid: coordinator.pid,
            stopped: coordinator.is_stopped(),
            open_files: coordinator.reached_open_files(),
            after_ms: config.join_timeout.as_millis() as u64,
        };
        return Err(Error::new(Step::OpenDevice, cause));
    }
    let mut buffer = vec![0; MESSAGE_BYTES_MAX];
    let answer = packet::peek_descriptors(connection.as_fd(), &mut buffer);
    let (received, descriptors) = answer.map_err(os("recvmsg (SCM_RIGHTS)"))?;
    // Peek first, so that the descriptors can be read again after making room. Now consume the record.
    packet::receive(connection.as_fd(), &mut []).map_err(os("recvmsg"))?;
    let Received::Record(bytes) = received else {
        // The coordinator died, or gave up founding.
        return Ok(Attempt::Again(Duration::ZERO));
    };
    match Message::decode(buffer.get(..bytes).unwrap_or_default()) {
        Ok(Message::Welcome { block }) => {
            let (store, block_name, sockets) = unpack(descriptors)?;
            let role = AdmittedAs::Member {
                connection,
                coordinator,
            };
            let admission = Admission {
                block,
                store,
                block_name,
                sockets,
                role,
            };
            Ok(Attempt::Welcomed(Box::new(admission)))
        }
        Ok(Message::Later { after_ms }) => {
            Ok(Attempt::Again(Duration::from_millis(after_ms.into())))
        }
        Ok(Message::Refused { refusal }) => {
            let cause = stranger::refusal_cause(refusal, coordinator, name, &config.trust);
            Err(Error::new(Step::OpenDevice, cause))
        }
        Ok(_) => Err(refused(format!(
            "the group is led by {coordinator}, which sent an unexpected message"
        ))),
        Err(malformed) => Err(refused(format!(
            "the group is led by {coordinator}: {malformed}"
        ))),
    }
}

/// The descriptors of a welcome.
fn unpack(descriptors: Vec<PrivateFd>) -> Result<(DescriptorStore, PrivateFd, Vec<BlockSocket>)> {
    let mut descriptors = descriptors.into_iter();
    let (Some(store), Some(block_name)) = (descriptors.next(), descriptors.next()) else {
        return Err(refused("the welcome had no descriptors".into()));
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
        return Err(refused("the welcome had no sockets".into()));
    }
    Ok((DescriptorStore::from_descriptor(store), block_name, sockets))
}

fn settle(
    config: GroupConfig,
    admission: Admission,
    service: Box<dyn CoordinatorService>,
) -> Result<Joined> {
    let Admission {
        block,
        store,
        block_name,
        sockets,
        role,
    } = admission;
    let mut context =
        RoleContext::new(config, block, store, block_name, service).map_err(os("epoll_create"))?;
    let role = match role {
        AdmittedAs::Founder { listener } => {
            let coordinator = Coordinator::open(
                listener,
                BlockSet::EMPTY,
                BlockSet::EMPTY,
                &mut context,
                Instant::now(),
            );
            Role::Coordinator(Box::new(coordinator.map_err(store_error)?))
        }
        AdmittedAs::Member {
            connection,
            coordinator,
        } => Role::Member(
            Uplink::joined(connection, coordinator, &context).map_err(os("epoll_ctl"))?,
        ),
    };
    Ok(Joined {
        state: MemberState::new(context, role),
        sockets,
    })
}

/// Waits until the connection is readable; `false` at the deadline.
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

/// The holder of the group's name, as the end of a sentence; some members if the name is free.
pub(super) fn holder_text(name: &GroupName, trust: &Trust) -> String {
    match name.holder() {
        Some(socket) => {
            let holder = socket.holder();
            let full = witness::reached_open_files(holder.pid).map(|limit| {
                format!(
                    " and has no descriptors left for this process: its limit of open files (RLIMIT_NOFILE) is {limit}"
                )
            });
            format!("; {holder} holds their name{}", full.unwrap_or_default())
        }
        None => stranger::members_text(name, trust),
    }
}

fn owned_elsewhere(port: u16) -> Error {
    let holder = witness::holder_of_port(port).map(Box::new);
    Error::new(Step::OpenDevice, Cause::PortOwnedElsewhere { port, holder })
}

pub(super) fn refused(why: String) -> Error {
    Error::new(Step::OpenDevice, Cause::GroupRefused(why))
}

fn found_error(error: FoundError) -> Error {
    match error {
        FoundError::PortTaken => os("bind")(Errno::ADDRINUSE),
        FoundError::Os(call, errno) => os(call)(errno),
    }
}

fn store_error(error: DescriptorStoreError) -> Error {
    match error {
        DescriptorStoreError::Os(errno) => os("recvmsg")(errno),
        DescriptorStoreError::NoRoom => os("recvmsg")(Errno::MFILE),
        DescriptorStoreError::Missing(_) => refused(error.to_string()),
    }
}

pub(super) fn os(call: &'static str) -> impl Fn(Errno) -> Error {
    move |errno| Error::new(Step::OpenDevice, room::cause(call, errno))
}
