//! Checks the bytes that a channel writes to the device, through a socket in place of the device. A socket
//! gives no answers, so answers keep their prefilled zeros.

use std::os::fd::OwnedFd;

use portolan_provider::verbs::QpType;
use portolan_wire::addr::{PortSpace, Qpn};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::super::Source;
use super::super::offers::Offers;
use super::*;

const ID: IdNumber = IdNumber(0);

/// The kernel's end of the socket.
struct Kernel(OwnedFd);

impl Kernel {
    /// Number of the next command, announced length of its answer, and its body.
    #[track_caller]
    fn command(&self) -> (u32, u16, Vec<u8>) {
        let mut bytes = [0; 1024];
        let length = rustix::io::read(&self.0, &mut bytes).unwrap();
        let header = Header::from_bytes(&bytes);
        assert_eq!(usize::from(header.in_len) + Header::SIZE, length);
        (
            header.cmd,
            header.out_len,
            bytes[Header::SIZE..length].to_vec(),
        )
    }
}

fn manager(write_event: bool) -> Arc<ConnectionManager> {
    Arc::new(ConnectionManager {
        source: Source::Kernel("/nonexistent".into()),
        offers: Offers {
            write_event,
            ib_service: false,
        },
        ids: Default::default(),
        fork: crate::sys::fork::ForkGuard::new(),
    })
}

fn channel_of(cm: &Arc<ConnectionManager>) -> (KernelChannel, Kernel) {
    let kind = SocketType::SEQPACKET;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
    let channel = KernelChannel::new(cm.clone(), Channel::new(ours));
    (channel, Kernel(theirs))
}

fn channel() -> (KernelChannel, Kernel) {
    channel_of(&manager(true))
}

#[test]
fn an_id_is_created_with_its_name_port_space_and_type() {
    let (channel, kernel) = channel();
    let service = Service {
        port_space: PortSpace::Udp,
        qp_type: QpType::Ud,
    };
    channel.create_id(UserId(9), service).unwrap();
    let (number, answer, body) = kernel.command();
    assert_eq!((number, answer), (number::CREATE_ID, 4));
    let create = CreateId::from_bytes(&body);
    assert_eq!((create.uid, create.ps, create.qp_type), (9, 0x0111, 4));
    assert_ne!(create.response, 0);
    assert_eq!(channel.cm.ids.owner(UserId(9)), Some((ID, service)));
    drop(channel);
}

#[test]
fn a_connection_is_asked_for_with_every_parameter() {
    let (channel, kernel) = channel();
    let param = ConnParam {
        private_data: b"ahoy"[..].into(),
        responder_resources: 1,
        initiator_depth: 2,
        flow_control: true,
        retry_count: 3,
        rnr_retry_count: 4,
        srq: true,
        qp_num: Qpn::new(17),
    };
    let ece = Ece {
        vendor_id: 5,
        options: 6,
    };
    channel.connect(IdNumber(8), &param, ece).unwrap();
    let (number, answer, body) = kernel.command();
    assert_eq!((number, answer), (number::CONNECT, 0));
    let connect = Connect::from_bytes(&body);
    assert_eq!(
        (connect.id, connect.ece.vendor_id, connect.ece.attr_mod),
        (8, 5, 6)
    );
    let conn = connect.conn_param;
    assert_eq!((conn.qp_num, conn.private_data_len, conn.valid), (17, 4, 1));
    assert!(conn.private_data.starts_with(b"ahoy\0"));
    assert_eq!((conn.responder_resources, conn.initiator_depth), (1, 2));
    assert_eq!((conn.retry_count, conn.rnr_retry_count), (3, 4));
    assert_eq!((conn.flow_control, conn.srq), (1, 1));
}

#[test]
fn accepting_has_valid_parameters_and_establishing_has_none() {
    let (channel, kernel) = channel();
    let accepted = channel.accept(ID, UserId(3), &ConnParam::default(), Ece::default());
    accepted.unwrap();
    let accept = Accept::from_bytes(&kernel.command().2);
    assert_eq!((accept.uid, accept.conn_param.valid), (3, 1));
    channel.establish(ID).unwrap();
    let (number, _, body) = kernel.command();
    assert_eq!(number, number::ACCEPT);
    assert_eq!(Accept::from_bytes(&body).conn_param.valid, 0);
}

