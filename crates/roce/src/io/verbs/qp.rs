//! Queue pairs: their verbs, creation and destruction.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use portolan_provider::traits::{Cq, Mw, Qp, Srq};
use portolan_provider::verbs::{
    Counter, MwBind, QpAttr, QpAttrMask, QpCap, QpInit, QpState, QpType, RecvWr, Refusal, SendData,
    SendFlags, SendOp, SendWr, UdDestination,
};
use portolan_provider::{Cause, Error, Result, Step};
use portolan_wire::{Gid, QKey, Qpn};

use crate::engine::{Destination, PdId, QpConfig, QpCounters, QpLimits};
use crate::io::host::Host;
use crate::io::host::device::DeviceCore;
use crate::io::host::errors::removed;
use crate::io::host::gauge::Permit;
use crate::io::host::multicast::MulticastKey;
use crate::io::host::queue_pair::{Completes, LockedQp, QpCore, QpGuard};
use crate::io::host::shared_receive_queue::SrqUse;
use crate::io::host::xrc_domain::XrcDomain;
use crate::io::net::path::Path;
use crate::io::net::rand::random_u32;
use crate::io::verbs::ah::SoftAh;
use crate::io::verbs::cq::SoftCq;
use crate::io::verbs::mw::SoftMw;
use crate::io::verbs::srq::SoftSrq;

/// A queue pair. Dropping it destroys it.
#[derive(Debug)]
pub struct SoftQp {
    core: Arc<QpCore>,
    host: Arc<Host>,
    _permit: Permit,
}

impl SoftQp {
    pub(crate) fn new(
        host: &Arc<Host>,
        device: &Arc<DeviceCore>,
        pd: PdId,
        init: &QpInit,
        [send_cq, recv_cq]: [&Arc<dyn Cq>; 2],
        srq: Option<&Arc<dyn Srq>>,
    ) -> Result<Self> {
        let completes = Completes::Own {
            send: SoftCq::core_of(send_cq, host)?,
            receive: SoftCq::core_of(recv_cq, host)?,
        };
        let srq = srq.map(|srq| SoftSrq::claim(srq, host)).transpose()?;
        if init.qp_type == QpType::XrcRecv {
            let (expected, found) = ("one without an XRC domain", init.qp_type);
            return Err(Error::invalid(Step::CreateQp, "type", expected, found));
        }
        if init.qp_type == QpType::Ud {
            host.tell_ip_fields()?;
        }
        Self::create(host, device, pd, init, completes, srq)
    }

    /// Creates the receiving end of an extended reliable connection. It has no protection domain of its own.
    pub(crate) fn in_domain(
        host: &Arc<Host>,
        device: &Arc<DeviceCore>,
        domain: &Arc<XrcDomain>,
    ) -> Result<Self> {
        let init = QpInit {
            qp_type: QpType::XrcRecv,
            cap: QpCap::default(),
            sq_sig_all: false,
        };
        let completes = Completes::Domain(Arc::clone(domain));
        Self::create(host, device, PdId::default(), &init, completes, None)
    }

    fn create(
        host: &Arc<Host>,
        device: &Arc<DeviceCore>,
        pd: PdId,
        init: &QpInit,
        completes: Completes,
        srq: Option<SrqUse>,
    ) -> Result<Self> {
        let permit = host.gauges.qps.take(Step::CreateQp)?;
        let limits = QpLimits {
            max_path_mtu: device.max_mtu(),
            ..host.config.qp_limits
        };
        let make = |qpn| {
            let config = QpConfig {
                qpn,
                pd,
                init: *init,
                limits,
                flow: host.config.flow,
            };
            let core = QpCore::new(device, config, completes, srq)?;
            Ok(Arc::new(core))
        };
        let core = host.qps.insert(|| random_u32(Step::CreateQp), make)?;
        let qp = Self {
            core,
            host: Arc::clone(host),
            _permit: permit,
        };
        // Check after the queue pair can be found, so that no removal is missed.
        match device.is_removed() {
            true => Err(removed(Step::CreateQp, device)),
            false => Ok(qp),
        }
    }

    /// Counters of sent, received and dropped packets.
    pub fn counters(&self) -> QpCounters {
        *self.core.lock().engine.counters()
    }

