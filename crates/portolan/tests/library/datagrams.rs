//! Datagram sockets and services.

use std::time::Duration;

use portolan::Cause;
use portolan::cm::EventChannel;
use portolan::datagram::{Arrival, Options, Service, Socket};

use crate::harness::*;
use crate::low::*;

/// The next datagram of a service, after exactly `asked` questions.
fn next_datagram(
    service: &mut Service,
) -> (portolan::datagram::Datagram, portolan::wire::addr::Qpn) {
    loop {
        match service.next_within(PATIENCE).unwrap() {
            Arrival::Datagram { datagram, qpn } => return (datagram, qpn),
            Arrival::Failed(error) => panic!("{error}"),
            _ => {}
        }
    }
}

#[test]
fn a_service_is_found_gets_datagrams_and_answers_their_senders_over_both_families() {
    for ip in ["127.0.0.1", "[::1]"] {
        let offered = Options::default().private_data(b"at your service".to_vec());
        let mut service = Service::bind(&format!("{ip}:0"), &offered).unwrap();
        let address = service.local_addr().unwrap();
        let serving = std::thread::spawn(move || {
            for _ in 0..100 {
                let (datagram, qpn) = next_datagram(&mut service);
                let sender = service.sender(&datagram, qpn).unwrap();
                assert_eq!(datagram.imm_data, Some(7));
                service.send(qpn, &sender, &datagram.data, None).unwrap();
            }
        });
        let (mut socket, reached) =
            Socket::connect(&address.to_string(), &Options::default()).unwrap();
        assert_eq!(reached.address, address);
        assert!(reached.private_data.starts_with(b"at your service\0"));
        assert_eq!(reached.private_data.len(), 136);
        for number in 0..100_u8 {
            let data = vec![number; usize::from(number)];
            socket.send(&reached.destination, &data, Some(7)).unwrap();
            let answer = socket.receive_within(PATIENCE).unwrap();
            assert_eq!((answer.data, answer.imm_data), (data, None));
            assert_eq!(answer.source, address.ip());
            assert_eq!(answer.source_qpn, reached.destination.qpn);
        }
        serving.join().unwrap();
    }
}

#[test]
fn one_queue_pair_serves_all_askers_and_each_gets_its_own_answer() {
    let mut service = Service::bind("127.0.0.1:0", &Options::default()).unwrap();
    let address = service.local_addr().unwrap().to_string();
    let serving = std::thread::spawn(move || {
        let mut qpns = Vec::new();
        for _ in 0..30 {
            let (datagram, qpn) = next_datagram(&mut service);
            let sender = service.sender(&datagram, qpn).unwrap();
            service.send(qpn, &sender, &datagram.data, None).unwrap();
            qpns.push(qpn);
        }
        qpns.dedup();
        assert_eq!(qpns.len(), 1);
    });
    let mut askers: Vec<_> = (0..3)
        .map(|_| Socket::connect(&address, &Options::default()).unwrap())
        .collect();
    for round in 0..10_u8 {
        for (number, (socket, reached)) in askers.iter_mut().enumerate() {
            socket
                .send(&reached.destination, &[round, number as u8], None)
                .unwrap();
        }
        for (number, (socket, _)) in askers.iter_mut().enumerate() {
            let answer = socket.receive_within(PATIENCE).unwrap();
            assert_eq!(answer.data, [round, number as u8]);
        }
    }
    serving.join().unwrap();
}

#[test]
fn a_datagram_too_long_for_one_packet_is_refused_and_the_longest_one_is_sent() {
    let mut service = Service::bind("127.0.0.1:0", &Options::default()).unwrap();
    let address = service.local_addr().unwrap().to_string();
    let serving = std::thread::spawn(move || next_datagram(&mut service).0);
    let (mut socket, reached) = Socket::connect(&address, &Options::default()).unwrap();
    let mtu = socket.mtu();
    let error = socket
        .send(&reached.destination, &vec![1; mtu + 1], None)
        .unwrap_err();
    assert!(
        matches!(error.cause, Cause::InvalidArgument { .. }),
        "{error}"
    );
    socket
        .send(&reached.destination, &vec![2; mtu], None)
        .unwrap();
    assert_eq!(serving.join().unwrap().data, vec![2; mtu]);
}

