//! Runs a subnet administrator at one Ethernet port and its client at another, each through the
//! kernel's user MAD device. It tests how the kernel handles queries and tables of many packets.
//!
//! `umad_administrator ADMINISTRATOR CLIENT SEGMENTS…`: names of two RDMA devices, and the number
//! of segments of each table. Both ports are in one network namespace and connected by a link. They
//! find each other by their link-local GIDs.
//!
//! Such ports have no administrator: they have no LIDs, and every datagram has a global route.
//! [`Joined`] hides this from the client. Everything else is the client's code and the kernel's.

#![forbid(unsafe_code)]

#[path = "../../../../sa/tests/engine/administrator.rs"]
mod administrator;
mod joined;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use portolan_sa::umad::{Class, Device, UmadTransport};
use portolan_sa::{Client, ClientConfig, Received, Transport, umad};
use portolan_wire::mad::{Method, MgmtClass};
use portolan_wire::sa::{NodeRecord, NodeType, PathRecord, Query, SA_DATA_LEN, ServiceRecord};
use portolan_wire::{Gid, ServiceId};

use administrator::Administrator;
use joined::{Joined, gid_slot};

/// Requests that an administrator accepts.
const ADMINISTRATOR: Class<'static> = Class {
    mgmt_class: MgmtClass::SUBN_ADM,
    version: 2,
    requests: &[Method::GET, Method::SET, Method::GET_TABLE, Method::DELETE],
};
/// Distance between two records of a table: the record's length rounded up to eight bytes.
const STRIDE: usize = NodeRecord::LEN.next_multiple_of(8);
/// Time limit of each operation. The machine is emulated, and packets may be lost.
const PATIENCE: Duration = Duration::from_secs(90);
/// Number of copies of each answer. They are sent at once, while the kernel may still be sending.
const COPIES: usize = 3;
/// How often the administrator checks whether to end.
const LOOK: Duration = Duration::from_millis(20);

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [administrator, client, segments @ ..] = arguments.as_slice() else {
        anyhow::bail!("see the top of this program's source for its arguments");
    };
    let (there, here) = (device(administrator)?, device(client)?);
    let (_, peer) = gid_slot(&there.port()?).context("the administrator's GID")?;
    for segments in segments {
        ask(&there, &here, peer, segments.parse()?)?;
    }
    Ok(())
}

fn device(name: &str) -> Result<Device> {
    let devices = umad::devices()?;
    let device = devices.into_iter().find(|device| device.device == name);
    device.with_context(|| format!("{name} has no user MAD device"))
}

/// The client queries one record of each kind, and a table that takes `segments` segments.
fn ask(there: &Device, here: &Device, peer: Gid, segments: usize) -> Result<()> {
    let nodes = nodes(segments * SA_DATA_LEN / STRIDE);
    let table: Vec<u8> = nodes.iter().flat_map(bytes).collect();
    ensure!(
        table.len().div_ceil(SA_DATA_LEN) == segments,
        "cannot make a table of {segments} segments"
    );
    let over = Arc::new(AtomicBool::new(false));
    let serving = {
        let (transport, over) = (there.open(&ADMINISTRATOR)?, over.clone());
        thread::spawn(move || serve(transport, Administrator::new(table, STRIDE), &over))
    };
    let device = here.clone();
    let client = Client::new(ClientConfig::default(), move || {
        Ok(Box::new(Joined::open(&device, peer)?))
    });
    let asked = single(&client, peer).and_then(|()| {
        let started = Instant::now();
        let found = client.nodes(&Query::<NodeRecord>::new(), PATIENCE)?;
        ensure!(
            found.len() == nodes.len(),
            "{} records of {}",
            found.len(),
            nodes.len()
        );
        ensure!(found == nodes, "the records are not those that were sent");
        Ok(started.elapsed())
    });
    over.store(true, Ordering::Release);
    let questions = serving
        .join()
        .map_err(|_| anyhow::anyhow!("the administrator panicked"))??;
    let took = asked.with_context(|| format!("{questions} questions, {:?}", client.counters()))?;
    let again = client.counters().repeated_segments;
    println!(
        "{} records in {segments} segments, each as it was sent, after {took:.1?}; {again} segments came again",
        nodes.len()
    );
    Ok(())
}

/// Queries one path, then registers and withdraws a service. The administrator echoes what it
/// received.
fn single(client: &Client, peer: Gid) -> Result<()> {
    let own = client.port(PATIENCE)?.gid().context("a port with a GID")?;
    let path = client.path(&Query::<PathRecord>::new().sgid(own).dgid(peer), PATIENCE)?;
    ensure!((path.sgid, path.dgid) == (own, peer), "{path:?}");
    let name = ServiceRecord::name_field("harbour").context("a name")?;
    let service = Query::<ServiceRecord>::new()
        .service_id(ServiceId(0x1000_0000_0000_0099))
        .gid(own)
        .name(name);
    let registered = client.set_service(&service, PATIENCE)?;
    ensure!(
        (registered.gid, registered.name) == (own, name),
        "{registered:?}"
    );
    Ok(client.delete_service(&service, PATIENCE)?)
}

/// Answers until `over` is set. Returns the number of queries.
fn serve(
    mut transport: UmadTransport,
    mut administrator: Administrator,
    over: &AtomicBool,
) -> Result<usize> {
    let epoch = Instant::now();
    let mut asking = None;
    while !over.load(Ordering::Acquire) {
        let due = administrator
            .timeout()
            .map(|due| due.saturating_sub(epoch.elapsed()));
        let received = transport.receive(due.map_or(LOOK, |due| due.min(LOOK)))?;
        let mut answers = match received {
            Some(Received::Mad { from, mad }) => {
                asking = Some(from);
                administrator.handle(epoch.elapsed(), &mad)
            }
            // An answer that the kernel could not send counts as lost.
            Some(Received::SendFailed { .. }) | None => Vec::new(),
        };
        answers.extend(administrator.handle_timeout(epoch.elapsed()));
        let Some(to) = &asking else { continue };
        for answer in &answers {
            for _ in 0..COPIES {
                transport.send(&joined::answered(to), answer, Duration::ZERO)?;
            }
        }
    }
    Ok(administrator.questions)
}

/// `count` nodes that differ in every field wide enough.
fn nodes(count: usize) -> Vec<NodeRecord> {
    let node = |number: u64| NodeRecord {
        lid: number as u16 + 1,
        base_version: 1,
        class_version: 1,
        node_type: NodeType::CHANNEL_ADAPTER,
        num_ports: 2,
        system_image_guid: 0x0002_c903_0010_0000 + number,
        node_guid: 0x0002_c903_0020_0000 + number,
        port_guid: 0x0002_c903_0030_0000 + number,
        partition_cap: number as u16 ^ 0xA5A5,
        device_id: number as u16 ^ 0x5A5A,
        revision: !(number as u32),
        local_port_num: 1 + (number & 1) as u8,
        vendor_id: number as u32 & 0xFF_FFFF,
        description: std::array::from_fn(|at| (number as usize * 31 + at) as u8),
    };
    (0..count as u64).map(node).collect()
}

/// A record of the table, padded to the stride.
fn bytes(node: &NodeRecord) -> [u8; STRIDE] {
    let mut bytes = [0; STRIDE];
    // Every field fits.
    node.emit(&mut bytes).expect("a node record");
    bytes
}
