//! A survey of the processes that share the UDP port: their programs, listeners, connections and counters. The
//! observer joins nothing.
//!
//! ```
//! use std::time::Duration;
//!
//! use portolan::software::StackConfig;
//! use portolan::software::survey::survey;
//!
//! # let (_server, _client) = portolan::doc_pair()?;
//! let group = StackConfig::default().group;
//! if let Some(found) = survey(&group, Duration::from_secs(5))? {
//!     for member in found.members {
//!         println!("process {}", member.pid);
//!     }
//! }
//! # Ok::<(), portolan::Error>(())
//! ```

mod line;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::SocketAddr;
use std::time::Duration;

use portolan_cm::{DropReason, Listed};
pub use portolan_port_sharing::places_taken;
use portolan_port_sharing::{Block, GroupConfig, observe};
use portolan_provider::traits::Device;
use portolan_provider::{Cause, Result};
use portolan_roce::io::Way;
use portolan_wire::addr::{PortSpace, Qpn, ServiceId};

use super::core::Core;
use line::Line;

/// The processes that share a UDP port; [`survey`](survey()) has an example.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Survey {
    /// The UDP port.
    pub udp_port: u16,
    /// The process that holds the port and reads management datagrams for all. 0 if it is in another pid namespace.
    pub holder_pid: u32,
    /// The block of that process.
    pub holder_block: u8,
    /// The effective user of that process.
    pub holder_uid: u32,
    /// Why that process would not share the port with this one, if so.
    pub distrust: Option<Cause>,
    /// Every process, by block.
    pub members: Vec<SurveyedMember>,
    /// Every local port in use, by address.
    pub ports: Vec<SurveyedPort>,
}

/// A process that shares the port; [`survey`](survey()) has an example.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SurveyedMember {
    /// The high byte of its queue pair numbers.
    pub block: u8,
    /// Its process id. 0 if it, or the process that holds the port, is in another pid namespace.
    pub pid: u32,
    /// Its effective user.
    pub uid: u32,
    /// Its own report; `None` if it did not answer in time.
    pub report: Option<MemberReport>,
}

/// A process's report about itself; [`survey`](survey()) has an example.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemberReport {
    /// The program that it runs.
    pub program: String,
    /// Ids that have a peer, also while they connect or disconnect.
    pub connections: Vec<SurveyedConnection>,
    /// The services that it listens to, including those of its listening ports.
    pub services: HashSet<ServiceId>,
    /// Counters of its devices, its part in the group and its connection manager since it started: packets, drops by
    /// reason (`dropped_…`), retransmissions.
    pub counters: BTreeMap<String, u64>,
}

/// An id that has a peer; [`survey`](survey()) has an example.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SurveyedConnection {
    /// Local address.
    pub local: Option<SocketAddr>,
    /// The peer's address.
    pub remote: Option<SocketAddr>,
    /// The local queue pair, if there is one.
    pub qpn: Option<Qpn>,
    /// Its state, in words.
    pub state: String,
    /// How its packets are sent, if the process reports it.
    pub way: Option<SurveyedWay>,
}

/// How a connection's packets are sent; [`survey`](survey()) has an example.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SurveyedWay {
    /// Through memory shared with the peer's process.
    Memory,
    /// Through memory. One-sided requests for memory that the peer's program owns are packets there.
    Rings {
        /// The reason for the packets.
        why: String,
    },
    /// Through the UDP socket.
    Socket {
        /// The reason for the socket.
        why: String,
    },
}

/// A local port in use; [`survey`](survey()) has an example.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SurveyedPort {
    /// The block of the process that has it.
    pub block: u8,
    /// The port space.
    pub port_space: PortSpace,
    /// The address of the port.
    pub address: SocketAddr,
    /// Whether the process listens on it. A process that does not answer is assumed to, if it was granted that.
    pub listening: bool,
}

