//! Optional features of the running kernel's ABI. Its version number has always been 4, so the device is probed with
//! ids that cannot exist: an unknown command fails with EINVAL, a known one reports the missing id.

use portolan_provider::{Cause, Error, Result, Step};
use portolan_wire::addr::PortSpace;
use rustix::io::Errno;

use super::abi::*;
use super::fields::Fields;
use crate::error::refused;
use crate::sys::rdma_cm::{Channel, Command};

/// No id has this number, because the kernel assigns the lowest free ones.
const NO_ID: u32 = u32::MAX;
/// Marks a field that the kernel did not write.
const UNWRITTEN: u32 = u32::MAX;
/// `IB_QPT_RC`.
const QP_TYPE_RC: u8 = 2;

/// Commands that not every kernel has, each determined by probing. Vendor options (ECE), device numbers and reject
/// reasons arrived together in Linux 5.8; without them the provider does not open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offers {
    /// Whether events can be written to an id (`rdma_write_cm_event(3)`; Linux 6.18).
    pub write_event: bool,
    /// Whether services can be looked up at the subnet administrator (`rdma_resolve_addrinfo(3)`; Linux 6.18).
    pub ib_service: bool,
}

impl Offers {
    /// Probes an open device.
    ///
    /// # Errors
    /// `Unsupported` for a kernel before Linux 5.8; otherwise the device's error.
    pub(super) fn ask(device: &Channel) -> Result<Self> {
        check_extended(device)?;
        let written = WriteCmEvent {
            id: NO_ID,
            event: portolan_provider::cm::EventType::User as u32,
            ..WriteCmEvent::zeroed()
        };
        let service = ResolveIbService {
            id: NO_ID,
            ..ResolveIbService::zeroed()
        };
        Ok(Self {
            write_event: is_known(device, &written)?,
            ib_service: is_known(device, &service)?,
        })
    }
}

fn is_known<C: Command>(device: &Channel, command: &C) -> Result<bool> {
    match device.command(command) {
        Err(Errno::NOENT) => Ok(true),
        Err(Errno::INVAL | Errno::NOSYS) => Ok(false),
        Err(errno) => Err(refused(Step::OpenChannel, "rdma_cm", errno)),
        Ok(()) => Err(refused(Step::OpenChannel, "rdma_cm", Errno::IO)),
    }
}

/// Checks that a query returns the number of the device (since Linux 5.8).
fn check_extended(device: &Channel) -> Result<()> {
    let error = |errno| refused(Step::OpenChannel, "rdma_cm", errno);
    let create = CreateId {
        ps: PortSpace::Tcp.value(),
        qp_type: QP_TYPE_RC,
        ..CreateId::zeroed()
    };
    let created = device.ask(number::CREATE_ID, create, &CreateIdResp::zeroed());
    let id = created.map_err(error)?.id;
    let prefilled = QueryAddrResp {
        ibdev_index: UNWRITTEN,
        ..QueryAddrResp::zeroed()
    };
    let query = Query {
        id,
        option: QUERY_ADDR,
        ..Query::zeroed()
    };
    let known = device.ask(number::QUERY, query, &prefilled);
    let destroy = DestroyId {
        id,
        ..DestroyId::zeroed()
    };
    let destroyed = device.ask(number::DESTROY_ID, destroy, &EventsReported::zeroed());
    if known.map_err(error)?.ibdev_index == UNWRITTEN {
        let old = "a kernel before Linux 5.8, whose rdma_cm does not report device numbers,";
        return Err(Error::new(Step::OpenChannel, Cause::Unsupported(old)));
    }
    destroyed.map(drop).map_err(error)
}