#[test]
fn addresses_are_sent_with_their_exact_sizes() {
    let (channel, kernel) = channel();
    let destination = "[fe80::1%7]:80".parse().unwrap();
    channel
        .resolve_addr(ID, None, destination, Duration::from_secs(2))
        .unwrap();
    let resolve = ResolveAddr::from_bytes(&kernel.command().2);
    assert_eq!(
        (resolve.src_size, resolve.dst_size, resolve.timeout_ms),
        (0, 28, 2000)
    );
    channel.bind(ID, "10.0.0.1:0".parse().unwrap()).unwrap();
    let (number, _, body) = kernel.command();
    assert_eq!(
        (number, Bind::from_bytes(&body).addr_size),
        (number::BIND, 16)
    );
}

#[test]
fn options_have_the_sizes_that_the_kernel_wants() {
    let (channel, kernel) = channel();
    let all = [
        (IdOption::Tos(4), OPTION_TOS, 1),
        (IdOption::ReuseAddr(true), OPTION_REUSEADDR, 4),
        (IdOption::AfOnly(true), OPTION_AFONLY, 4),
        (IdOption::AckTimeout(21), OPTION_ACK_TIMEOUT, 1),
    ];
    for (option, optname, optlen) in all {
        channel.set_option(ID, option).unwrap();
        let set = SetOption::from_bytes(&kernel.command().2);
        assert_eq!((set.level, set.optname, set.optlen), (0, optname, optlen));
        assert_ne!(set.optval, 0);
    }
}

#[test]
fn an_id_moves_by_a_command_on_the_new_channel_that_names_the_old_one() {
    let cm = manager(true);
    let ((from, _), (to, kernel)) = (channel_of(&cm), channel_of(&cm));
    to.migrate_id(&from, IdNumber(6)).unwrap();
    let (number, _, body) = kernel.command();
    let migrate = MigrateId::from_bytes(&body);
    assert_eq!((number, migrate.id), (number::MIGRATE_ID, 6));
    let old = from.as_fd().as_raw_fd().cast_unsigned();
    assert_eq!(migrate.fd, old);
    let (other, _) = channel();
    assert!(
        to.migrate_id(&other, IdNumber(6)).is_err(),
        "an id of another provider"
    );
}

#[test]
fn each_join_has_its_own_name() {
    let (channel, kernel) = channel();
    let group = "239.1.2.3:0".parse().unwrap();
    let kind = JoinKind::SendOnlyFullMember;
    channel
        .join_multicast(IdNumber(2), UserId(40), group, kind)
        .unwrap();
    let join = JoinMcast::from_bytes(&kernel.command().2);
    assert_eq!(
        (join.id, join.uid, join.addr_size, join.join_flags),
        (2, 40, 16, 1)
    );
}

#[test]
fn user_and_library_events_can_be_written_if_the_kernel_supports_it() {
    let (channel, kernel) = channel();
    channel.write_event(ID, EventType::User, -5, 77).unwrap();
    let written = WriteCmEvent::from_bytes(&kernel.command().2);
    assert_eq!(
        (written.event, written.status.cast_signed(), written.arg),
        (18, -5, 77)
    );
    channel
        .write_event(ID, EventType::AddrinfoError, -2, 3)
        .unwrap();
    let written = WriteCmEvent::from_bytes(&kernel.command().2);
    assert_eq!((written.event, written.arg), (19, 3 << 8 | 17));
    assert!(
        channel
            .write_event(ID, EventType::Established, 0, 0)
            .is_err()
    );
    let internal = EventType::AddrinfoError;
    assert!(channel.write_event(ID, internal, 0, 1 << 56).is_err());
    let (old, _) = channel_of(&manager(false));
    let error = old.write_event(ID, EventType::User, 0, 0).unwrap_err();
    assert!(matches!(error.cause, Cause::Unsupported(_)), "{error}");
}

