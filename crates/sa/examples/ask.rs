//! Queries the subnet administrator through the machine's first user MAD device: checks whether
//! GIDs are reachable, lists nodes, and registers and withdraws a service.
//!
//! `cargo run -p portolan-sa --example ask -- [GID...]`

use std::time::{Duration, Instant};

use portolan_sa::reach::gid_reachable;
use portolan_sa::{Client, ClientConfig, umad};
use portolan_wire::sa::{NodeRecord, PathRecord, Query, ServiceRecord};
use portolan_wire::{Gid, PKey, ServiceId};

const WITHIN: Duration = Duration::from_secs(10);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = umad::devices()?.into_iter().next();
    let device = device.ok_or("no user MAD device")?;
    let client = Client::of_device(ClientConfig::default(), device);
    let port = client.port(WITHIN)?;
    println!(
        "{} port {}: LID {}, SM LID {}",
        port.device, port.port_num, port.lid, port.sm_lid
    );
    for gid in std::env::args().skip(1) {
        let gid = Gid::from_ipv6(gid.parse()?);
        let start = Instant::now();
        match gid_reachable(&client, gid, WITHIN) {
            Ok(path) => println!("{path} ({:?})", start.elapsed()),
            Err(error) => println!("errno {}: {error}", error.errno()),
        }
    }
    match client.nodes(&Query::<NodeRecord>::new(), WITHIN) {
        Ok(nodes) => nodes.iter().for_each(|node| println!("{node}")),
        Err(failure) => println!("nodes: {failure}"),
    }
    let of_one = Query::<NodeRecord>::new().lid(port.lid);
    println!(
        "node here: {:?}",
        client.node(&of_one, WITHIN).map(|node| node.to_string())
    );
    let table_of_one = client.nodes(&of_one, WITHIN);
    println!(
        "table of one node: {:?}",
        table_of_one.map(|nodes| nodes.len())
    );
    let sgid = port.gid().ok_or("no GID")?;
    let paths = client.paths(&Query::<PathRecord>::new().sgid(sgid).numb_path(1), WITHIN);
    println!("paths from here: {:?}", paths.map(|paths| paths.len()));
    let none = Query::<PathRecord>::new()
        .sgid(sgid)
        .dlid(0xBFFE)
        .numb_path(1);
    println!(
        "paths to nobody: {:?}",
        client.paths(&none, WITHIN).map(|paths| paths.len())
    );
    let record = ServiceRecord {
        service_id: ServiceId(0x1000_0000_0000_4711),
        pkey: PKey::DEFAULT,
        lease_s: 60,
        name: ServiceRecord::name_field("portolan.example").ok_or("too long")?,
        ..Default::default()
    };
    let by_id = Query::<ServiceRecord>::new().service_id(record.service_id);
    let by_name = Query::<ServiceRecord>::new().name(record.name);
    let registration = client.register(record, WITHIN)?;
    println!(
        "by id: {:?}",
        client
            .service(&by_id, WITHIN)
            .map(|service| service.to_string())
    );
    println!(
        "by name: {:?}",
        client
            .service(&by_name, WITHIN)
            .map(|service| service.to_string())
    );
    println!(
        "table by name: {:?}",
        client
            .services(&by_name, WITHIN)
            .map(|services| services.len())
    );
    registration.withdraw(WITHIN)?;
    println!(
        "withdrawn: {:?}",
        client
            .service(&by_id, WITHIN)
            .map(|service| service.to_string())
    );
    Ok(())
}
