//! Walks every cell of the transition table: the engine must do what the table says.

use std::net::SocketAddr;
use std::time::Duration;

use portolan_cm::state::{Event, Next, transition};
use portolan_cm::{Config, Neighbour, State};
use portolan_provider::Result;
use portolan_provider::cm::{Ece, IdNumber, JoinKind, UserId};
use portolan_provider::error::Cause;
use portolan_wire::cm::*;
use portolan_wire::cma::CmaHeader;
use portolan_wire::{PKey, PortSpace, QKey, Qpn, ServiceId};

use crate::net::*;

/// An id in a certain state, with what its peer needs to talk to it.
struct Subject {
    net: Net,
    host: usize,
    id: IdNumber,
    /// The communication ids of the id and of its peer.
    comm_ids: (u32, u32),
    own_qpn: u32,
}

/// Whether the cell is about datagram ids.
fn is_of_datagrams(state: State, event: Event) -> bool {
    let resolving = matches!(
        state,
        State::SidrReqSent | State::SidrResolved | State::SidrReqRcvd | State::SidrReplied
    );
    let of_datagrams = match event {
        Event::ConnectDatagram => state == State::RouteResolved,
        Event::SidrReqReceived => state == State::Listen,
        Event::Join => matches!(state, State::AddrBound | State::AddrResolved),
        _ => false,
    };
    resolving || of_datagrams
}

/// Brings an id into `state` through ordinary calls and messages.
fn subject(state: State, event: Event) -> Subject {
    // One half-open connection, which the next one displaces at once.
    let full = Config {
        max_half_open: 1,
        half_open_grace: Duration::ZERO,
        ..Config::default()
    };
    let mut net = match event {
        Event::Displaced => Net::with_config(full),
        _ => Net::new(),
    };
    if is_of_datagrams(state, event) {
        net.service = UDP;
    }
    let (now, service) = (net.now, net.service);
    let befalls = matches!(event, Event::DeviceRemoved | Event::HardwareAddressChanged);
    // A wildcard listener is not bound to a device.
    let listener = match befalls && state == State::Listen {
        true => net.listen_on(SocketAddr::new(ip(1), PORT), 0),
        false => net.listen(0),
    };
    let (host, id) = match state {
        State::Idle => (0, net.cm(0).create_id(UserId(5), service).unwrap()),
        State::AddrBound => {
            let id = net.cm(0).create_id(UserId(5), service).unwrap();
            net.cm(0)
                .bind(now, id, SocketAddr::new(ip(0), 5000), Some(device(0)))
                .unwrap();
            (0, id)
        }
        State::Listen => (1, listener),
        State::AddrQuery | State::AddrResolved => {
            let id = net.cm(0).create_id(UserId(5), service).unwrap();
            let destination = SocketAddr::new(ip(1), PORT);
            net.cm(0)
                .resolve_addr(now, id, None, destination, Duration::from_secs(2))
                .unwrap();
            if state == State::AddrResolved {
                net.drain();
            }
            (0, id)
        }
        State::RouteResolved => (0, net.resolved(5)),
        State::ReqSent | State::SidrReqSent => (0, net.connecting(5, 0x10)),
        State::SidrResolved => (0, net.served().0),
        State::SidrReqRcvd => (1, net.requested().1),
        State::SidrReplied => (1, net.served().1),
        State::MraReqRcvd => {
            let (active, _) = net.requested();
            // The request is repeated and the copy acknowledged.
            net.run_for(Duration::from_secs(1));
            (0, active)
        }
        State::ReqRcvd => {
            let (_, passive) = net.requested();
            // An MRA tells the peer the communication id.
            net.run_for(Duration::from_secs(1));
            (1, passive)
        }
        State::RepRcvd => (0, net.replied().0),
        State::RepSent => (1, net.replied().1),
        State::MraRepRcvd => {
            let (_, passive) = net.replied();
            net.run_for(Duration::from_secs(1));
            (1, passive)
        }
        State::Established => match net.connected() {
            // Only the active side knows its neighbour.
            (active, _) if event == Event::NeighbourChanged => (0, active),
            (_, passive) => (1, passive),
        },
        State::DreqSent if event == Event::NeighbourChanged => {
            let (active, _) = net.connected();
            let now = net.now;
            net.cm(0).disconnect(now, active).unwrap();
            net.exchange();
            (0, active)
        }
        State::DreqSent | State::DreqRcvd | State::Timewait => {
            let (active, passive) = net.connected();
            let now = net.now;
            net.cm(1).disconnect(now, passive).unwrap();
            net.exchange();
            if state == State::Timewait {
                net.cm(0).disconnect(now, active).unwrap();
                net.exchange();
            }
            if state == State::DreqRcvd {
                (0, active)
            } else {
                (1, passive)
            }
        }
        State::Closed => {
            let (active, passive) = net.requested();
            net.cm(1)
                .reject(now, passive, RejectReason::CONSUMER_DEFINED, b"")
                .unwrap();
            net.exchange();
            (0, active)
        }
        State::DeviceRemoval => {
            let (_, passive) = net.connected();
            let now = net.now;
            net.cm(1).device_removed(now, device(1).device_index);
            (1, passive)
        }
    };
    net.drain();
    let state_now = net.hosts[host].cm.state(id).unwrap();
    // Draining answers the query, so this state is checked before.
    if state != State::AddrQuery {
        assert_eq!(state_now, state);
    } else {
        net = Net::new();
        let fresh = net.cm(0).create_id(UserId(5), service).unwrap();
        if befalls {
            let local = SocketAddr::new(ip(0), 5000);
            net.cm(0).bind(now, fresh, local, Some(device(0))).unwrap();
        }
        let destination = SocketAddr::new(ip(1), PORT);
        net.cm(0)
            .resolve_addr(now, fresh, None, destination, Duration::from_secs(2))
            .unwrap();
        assert_eq!(fresh, id);
    }
    let comm_ids = comm_ids_of(&net, host);
    let own_qpn = if host == 0 { 0x10 } else { 0x20 };
    Subject {
        net,
        host,
        id,
        comm_ids,
        own_qpn,
    }
}

