//! RDMA_CM_EVENT_DEVICE_REMOVAL: the local RDMA device associated with the rdma_cm_id has been
//! removed. Upon receiving this event, the user must destroy the related rdma_cm_id.

use portolan::cm::{CmId, EventChannel};
use portolan::datagram::{Arrival, Service, Socket};
use portolan::provider::cm::{EventType, IdOption};
use portolan::provider::error::errno::{EIO, ENXIO};
use portolan::provider::verbs::{AsyncEvent, MwType, QpState, RecvWr, WcStatus, WorkCompletion};
use portolan::software::Usage;
use portolan::{Cause, Step};

use crate::harness::*;
use crate::low::{Verbs, param, state_of};
use crate::support::ip_batch;
use crate::{addr, bound, device, hear, on_interfaces};

const INTERFACES: &str = "link add tgone type veth peer name pgone\n\
    addr add 10.9.1.1/24 dev tgone\n\
    link set tgone up\n\
    link set pgone up\n\
    link add tstays type veth peer name pstays\n\
    addr add 10.9.2.1/24 dev tstays\n\
    link set tstays up\n\
    link set pstays up\n";

#[test]
fn device_removal_comes_to_each_id_of_a_removed_interface_and_to_no_other() {
    on_interfaces(INTERFACES, || {
        let provider = own_provider();
        let (idle_channel, idle) = bound(&provider, "10.9.1.1:0");
        let (listen_channel, listener) = bound(&provider, "10.9.1.1:7471");
        listener.listen(0).unwrap();
        let (wildcard_channel, wildcard) = bound(&provider, "0.0.0.0:7472");
        wildcard.listen(0).unwrap();
        let (elsewhere_channel, elsewhere) = bound(&provider, "10.9.2.1:0");
        let routed_channel = EventChannel::open_on(provider.clone()).unwrap();
        let (routed_channel, routed) =
            crate::low::routed_on(routed_channel, crate::low::TCP, addr("10.9.1.1:7471"));

        ip_batch("link del tgone");
        for (channel, id) in [
            (&idle_channel, &idle),
            (&listen_channel, &listener),
            (&routed_channel, &routed),
        ] {
            hear(channel, id, EventType::DeviceRemoval, 0);
            crate::assert_silent(channel);
            for refused in [
                id.listen(0),
                id.connect(&param(b"")),
                id.set_option(IdOption::Tos(1)),
                id.init_qp_attr(QpState::Init).map(|_| ()),
            ] {
                let error = refused.unwrap_err();
                assert_eq!(
                    (&error.cause, error.errno()),
                    (&Cause::DeviceRemoved, ENXIO)
                );
            }
            assert!(id.device().is_err());
        }
        crate::assert_silent(&wildcard_channel);
        crate::assert_silent(&elsewhere_channel);
        assert!(elsewhere.device().is_ok());
        for id in [idle, listener, routed, wildcard, elsewhere] {
            id.destroy(PATIENCE).unwrap();
        }
        let refused = bound_error(&provider);
        assert_eq!(refused, Cause::AddressNotAvailable);
        assert_eq!(provider.usage(), Usage::default());
    });
}

fn bound_error(provider: &std::sync::Arc<portolan::software::SoftwareProvider>) -> Cause {
    let channel = EventChannel::open_on(provider.clone()).unwrap();
    let id = CmId::new(&channel).unwrap();
    id.bind(addr("10.9.1.1:0")).unwrap_err().cause
}

#[test]
fn a_removed_device_flushes_its_queue_pairs_refuses_new_work_and_releases_everything() {
    on_interfaces(INTERFACES, || {
        let provider = own_provider();
        let device = device(&provider, "10.9.1.1");
        let verbs = Verbs::of(&device);
        let (channel, id) = bound(&provider, "10.9.1.1:0");
        let qp = verbs.give(&id);
        let receive = RecvWr {
            wr_id: 77,
            sges: &[],
        };
        qp.post_recv(&receive).unwrap();
        ip_batch("link del tgone");
        hear(&channel, &id, EventType::DeviceRemoval, 0);

        assert_eq!(state_of(&qp), QpState::Err);
        let mut completions = [WorkCompletion::EMPTY];
        assert_eq!(verbs.cq.poll(&mut completions).unwrap(), 1);
        assert_eq!(
            (completions[0].wr_id, completions[0].status),
            (77, WcStatus::WrFlushErr)
        );
        let refused = [
            qp.post_recv(&receive).unwrap_err(),
            device.alloc_pd().map(|_| ()).unwrap_err(),
            device.create_cq(1, None, 0).map(|_| ()).unwrap_err(),
            verbs.pd.alloc_mw(MwType::Type1).map(|_| ()).unwrap_err(),
            verbs
                .pd
                .create_qp(&crate::low::INIT, &verbs.cq, &verbs.cq, None)
                .map(|_| ())
                .unwrap_err(),
        ];
        for error in refused {
            assert_eq!((&error.cause, error.errno()), (&Cause::DeviceRemoved, EIO));
            assert_eq!(error.context.device.as_deref(), Some("sw_tgone"), "{error}");
        }
        let mut told = Vec::new();
        while let Some(event) = device.take_async_event().unwrap() {
            told.push(event);
        }
        assert!(told.ends_with(&[AsyncEvent::DeviceFatal]), "{told:?}");
        assert!(told.contains(&AsyncEvent::QpFatal(qp.qpn())), "{told:?}");
        assert!(!device.port_attr(1).unwrap().active);
        assert_eq!(device.gids(1).unwrap(), []);
        id.destroy(PATIENCE).unwrap();
        qp.destroy().unwrap();
        drop((qp, verbs, device, channel));
        assert_eq!(provider.usage(), Usage::default());
    });
}

