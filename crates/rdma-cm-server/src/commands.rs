//! The commands, except queries, options and events.

use std::os::fd::RawFd;
use std::time::Duration;

use portolan_kernel::raw::{
    self, Accept, Bind, Connect, CreateId, CreateIdResp, DestroyId, Disconnect, EventsReported,
    JoinMcast, Listen, MigrateId, NOTIFY_COMM_EST, Notify, PRIVATE_DATA_LEN, Reject, ResolveAddr,
    ResolveIbService, ResolveRoute, number,
};
use portolan_provider::cm::{ConnParam, Ece, JoinKind, Service, UserId};
use portolan_provider::verbs::QpType;
use portolan_wire::PortSpace;
use portolan_wire::cm::RejectReason;
use rustix::io::Errno;

use crate::address;
use crate::channel::{Channel, Command};
use crate::errno::errno;

type Result<T> = std::result::Result<T, Errno>;

impl Channel {
    /// # Errors
    /// `EINVAL` for an unknown number, `ENOSYS` for a command that is not supported; errors of the command.
    pub(crate) fn run(&self, number: u32, command: &Command<'_>) -> Result<()> {
        match number {
            number::CREATE_ID => self.create_id(command),
            number::DESTROY_ID => self.destroy_id(command),
            number::BIND => self.bind(command),
            number::RESOLVE_ADDR => self.resolve_addr(command),
            number::RESOLVE_ROUTE => self.resolve_route(command),
            number::LISTEN => self.listen(command),
            number::CONNECT => self.connect(command),
            number::ACCEPT => self.accept(command),
            number::REJECT => self.reject(command),
            number::DISCONNECT => self.disconnect(command),
            number::NOTIFY => self.notify(command),
            number::MIGRATE_ID => self.migrate(command),
            number::JOIN_MCAST => self.join(command),
            number::LEAVE_MCAST => self.leave(command),
            number::RESOLVE_IB_SERVICE => self.resolve_ib_service(command),
            number::QUERY => self.query(command),
            number::INIT_QP_ATTR => self.init_qp_attr(command),
            number::SET_OPTION => self.set_option(command),
            number::GET_EVENT => self.get_event(command),
            number::TAKE_EVENT => self.take_event(command),
            number::WRITE_CM_EVENT => self.write_event(command),
            beyond if beyond > number::WRITE_CM_EVENT => Err(Errno::INVAL),
            _ => Err(Errno::NOSYS),
        }
    }

    fn create_id(&self, command: &Command<'_>) -> Result<()> {
        let create: CreateId = command.read()?;
        command.expect_room::<CreateIdResp>()?;
        let service = service(create.ps, create.qp_type)?;
        let made = self.commands().create_id(UserId(create.uid), service);
        let id = made.map_err(errno)?;
        self.device()
            .ids()
            .add(id, Some(UserId(create.uid)), self.number());
        let answer = CreateIdResp { id: id.0 };
        command.answer(create.response, &answer).inspect_err(|_| {
            // The caller did not get its number.
            self.device().ids().remove(id);
            let _ = self.commands().destroy_id(id);
        })
    }

    fn destroy_id(&self, command: &Command<'_>) -> Result<()> {
        let destroy: DestroyId = command.read()?;
        command.expect_room::<EventsReported>()?;
        let events_reported = {
            let _taking = self.taking();
            // Under the lock, because it may be moving to another channel.
            let id = self.own(destroy.id)?;
            // Before destroying it, because its number may be reused right after.
            let reported = self.device().ids().remove(id);
            self.commands().destroy_id(id).map_err(errno)?;
            reported
        };
        command.answer(destroy.response, &EventsReported { events_reported })
    }

    fn bind(&self, command: &Command<'_>) -> Result<()> {
        let bind: Bind = command.read()?;
        let local = address::decode(&bind.addr, bind.addr_size)?;
        if bind.reserved != 0 {
            return Err(Errno::INVAL);
        }
        let id = self.own(bind.id)?;
        self.commands().bind(id, local).map_err(errno)
    }

    fn resolve_addr(&self, command: &Command<'_>) -> Result<()> {
        let resolve: ResolveAddr = command.read()?;
        let source = match resolve.src_size {
            0 => None,
            size => Some(address::decode(&resolve.src_addr, size)?),
        };
        let destination = address::decode(&resolve.dst_addr, resolve.dst_size)?;
        let id = self.own(resolve.id)?;
        let timeout = milliseconds(resolve.timeout_ms);
        let started = self
            .commands()
            .resolve_addr(id, source, destination, timeout);
        started.map_err(errno)
    }

    fn resolve_route(&self, command: &Command<'_>) -> Result<()> {
        let resolve: ResolveRoute = command.read()?;
        let id = self.own(resolve.id)?;
        let timeout = milliseconds(resolve.timeout_ms);
        self.commands().resolve_route(id, timeout).map_err(errno)
    }

    fn listen(&self, command: &Command<'_>) -> Result<()> {
        let listen: Listen = command.read()?;
        let id = self.own(listen.id)?;
        let backlog = listen.backlog.cast_signed();
        self.commands().listen(id, backlog).map_err(errno)
    }

    fn connect(&self, command: &Command<'_>) -> Result<()> {
        let connect: Connect = command.read()?;
        if connect.conn_param.valid == 0 {
            return Err(Errno::INVAL);
        }
        let id = self.own(connect.id)?;
        let (param, ece): (ConnParam, Ece) = ((&connect.conn_param).into(), ece(&connect.ece));
        self.commands().connect(id, &param, ece).map_err(errno)
    }

