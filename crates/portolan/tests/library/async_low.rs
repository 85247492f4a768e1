//! Event channels, completion queues, datagram sockets and listeners for tasks; and what is said outside of a runtime.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_core::Stream;
use portolan::cm::{CmId, Completions, EventChannel, QueuePairPlan};
use portolan::datagram::{self, Arrival, Socket};
use portolan::provider::cm::{EventType, JoinKind};
use portolan::provider::verbs::{QpAttr, QpAttrMask, QpState, RecvWr, WcStatus, WorkCompletion};
use portolan::tasks::{
    AsyncCompletions, AsyncConnection, AsyncEventChannel, AsyncListener, AsyncService, AsyncSocket,
};
use portolan::{Cause, Error, Options};
use tokio::time::timeout;

use crate::harness::*;
use crate::low::*;

async fn soon<T>(future: impl Future<Output = T>) -> T {
    timeout(PATIENCE, future).await.expect("it ends in time")
}

fn event_channel() -> AsyncEventChannel {
    AsyncEventChannel::new(EventChannel::open_on(provider()).unwrap()).unwrap()
}

#[tokio::test]
async fn a_channel_of_a_thousand_ids_is_awaited_and_is_a_stream() {
    const IDS: usize = 1000;
    let mut events = event_channel();
    let start = |_| {
        let id = CmId::new(events.get_ref()).unwrap();
        id.resolve_addr(None, "127.0.0.1:7471".parse().unwrap(), PATIENCE)
            .unwrap();
        id
    };
    let ids: Vec<CmId> = (0..IDS).map(start).collect();
    let mut resolved = Vec::new();
    for at in 0..IDS {
        let event = match at % 2 {
            0 => soon(events.next()).await.unwrap(),
            _ => {
                let next = poll_fn(|context| Pin::new(&mut events).poll_next(context));
                soon(next).await.expect("a channel does not end").unwrap()
            }
        };
        assert_eq!(event.event_type(), EventType::AddrResolved);
        resolved.push(event.id().number());
    }
    resolved.sort_unstable_by_key(|number| number.0);
    resolved.dedup();
    assert_eq!(resolved.len(), ids.len(), "one event of each");
}

#[tokio::test]
async fn an_event_that_is_not_the_expected_one_is_the_failure_it_reports() {
    let events = event_channel();
    let id = CmId::new(events.get_ref()).unwrap();
    let nobody = "127.0.0.1:7471".parse().unwrap();
    id.resolve_addr(None, nobody, PATIENCE).unwrap();
    soon(events.expect(EventType::AddrResolved)).await.unwrap();
    id.resolve_route(PATIENCE).unwrap();
    soon(events.expect(EventType::RouteResolved)).await.unwrap();
    id.connect(&param(b"")).unwrap();
    let error = soon(events.expect(EventType::Established)).await;
    let error = error.unwrap_err();
    assert!(error.is_refused(), "{error}");

    let id = CmId::new(events.get_ref()).unwrap();
    id.resolve_addr(None, nobody, PATIENCE).unwrap();
    let error = soon(events.expect(EventType::RouteResolved)).await;
    let error = error.unwrap_err();
    let is_other = matches!(error.cause, Cause::InvalidArgument { what: "event", .. });
    assert!(is_other, "{error}");
}

#[tokio::test]
async fn completions_of_a_low_level_id_are_awaited() {
    let (_events, id) = routed(Passive::listen().address);
    let plan = QueuePairPlan {
        pd: None,
        send_cq: None,
        recv_cq: None,
        srq: None,
        init: INIT,
    };
    let qp = id.create_planned_queue_pair(&plan).unwrap();
    let completions = id.recv_completions().unwrap();
    let completions = AsyncCompletions::new(completions).unwrap();
    let mut batch = [WorkCompletion::EMPTY; 4];
    let waker = Waker::noop();
    let mut waiting = Box::pin(completions.poll(&mut batch));
    assert!(
        waiting
            .as_mut()
            .poll(&mut Context::from_waker(waker))
            .is_pending()
    );
    drop(waiting);
    for wr_id in [7, 8] {
        qp.post_recv(&RecvWr { wr_id, sges: &[] }).unwrap();
    }
    // Receives of a queue pair in ERR are flushed.
    let attr = QpAttr {
        state: QpState::Err,
        ..QpAttr::default()
    };
    let flushing = async {
        tokio::time::sleep(Duration::from_millis(5)).await;
        qp.modify(&attr, QpAttrMask::STATE).unwrap();
    };
    let taking = async {
        let mut taken = Vec::new();
        while taken.len() < 2 {
            let count = soon(completions.poll(&mut batch)).await.unwrap();
            taken.extend(batch[..count].iter().map(|wc| (wc.wr_id, wc.status)));
        }
        taken
    };
    let (taken, ()) = tokio::join!(taking, flushing);
    assert_eq!(
        taken,
        [(7, WcStatus::WrFlushErr), (8, WcStatus::WrFlushErr)]
    );
    assert!(soon(completions.poll(&mut [])).await.is_err());
}