/// Surveys the processes that share the UDP port of `config`, within `timeout`. Processes that do not answer in time
/// (stopped ones) are listed without a report. `None` if there are none.
///
/// ```
/// use std::time::Duration;
///
/// use portolan::software::survey::survey;
/// use portolan::software::{SoftwareConfig, SoftwareProvider};
///
/// let mut config = SoftwareConfig::default();
/// # config.stack.group.port = 14_795;
/// # config.stack.group.name_prefix = "example-of-a-survey".into();
/// let group = config.stack.group.clone();
/// let provider = SoftwareProvider::start(config)?;
/// # let listener = portolan::Listener::bind_on(provider.clone(), "127.0.0.1:0".parse().unwrap())?;
/// # let address = listener.local_addr()?;
/// # let connector = portolan::Connector::new().provider(provider.clone());
/// # let client = std::thread::spawn(move || connector.connect_to(address));
/// # let server = listener.accept()?.accept()?;
/// # let client = client.join().unwrap()?;
/// let found = survey(&group, Duration::from_secs(5))?.expect("this process takes part");
/// let this = found.members.iter().find(|member| member.pid == std::process::id());
/// let report = this.and_then(|this| this.report.as_ref()).expect("it answers");
/// // `server` is one of this process's connections.
/// let known = report.connections.iter().find(|known| known.qpn == Some(server.qp_num()));
/// assert_eq!(known.expect("it is listed").state, "established");
/// assert!(report.counters["sent_packets"] > 0);
/// # Ok::<(), portolan::Error>(())
/// ```
///
/// # Errors
/// * `GroupDistrusts`: they do not trust this user.
/// * `GroupNotTrusted`: an untrusted user holds their name, and does not answer.
/// * `GroupSilent`: the process that holds the port does not answer in time.
/// * `Os`: a system call failed.
pub fn survey(config: &GroupConfig, timeout: Duration) -> Result<Option<Survey>> {
    let Some(seen) = observe(config, timeout)? else {
        return Ok(None);
    };
    let members = seen.members.iter().map(|member| SurveyedMember {
        block: member.block.index(),
        pid: member.pid,
        uid: member.uid,
        report: seen.reports.get(&member.block).map(|parts| read(parts)),
    });
    let mut members: Vec<_> = members.collect();
    members.sort_by_key(|member| member.block);
    let granted = line::unpack(&seen.coordinator_report).filter_map(port);
    let mut ports: Vec<_> = granted.map(|port| as_served(port, &members)).collect();
    ports.sort_by_key(|port| (port.address, port.block));
    Ok(Some(Survey {
        udp_port: config.port,
        holder_pid: seen.coordinator_pid,
        holder_block: seen.coordinator_block.map_or(0, |block| block.index()),
        holder_uid: seen.coordinator_uid,
        distrust: seen.distrust,
        members,
        ports,
    }))
}

fn read(parts: &[Vec<u8>]) -> MemberReport {
    let mut report = MemberReport::default();
    let mut ways = HashMap::new();
    for line in line::unpack(parts) {
        match line {
            Line::Program(name) => report.program = name,
            Line::Counter { name, value } => {
                report.counters.insert(name, value);
            }
            Line::Connection {
                local,
                remote,
                qpn,
                state,
            } => report.connections.push(SurveyedConnection {
                local,
                remote,
                qpn,
                state,
                way: None,
            }),
            Line::Way { qpn, way } => {
                ways.insert(qpn, way);
            }
            Line::Service(service) => {
                report.services.insert(service);
            }
            // Only the coordinator reports ports.
            Line::Port { .. } => {}
        }
    }
    for connection in &mut report.connections {
        connection.way = connection.qpn.and_then(|qpn| ways.remove(&qpn));
    }
    report
}

fn port(line: Line) -> Option<SurveyedPort> {
    match line {
        Line::Port {
            block,
            port_space,
            address,
            listening,
        } => Some(SurveyedPort {
            block: block.index(),
            port_space,
            address,
            listening,
        }),
        _ => None,
    }
}

/// A port granted for listening counts as listening only once its process listens to the service. `members` are
/// ordered by block.
fn as_served(port: SurveyedPort, members: &[SurveyedMember]) -> SurveyedPort {
    let member = members.binary_search_by_key(&port.block, |member| member.block);
    let report = member.ok().and_then(|at| members[at].report.as_ref());
    let service = ServiceId::from_port(port.port_space, port.address.port());
    let is_served = report.is_none_or(|report| report.services.contains(&service));
    SurveyedPort {
        listening: port.listening && is_served,
        ..port
    }
}

