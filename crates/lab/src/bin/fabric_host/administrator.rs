//! Queries to the subnet administrator.

use std::io::{BufRead, Read};
use std::net::Ipv6Addr;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use portolan::infiniband::{PortManager, ServiceOffer};
use portolan_provider::cm::{Service, UserId};
use portolan_provider::verbs::QpType;
use portolan_sa::engine::{Failure, Request};
use portolan_sa::reach::gid_reachable;
use portolan_sa::{Client, ClientConfig};
use portolan_wire::sa::{PathRecord, Query, ServiceRecord};
use portolan_wire::{Gid, PKey, PortSpace, ServiceId};

use crate::{device, say, service_id};

/// Time limit of a query.
const WITHIN: Duration = Duration::from_secs(10);
/// Time limit of a query when packets are lost.
const WITHIN_LOSSES: Duration = Duration::from_secs(60);

/// A client that lives as long as the process. The simulator's library kills a process that
/// receives an answer for a destroyed agent.
fn client() -> Result<&'static Client> {
    let client = Client::of_device(ClientConfig::default(), device()?);
    Ok(Box::leak(Box::new(client)))
}

fn gid(text: &str) -> Result<Gid> {
    let address: Ipv6Addr = text.parse().with_context(|| format!("{text} is no GID"))?;
    Ok(Gid::from_ipv6(address))
}

pub(crate) fn reach(gids: &[&str]) -> Result<()> {
    let client = client()?;
    for text in gids {
        match gid_reachable(client, gid(text)?, WITHIN) {
            Ok(_) => say(&format!("{text} 0"))?,
            Err(why) => say(&format!("{text} {} {why}", why.errno()))?,
        }
    }
    Ok(())
}

/// The same components as saquery's, so that the whole records can be compared.
fn between(sgid: Gid, dgid: Gid) -> Query<PathRecord> {
    Query::new().sgid(sgid).dgid(dgid)
}

pub(crate) fn paths() -> Result<()> {
    let client = client()?;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let (sgid, dgid) = line.split_once(' ').context("two GIDs in a line")?;
        match client.path(&between(gid(sgid)?, gid(dgid)?), WITHIN) {
            Ok(record) => {
                let mut bytes = [0; PathRecord::LEN];
                record.emit(&mut bytes)?;
                let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
                say(&text)?;
            }
            Err(failure) => say(&format!("{} {failure}", failure.errno()))?,
        }
    }
    Ok(())
}

/// All queries differ, so that the cache answers none of them.
pub(crate) fn flood(count: usize, in_flight: usize, gids: &[&str]) -> Result<()> {
    let gids: Vec<Gid> = gids.iter().map(|text| gid(text)).collect::<Result<_>>()?;
    ensure!(count <= gids.len() * (gids.len() - 1), "too few pairs");
    let client = client()?;
    let (send, outcomes) = channel();
    let ask = |number: usize| -> Result<()> {
        let (from, step) = (number % gids.len(), 1 + number / gids.len());
        let (sgid, dgid) = (gids[from], gids[(from + step) % gids.len()]);
        let send = send.clone();
        let done = move |outcome: Result<std::sync::Arc<portolan_sa::engine::Answer>, Failure>| {
            let found = outcome.map(|answer| answer.records::<PathRecord>());
            // The receiver outlives all pending queries.
            let _ = send.send((sgid, dgid, found));
        };
        let request = Request::get(&between(sgid, dgid))?;
        client.ask(request, WITHIN_LOSSES, done).detach();
        Ok(())
    };
    let mut asked = 0;
    while asked < count.min(in_flight) {
        ask(asked)?;
        asked += 1;
    }
    let mut right = 0;
    for _ in 0..count {
        let (sgid, dgid, found) = outcomes.recv()?;
        let found = found.with_context(|| format!("{sgid} to {dgid}"))?;
        let is_it = |path: &PathRecord| (path.sgid, path.dgid) == (sgid, dgid) && path.dlid != 0;
        ensure!(
            found.len() == 1 && is_it(&found[0]),
            "{sgid} to {dgid}: {found:?}"
        );
        right += 1;
        if asked < count {
            ask(asked)?;
            asked += 1;
        }
    }
    say(&format!("{right} of {count} answered"))
}

fn record(name: &str, service_id: ServiceId, lease_s: u32) -> Result<ServiceRecord> {
    Ok(ServiceRecord {
        service_id,
        pkey: PKey::DEFAULT,
        lease_s,
        name: ServiceRecord::name_field(name).context("a name of 1 to 64 bytes")?,
        data8: *b"sixteen of bytes",
        ..ServiceRecord::default()
    })
}

pub(crate) fn register(name: &str, service_id: ServiceId, lease_s: u32) -> Result<()> {
    let registration = client()?.register(record(name, service_id, lease_s)?, WITHIN)?;
    say("registered")?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    let state = registration.state();
    registration.withdraw(WITHIN)?;
    say(&format!("withdrawn after {} renewals", state.renewals))?;
    ensure!(state.failure.is_none(), "{state:?}");
    Ok(())
}

/// Registers through the library's listener. Dropping the registration does not wait for its
/// withdrawal, so this polls the administrator until the service is gone.
pub(crate) fn offer(name: &str, service_id: ServiceId, lease_s: u64) -> Result<()> {
    let client = client()?;
    let mut manager = PortManager::open(&device()?)?;
    let service = Service {
        port_space: PortSpace::Ib,
        qp_type: QpType::Rc,
    };
    let id = manager.create_id(UserId(1), service)?;
    let offer = ServiceOffer::new(service_id, name)
        .lease(Duration::from_secs(lease_s))
        .data(*b"sixteen of bytes");
    let registration = manager.listen_registered(id, &offer, 4, client)?;
    say("offered")?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    let state = registration.state();
    drop(registration);
    let query = Query::<ServiceRecord>::new().service_id(service_id);
    let until = Instant::now() + WITHIN;
    while client.service(&query, WITHIN).is_ok() {
        ensure!(Instant::now() < until, "the service is still registered");
        std::thread::sleep(Duration::from_millis(20));
    }
    say(&format!("withdrawn after {} renewals", state.renewals))?;
    ensure!(state.failure.is_none(), "{state:?}");
    // Keep the manager until the process ends: an answer for it may still be in flight.
    std::mem::forget(manager);
    Ok(())
}

pub(crate) fn set(name: &str, service_id: ServiceId, lease_s: u32) -> Result<()> {
    let client = client()?;
    let record = record(name, service_id, lease_s)?;
    let own = client.port(WITHIN)?.gid().context("a port with a GID")?;
    let query = Query::<ServiceRecord>::new()
        .service_id(record.service_id)
        .gid(own)
        .pkey(record.pkey)
        .lease_s(lease_s)
        .name(record.name)
        .data8(record.data8);
    client.set_service(&query, WITHIN)?;
    say("set")
}

/// Queries by service id, or by name if `what` is not an id.
pub(crate) fn service(what: &str) -> Result<()> {
    let query = Query::<ServiceRecord>::new();
    let query = match service_id(what) {
        Ok(service_id) => query.service_id(service_id),
        Err(_) => query.name(ServiceRecord::name_field(what).context("a name of 1 to 64 bytes")?),
    };
    match client()?.service(&query, WITHIN) {
        Ok(record) => {
            let name = record.name().unwrap_or_default();
            let data = String::from_utf8_lossy(&record.data8);
            let id = record.service_id.0;
            say(&format!("{} 0x{id:x} {name} {data}", record.gid))
        }
        Err(failure) => say(&format!("{} {failure}", failure.errno())),
    }
}
