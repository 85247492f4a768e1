//! Handshakes that one side gives up while the other continues.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;

use portolan::cm::{CmId, EventChannel};
use portolan::provider::cm::EventType;
use portolan::provider::verbs::QpState;
use portolan::software::{Direction, SoftwareProvider, Tap, TappedPacket};
use portolan::wire::cm::RejectReason;
use portolan::{Cause, Step};

use crate::harness::*;
use crate::low::*;
use crate::survey::look;

/// Blocks a provider's receiving thread while it is shut.
#[derive(Debug, Default)]
struct Gate {
    is_shut: Mutex<bool>,
    turned: Condvar,
}

/// Keeps a gate shut until it is dropped.
struct Shut(Arc<Gate>);

impl Gate {
    fn shut(provider: &SoftwareProvider) -> Shut {
        let gate = Arc::new(Self::default());
        *gate.is_shut.lock().unwrap() = true;
        provider.set_tap(Some(gate.clone()));
        Shut(gate)
    }
}

impl Drop for Shut {
    fn drop(&mut self) {
        let is_shut = self.0.is_shut.lock();
        *is_shut.unwrap_or_else(PoisonError::into_inner) = false;
        self.0.turned.notify_all();
    }
}

impl Tap for Gate {
    fn packet(&self, packet: &TappedPacket<'_>) {
        if packet.direction == Direction::Received {
            let is_shut = self.is_shut.lock().unwrap();
            drop(self.turned.wait_while(is_shut, |is_shut| *is_shut));
        }
    }
}

/// Waits until an id with this local port is in one of these states, according to the group's processes.
fn reaches(group: u16, local_port: u16, states: &[&str]) {
    eventually("the state", || {
        let seen = look(group).unwrap().expect("a group");
        let reports = seen.members.into_iter().filter_map(|member| member.report);
        let mut connections = reports.flat_map(|report| report.connections);
        connections.any(|known| {
            let port = known.local.map(|local| local.port());
            port == Some(local_port) && states.contains(&known.state.as_str())
        })
    });
}

fn local_port(id: &CmId) -> u16 {
    let local = id.addresses().unwrap().local.unwrap();
    local.inet().unwrap().port()
}

#[test]
fn a_connection_ends_if_its_acceptor_gives_up_before_the_confirmation() {
    let port = free_port();
    let ours = start(port);
    let theirs = start(port);
    let passive = Passive::listen_on(EventChannel::open_on(theirs.clone()).unwrap(), TCP);
    let connector = connector_on(ours);
    let address = passive.address;
    let connecting = thread::spawn(move || connector.connect_to(address));
    let child = passive.request();
    let _shut = Gate::shut(&theirs);
    child.accept(&param(b"")).unwrap();
    let active = connecting.join().unwrap().expect("the reply arrived");
    drop(child);
    let error = active.receive_within(PATIENCE).unwrap_err();
    assert_eq!(error.cause, Cause::Disconnected, "{error}");
    active.wait_disconnected(PATIENCE).unwrap();
    active.close(PATIENCE).unwrap();
}

#[test]
fn a_rejection_after_the_reply_is_reported_with_its_reason_and_data() {
    let port = free_port();
    let provider = start(port);
    let open = || EventChannel::open_on(provider.clone()).unwrap();
    let passive = Passive::listen_on(open(), TCP);
    let (channel, id) = routed_on(open(), TCP, passive.address);
    let qp = Verbs::of(&id.device().unwrap()).give(&id);
    id.connect(&param(b"")).unwrap();
    let child = passive.request();
    child.accept(&param(b"")).unwrap();
    child.reject(b"not today").unwrap();
    // Reply and rejection have arrived before the program looks.
    reaches(port, local_port(&id), &["time-wait", "closed"]);
    let rejected = next(&channel, EventType::Rejected);
    let reason = RejectReason::CONSUMER_DEFINED;
    assert_eq!(rejected.status(), i32::from(reason.0));
    assert!(rejected.private_data().starts_with(b"not today"));
    assert_eq!(state_of(&qp), QpState::Err);
}

#[test]
fn a_withdrawn_request_is_closed_at_the_listener_in_whichever_process_it_is() {
    let port = free_port();
    let coordinator = start(port);
    let other = start(port);
    for (listens, connects) in [
        (&coordinator, &coordinator),
        (&coordinator, &other),
        (&other, &coordinator),
        (&other, &other),
    ] {
        let listener = listener_on(listens.clone(), "127.0.0.1:0");
        let address = listener.local_addr().unwrap();
        let channel = EventChannel::open_on(connects.clone()).unwrap();
        let (_channel, id) = routed_on(channel, TCP, address);
        id.connect(&param(b"")).unwrap();
        let incoming = listener.accept_within(PATIENCE).unwrap();
        drop(id);
        reaches(port, address.port(), &["closed"]);
        let error = incoming.accept_with(&options()).unwrap_err();
        assert_eq!(error.cause, Cause::Disconnected, "{error}");
        assert_eq!(error.step, Step::Accept, "{error}");
    }
}
