//! Management datagrams for a connection manager that listens, connects and waits: nothing panics, and
//! everything stays within its bounds.
#![no_main]

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use portolan_cm::{BoundDevice, Cm, Config, MadPath};
use portolan_provider::cm::{Ece, Service, UserId};
use portolan_provider::verbs::{Mtu, QpType};
use portolan_wire::cm::CmMessage;
use portolan_wire::{Gid, PortSpace};

const MAX_IDS: usize = 12;

#[derive(Arbitrary, Debug)]
struct Datagram<'a> {
    after_ms: u16,
    attribute: u8,
    /// Whether to repair the header, so that the body is parsed.
    whole: bool,
    body: &'a [u8],
}

fuzz_target!(|datagrams: Vec<Datagram<'_>>| {
    let config = Config {
        max_ids: MAX_IDS as u32,
        max_backlog: 3,
        max_events_queued: 8,
        max_transmits_queued: 8,
        ..Config::default()
    };
    let mut cm = Cm::new(config, [7; 32]);
    let mut now = Duration::from_secs(1);
    for (space, qp_type) in [(PortSpace::Tcp, QpType::Rc), (PortSpace::Udp, QpType::Ud)] {
        let service = Service {
            port_space: space,
            qp_type,
        };
        let id = cm.create_id(UserId(1), service).expect("room for an id");
        let local = SocketAddr::new([0, 0, 0, 0].into(), 7471);
        cm.bind(now, id, local, None).expect("a free address");
        cm.listen(now, id, 3).expect("a bound id");
    }
    for datagram in datagrams.iter().take(64) {
        now += Duration::from_millis(datagram.after_ms.into());
        cm.handle_timeout(now);
        let mut mad = [0; 256];
        if datagram.whole {
            mad[..4].copy_from_slice(&[1, 7, 2, 3]);
            mad[17] = 0x10 + datagram.attribute % 12;
            let len = datagram.body.len().min(232);
            mad[24..24 + len].copy_from_slice(&datagram.body[..len]);
            cm.handle_mad(now, &path(), &mad);
            round_trip(&mad);
        } else {
            cm.handle_mad(now, &path(), datagram.body);
        }
        while let Some(event) = cm.poll_event() {
            let _ = event.param;
            let _ = cm.accept(
                now,
                event.id,
                UserId(2),
                &Default::default(),
                Ece::default(),
            );
        }
        while cm.poll_query().is_some() || cm.poll_group_query().is_some() {}
        while let Some(transmit) = cm.poll_transmit() {
            CmMessage::parse(&transmit.mad).expect("engines send valid messages");
        }
        assert!(cm.table_sizes().ids <= MAX_IDS);
    }
});

fn round_trip(mad: &[u8; 256]) {
    if let Ok((header, message)) = CmMessage::parse(mad) {
        let _ = message.to_string();
        let mut again = [0; 256];
        message
            .emit(header.tid, &mut again)
            .expect("what was parsed");
        let (_, reread) = CmMessage::parse(&again).expect("what was emitted");
        assert_eq!(reread, message, "emitting and parsing changes nothing");
    }
}

fn path() -> MadPath {
    let local: IpAddr = [192, 168, 7, 1].into();
    MadPath {
        local,
        remote: [192, 168, 7, 2].into(),
        scope_id: 0,
        device: BoundDevice {
            device_index: 0,
            port_num: 1,
            sgid_index: 1,
            sgid: Gid::from(local),
            node_guid: 1,
            mtu: Mtu::Mtu1024,
            ack_delay_exp: 15,
        },
        lids: None,
    }
}
