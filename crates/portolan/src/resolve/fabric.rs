//! InfiniBand address resolution: this machine's ports and their paths.
//!
//! Paths come from a local ibacm, which spares the subnet administrator repeated queries. If ibacm
//! is absent or fails, the administrator is queried.

use portolan_threads::lock::Mutex;
use std::time::Duration;

use portolan_addrinfo::PathData;
use portolan_addrinfo::ibacm::{self, PathRequest};
use portolan_addrinfo::lookups::{
    DeviceChoice, LinkLayer, PathQuestion, SaService, ServiceRecord, Waiting,
};
use portolan_kernel::{IbServiceKey, ib_services};
use portolan_provider::error::errno::{EACCES, ENOENT, EPERM};
use portolan_provider::{Address, Cause};
use portolan_sa::engine::Failure;
use portolan_sa::umad::{self, Device};
use portolan_sa::{Client, ClientConfig, Port, PortState};
use portolan_threads::ProcessCell;
use portolan_wire::sa::{self, PathRecord, Query, SaStatus};
use portolan_wire::{Gid, PKey, ServiceId};

/// Time limit of a query to an administrator, including retries.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(5);

/// The process's clients. A forked child has its own, because it lacks its parent's threads.
#[derive(Debug, Default)]
struct Known {
    ibacm: ibacm::Client,
    clients: Mutex<Vec<(Device, Client)>>,
}

fn known() -> &'static Known {
    static KNOWN: ProcessCell<Known> = ProcessCell::new();
    KNOWN.get_or_make(Known::default)
}

/// An active InfiniBand port with its administrator's client.
#[derive(Clone, Debug)]
struct FabricPort {
    port: Port,
    gid: Gid,
    client: Client,
}

/// The active InfiniBand ports, in the order of their user MAD devices.
fn ports() -> Vec<FabricPort> {
    let devices = umad::devices().unwrap_or_default();
    devices.into_iter().filter_map(FabricPort::of).collect()
}

/// Returns whether an active InfiniBand port has this GID.
pub(crate) fn has_port(gid: Gid) -> bool {
    ports().iter().any(|port| port.port.gids.contains(&gid))
}

/// The port on a GID's subnet; only the port with the GID `source` if that is given.
pub(super) fn towards(gid: Gid, source: Option<Gid>) -> Option<DeviceChoice> {
    let leads_there = |port: &FabricPort| match source {
        Some(source) => port.port.gids.contains(&source),
        None => port.gid.subnet_prefix() == gid.subnet_prefix(),
    };
    let port = ports().into_iter().find(leads_there)?;
    Some(port.choice(source))
}

/// The port of a device.
pub(super) fn named(name: &str) -> Option<DeviceChoice> {
    let port = ports().into_iter().find(|port| port.port.device == name)?;
    Some(port.choice(None))
}

/// Paths from a port that match the hints.
pub(super) fn paths(question: &PathQuestion, waiting: &Waiting) -> Result<Vec<PathData>, Cause> {
    let (from, to) = (&question.source, &question.destination);
    let (Address::Ib(from), Address::Ib(to)) = (from, to) else {
        // Only ibacm knows which ports have IP addresses.
        let (Some(from), Some(to)) = (from.inet(), to.inet()) else {
            return Err(Cause::Unsupported(
                "a path between addresses of two families",
            ));
        };
        return known().ibacm.paths(&PathRequest::Ip {
            source: Some(from.ip()),
            destination: to.ip(),
        });
    };
    let is_it = |port: &FabricPort| {
        let port = &port.port;
        port.device == question.device.name && port.port_num == question.device.port_num
    };
    let port = ports().into_iter().find(is_it);
    let mut like = PathRecord {
        sgid: from.gid,
        dgid: to.gid,
        reversible: true,
        numb_path: 1,
        ..PathRecord::default()
    };
    if to.pkey != PKey::DEFAULT {
        like.pkey = to.pkey;
    }
    let any = [PathData::default()];
    let wanted = match &question.wanted[..] {
        [] => &any[..],
        wanted => wanted,
    };
    let wanted = wanted.iter().map(|wanted| restricted(like, &wanted.record));
    different(wanted, waiting, |like| path(port.as_ref(), like, waiting))
}