#[test]
fn more_datagrams_than_may_wait_are_all_sent() {
    const COUNT: u32 = 200;
    let few = Options::default().send_depth(2).receive_depth(COUNT);
    let mut service = Service::bind("127.0.0.1:0", &few).unwrap();
    let address = service.local_addr().unwrap().to_string();
    let serving = std::thread::spawn(move || {
        for number in 0..COUNT {
            assert_eq!(next_datagram(&mut service).0.data, number.to_be_bytes());
        }
    });
    let (mut socket, reached) = Socket::connect(&address, &few).unwrap();
    for number in 0..COUNT {
        socket
            .send(&reached.destination, &number.to_be_bytes(), None)
            .unwrap();
    }
    serving.join().unwrap();
}

#[test]
fn a_missing_service_is_refused_and_a_silent_one_times_out_at_the_deadline() {
    let error = Socket::connect("127.0.0.1:9", &Options::default()).unwrap_err();
    assert!(matches!(error.cause, Cause::SidrRefused(_)), "{error}");

    let service = Service::bind("127.0.0.1:0", &Options::default()).unwrap();
    let address = service.local_addr().unwrap().to_string();
    let patient = Options::default().timeout(Duration::from_millis(300));
    // Nobody takes the question.
    let error = Socket::connect(&address, &patient).unwrap_err();
    assert!(matches!(error.cause, Cause::TimedOut { .. }), "{error}");
}

#[test]
fn a_refusing_or_silent_address_delays_the_next_one_only_briefly() {
    let silent = Service::bind("127.0.0.1:0", &Options::default()).unwrap();
    let mut service = Service::bind("127.0.0.1:0", &Options::default()).unwrap();
    let live = service.local_addr().unwrap();
    let refusing = "127.0.0.1:9".parse().unwrap();
    let addresses = [refusing, silent.local_addr().unwrap(), live];
    let serving = std::thread::spawn(move || {
        // Answers, and stays until the datagram has arrived.
        next_datagram(&mut service)
    });
    let patient = Options::default().timeout(PATIENCE * 4);
    let asked = std::time::Instant::now();
    let (mut socket, reached) = Socket::connect_to(&addresses, &patient).unwrap();
    // A third of the time limit for each address would be longer.
    assert!(asked.elapsed() < PATIENCE, "{:?}", asked.elapsed());
    assert_eq!(reached.address, live);
    socket.send(&reached.destination, b"ahoy", None).unwrap();
    assert_eq!(serving.join().unwrap().0.data, b"ahoy");

    let short = Options::default().timeout(Duration::from_millis(600));
    let error = Socket::connect_to(&addresses[..2], &short).unwrap_err();
    assert!(matches!(error.cause, Cause::TimedOut { .. }), "{error}");
    let text = error.to_string();
    let refusal = &error.context.earlier[0];
    assert!(matches!(refusal.cause, Cause::SidrRefused(_)), "{text}");
}

#[test]
fn requests_do_not_keep_a_service_from_its_datagrams() {
    const REQUESTS: usize = 64;
    let mut service = Service::bind("127.0.0.1:0", &Options::default()).unwrap();
    let address = service.local_addr().unwrap();
    let connecting = std::thread::spawn(move || {
        Socket::connect(&address.to_string(), &Options::default()).unwrap()
    });
    assert!(matches!(
        service.next_within(PATIENCE).unwrap(),
        Arrival::Asked { .. }
    ));
    let (mut socket, reached) = connecting.join().unwrap();
    socket.send(&reached.destination, b"data", None).unwrap();
    socket.flush().unwrap();
    let asking: Vec<_> = (0..REQUESTS)
        .map(|_| {
            let (channel, id) = routed_on(EventChannel::open().unwrap(), UDP, address);
            id.connect(&param(b"")).unwrap();
            (channel, id)
        })
        .collect();
    // Messages between processes of a host need microseconds.
    std::thread::sleep(SHORT);
    let arrivals = [(); 2].map(|()| service.next_within(PATIENCE).unwrap());
    let is_data = |arrival: &Arrival| matches!(arrival, Arrival::Datagram { .. });
    assert!(arrivals.iter().any(is_data), "{arrivals:?}");
    for _ in 1..REQUESTS {
        let arrival = service.next_within(PATIENCE).unwrap();
        assert!(matches!(arrival, Arrival::Asked { .. }), "{arrival:?}");
    }
    drop(asking);
}