/// The communication ids of the only connection in the log; 1 and 2 if there is none.
fn comm_ids_of(net: &Net, host: usize) -> (u32, u32) {
    let said_by = |from| {
        let mut said = net.log.iter().filter(|passing| passing.from == from);
        said.next().map(|passing| passing.message.local_comm_id())
    };
    let (mut active, mut passive) = (said_by(0).unwrap_or(1), said_by(1).unwrap_or(2));
    if host == 1 {
        std::mem::swap(&mut active, &mut passive);
    }
    (active, passive)
}

/// State that an illegal event must not change.
fn snapshot(subject: &Subject) -> impl PartialEq + std::fmt::Debug + use<> {
    let cm = &subject.net.hosts[subject.host].cm;
    let id = subject.id;
    (
        cm.state(id).unwrap(),
        cm.deadline(id).unwrap(),
        cm.addresses(id).unwrap(),
        cm.options(id).unwrap(),
        cm.table_sizes(),
    )
}

/// Makes `event` happen to the subject. Returns the result of a command.
fn happen(subject: &mut Subject, event: Event) -> Option<Result<()>> {
    let (host, id, now) = (subject.host, subject.id, subject.net.now);
    let (own, peers) = subject.comm_ids;
    let own_qpn = Qpn::new(subject.own_qpn);
    let peer_qpn = Qpn::new(if host == 0 { 0x20 } else { 0x10 });
    let net = &mut subject.net;
    let sent_sidr_req = net.log.iter().find_map(|passing| match passing.message {
        CmMessage::SidrReq(req) if passing.from != host => Some((passing.tid, req)),
        _ => None,
    });
    let mut tid = 7;
    let sent_req = net.log.iter().find_map(|passing| match passing.message {
        CmMessage::Req(req) if passing.from != host => Some((passing.tid, req)),
        _ => None,
    });
    let cm = &mut net.hosts[host].cm;
    let destination = SocketAddr::new(ip(1 - host), PORT);
    let second = Duration::from_secs(1);
    Some(match event {
        Event::Bind => cm.bind(now, id, SocketAddr::new(ip(host), 6000), Some(device(host))),
        Event::Join => {
            let group = [239, 1, 2, 3].into();
            let joined = cm.join(now, id, UserId(9), group, JoinKind::FullMember);
            joined.map(|_| ())
        }
        Event::ResolveAddr => cm.resolve_addr(now, id, None, destination, second),
        Event::ResolveRoute => cm.resolve_route(now, id, second),
        Event::Listen => cm.listen(now, id, 0),
        Event::Connect | Event::ConnectDatagram => {
            cm.connect(now, id, &param(subject.own_qpn, b""), Ece::default())
        }
        Event::Accept => cm.accept(
            now,
            id,
            UserId(20),
            &param(subject.own_qpn, b""),
            Ece::default(),
        ),
        Event::Establish => cm.establish(now, id),
        Event::Reject => cm.reject(now, id, RejectReason::CONSUMER_DEFINED, b""),
        Event::Disconnect => cm.disconnect(now, id),
        Event::NotifyEstablished => cm.notify_established(now, id),
        Event::Destroy => cm.destroy_id(now, id),
        Event::AddressFound | Event::AddressFailed => {
            if let Some(query) = cm.poll_query() {
                let portolan_cm::Query::Address { query, .. } = query;
                let answer = match event {
                    Event::AddressFound => Ok(portolan_cm::ResolvedAddress {
                        source: SocketAddr::new(ip(0), 40_000),
                        destination,
                        device: device(0),
                        dgid: ip(1).into(),
                        hop_limit: 64,
                        neighbour: None,
                    }),
                    _ => Err(113),
                };
                cm.address_resolved(now, id, query, answer).unwrap();
            }
            return None;
        }
        Event::DeviceRemoved => {
            cm.device_removed(now, device(host).device_index);
            return None;
        }
        Event::HardwareAddressChanged => {
            cm.hardware_address_changed(device(host).device_index);
            return None;
        }
        Event::NeighbourChanged => {
            cm.neighbour_changed(&Neighbour {
                link_address: [2, 0, 0, 0, 0, 0x99],
                ..neighbour(host)
            });
            return None;
        }
        // Lets enough time pass for what is due in the state, which tells the events apart.
        Event::AddressTimeout | Event::Unanswered | Event::TimewaitOver => {
            while let Some(due) = cm.deadline(id).unwrap() {
                let state = cm.state(id).unwrap();
                let matches = match event {
                    Event::AddressTimeout => state == State::AddrQuery,
                    Event::TimewaitOver => state == State::Timewait,
                    _ => !matches!(state, State::AddrQuery | State::Timewait),
                };
                if !matches {
                    break;
                }
                cm.handle_timeout(due);
                while cm.poll_transmit().is_some() {}
            }
            return None;
        }
        message => {
            if event == Event::Displaced {
                cm.request_taken(id);
            }
            let message: CmMessage = match message {
                Event::Displaced if sent_sidr_req.is_some() => sidr_req().into(),
                Event::ReqReceived | Event::Displaced | Event::FoundStale | Event::ReqRepeated => {
                    let (_, known) = sent_req.unwrap_or_else(|| (7, req_to(host)));
                    let fresh = |local_comm_id, qpn| ReqRepr {
                        local_comm_id,
                        local_qpn: Qpn::new(qpn),
                        ..known
                    };
                    match message {
                        Event::ReqRepeated => known.into(),
                        Event::ReqReceived | Event::Displaced => fresh(0x7777, 0x77).into(),
                        _ => ReqRepr {
                            local_qpn: peer_qpn,
                            ..stale_req(host, known)
                        }
                        .into(),
                    }
                }
                Event::RepReceived | Event::RepRepeated => rep_to(own, peers, host).into(),
                Event::RepStale => {
                    // Another connection with the queue pair that the REP will name.
                    let other = net.connecting(6, 0x11);
                    net.exchange();
                    let request = net.hosts[1].events.pop_back();
                    if let Some(request) = request {
                        let now = net.now;
                        let other_param = param(0x21, b"");
                        let accepted = net.cm(1).accept(
                            now,
                            request.id,
                            UserId(6),
                            &other_param,
                            Ece::default(),
                        );
                        accepted.unwrap();
                        net.exchange();
                    }
                    let _ = other;
                    RepRepr {
                        local_qpn: Qpn::new(0x21),
                        ..rep_to(own, 0x5555, host)
                    }
                    .into()
                }
                Event::RtuReceived => RtuRepr {
                    local_comm_id: peers,
                    remote_comm_id: own,
                    ..RtuRepr::default()
                }
                .into(),
                Event::MraReceived => {
                    let rep = matches!(
                        net.hosts[host].cm.state(id).unwrap(),
                        State::RepSent | State::MraRepRcvd
                    );
                    MraRepr {
                        local_comm_id: peers,
                        remote_comm_id: own,
                        message: if rep {
                            MraMessage::Rep
                        } else {
                            MraMessage::Req
                        },
                        service_timeout: 20,
                        ..MraRepr::default()
                    }
                    .into()
                }
                Event::RejReceived | Event::RejStaleReceived => {
                    let state = net.hosts[host].cm.state(id).unwrap();
                    let of_req = matches!(state, State::ReqSent | State::MraReqRcvd);
                    RejRepr {
                        local_comm_id: peers,
                        remote_comm_id: own,
                        message: if of_req {
                            RejMessage::Req
                        } else {
                            RejMessage::Other
                        },
                        reason: match event {
                            Event::RejStaleReceived => RejectReason::STALE_CONN,
                            _ => RejectReason::CONSUMER_DEFINED,
                        },
                        ..RejRepr::default()
                    }
                    .into()
                }
                Event::DreqReceived => DreqRepr {
                    local_comm_id: peers,
                    remote_comm_id: own,
                    remote_qpn: own_qpn,
                    ..DreqRepr::default()
                }
                .into(),
                Event::DrepReceived => DrepRepr {
                    local_comm_id: peers,
                    remote_comm_id: own,
                    ..DrepRepr::default()
                }
                .into(),
                Event::SidrReqReceived => sidr_req().into(),
                Event::SidrReqRepeated => match sent_sidr_req {
                    Some((sent_tid, req)) => {
                        tid = sent_tid;
                        req.into()
                    }
                    // A SIDR REQ for a service without listener.
                    None => SidrReqRepr::default().into(),
                },
                Event::SidrRepReceived | Event::SidrRepRefused => SidrRepRepr {
                    request_id: own,
                    status: match event {
                        Event::SidrRepReceived => SidrStatus::SUCCESS,
                        _ => SidrStatus::UNSUPPORTED,
                    },
                    qpn: peer_qpn,
                    qkey: QKey::RDMA_CM,
                    service_id: ServiceId::from_port(PortSpace::Udp, PORT),
                    ..SidrRepRepr::default()
                }
                .into(),
                other => unreachable!("{other:?} is not a message"),
            };
            let mut mad = [0; 256];
            message.emit(tid, &mut mad).unwrap();
            let now = net.now;
            net.cm(host).handle_mad(now, &path(host), &mad);
            return None;
        }
    })
}