/// The different paths that are found as long as the caller waits.
fn different(
    wanted: impl Iterator<Item = PathRecord>,
    waiting: &Waiting,
    mut find: impl FnMut(PathRecord) -> Result<Vec<PathData>, Cause>,
) -> Result<Vec<PathData>, Cause> {
    let mut found = Vec::new();
    let mut why = None;
    for like in wanted.take_while(|_| !waiting.is_over()) {
        match find(like) {
            Ok(paths) => {
                for path in paths {
                    if !found.contains(&path) {
                        found.push(path);
                    }
                }
            }
            Err(cause) => why = Some(cause),
        }
    }
    match (found.is_empty(), why) {
        (true, Some(cause)) => Err(cause),
        _ => Ok(found),
    }
}

/// One path, from ibacm or else from the administrator.
fn path(
    port: Option<&FabricPort>,
    like: PathRecord,
    waiting: &Waiting,
) -> Result<Vec<PathData>, Cause> {
    let of_ibacm = known().ibacm.paths(&PathRequest::Gid { like });
    let cause = match of_ibacm.and_then(|paths| meeting(paths, like)) {
        Ok(paths) => return Ok(paths),
        Err(cause) => cause,
    };
    let Some(port) = port.filter(|_| !waiting.is_over()) else {
        return Err(cause);
    };
    let record = port.client.path(&query(&like), ANSWER_TIME_MAX);
    let record = record.map_err(|failure| cause_of(&failure))?;
    let flags = PathData::GMP | PathData::PRIMARY | PathData::BIDIRECTIONAL;
    Ok(vec![PathData::new(flags, record)])
}

/// Filters for paths that match the query: ibacm only checks the ends.
fn meeting(mut paths: Vec<PathData>, like: PathRecord) -> Result<Vec<PathData>, Cause> {
    let wanted = PathData::new(0, like);
    paths.retain(|path| path.meets(&wanted));
    match paths.is_empty() {
        true => Err(Cause::NoSuchObject("a path of ibacm's that is as demanded")),
        false => Ok(paths),
    }
}

/// Adds the hints' restrictions.
fn restricted(like: PathRecord, wanted: &PathRecord) -> PathRecord {
    PathRecord {
        sgid: like.sgid,
        dgid: like.dgid,
        pkey: match wanted.pkey {
            PKey(0) => like.pkey,
            pkey => pkey,
        },
        reversible: true,
        numb_path: 1,
        ..*wanted
    }
}

/// A query with all nonzero fields.
fn query(like: &PathRecord) -> Query<PathRecord> {
    let mut query = Query::<PathRecord>::new()
        .sgid(like.sgid)
        .dgid(like.dgid)
        .reversible(true)
        .numb_path(like.numb_path);
    if like.pkey != PKey(0) {
        query = query.pkey(like.pkey);
    }
    macro_rules! add_if_given {
        ($($field:ident $(. $value:ident)?),*) => {$(
            if like.$field$(.$value)? != 0 {
                query = query.$field(like.$field);
            }
        )*};
    }
    add_if_given! { service_id, sl, qos_class, traffic_class, dlid, slid, flow_label, hop_limit }
    add_if_given! { packet_lifetime.value, mtu.value, rate.value }
    query
}

/// A service's records from the first subnet that has any; only from the subnet of the port with
/// the GID `of_port` if that is given.
pub(super) fn service_records(
    service: &SaService,
    of_port: Option<Gid>,
    waiting: &Waiting,
) -> Result<Vec<ServiceRecord>, Cause> {
    let query = Query::<sa::ServiceRecord>::new();
    let (query, key) = match service {
        SaService::Id(id) => (query.service_id(ServiceId(*id)), IbServiceKey::Id(*id)),
        SaService::Name(name) => {
            let name = sa::ServiceRecord::name_field(name).ok_or(Cause::InvalidArgument {
                what: "service name",
                expected: "64 bytes at most".into(),
                found: name.clone(),
            })?;
            (query.name(name), IbServiceKey::Name(name))
        }
    };
    let may_ask = |port: &FabricPort| of_port.is_none_or(|gid| port.port.gids.contains(&gid));
    let asked = ports().into_iter().filter(may_ask);
    let answers = asked.take_while(|_| !waiting.is_over()).map(|port| {
        let found =
            records(&port.client, &query).or_else(|failure| by_kernel(&port, key, failure))?;
        let record = |found: sa::ServiceRecord| ServiceRecord {
            id: found.service_id.0,
            gid: found.gid,
            pkey: found.pkey,
            local_gid: port.gid,
        };
        Ok(found.into_iter().map(record).collect())
    });
    first_known(answers)
}