/// The coordinator's report: the ports in use.
pub(super) fn coordinator_report(ports: impl Iterator<Item = SurveyedPort>) -> Vec<Vec<u8>> {
    line::pack(ports.filter_map(|port| {
        Some(Line::Port {
            block: Block::new(port.block)?,
            port_space: port.port_space,
            address: port.address,
            listening: port.listening,
        })
    }))
}

/// This process's report about itself.
pub(super) fn report(core: &Core) -> Vec<Vec<u8>> {
    let counted = counters(core);
    let counters = counted
        .into_iter()
        .filter(|(_, value)| *value > 0)
        .map(|(name, value)| Line::Counter { name, value });
    let connections = core.listing().into_iter().flat_map(|listed| {
        let Listed {
            local,
            remote,
            local_qpn,
            state,
            ..
        } = listed;
        let connection = Line::Connection {
            local,
            remote,
            qpn: local_qpn,
            state: state.name().to_owned(),
        };
        let way = local_qpn.and_then(|qpn| {
            let way = match core.stack().way_of(qpn)? {
                Way::Memory => SurveyedWay::Memory,
                Way::Rings(why) => SurveyedWay::Rings {
                    why: why.to_string(),
                },
                Way::Socket(why) => SurveyedWay::Socket {
                    why: why.to_string(),
                },
            };
            Some(Line::Way { qpn, way })
        });
        std::iter::once(connection).chain(way)
    });
    let program = std::iter::once(Line::Program(program()));
    let services = core.services().into_iter().map(Line::Service);
    line::pack(program.chain(counters).chain(services).chain(connections))
}

/// The program's name, which the kernel has for the process (proc_pid_comm(5)).
fn program() -> String {
    let name = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
    name.trim_end().to_owned()
}

fn counters(core: &Core) -> BTreeMap<String, u64> {
    let mut counters = BTreeMap::new();
    let mut add = |name: String, value: u64| *counters.entry(name).or_insert(0) += value;
    for (name, value) in core.stack().counters().iter() {
        add(name.to_owned(), value);
    }
    // Queue pairs count only what the stack does not count itself.
    let queue_pairs = core.stack().devices();
    let queue_pairs = queue_pairs
        .iter()
        .filter_map(|device| device.counters().ok());
    for counter in queue_pairs.flatten() {
        add(format!("qp_{}", counter.name), counter.value);
    }
    for (name, value) in core.stack().group_status().counters.iter() {
        add(format!("group_{name}"), value);
    }
    let cm = core.cm_counters();
    add("cm_half_open".into(), core.usage().half_open as u64);
    add("cm_sent".into(), cm.sent.total());
    add("cm_retried".into(), cm.retried.total());
    add("cm_received".into(), cm.received.total());
    add("cm_duplicates".into(), cm.duplicates.total());
    for reason in DropReason::ALL {
        add(format!("cm_dropped_{}", reason.name()), cm.dropped(reason));
    }
    counters
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_listened_on_once_its_process_takes_requests_there() {
        let granted = SurveyedPort {
            block: 3,
            port_space: PortSpace::Tcp,
            address: "127.0.0.1:7471".parse().unwrap(),
            listening: true,
        };
        let member = |report: Option<&[Line]>| SurveyedMember {
            block: 3,
            pid: 1,
            uid: 0,
            report: report.map(|lines| read(&line::pack(lines.iter().cloned()))),
        };
        let listening = |member| as_served(granted.clone(), &[member]).listening;
        let service = |space, port| Line::Service(ServiceId::from_port(space, port));
        assert!(listening(member(Some(&[service(PortSpace::Tcp, 7471)]))));
        assert!(!listening(member(Some(&[]))));
        assert!(!listening(member(Some(&[
            service(PortSpace::Udp, 7471),
            service(PortSpace::Tcp, 7472),
        ]))));
        assert!(listening(member(None)), "it does not answer");
    }
}
