//! `service`: manages services registered at the subnet administrator.

use std::time::Duration;

use anyhow::{Result, anyhow};
use portolan::sa::Port;
use portolan::wire::addr::{Gid, PKey, ServiceId};
use portolan::wire::sa::{Query, ServiceRecord};
use serde_json::json;

use super::administrator::client;
use super::path::gid;
use crate::args::{
    ServiceArgs, ServiceCommand, ServiceListArgs, ServiceNamedArgs, ServiceRegisterArgs,
};
use crate::exit::Outcome;
use crate::interrupt::Interrupt;
use crate::output::{Output, complain};

/// Polling interval for an interrupt.
const INTERVAL: Duration = Duration::from_millis(50);

/// Lists, registers or removes services.
///
/// # Errors
///
/// There is no InfiniBand port, the administrator does not answer, or it refuses.
pub(crate) fn run(args: &ServiceArgs, output: &mut Output) -> Result<Outcome> {
    let outcome = match &args.command {
        ServiceCommand::List(args) => list(args, output)?,
        ServiceCommand::Register(args) => register(args, output)?,
        ServiceCommand::Remove(args) => remove(args, output)?,
    };
    output.flush()?;
    Ok(outcome)
}

fn list(args: &ServiceListArgs, output: &mut Output) -> Result<Outcome> {
    let (client, _) = client(&args.port, None)?;
    let mut query = Query::<ServiceRecord>::new();
    if let Some(id) = args.id {
        query = query.service_id(ServiceId(id));
    }
    if let Some(name) = &args.name {
        query = query.name(name_field(name)?);
    }
    let asked_for = args.id.is_some() || args.name.is_some();
    // Usually there is one result, which needs no table.
    let one = asked_for.then(|| client.service(&query, args.port.timeout));
    let found = match one {
        Some(Ok(record)) => Ok(vec![record]),
        Some(Err(none)) if none.says_none() => Err(none),
        _ => client.services(&query, args.port.timeout),
    };
    let found = match found {
        Err(none) if none.says_none() => Vec::new(),
        found => found?,
    };
    for record in &found {
        tell(record, output)?;
    }
    if found.is_empty() && !output.json {
        output.line("no such service is registered")?;
    }
    Ok(match found.is_empty() && asked_for {
        true => Outcome::CheckFailed,
        false => Outcome::Good,
    })
}

fn register(args: &ServiceRegisterArgs, output: &mut Output) -> Result<Outcome> {
    let timeout = args.service.port.timeout;
    let (client, port) = client(&args.service.port, None)?;
    let record = ServiceRecord {
        lease_s: args.lease,
        ..record(&args.service, &port)?
    };
    if !args.keep {
        let set = client.set_service(&key(&record).lease_s(record.lease_s), timeout)?;
        tell(&set, output)?;
        return Ok(Outcome::Good);
    }
    let interrupt = Interrupt::install()?;
    let registration = client.register(record, timeout)?;
    tell(registration.record(), output)?;
    output.flush()?;
    while !interrupt.is_raised() {
        std::thread::sleep(INTERVAL);
    }
    registration.withdraw(timeout)?;
    Ok(Outcome::Good)
}

fn remove(args: &ServiceNamedArgs, output: &mut Output) -> Result<Outcome> {
    let (client, port) = client(&args.port, None)?;
    let record = record(args, &port)?;
    match client.delete_service(&key(&record), args.port.timeout) {
        Ok(_) => {
            tell_with(&record, None, output)?;
            Ok(Outcome::Good)
        }
        Err(none) if none.says_none() => {
            complain(&format_args!("{} is not registered: {none}", args.name));
            Ok(Outcome::CheckFailed)
        }
        Err(failure) => Err(failure.into()),
    }
}

/// The record of a service, without its lease.
fn record(args: &ServiceNamedArgs, port: &Port) -> Result<ServiceRecord> {
    let of_port = || {
        port.gid()
            .ok_or_else(|| anyhow!("{} has no GID yet", port.device))
    };
    let gid: Gid = match &args.gid {
        Some(text) => gid(text)?,
        None => of_port()?,
    };
    Ok(ServiceRecord {
        service_id: ServiceId(args.id),
        gid,
        pkey: PKey::DEFAULT,
        name: name_field(&args.name)?,
        ..ServiceRecord::default()
    })
}

/// The fields that identify a service.
fn key(record: &ServiceRecord) -> Query<ServiceRecord> {
    Query::<ServiceRecord>::new()
        .service_id(record.service_id)
        .gid(record.gid)
        .pkey(record.pkey)
        .name(record.name)
}

fn name_field(name: &str) -> Result<[u8; 64]> {
    ServiceRecord::name_field(name).ok_or_else(|| anyhow!("{name}: a name has 1 to 64 bytes"))
}

fn tell(record: &ServiceRecord, output: &mut Output) -> Result<()> {
    tell_with(record, Some(record.lease_s), output)
}

/// Prints a record. `lease_s` is `None` if it has no lease any more.
fn tell_with(record: &ServiceRecord, lease_s: Option<u32>, output: &mut Output) -> Result<()> {
    let name = record
        .name()
        .map_or_else(|| "?".to_owned(), |name| name.escape_debug().to_string());
    let is_for_ever = lease_s == Some(ServiceRecord::LEASE_FOR_EVER);
    if output.json {
        output.object(&json!({
            "type": "service",
            "name": record.name(),
            "id": format!("{:#018x}", record.service_id.0),
            "gid": record.gid.to_string(),
            "pkey": format!("{:#06x}", record.pkey.0),
            "lease_s": lease_s.filter(|_| !is_for_ever),
        }))?;
        return Ok(());
    }
    let lease = match lease_s {
        None => String::new(),
        Some(_) if is_for_ever => ", for ever".to_owned(),
        Some(seconds) => format!(", for {seconds} s"),
    };
    output.line(&format!(
        "{:#018x}  {name}  at {}, P_Key {:#06x}{lease}",
        record.service_id.0, record.gid, record.pkey.0
    ))?;
    Ok(())
}