/// Returns the first nonempty answer. If some subnet failed, an empty answer from another does not
/// hide that failure.
fn first_known<T>(answers: impl Iterator<Item = Result<Vec<T>, Failure>>) -> Result<Vec<T>, Cause> {
    let mut none = Cause::NoSuchObject("an InfiniBand port that could ask it");
    let mut failed = None;
    for answer in answers {
        match answer {
            Ok(found) if !found.is_empty() => return Ok(found),
            Err(failure) if !failure.says_none() => failed = Some(cause_of(&failure)),
            _ => none = Cause::NoSuchObject("such a service at the subnet administrator"),
        }
    }
    Err(failed.unwrap_or(none))
}

/// Makes the kernel query the administrator if this user may not open the port's user MAD device. If that is not the
/// reason, or the kernel cannot, returns `failure`.
fn by_kernel(
    port: &FabricPort,
    key: IbServiceKey,
    failure: Failure,
) -> Result<Vec<sa::ServiceRecord>, Failure> {
    if !keeps_user_out(&failure) {
        return Err(failure);
    }
    ib_services(port.gid, key, ANSWER_TIME_MAX).map_err(|error| {
        tracing::debug!(%error, "the kernel cannot query the administrator either");
        failure
    })
}

/// Whether the port's user MAD device is absent, as in a container, or must not be opened.
fn keeps_user_out(failure: &Failure) -> bool {
    matches!(failure, Failure::Transport(error) if [EACCES, EPERM, ENOENT].contains(&error.errno()))
}

/// Usually one record; all of them if a name has several.
fn records(
    client: &Client,
    query: &Query<sa::ServiceRecord>,
) -> Result<Vec<sa::ServiceRecord>, Failure> {
    match client.service(query, ANSWER_TIME_MAX) {
        Ok(record) => Ok(vec![record]),
        Err(Failure::Status(status)) if status.decode() == SaStatus::TooManyRecords => {
            client.services(query, ANSWER_TIME_MAX)
        }
        Err(failure) => Err(failure),
    }
}

pub(crate) fn cause_of(failure: &Failure) -> Cause {
    match failure {
        failure if failure.says_none() => Cause::NetworkUnreachable,
        Failure::TimedOut { after, tries, .. } => Cause::TimedOut {
            after_ms: after.as_millis() as u64,
            retries: tries.saturating_sub(1),
        },
        failure => {
            tracing::debug!(%failure, "the subnet administrator");
            let (call, errno) = ("asking the subnet administrator", failure.errno());
            Cause::Os { call, errno }
        }
    }
}

impl FabricPort {
    fn of(device: Device) -> Option<Self> {
        let port = device.port().ok()?;
        let is_up = port.link_layer == LinkLayer::InfiniBand && port.state >= PortState::Active;
        let gid = port.gid().filter(|_| is_up)?;
        let client = client(device);
        Some(Self { port, gid, client })
    }

    fn choice(&self, source: Option<Gid>) -> DeviceChoice {
        let gid = source.unwrap_or(self.gid);
        let slot = self.port.gids.iter().position(|each| *each == gid);
        DeviceChoice {
            name: self.port.device.clone(),
            // The rdma_cm's device number is unknown without the rdma_cm.
            index: 0,
            port_num: self.port.port_num,
            gid_index: slot.and_then(|slot| u32::try_from(slot).ok()).unwrap_or(0),
            gid,
            link_layer: LinkLayer::InfiniBand,
            provider: String::new(),
        }
    }
}

/// The process's client of a port's administrator, which caches answers.
fn client(device: Device) -> Client {
    let mut clients = known().clients.lock();
    if let Some((_, client)) = clients.iter().find(|(known, _)| *known == device) {
        return client.clone();
    }
    let client = Client::of_device(ClientConfig::default(), device.clone());
    clients.push((device, client.clone()));
    client
}

#[cfg(test)]
mod tests {
    use portolan_sa::TransportError;
    use portolan_wire::sa::{Selected, Status};

