//! Connections over management datagrams. Prints each event by name, one per line, and at the end
//! the messages sent and received.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use portolan::infiniband::PortManager;
use portolan_provider::cm::{CmEvent, ConnParam, EventType, IdNumber, Service, UserId};
use portolan_provider::verbs::QpType;
use portolan_wire::cm::AttributeId;
use portolan_wire::sa::PathRecord;
use portolan_wire::{PortSpace, Qpn};

use crate::{device, say, service_id};

/// Time limit for everything.
const TIME_MAX: Duration = Duration::from_secs(60);
/// How long to answer messages after the end, because an acknowledgement may have been lost.
const FINAL_WAIT: Duration = Duration::from_millis(300);

struct Host {
    port: PortManager,
}

impl Host {
    fn open() -> Result<Self> {
        let port = PortManager::open(&device()?)?;
        Ok(Self { port })
    }

    fn expect(&mut self, expected: EventType) -> Result<CmEvent> {
        let event = self.event()?;
        ensure!(event.event == expected, "expected {expected}: {event:?}");
        Ok(event)
    }

    fn event(&mut self) -> Result<CmEvent> {
        let event = self.port.next_event(TIME_MAX)?;
        let event = event.with_context(|| format!("no event within {TIME_MAX:?}"))?;
        say(&format!("event {} status {}", event.event, event.status))?;
        Ok(event)
    }

    /// Answers late messages, then prints what was sent and received.
    fn end(mut self) -> Result<()> {
        let until = Instant::now() + FINAL_WAIT;
        while Instant::now() < until {
            if let Some(event) = self.port.next_event(FINAL_WAIT / 4)? {
                say(&format!("event {} status {}", event.event, event.status))?;
            }
        }
        let counters = self.port.counters();
        for kind in (0x10..=0x1a).filter_map(AttributeId::from_value) {
            let (sent, received) = (counters.sent[kind], counters.received[kind]);
            if (sent, received) != (0, 0) {
                say(&format!("{kind:?} sent {sent} received {received}"))?;
            }
        }
        Ok(())
    }
}

pub(crate) fn listen(service: &str, kind: &str, answer: &str) -> Result<()> {
    let mut host = Host::open()?;
    let listener = host.port.create_id(UserId(1), service_of(kind)?)?;
    host.port.listen(listener, service_id(service)?, 8)?;
    say("listening")?;
    let request = host.expect(EventType::ConnectRequest)?;
    match (answer, kind) {
        ("accept", "rc") => {
            host.port.accept(request.id, UserId(2), &param(0x200))?;
            host.expect(EventType::Established)?;
            host.expect(EventType::Disconnected)?;
            host.port.disconnect(request.id)?;
        }
        ("accept", _) => host.port.accept(request.id, UserId(2), &param(0x200))?,
        _ => host.port.reject(request.id, b"no")?,
    }
    host.end()
}

pub(crate) fn connect(service: &str, kind: &str, record: &str) -> Result<()> {
    let mut host = Host::open()?;
    let record = PathRecord::parse(&bytes(record)?)?;
    let id: IdNumber = host.port.create_id(UserId(1), service_of(kind)?)?;
    host.port.resolve(id, service_id(service)?, &record)?;
    host.expect(EventType::AddrResolved)?;
    host.expect(EventType::RouteResolved)?;
    host.port.connect(id, &param(0x100))?;
    if host.event()?.event == EventType::ConnectResponse {
        host.port.establish(id)?;
        host.port.disconnect(id)?;
        host.expect(EventType::Disconnected)?;
    }
    host.end()
}

fn service_of(kind: &str) -> Result<Service> {
    let qp_type = match kind {
        "rc" => QpType::Rc,
        "ud" => QpType::Ud,
        _ => bail!("{kind}: neither rc nor ud"),
    };
    Ok(Service {
        port_space: PortSpace::Ib,
        qp_type,
    })
}

fn param(qpn: u32) -> ConnParam {
    ConnParam {
        qp_num: Qpn::new(qpn),
        ..ConnParam::default()
    }
}

fn bytes(hexadecimal: &str) -> Result<Vec<u8>> {
    let digits: Vec<char> = hexadecimal.chars().collect();
    let byte = |pair: &[char]| Ok(u8::from_str_radix(&pair.iter().collect::<String>(), 16)?);
    digits.chunks(2).map(byte).collect()
}