    fn accept(&self, command: &Command<'_>) -> Result<()> {
        let accept: Accept = command.read()?;
        let id = self.own(accept.id)?;
        let commands = self.commands();
        if accept.conn_param.valid == 0 {
            return commands.establish(id).map_err(errno);
        }
        let (param, ece): (ConnParam, Ece) = ((&accept.conn_param).into(), ece(&accept.ece));
        let accepted = commands.accept(id, UserId(accept.uid), &param, ece);
        accepted.map_err(errno)
    }

    fn reject(&self, command: &Command<'_>) -> Result<()> {
        let reject: Reject = command.read()?;
        let reason = match RejectReason(reject.reason.into()) {
            RejectReason(0) => RejectReason::CONSUMER_DEFINED,
            reason @ (RejectReason::CONSUMER_DEFINED
            | RejectReason::VENDOR_OPTION_NOT_SUPPORTED) => reason,
            _ => return Err(Errno::INVAL),
        };
        let id = self.own(reject.id)?;
        let data = private_data(&reject.private_data, reject.private_data_len);
        self.commands().reject(id, reason, data).map_err(errno)
    }

    fn disconnect(&self, command: &Command<'_>) -> Result<()> {
        let disconnect: Disconnect = command.read()?;
        let id = self.own(disconnect.id)?;
        self.commands().disconnect(id).map_err(errno)
    }

    fn notify(&self, command: &Command<'_>) -> Result<()> {
        let notify: Notify = command.read()?;
        let id = self.own(notify.id)?;
        if notify.event != NOTIFY_COMM_EST {
            return Err(Errno::INVAL);
        }
        self.commands().notify_established(id).map_err(errno)
    }

    /// Moves the id here from the channel of the descriptor.
    fn migrate(&self, command: &Command<'_>) -> Result<()> {
        let migrate: MigrateId = command.read()?;
        command.expect_room::<EventsReported>()?;
        let fd: RawFd = migrate.fd.cast_signed();
        let from = self.device().channel(fd).ok_or(Errno::NOENT)?;
        let events_reported = {
            let _taking = from.taking();
            // Under the lock, because another thread may be moving or destroying it.
            let id = from.own(migrate.id)?;
            // First count, so that events taken here right after the move are not included.
            let reported = self.device().ids().redirect(id, self.number());
            let moved = self.commands().migrate_id(from.commands(), id);
            moved.map_err(|error| {
                self.device().ids().redirect(id, from.number());
                errno(error)
            })?;
            reported
        };
        command.answer(migrate.response, &EventsReported { events_reported })
    }

    fn join(&self, command: &Command<'_>) -> Result<()> {
        let join: JoinMcast = command.read()?;
        command.expect_room::<CreateIdResp>()?;
        let group = address::decode_group(&join.addr, join.addr_size)?;
        let kinds = [JoinKind::FullMember, JoinKind::SendOnlyFullMember];
        let mut kinds = kinds.into_iter();
        let kind = kinds.find(|kind| *kind as u16 == join.join_flags);
        let kind = kind.ok_or(Errno::INVAL)?;
        let id = self.own(join.id)?;
        let joined = self
            .commands()
            .join_multicast(id, UserId(join.uid), group, kind);
        let membership = joined.map_err(errno)?;
        let number = self.device().ids().add_membership(id, membership);
        let answer = CreateIdResp { id: number };
        command.answer(join.response, &answer).inspect_err(|_| {
            self.device().ids().remove_membership(number);
            let _ = self.commands().leave_multicast(id, membership);
        })
    }

    /// The id in the command is a membership's.
    fn leave(&self, command: &Command<'_>) -> Result<()> {
        let leave: DestroyId = command.read()?;
        command.expect_room::<EventsReported>()?;
        let (id, membership) = self
            .device()
            .ids()
            .membership(leave.id)
            .ok_or(Errno::NOENT)?;
        self.device().ids().check_owner(id, self.number())?;
        let events_reported = {
            let _taking = self.taking();
            self.device().ids().remove_membership(leave.id);
            let left = self.commands().leave_multicast(id, membership);
            left.map_err(errno)?
        };
        command.answer(leave.response, &EventsReported { events_reported })
    }

    /// The subnet administrator knows services; Ethernet has none.
    fn resolve_ib_service(&self, command: &Command<'_>) -> Result<()> {
        let resolve: ResolveIbService = command.read()?;
        let id = self.own(resolve.id)?;
        let known = self.commands().addresses(id).map_err(errno)?;
        match known.device_index {
            None => Err(Errno::INVAL),
            Some(_) => Err(Errno::OPNOTSUPP),
        }
    }
}

/// The service of an id. Only InfiniBand's port space leaves the queue pair type open.
fn service(ps: u16, qp_type: u8) -> Result<Service> {
    let port_space = PortSpace::from_value(ps).ok_or(Errno::INVAL)?;
    let qp_type = match port_space {
        PortSpace::Tcp => QpType::Rc,
        PortSpace::Udp | PortSpace::Ipoib => QpType::Ud,
        PortSpace::Ib => QpType::from_number(qp_type).ok_or(Errno::INVAL)?,
    };
    Ok(Service {
        port_space,
        qp_type,
    })
}

fn milliseconds(timeout_ms: u32) -> Duration {
    Duration::from_millis(timeout_ms.into())
}

fn private_data(data: &[u8; PRIVATE_DATA_LEN], length: u8) -> &[u8] {
    &data[..usize::from(length)]
}

fn ece(ece: &raw::Ece) -> Ece {
    Ece {
        vendor_id: ece.vendor_id,
        options: ece.attr_mod,
    }
}