    use super::*;

    /// A path with every field that hints can restrict.
    fn full() -> PathRecord {
        PathRecord {
            service_id: 1,
            dgid: Gid([2; 16]),
            sgid: Gid([3; 16]),
            dlid: 4,
            slid: 5,
            flow_label: 6,
            hop_limit: 7,
            traffic_class: 8,
            reversible: true,
            numb_path: 1,
            pkey: PKey(0x8009),
            qos_class: 10,
            sl: 11,
            mtu: Selected::exactly(4),
            rate: Selected::exactly(3),
            packet_lifetime: Selected::exactly(18),
            ..PathRecord::default()
        }
    }

    #[test]
    fn only_ibacms_paths_that_meet_the_hints_are_used() {
        let like = PathRecord {
            pkey: PKey(0x8001),
            ..full()
        };
        let path = |record| PathData::new(PathData::GMP, record);
        let (right, wrong) = (path(like), path(full()));
        assert_eq!(meeting(vec![wrong, right], like), Ok(vec![right]));
        assert!(
            meeting(vec![wrong], like).is_err(),
            "the administrator is asked"
        );
    }

    #[test]
    fn ibacms_path_to_a_link_local_gid_may_have_the_subnets_prefix() {
        let gid = |prefix, last| {
            let mut gid = Gid([0; 16]);
            (gid.0[0], gid.0[1], gid.0[15]) = (0xFE, prefix, last);
            gid
        };
        let between = |prefix| PathRecord {
            sgid: gid(prefix, 1),
            dgid: gid(prefix, 2),
            ..full()
        };
        let found = PathData::new(PathData::GMP, between(0xC0));
        assert_eq!(meeting(vec![found], between(0x80)), Ok(vec![found]));
        let other = PathRecord {
            dgid: gid(0x80, 3),
            ..between(0x80)
        };
        assert!(meeting(vec![found], other).is_err());
    }

    #[test]
    fn once_nobody_waits_no_further_path_is_asked_for() {
        let token = std::sync::Arc::new(());
        let waiting = Waiting::while_alive(&token);
        let (mut token, mut asked) = (Some(token), 0);
        let found = PathData::new(PathData::GMP, full());
        let paths = different([full(); 3].into_iter(), &waiting, |_| {
            asked += 1;
            if asked == 2 {
                drop(token.take());
            }
            Ok(vec![found])
        });
        assert_eq!((paths, asked), (Ok(vec![found]), 2));
    }

    #[test]
    fn the_administrators_query_has_all_requirements_of_a_path() {
        let query = query(&full());
        assert_eq!(*query.record(), full());
        // From the service id to the packet lifetime, except raw traffic (6) and the reserved
        // component (7).
        assert_eq!(query.mask().0, 0x3F_FF3F);
    }

    #[test]
    fn the_kernel_is_queried_only_if_the_user_may_not_query() {
        let transport = |errno| {
            let call = "open";
            Failure::Transport(TransportError::Os { call, errno })
        };
        assert!(keeps_user_out(&transport(EACCES)));
        assert!(keeps_user_out(&transport(ENOENT)));
        let busy = portolan_provider::error::errno::EBUSY;
        assert!(!keeps_user_out(&transport(busy)));
        assert!(!keeps_user_out(&Failure::NoAdministrator));
    }

    #[test]
    fn a_port_without_the_service_does_not_hide_another_ports_missing_answer() {
        let none = || Err(Failure::Status(Status::NO_RECORDS));
        let late = || {
            Err(Failure::TimedOut {
                after: ANSWER_TIME_MAX,
                tries: 3,
                last: None,
            })
        };
        let of = |answers: Vec<Result<Vec<u8>, Failure>>| first_known(answers.into_iter());
        for answers in [
            vec![late(), none()],
            vec![none(), late()],
            vec![late(), Ok(vec![])],
        ] {
            let outcome = of(answers);
            assert!(
                matches!(outcome, Err(Cause::TimedOut { .. })),
                "{outcome:?}"
            );
        }
        assert!(matches!(
            of(vec![none(), Ok(vec![])]),
            Err(Cause::NoSuchObject(_))
        ));
        assert_eq!(of(vec![late(), Ok(vec![7]), none()]), Ok(vec![7]));
    }
}