    /// Posts requests to the send queue together: all of them, or none if one is refused or is an error itself.
    ///
    /// # Errors
    /// Those of [`Qp::post_send`], for the first refused request.
    pub fn post_sends<'a>(&self, wrs: impl IntoIterator<Item = Result<SendWr<'a>>>) -> Result<()> {
        let mut state = self.open_present(Step::PostSend)?;
        let wrs = wrs.into_iter().map(|wr| {
            let wr = wr?;
            let to = wr.ud.map(|ud| self.destination(&ud)).transpose()?;
            Ok((wr, to))
        });
        let posted = state.engine.post_sends(wrs);
        posted.map_err(|error| self.explain(error, state.path.as_ref()))?;
        self.host.posted(&self.core, &mut state);
        Ok(())
    }

    /// Locks it for a verb. Fails if it is destroyed.
    fn open(&self, step: Step) -> Result<QpGuard<'_>> {
        self.host.entry.check(step)?;
        let state = self.core.lock();
        check_open(step, &state)?;
        Ok(state)
    }

    /// Locks it for a verb that needs the device.
    fn open_present(&self, step: Step) -> Result<QpGuard<'_>> {
        self.host.entry.check(step)?;
        let state = self.core.lock();
        self.check_present(step, &state)?;
        Ok(state)
    }

    /// Fails if it is destroyed, or its device is gone. The verbs that are called for each message lock by themselves: a
    /// guard in a result would be passed through memory.
    #[inline(always)]
    fn check_present(&self, step: Step, state: &LockedQp) -> Result<()> {
        check_open(step, state)?;
        match state.device_removed {
            true => Err(removed(step, &self.core.device)),
            false => Ok(()),
        }
    }

    /// Queues a request, and then sends what can be sent. Not inlined: the usual case would save its registers and clear
    /// its stack, too.
    #[inline(never)]
    fn queue_send(&self, mut state: QpGuard<'_>, wr: &SendWr<'_>) -> Result<()> {
        let posted = match wr.ud {
            None => state.engine.post_send(wr),
            Some(ud) => self
                .destination(&ud)
                .and_then(|to| state.engine.post_datagram(wr, to)),
        };
        posted.map_err(|error| self.explain(error, state.path.as_ref()))?;
        self.host.posted(&self.core, &mut state);
        Ok(())
    }

    /// Handles the packets that have arrived for a connected queue pair, before it is closed.
    fn see_arrived(&self) {
        let is_connected = self.core.qp_type == QpType::Rc && {
            let state = self.core.lock();
            let in_state = state.engine.state();
            !state.closed && matches!(in_state, QpState::Rtr | QpState::Rts | QpState::Sqd)
        };
        if is_connected {
            self.host.take_arrived();
        }
    }

    /// Sends the acknowledgement that was delayed for the owner's own answer: there will be no answer, and the peer's
    /// message has arrived.
    fn send_deferred_ack(&self, state: &mut LockedQp) {
        if state.owes {
            let now = self.host.clock.now();
            self.host.settle(&self.core, state, now);
        }
    }

    /// Resolves the address handle of a datagram's destination.
    fn destination(&self, ud: &UdDestination<'_>) -> Result<Destination> {
        let path = SoftAh::path_of(ud.ah, &self.core.device)?;
        let is_group = path.remote.ip().is_multicast();
        if is_group != (ud.qpn == Qpn::MULTICAST) {
            // IBTA 10.5: exactly the packets to multicast groups have this number.
            let expected = match is_group {
                true => "0xffffff, as the address handle is of a group",
                false => "not 0xffffff, as the address handle is of a host",
            };
            let found = ud.qpn;
            return Err(Error::invalid(Step::PostSend, "ud.qpn", expected, found));
        }
        Ok(Destination {
            path,
            qpn: ud.qpn,
            qkey: ud.qkey,
        })
    }

    /// The multicast group of an MGID on this queue pair's interface.
    fn group_of(&self, step: Step, gid: &Gid) -> Result<MulticastKey> {
        let refuse = |what, expected, found: &dyn std::fmt::Display| {
            Err(self.explain(Error::invalid(step, what, expected, found), None))
        };
        if self.core.qp_type != QpType::Ud {
            return refuse("queue pair type", "UD", &self.core.qp_type);
        }
        if !gid.is_multicast() {
            return refuse("gid", "a multicast group's", gid);
        }
        Ok(MulticastKey {
            interface: self.core.device.interface(),
            group: gid.to_ip(),
        })
    }

    /// Adds the device and both addresses to an error.
    #[cold]
    fn explain(&self, error: Error, path: Option<&Path>) -> Error {
        let error = error.on(self.core.device.name(), None);
        match path {
            Some(path) => {
                let local = std::net::SocketAddr::new(path.local, 0);
                error.between(Some(local.into()), Some(path.remote.into()))
            }
            None => error,
        }
    }
}

