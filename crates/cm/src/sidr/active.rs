//! The active side of SIDR: SIDR REQ out, SIDR REP in.

use alloc::boxed::Box;
use core::time::Duration;

use portolan_provider::cm::{Ece, EventParam, EventType, IdNumber, UdParam};
use portolan_provider::error::errno::EINVAL;
use portolan_provider::error::{Cause, Error, Result, Step};
use portolan_wire::Qpn;
use portolan_wire::cm::{AttributeId, SidrRepRepr, SidrReqRepr, SidrStatus};

use super::{Inquiry, param_without_queue_pair};
use crate::active::{addressed_private_data, mad_path};
use crate::config::time_of_exponent;
use crate::engine::Cm;
use crate::infiniband::plain_private_data;
use crate::mutant::{Mutant, is_planted};
use crate::qp_attr::ah_attr_of;
use crate::query::takes_qkey;
use crate::state::Event;
use crate::types::MadPath;

impl Cm {
    /// Sends a SIDR REQ for the peer's queue pair (`cma_resolve_ib_udp`). A SIDR REQ has no field for vendor options.
    pub(crate) fn inquire(
        &mut self,
        now: Duration,
        number: IdNumber,
        private_data: &[u8],
    ) -> Result<()> {
        let step = Step::Connect;
        let id = self.ids.find(number, step)?;
        let next = id.command(Event::ConnectDatagram, step)?;
        let route = (id.local, id.remote, id.device, id.path);
        let (Some(local), Some(remote), Some(device), Some(path)) = route else {
            let expected = "route resolved";
            let found = id.state.name();
            return Err(id.fail(step, Cause::InvalidState { expected, found }));
        };
        let service_id = id.service_id(&remote);
        let private_data = match id.ib_service {
            Some(_) => plain_private_data(private_data),
            None => addressed_private_data(local, remote, private_data),
        }
        .map_err(|error| id.locate(error))?;
        let mad_path = mad_path(local, remote, device, id.lids);

        let request_id = self.draw_comm_id().ok_or_else(|| {
            let what = "communication ids";
            Error::new(
                step,
                Cause::LimitReached {
                    what,
                    limit: 1 << 24,
                },
            )
        })?;
        let tid = self.random_tid();
        let inquiry = Inquiry {
            mad_path,
            request_id,
            response_timeout: time_of_exponent(self.config.response_timeout_exp),
            max_retries: self.config.max_cm_retries,
            request: None,
        };
        if let Some(id) = self.ids.get_mut(number) {
            id.inquiry = Some(Box::new(inquiry));
        }
        self.ids.set_comm_id(request_id, number);
        self.enter(now, number, next);
        let req = SidrReqRepr {
            request_id,
            pkey: path.pkey,
            service_id,
            private_data,
        };
        self.send_request(now, number, tid, req);
        Ok(())
    }

    /// SIDR REP (`cm_sidr_rep_handler`, then `cma_sidr_rep_handler`).
    pub(crate) fn sidr_rep_received(&mut self, now: Duration, path: &MadPath, rep: &SidrRepRepr) {
        let found = self.ids.by_request_id(rep.request_id);
        let asked = found.filter(|(_, inquiry)| inquiry.mad_path.has_ends_of(path));
        let Some((number, _)) = asked else {
            return self.drop_unknown();
        };
        let Some(id) = self.ids.get(number) else {
            return;
        };
        if id.state.after(Event::SidrRepReceived).is_none() {
            self.counters.duplicates[AttributeId::SidrRep] += 1;
            return self.drop_unexpected();
        }
        if id
            .remote
            .is_some_and(|remote| id.service_id(&remote) != rep.service_id)
        {
            return self.drop_mismatch();
        }
        let ece = rep.ece;
        if rep.status != SidrStatus::SUCCESS {
            self.advance(now, number, Event::SidrRepRefused);
            let (status, param) = (
                i32::from(rep.status.0),
                param_without_queue_pair(&rep.private_data),
            );
            return self.report(number, EventType::Unreachable, status, param, ece);
        }
        if rep.qpn.value() <= Qpn::GSI.value() {
            return self.drop_malformed();
        }
        let (Some(path), Some(device)) = (id.path, id.device) else {
            return;
        };
        // The id may not use this key. rdma_cm reports it with this event type, although it does not fit.
        if !takes_qkey(id.qkey, rep.qkey) && !is_planted(Mutant::QkeyNotCompared) {
            self.advance(now, number, Event::SidrRepRefused);
            let param = param_without_queue_pair(&rep.private_data);
            return self.report(number, EventType::AddrError, -EINVAL, param, Ece::default());
        }
        self.advance(now, number, Event::SidrRepReceived);
        let param = EventParam::Ud(UdParam {
            private_data: Box::from(&rep.private_data[..]),
            ah_attr: ah_attr_of(&path, &device),
            qp_num: rep.qpn,
            qkey: rep.qkey,
        });
        self.report(number, EventType::Established, 0, param, ece);
    }
}