#[tokio::test]
async fn a_queue_without_a_channel_cannot_be_awaited() {
    let device = provider().devices().unwrap().remove(0);
    let cq = device.create_cq(1, None, 0).unwrap();
    let channel = None;
    let error = AsyncCompletions::new(Completions { cq, channel }).unwrap_err();
    assert!(error.to_string().contains("one with a channel"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_datagram_service_and_its_clients_are_awaited() {
    let options = datagram::Options::default();
    let mut service = soon(AsyncService::bind("127.0.0.1:0", &options))
        .await
        .unwrap();
    let address = service.get_ref().local_addr().unwrap().to_string();
    let client = tokio::spawn(async move {
        let (mut socket, service) = soon(AsyncSocket::connect(&address, &options))
            .await
            .unwrap();
        for number in 0..300u32 {
            let data = number.to_be_bytes();
            soon(socket.send(&service.destination, &data, Some(number)))
                .await
                .unwrap();
            let answer = soon(socket.receive()).await.unwrap();
            assert_eq!((&answer.data[..], answer.imm_data), (&data[..], None));
        }
        soon(socket.flush()).await.unwrap();
    });
    let mut answered = 0;
    while answered < 300 {
        match soon(service.next()).await.unwrap() {
            Arrival::Failed(error) => panic!("{error}"),
            Arrival::Datagram { datagram, qpn } => {
                let to = service.sender(&datagram, qpn).unwrap();
                soon(service.send(qpn, &to, &datagram.data, None))
                    .await
                    .unwrap();
                answered += 1;
            }
            _ => {}
        }
    }
    client.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_multicast_group_is_joined_and_heard_without_a_thread() {
    let group = "239.1.7.21:0".parse().unwrap();
    let source = Some("127.0.0.1:0".parse().unwrap());
    let options = datagram::Options::default();
    let join = || AsyncSocket::join(group, source, JoinKind::FullMember, &options);
    let (mut one, joined) = soon(join()).await.unwrap();
    let (mut two, _) = soon(join()).await.unwrap();
    soon(one.send(&joined.destination, b"ahoy", None))
        .await
        .unwrap();
    let heard = soon(two.receive()).await.unwrap();
    assert_eq!(heard.data, b"ahoy");
    // The sender of a datagram to the group is answered alone.
    let sender = two.sender(&heard).unwrap();
    soon(two.send(&sender, b"ahoy yourself", None))
        .await
        .unwrap();
    let answer = soon(one.receive()).await.unwrap();
    assert_eq!(answer.data, b"ahoy yourself");
    let waiting = timeout(Duration::from_millis(20), one.receive()).await;
    assert!(waiting.is_err(), "no copy of its own");
}

#[test]
fn outside_of_a_runtime_everything_is_an_error_and_nothing_panics() {
    fn outside<T>(outcome: Result<T, Error>) {
        let Err(error) = outcome else {
            panic!("there is no runtime");
        };
        let Cause::InvalidState { expected, .. } = error.cause else {
            panic!("{error}");
        };
        assert!(expected.contains("tokio runtime"), "{error}");
    }
    /// The first poll has it all.
    fn now<T>(future: impl Future<Output = T>) -> T {
        let mut context = Context::from_waker(Waker::noop());
        match pin!(future).poll(&mut context) {
            Poll::Ready(output) => output,
            Poll::Pending => panic!("it waits for a runtime that is not there"),
        }
    }
    let (active, passive) = pair();
    outside(AsyncConnection::new(active));
    drop(passive);
    outside(AsyncListener::new(listener("127.0.0.1:0")));
    outside(now(AsyncListener::bind("127.0.0.1:0")));
    outside(AsyncEventChannel::new(
        EventChannel::open_on(provider()).unwrap(),
    ));
    outside(now(connector().connect_async("127.0.0.1:7471")));
    outside(now(
        connector().connect_to_async("127.0.0.1:7471".parse().unwrap())
    ));
    let options = datagram::Options::default();
    outside(now(AsyncSocket::connect("127.0.0.1:7471", &options)));
    outside(now(AsyncService::bind("127.0.0.1:0", &options)));
    let group = "239.1.7.21:0".parse().unwrap();
    let source = Some("127.0.0.1:0".parse().unwrap());
    outside(now(AsyncSocket::join(
        group,
        source,
        JoinKind::FullMember,
        &options,
    )));
    let (socket, _) = Socket::join(group, source, JoinKind::FullMember, &options).unwrap();
    outside(AsyncSocket::new(socket));
    let listener = listener("127.0.0.1:0");
    let address = listener.local_addr().unwrap();
    let connecting = std::thread::spawn(move || connector().connect_to(address));
    let incoming = listener.accept_within(PATIENCE).unwrap();
    outside(now(incoming.accept_async(&Options::default())));
    assert!(connecting.join().unwrap().unwrap_err().is_refused());
}

#[test]
fn in_a_runtime_without_drivers_errors_name_what_is_missing_and_nothing_panics() {
    fn lacks<T>(outcome: Result<T, Error>, what: &str) {
        let Err(error) = outcome else {
            panic!("there is no {what}");
        };
        let Cause::InvalidState { expected, .. } = error.cause else {
            panic!("{error}");
        };
        assert_eq!(expected, format!("a tokio runtime with {what} enabled"));
    }
    let bare = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let timeless = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .unwrap();
    bare.block_on(async {
        let (active, _passive) = pair();
        lacks(AsyncConnection::new(active), "I/O");
        lacks(AsyncListener::new(listener("127.0.0.1:0")), "I/O");
        lacks(AsyncListener::bind("127.0.0.1:0").await, "I/O");
        let channel = EventChannel::open_on(provider()).unwrap();
        lacks(AsyncEventChannel::new(channel), "I/O");
    });
    timeless.block_on(async {
        let (active, passive) = pair();
        // Calls without a time limit work.
        let active = AsyncConnection::new(active).unwrap();
        passive.send(b"ahoy".to_vec()).unwrap().wait().unwrap();
        assert_eq!(&active.receive().await.unwrap()[..], b"ahoy");
        let connecting = connector().connect_async("127.0.0.1:7471").await;
        lacks(connecting, "time");
        let address = "127.0.0.1:7471".parse().unwrap();
        lacks(connector().connect_to_async(address).await, "time");
        let options = datagram::Options::default();
        lacks(
            AsyncSocket::connect("127.0.0.1:7471", &options).await,
            "time",
        );
    });
}
