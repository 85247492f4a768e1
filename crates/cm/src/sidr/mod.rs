//! Datagrams: service id resolution (SIDR, IBTA 12.11). One side asks which queue pair serves a port, the other
//! answers. No connection follows, so nothing has to be closed.

mod active;
mod passive;

use alloc::boxed::Box;
use core::time::Duration;

use portolan_provider::cm::{EventParam, IdNumber, UdParam};
use portolan_provider::error::{Error, Result, Step};
use portolan_provider::verbs::AhAttr;
use portolan_wire::cm::PrivateData;
use portolan_wire::cma::CmaHeader;
use portolan_wire::mad::MAD_LEN;
use portolan_wire::{Gid, QKey, Qpn, ServiceId};

use crate::retry::Request;
use crate::types::{Host, MadPath};

/// Bytes of private data that a SIDR REQ has for the user, after the IP addresses.
pub const SIDR_REQ_PRIVATE_DATA_MAX: usize = PrivateData::<216>::LEN - CmaHeader::LEN;

/// Bytes of private data of a SIDR REP, whether it accepts or rejects.
pub const SIDR_REP_PRIVATE_DATA_MAX: usize = PrivateData::<136>::LEN;

/// The key of a peer's SIDR request. A copy matches in every field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RemoteRequest {
    pub(crate) host: Host,
    pub(crate) request_id: u32,
    pub(crate) tid: u64,
    pub(crate) service_id: ServiceId,
}

/// A SIDR request of ours.
#[derive(Debug)]
pub(crate) struct Inquiry {
    pub(crate) mad_path: MadPath,
    /// Taken from the communication ids.
    pub(crate) request_id: u32,
    /// How long to wait for an answer, and how often to repeat.
    pub(crate) response_timeout: Duration,
    pub(crate) max_retries: u8,
    /// The SIDR REQ, until it is answered.
    pub(crate) request: Option<Request>,
}

/// A SIDR request of a peer.
#[derive(Debug)]
pub(crate) struct Asked {
    /// The listener whose backlog it still counts against.
    pub(crate) waits_at: Option<IdNumber>,
    /// The path it came from.
    pub(crate) mad_path: MadPath,
    pub(crate) name: RemoteRequest,
    /// The SIDR REP, once sent: a copy of the request gets it again.
    pub(crate) answer: Option<Box<[u8; MAD_LEN]>>,
}

/// Parameters of an event without a queue pair: zeros, as on Linux.
pub(crate) fn param_without_queue_pair(private_data: &[u8]) -> EventParam {
    EventParam::Ud(UdParam {
        private_data: Box::from(private_data),
        ah_attr: AhAttr {
            dgid: Gid::default(),
            sgid_index: 0,
            flow_label: 0,
            hop_limit: 0,
            traffic_class: 0,
            sl: 0,
            port_num: 0,
            local_route: None,
        },
        qp_num: Qpn::new(0),
        qkey: QKey(0),
    })
}

/// The private data of a SIDR REP.
fn answer_private_data(step: Step, data: &[u8]) -> Result<PrivateData<136>> {
    PrivateData::from_slice(data).map_err(|_| {
        let expected = alloc::format!("at most {SIDR_REP_PRIVATE_DATA_MAX} bytes");
        let found = alloc::format!("{} bytes", data.len());
        Error::invalid(step, "private data", expected, found)
    })
}