#[test]
fn waiting_ends_at_its_deadline_and_at_once_on_a_nonblocking_descriptor() {
    let (channel, _kernel) = channel();
    assert!(channel.take_event().unwrap_err().is_would_block());
    let error = channel
        .wait_event(Some(Duration::from_millis(5)))
        .unwrap_err();
    assert!(
        matches!(error.cause, Cause::TimedOut { after_ms: 5, .. }),
        "{error}"
    );
    rustix::fs::fcntl_setfl(channel.as_fd(), rustix::fs::OFlags::NONBLOCK).unwrap();
    assert!(channel.wait_event(None).unwrap_err().is_would_block());
}

/// An id with the number in the socket's (zero) answers.
fn id_of_answers(channel: &KernelChannel, kernel: &Kernel) {
    let service = Service {
        port_space: PortSpace::Tcp,
        qp_type: QpType::Rc,
    };
    channel.create_id(UserId(0), service).unwrap();
    assert_eq!(kernel.command().0, number::CREATE_ID);
}

#[test]
fn waiting_without_a_limit_happens_in_the_command_that_takes_an_event() {
    let (channel, kernel) = channel();
    id_of_answers(&channel, &kernel);
    // The event is taken although nothing is readable: no poll came first.
    let event = channel.wait_event(None).unwrap();
    assert_eq!(event.event, EventType::AddrResolved);
    assert_eq!(kernel.command().0, number::GET_EVENT);
    assert_eq!(kernel.command().0, number::QUERY);
    assert_eq!(channel.taking.lock().waiting, 0);
}

#[test]
fn an_event_of_a_destroyed_id_is_skipped() {
    let (channel, kernel) = channel();
    rustix::fs::fcntl_setfl(channel.as_fd(), rustix::fs::OFlags::NONBLOCK).unwrap();
    // One after the other until the socket is full.
    assert!(channel.wait_event(None).unwrap_err().is_would_block());
    assert_eq!(kernel.command().0, number::GET_EVENT);
    assert_eq!(kernel.command().0, number::GET_EVENT);
}

#[test]
fn a_polling_thread_takes_only_events_left_by_threads_waiting_in_the_kernel() {
    let (channel, kernel) = channel();
    id_of_answers(&channel, &kernel);
    channel.taking.lock().waiting = 1;
    assert!(channel.take_event().unwrap_err().is_would_block());
    rustix::io::write(&kernel.0, b"an event waits").unwrap();
    std::thread::scope(|scope| {
        let taker = scope.spawn(|| channel.take_event());
        std::thread::sleep(Duration::from_millis(20));
        assert!(!taker.is_finished(), "the event may be another's");
        channel.taking.lock().waiting = 0;
        assert!(taker.join().unwrap().is_ok());
    });
    assert_eq!(kernel.command().0, number::GET_EVENT);
}

#[test]
fn a_device_is_known_by_one_query_and_gids_by_another_when_they_are_asked_for() {
    let cm = manager(true);
    let (channel, kernel) = channel_of(&cm);
    id_of_answers(&channel, &kernel);
    let settled = IdAddresses {
        device_index: Some(3),
        port_num: 1,
        ..IdAddresses::default()
    };
    cm.ids.note_addresses(ID, Some(settled.clone()));
    assert_eq!(channel.device_index(ID).unwrap(), Some(3));
    assert_eq!(channel.addresses(ID).unwrap(), settled);
    let (number, _, body) = kernel.command();
    let asked = Query::from_bytes(&body);
    assert_eq!((number, asked.option), (number::QUERY, QUERY_GID));
}

#[test]
fn a_channel_that_closes_leaves_no_id_behind() {
    let cm = manager(true);
    let (channel, _kernel) = channel_of(&cm);
    let service = Service {
        port_space: PortSpace::Tcp,
        qp_type: QpType::Rc,
    };
    channel.create_id(UserId(1), service).unwrap();
    assert_eq!(cm.ids.len(), (1, 1));
    drop(channel);
    assert_eq!(cm.ids.len(), (0, 0));
}