/// A REQ from the peer's queue pair under another communication id, as after a restart of the peer.
fn stale_req(host: usize, known: ReqRepr) -> ReqRepr {
    ReqRepr {
        local_comm_id: 0x6666,
        local_ca_guid: device(1 - host).node_guid,
        ..known
    }
}

/// A SIDR REQ from host 0 to host 1's listener.
fn sidr_req() -> SidrReqRepr {
    let mut private_data = [0; 216];
    let header = CmaHeader::new(ip(0), 40_000, ip(1)).unwrap();
    header.emit(&mut private_data).unwrap();
    SidrReqRepr {
        request_id: 0x7777,
        pkey: PKey::DEFAULT,
        service_id: ServiceId::from_port(PortSpace::Udp, PORT),
        private_data: PrivateData::new(private_data),
    }
}

/// A REQ to a host that was sent none.
fn req_to(host: usize) -> ReqRepr {
    ReqRepr {
        local_comm_id: 0x4444,
        local_qpn: Qpn::new(0x44),
        local_ca_guid: device(1 - host).node_guid,
        ..ReqRepr::default()
    }
}

fn rep_to(own: u32, peers: u32, host: usize) -> RepRepr {
    RepRepr {
        local_comm_id: peers,
        remote_comm_id: own,
        local_qpn: Qpn::new(if host == 0 { 0x20 } else { 0x10 }),
        local_ca_guid: device(1 - host).node_guid,
        ..RepRepr::default()
    }
}