impl portolan_provider::sealed::Sealed for SoftQp {}

impl Qp for SoftQp {
    fn qpn(&self) -> Qpn {
        self.core.qpn
    }

    fn modify(&self, attr: &QpAttr, mask: QpAttrMask) -> Result<()> {
        if mask.contains(QpAttrMask::QKEY) {
            check_qkey(attr.qkey).map_err(|error| self.explain(error, None))?;
        }
        let ends = matches!(attr.state, QpState::Err | QpState::Reset);
        if ends && mask.contains(QpAttrMask::STATE) {
            self.host.entry.check(Step::ModifyQp)?;
            self.see_arrived();
        }
        let mut state = self.open_present(Step::ModifyQp)?;
        let now = self.host.clock.now();
        let path = match mask.contains(QpAttrMask::AV) {
            true => {
                let port = self.host.config.group.port;
                let path = self.core.device.path(Step::ModifyQp, &attr.ah_attr, port);
                Some(path.map_err(|error| self.explain(error, None))?)
            }
            false => None,
        };
        self.send_deferred_ack(&mut state);
        state
            .engine
            .modify(attr, mask)
            .map_err(|error| self.explain(error, path.or(state.path).as_ref()))?;
        if path.is_some() {
            self.host.replace_path(&mut state, path);
            let (attr, _) = state.engine.query();
            self.host.want_link(&mut state, attr.dest_qpn);
        }
        self.host.give_qp(&mut state);
        if self.core.qp_type == QpType::Ud {
            let takes = !matches!(state.engine.state(), QpState::Reset | QpState::Init);
            self.host.take_datagrams(&mut state, takes);
        }
        if state.engine.state() == QpState::Reset {
            self.host.replace_path(&mut state, None);
            self.core.forget_completions();
        }
        self.host.settle(&self.core, &mut state, now);
        Ok(())
    }

    fn query(&self) -> Result<(QpAttr, QpInit)> {
        Ok(self.open(Step::Query)?.engine.query())
    }

    fn counters(&self) -> Result<Vec<Counter>> {
        Ok(self.open(Step::Query)?.engine.counters().named())
    }

    fn refusal(&self) -> Result<Option<Refusal>> {
        Ok(self.open(Step::Query)?.engine.refusal())
    }

    fn not_ready_for(&self) -> Result<Option<Duration>> {
        let since = self.open(Step::Query)?.engine.not_ready_since();
        Ok(since.map(|since| self.host.clock.now().saturating_sub(since)))
    }

    #[inline]
    fn post_send(&self, wr: &SendWr<'_>) -> Result<()> {
        self.host.entry.check(Step::PostSend)?;
        let mut state = self.core.lock();
        self.check_present(Step::PostSend, &state)?;
        let is_posted = match wr.op {
            SendOp::RdmaWrite(_) | SendOp::RdmaRead(_) => {
                self.host.post_direct(&self.core, &mut state, wr)
            }
            _ => self.host.post_send_only(&self.core, &mut state, wr),
        };
        match is_posted {
            true => Ok(()),
            false => self.queue_send(state, wr),
        }
    }

    fn post_taking(&self, wr: &SendWr<'_>, data: &[u8]) -> Result<bool> {
        let mut state = self.open_present(Step::PostSend)?;
        let posted = self.host.post_taken(&self.core, &mut state, wr, data);
        posted.map_err(|error| self.explain(error, state.path.as_ref()))
    }