#[test]
fn a_connection_of_a_removed_device_ends_and_one_of_another_continues() {
    on_interfaces(INTERFACES, || {
        let provider = own_provider();
        let listener = listener_on(provider.clone(), "0.0.0.0:7473");
        let connect = |to: &str| {
            let connector = connector_on(provider.clone());
            pair_at(connector, &listener, addr(to), &options())
        };
        let (ends, peer) = connect("10.9.1.1:7473");
        let (stays, other) = connect("10.9.2.1:7473");
        let send = |round: u8| {
            let message = [round; 64];
            let sent = stays.send(stays.buffer_from(&message).unwrap()).unwrap();
            assert_eq!(other.receive_within(PATIENCE).unwrap()[..], message);
            sent.wait().unwrap();
        };
        send(1);
        ip_batch("link del tgone");
        for connection in [&ends, &peer] {
            let error = connection.receive_within(PATIENCE).unwrap_err();
            assert_eq!(error.cause, Cause::DeviceRemoved, "{error}");
            let buffer = connection.buffer(8);
            assert!(buffer.is_err() || connection.send(buffer.unwrap()).is_err());
        }
        for round in 2..20 {
            send(round);
        }
        drop((ends, peer, stays, other, listener));
        eventually("everything given back", || {
            provider.usage() == Usage::default()
        });
    });
}

#[test]
fn a_wildcard_listener_serves_a_device_that_appears_later_and_one_that_reappears() {
    on_interfaces("", || {
        let provider = own_provider();
        let listener = listener_on(provider.clone(), "0.0.0.0:7474");
        for _ in 0..3 {
            ip_batch(
                "link add tlate type veth peer name plate\n\
                 addr add 10.9.3.1/24 dev tlate\n\
                 link set tlate up\n\
    link set plate up\n",
            );
            let connector = connector_on(provider.clone());
            let pair = pair_at(connector, &listener, addr("10.9.3.1:7474"), &options());
            let name = pair.0.id().device().unwrap().name().to_owned();
            assert_eq!(name, "sw_tlate");
            ip_batch("link del tlate");
            let ended = pair.0.receive_within(PATIENCE);
            assert!(ended.is_err());
        }
        let others = provider_devices(&provider);
        assert_eq!(others, ["sw_lo"], "a removed device is still listed");
        drop(listener);
        eventually("everything given back", || {
            provider.usage() == Usage::default()
        });
    });
}

#[test]
fn a_listener_fails_if_its_device_is_removed_but_a_wildcard_listener_does_not() {
    on_interfaces(INTERFACES, || {
        let provider = own_provider();
        let there = listener_on(provider.clone(), "10.9.1.1:7475");
        let everywhere = listener_on(provider.clone(), "0.0.0.0:7476");
        ip_batch("link del tgone");
        for _ in 0..2 {
            let error = there.accept_within(PATIENCE).unwrap_err();
            assert!(matches!(error.cause, Cause::NoDevice { .. }), "{error}");
            assert_eq!(error.step, Step::Accept, "{error}");
        }
        assert!(there.try_accept().is_err());
        assert!(there.accept().is_err());
        assert!(everywhere.try_accept().unwrap().is_none());
        let connector = connector_on(provider.clone());
        let pair = pair_at(connector, &everywhere, addr("10.9.2.1:7476"), &options());
        drop(pair);
    });
}

#[test]
fn a_datagram_service_releases_a_removed_device_and_serves_the_others() {
    on_interfaces(INTERFACES, || {
        let mut service = Service::bind("0.0.0.0:7477", &Default::default()).unwrap();
        let asking = std::thread::spawn(|| {
            let ask = |at: &str| Socket::connect(at, &Default::default()).unwrap();
            (ask("10.9.1.1:7477"), ask("10.9.2.1:7477"))
        });
        for _ in 0..2 {
            let asked = service.next_within(PATIENCE).unwrap();
            assert!(matches!(asked, Arrival::Asked { .. }), "{asked:?}");
        }
        let (gone, (mut socket, reached)) = asking.join().unwrap();
        ip_batch("link del tgone");
        let told = service.next_within(PATIENCE).unwrap();
        assert!(matches!(told, Arrival::Failed(_)), "{told:?}");
        // Reported once.
        for round in 0..20_u8 {
            socket.send(&reached.destination, &[round], None).unwrap();
            match service.next_within(PATIENCE).unwrap() {
                Arrival::Datagram { datagram, .. } => assert_eq!(datagram.data, [round]),
                other => panic!("{other:?}"),
            }
        }
        drop(gone);
    });
}

fn provider_devices(provider: &portolan::software::SoftwareProvider) -> Vec<String> {
    use portolan::provider::traits::Provider;
    let devices = provider.devices().unwrap();
    devices
        .iter()
        .map(|device| device.name().to_owned())
        .collect()
}