/// Cells that no run reaches: the event means something else in the state, or nothing.
fn cannot_happen(state: State, event: Event) -> bool {
    // A child passes through Idle within one call.
    (state, event) == (State::Idle, Event::ReqReceived)
        // A repeated REP whose first copy was lost is a first REP, and vice versa.
        || (event == Event::RepRepeated && matches!(state, State::ReqSent | State::MraReqRcvd))
        || (event == Event::RepReceived && matches!(state, State::RepRcvd | State::Established))
        || (event == Event::RepStale && !matches!(state, State::ReqSent | State::MraReqRcvd))
        // A new REQ, and one that shows a stale connection, require a listener.
        || (event == Event::ReqReceived && state != State::Listen)
        || (event == Event::SidrReqReceived && state != State::Listen)
        || (event == Event::FoundStale && state == State::Listen)
        // Only half-open connections are displaced.
        || (event == Event::Displaced && !is_half_open(state))
        // In time-wait the peer may use its queue pair for another connection.
        || (event == Event::FoundStale && state == State::Timewait)
}

fn is_half_open(state: State) -> bool {
    matches!(
        state,
        State::ReqRcvd | State::RepSent | State::MraRepRcvd | State::SidrReqRcvd
    )
}

#[test]
fn every_cell_does_what_the_table_says_and_an_illegal_event_changes_nothing() {
    let mut walked = 0;
    for state in State::ALL {
        for event in Event::ALL {
            if cannot_happen(state, event) {
                continue;
            }
            walked += 1;
            let cell = format!("{state:?} × {event:?}");
            let mut subject = subject(state, event);
            let before = snapshot(&subject);
            let sizes = subject.net.hosts[subject.host].cm.table_sizes();
            let result = happen(&mut subject, event);
            let cm = &mut subject.net.hosts[subject.host].cm;
            match transition(state, event) {
                Some((Next::Gone, _)) => {
                    assert_eq!(result, Some(Ok(())), "{cell}");
                    assert!(cm.state(subject.id).is_err(), "{cell}");
                    assert_eq!(cm.table_sizes().ids, sizes.ids - 1, "{cell}");
                }
                Some((Next::To(next), _)) => {
                    assert!(result.is_none_or(|result| result.is_ok()), "{cell}");
                    assert_eq!(cm.state(subject.id).unwrap(), next, "{cell}");
                }
                None => {
                    if let Some(result) = result {
                        let cause = result.expect_err(&cell).cause;
                        let is_expected = match state {
                            State::DeviceRemoval => cause == Cause::DeviceRemoved,
                            _ => matches!(cause, Cause::InvalidState { .. }),
                        };
                        assert!(is_expected, "{cell}: {cause}");
                    }
                    assert_eq!(snapshot(&subject), before, "{cell}");
                    assert_eq!(
                        subject.net.hosts[subject.host].cm.poll_event(),
                        None,
                        "{cell}"
                    );
                }
            }
        }
    }
    let all = State::ALL.len() * Event::ALL.len();
    let left_out = State::ALL
        .into_iter()
        .flat_map(|state| Event::ALL.map(|event| cannot_happen(state, event)))
        .filter(|left_out| *left_out)
        .count();
    assert_eq!(walked + left_out, all);
    assert!(left_out < 90, "{left_out} cells are not walked");
}