    fn post_sends(&self, wrs: &[SendWr<'_>]) -> std::result::Result<(), (usize, Error)> {
        let posted = Self::post_sends(self, wrs.iter().map(|wr| Ok(*wr)));
        // All of them or none.
        posted.map_err(|error| (0, error))
    }

    fn bind_mw(
        &self,
        mw: &Arc<dyn Mw>,
        wr_id: u64,
        bind: &MwBind,
        flags: SendFlags,
    ) -> Result<u32> {
        let mw = SoftMw::of_type_1(mw, &self.host)?;
        mw.rebind(|rkey, new_rkey| {
            let bind = *bind;
            self.post_send(&SendWr {
                wr_id,
                op: SendOp::BindMw {
                    rkey,
                    new_rkey,
                    bind,
                },
                data: SendData::Sges(&[]),
                flags,
                ud: None,
                srq: None,
            })
        })
    }

    #[inline]
    fn post_recv(&self, wr: &RecvWr<'_>) -> Result<()> {
        self.host.entry.check(Step::PostReceive)?;
        let mut state = self.core.lock();
        self.check_present(Step::PostReceive, &state)?;
        let posted = state.engine.post_recv(wr);
        posted.map_err(|error| self.explain(error, state.path.as_ref()))?;
        if state.engine.state() == QpState::Err {
            let now = self.host.clock.now();
            self.host.settle(&self.core, &mut state, now);
        }
        Ok(())
    }

    fn attach_mcast(&self, gid: &Gid, _lid: u16) -> Result<()> {
        let step = Step::AttachMulticast;
        let key = self.group_of(step, gid)?;
        drop(self.open(step)?);
        let attached = self.host.attach(key, &self.core);
        attached.map_err(|error| self.explain(error, None))?;
        // If it was destroyed meanwhile, it left only the groups that it was attached to before.
        if self.core.lock().closed {
            self.host.detach(key, self.core.qpn);
        }
        Ok(())
    }

    fn detach_mcast(&self, gid: &Gid, _lid: u16) -> Result<()> {
        let step = Step::DetachMulticast;
        let key = self.group_of(step, gid)?;
        drop(self.open(step)?);
        match self.host.detach(key, self.core.qpn) {
            true => Ok(()),
            false => {
                let cause = Cause::NoSuchObject("attachment to the multicast group");
                Err(self.explain(Error::new(step, cause), None))
            }
        }
    }

    fn destroy(&self) -> Result<()> {
        // In a forked child all state is a copy, whose locks may have been held at the fork.
        self.host.entry.check(Step::ModifyQp)?;
        self.see_arrived();
        let mut state = self.core.lock();
        if !state.closed {
            self.send_deferred_ack(&mut state);
            self.host.send_waiting_datagrams(&self.core, &mut state);
        }
        if std::mem::replace(&mut state.closed, true) {
            return Ok(());
        }
        self.host.end_direct(&mut state);
        self.host.replace_path(&mut state, None);
        self.host.take_datagrams(&mut state, false);
        self.host
            .deadlines
            .set(self.core.qpn, &mut state.timer, None);
        drop(state.srq.take());
        self.core.device.retire(state.engine.counters());
        drop(state);
        if self.core.qp_type == QpType::Ud {
            self.host.detach_from_all(self.core.qpn);
        }
        if self.host.gauges.mws.used() > 0 {
            self.host.memory.write().unbind_queue_pair(self.core.qpn);
        }
        self.host.qps.remove(self.core.qpn);
        if self.core.qp_type == QpType::Rc && self.host.links.is_some() {
            self.host.forget_recent();
        }
        self.core.forget_completions();
        self.core.device.forget(self.core.qpn);
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for SoftQp {
    fn drop(&mut self) {
        // Fails only in a forked child, where there is nothing to do.
        let _ = self.destroy();
    }
}

/// Fails if the queue pair is destroyed.
#[inline(always)]
fn check_open(step: Step, state: &LockedQp) -> Result<()> {
    match state.closed {
        true => Err(destroyed(step)),
        false => Ok(()),
    }
}

#[cold]
fn destroyed(step: Step) -> Error {
    Error::new(step, Cause::NoSuchObject("queue pair"))
}

/// Refuses a controlled Q_Key without CAP_NET_RAW, as Linux does (`ib_uverbs_modify_qp`, since 6.4). With QP1's
/// Q_Key, a controlled one, a program could impersonate the host's connection manager.
fn check_qkey(qkey: QKey) -> Result<()> {
    use rustix::thread::{CapabilitySet, capabilities};
    if !qkey.is_controlled() {
        return Ok(());
    }
    match capabilities(None).map(|sets| sets.effective) {
        Ok(effective) if effective.contains(CapabilitySet::NET_RAW) => Ok(()),
        _ => {
            let cause = Cause::ControlledQKey { qkey: qkey.0 };
            Err(Error::new(Step::ModifyQp, cause))
        }
    }
}
