//! Looks up addresses at a host of a simulated fabric. Tests run it as a separate process, since
//! the simulator's library emulates the user MAD devices per process.
//!
//! | arguments | action |
//! |---|---|
//! | `resolve NODE [SL]` | `rdma_getaddrinfo` of AF_IB: a line per result with its paths, in hexadecimal |
//! | `repeat COUNT NODE` | the same COUNT times, with equal results: the last, and the total milliseconds |
//! | `register NAME ID LEASE_S` | registers a service once |
//! | `withdraw NAME ID` | withdraws a service |
//! | `find NAME\|ID` | `rdma_resolve_addrinfo` with RAI_SA on an id at this host's port: event and results |

#![forbid(unsafe_code)]

use std::fmt::Write as _;
use std::io::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use portolan::cm::{CmId, EventChannel};
use portolan::provider::Address;
use portolan::provider::cm::EventType;
use portolan::resolve::{AddrInfo, Family, Flags, Hints, PathData, Request};
use portolan::wire::sa::{PathRecord, Query, ServiceRecord};
use portolan::wire::{PKey, ServiceId};
use portolan_sa::{Client, ClientConfig, umad};

/// Time limit of each operation.
const PATIENCE: Duration = Duration::from_secs(30);

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["resolve", node] => resolve(node, None),
        ["resolve", node, sl] => resolve(node, Some(sl.parse()?)),
        ["repeat", count, node] => repeat(count.parse()?, node),
        ["register", name, id, lease_s] => register(name, id, lease_s.parse()?),
        ["withdraw", name, id] => withdraw(name, id),
        ["find", service] => find(service),
        _ => bail!("see the top of this program's source for its arguments"),
    }
}

fn resolve(node: &str, sl: Option<u8>) -> Result<()> {
    let mut hints = Hints::new().family(Family::Ib);
    if let Some(sl) = sl {
        let record = PathRecord {
            sl,
            ..PathRecord::default()
        };
        hints = hints.route([PathData::new(0, record)]);
    }
    let request = Request::new(Some(node), Some("7471")).hints(hints);
    request.run()?.try_for_each(|result| tell(&result))
}

fn repeat(count: usize, node: &str) -> Result<()> {
    let hints = Hints::new().family(Family::Ib);
    let started = Instant::now();
    let look_up = || -> Result<Vec<AddrInfo>> {
        let request = Request::new(Some(node), Some("7471")).hints(hints.clone());
        Ok(request.run()?.collect())
    };
    let first = look_up()?;
    for _ in 1..count {
        ensure!(look_up()? == first, "the result differs from the first");
    }
    let took = started.elapsed();
    first.iter().try_for_each(tell)?;
    say(&took.as_millis().to_string())
}

/// `destination P_Key service-id source path…`.
fn tell(result: &AddrInfo) -> Result<()> {
    let Some(Address::Ib(to)) = result.dst_addr else {
        bail!("expected an InfiniBand destination: {result:?}");
    };
    let from = result
        .src_addr
        .map_or("-".into(), |from| from.gid().to_string());
    let mut line = format!("{} {:#06x} {:#018x} {from}", to.gid, to.pkey.0, to.sid);
    for path in &result.route {
        line.push(' ');
        for byte in &path.to_bytes()?[8..] {
            write!(line, "{byte:02x}")?;
        }
    }
    say(&line)
}

fn say(line: &str) -> Result<()> {
    Ok(writeln!(std::io::stdout(), "{line}")?)
}

/// A client of the subnet administrator for this host's only port.
fn client() -> Result<Client> {
    let devices = umad::devices()?;
    let device = devices.into_iter().next().context("no user MAD device")?;
    Ok(Client::of_device(ClientConfig::default(), device))
}

fn query(name: &str, id: &str) -> Result<(Client, Query<ServiceRecord>)> {
    let client = client()?;
    let port = client.port(PATIENCE)?;
    let name = ServiceRecord::name_field(name).context("a service's name")?;
    let digits = id.strip_prefix("0x").context("a service id is 0x…")?;
    let query = Query::<ServiceRecord>::new()
        .service_id(ServiceId(u64::from_str_radix(digits, 16)?))
        .gid(port.gid().context("a port that is up")?)
        .pkey(PKey::DEFAULT)
        .name(name);
    Ok((client, query))
}

fn register(name: &str, id: &str, lease_s: u32) -> Result<()> {
    let (client, query) = query(name, id)?;
    let registered = client.set_service(&query.lease_s(lease_s), PATIENCE)?;
    say(&registered.gid.to_string())
}

fn withdraw(name: &str, id: &str) -> Result<()> {
    let (client, query) = query(name, id)?;
    Ok(client.delete_service(&query, PATIENCE)?)
}

fn find(service: &str) -> Result<()> {
    let channel = EventChannel::open()?;
    let id = CmId::new(&channel)?;
    let hints = Hints::new().flags(Flags::SA);
    // An id without a port cannot send the query.
    let refused = id.resolve_addrinfo(None, Some(service), Some(&hints));
    let errno = refused.err().map_or(0, |error| error.errno());
    say(&format!("unbound {errno}"))?;
    let port = client()?.port(PATIENCE)?;
    id.bind_to_fabric_port(port.gid().context("a port that is up")?)?;
    id.resolve_addrinfo(None, Some(service), Some(&hints))?;
    let event = channel.next_event_within(PATIENCE)?;
    match event.event_type() {
        EventType::AddrinfoResolved => {
            drop(event);
            say("resolved")?;
            id.query_addrinfo()?.iter().try_for_each(tell)
        }
        EventType::AddrinfoError => say(&format!("error {}", event.status())),
        other => bail!("{other}"),
    }
}
