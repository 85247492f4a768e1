//! Looks up services at InfiniBand's subnet administrator through the kernel (Linux 6.18). Any user may do this,
//! whereas the port's user MAD device needs root.

use std::os::fd::AsFd;
use std::time::Duration;

use portolan_provider::address::{Address, SockaddrIb};
use portolan_provider::cm::EventType;
use portolan_provider::{Cause, Error, Result, Step};
use portolan_wire::addr::{Gid, PKey, PortSpace};
use portolan_wire::sa::ServiceRecord;
use rustix::event::{PollFd, PollFlags, Timespec};

use super::abi::*;
use super::fields::Fields;
use super::offers::Offers;
use crate::error::refused;
use crate::sys::rdma_cm::Channel;

const STEP: Step = Step::ResolveName;
/// `IB_QPT_RC`: an id needs some type.
const QP_TYPE_RC: u8 = 2;

/// The search key.
#[derive(Clone, Copy, Debug)]
pub enum IbServiceKey {
    /// A service with this id.
    Id(u64),
    /// A service with this name, padded with zeros.
    Name([u8; IB_SERVICE_NAME_LEN]),
}

/// Lets the kernel query the administrator of the port with the GID `port` for a service. Returns the first records, at
/// least one.
///
/// # Errors
/// `Unsupported` on a kernel before Linux 6.18; `NoDevice` without the rdma_cm device, or if the kernel has no
/// InfiniBand port with the GID; `TimedOut`; the cause in the kernel's event.
pub fn ib_services(port: Gid, key: IbServiceKey, timeout: Duration) -> Result<Vec<ServiceRecord>> {
    let device = super::open()?;
    if !Offers::ask(&device)?.ib_service {
        let old = "service lookup by a kernel before Linux 6.18";
        return Err(Error::new(STEP, Cause::Unsupported(old)));
    }
    ask(&device, port, key, timeout)
}

/// Like librdmacm, uses an id of its own on the port. Closing the device destroys it.
fn ask(
    device: &Channel,
    port: Gid,
    key: IbServiceKey,
    timeout: Duration,
) -> Result<Vec<ServiceRecord>> {
    let create = CreateId {
        ps: PortSpace::Ib.value(),
        qp_type: QP_TYPE_RC,
        ..CreateId::zeroed()
    };
    let created = device.ask(number::CREATE_ID, create, &CreateIdResp::zeroed());
    let id = created
        .map_err(|errno| refused(STEP, "CREATE_ID", errno))?
        .id;
    let bound = device.command(&bind(id, port));
    bound.map_err(|errno| refused(STEP, "BIND", errno))?;
    let asked = device.command(&ResolveIbService {
        id,
        reserved: 0,
        service: service(key),
    });
    asked.map_err(|errno| refused(STEP, "RESOLVE_IB_SERVICE", errno))?;
    await_readable(device, timeout)?;
    let event = device.ask(number::GET_EVENT, GetEvent::zeroed(), &EventResp::zeroed());
    let event = event.map_err(|errno| refused(STEP, "GET_EVENT", errno))?;
    check(&event)?;
    let query = Query {
        id,
        option: QUERY_IB_SERVICE,
        ..Query::zeroed()
    };
    let found = device.ask(number::QUERY, query, &QueryIbServiceResp::zeroed());
    records(&found.map_err(|errno| refused(STEP, "QUERY", errno))?)
}

fn bind(id: u32, port: Gid) -> Bind {
    let address = Address::Ib(SockaddrIb {
        pkey: PKey::DEFAULT,
        flowinfo: 0,
        gid: port,
        sid: 0,
        sid_mask: 0,
        scope_id: 0,
    });
    let bytes = address.to_sockaddr();
    let mut addr = [0; 128];
    addr[..bytes.len()].copy_from_slice(&bytes);
    Bind {
        id,
        addr_size: bytes.len() as u16,
        reserved: 0,
        addr,
    }
}

fn service(key: IbServiceKey) -> IbService {
    match key {
        IbServiceKey::Id(service_id) => IbService {
            service_id,
            flags: IB_SERVICE_FLAG_ID,
            ..IbService::zeroed()
        },
        IbServiceKey::Name(service_name) => IbService {
            service_name,
            flags: IB_SERVICE_FLAG_NAME,
            ..IbService::zeroed()
        },
    }
}

fn await_readable(device: &Channel, timeout: Duration) -> Result<()> {
    let mut fds = [PollFd::from_borrowed_fd(device.as_fd(), PollFlags::IN)];
    let limit = Timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(timeout.subsec_nanos()),
    };
    match rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, Some(&limit))) {
        Ok(0) => {
            let (after_ms, retries) = (timeout.as_millis() as u64, 0);
            let cause = Cause::TimedOut { after_ms, retries };
            Err(Error::new(STEP, cause))
        }
        Ok(_) => Ok(()),
        Err(errno) => Err(refused(STEP, "poll", errno)),
    }
}

/// Checks that the event is the answer.
fn check(event: &EventResp) -> Result<()> {
    let is_answer = event.event == EventType::AddrinfoResolved as u32;
    if is_answer && event.status == 0 {
        return Ok(());
    }
    let errno = event.status.cast_signed().saturating_abs();
    let call = "RESOLVE_IB_SERVICE";
    Err(Error::new(STEP, Cause::Os { call, errno }))
}

fn records(found: &QueryIbServiceResp) -> Result<Vec<ServiceRecord>> {
    let count = usize::try_from(found.num_service_recs).unwrap_or(IB_SERVICES_MAX);
    let known = found.recs.iter().take(count);
    let parsed = known.map(|rec| ServiceRecord::parse(&rec.record));
    let invalid = |_| Error::invalid(STEP, "service record", "176 bytes", found.recs.len());
    let parsed = parsed.collect::<std::result::Result<Vec<_>, _>>();
    let parsed = parsed.map_err(invalid)?;
    match parsed.is_empty() {
        true => Err(Error::new(STEP, Cause::NoSuchObject("service"))),
        false => Ok(parsed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Offsets are those of `struct rdma_ucm_resolve_ib_service` in rdma/rdma_user_cm.h of Linux 7.3, which
    /// `lab/c/rdma_user_cm.c` checks.
    #[test]
    fn a_service_query_has_the_id_or_name_at_the_kernels_offset() {
        let command = |key| {
            let command = ResolveIbService {
                id: 7,
                reserved: 0,
                service: service(key),
            };
            command.to_bytes()
        };
        let word =
            |bytes: &[u8], at: usize| u32::from_ne_bytes(bytes[at..][..4].try_into().unwrap());
        let by_id = command(IbServiceKey::Id(0x0102_0304_0506_0708));
        assert_eq!((by_id.len(), word(&by_id, 0), word(&by_id, 80)), (88, 7, 1));
        assert_eq!(by_id[8..16], 0x0102_0304_0506_0708u64.to_ne_bytes());
        let mut name = [0; IB_SERVICE_NAME_LEN];
        name[..5].copy_from_slice(b"store");
        let by_name = command(IbServiceKey::Name(name));
        assert_eq!((word(&by_name, 80), &by_name[16..22]), (2, &b"store\0"[..]));
        assert_eq!(by_name[8..16], [0; 8]);
    }

    #[test]
    fn the_id_is_bound_to_the_ports_gid_as_an_address_of_infiniband() {
        let port = Gid(std::array::from_fn(|at| at as u8));
        let bound = bind(3, port);
        assert_eq!((bound.id, bound.addr_size), (3, 48));
        assert_eq!(bound.addr[..2], 27u16.to_ne_bytes(), "AF_IB");
        assert_eq!(bound.addr[8..24], port.0);
    }

    #[test]
    fn the_kernels_count_of_records_is_respected_and_zero_is_an_error() {
        let mut found = QueryIbServiceResp::zeroed();
        assert!(records(&found).is_err());
        found.num_service_recs = 9;
        found.recs[0].record[..8].copy_from_slice(&0x77u64.to_be_bytes());
        found.recs[0].record[24..26].copy_from_slice(&[0x80, 1]);
        let known = records(&found).unwrap();
        assert_eq!(known.len(), IB_SERVICES_MAX, "the list is full");
        assert_eq!((known[0].service_id.0, known[0].pkey), (0x77, PKey(0x8001)));
        found.num_service_recs = 1;
        assert_eq!(records(&found).unwrap().len(), 1);
    }

    #[test]
    fn a_failure_event_gives_the_errno_that_it_carries() {
        let event = |event: EventType, status: i32| EventResp {
            event: event as u32,
            status: status.cast_unsigned(),
            ..EventResp::zeroed()
        };
        check(&event(EventType::AddrinfoResolved, 0)).unwrap();
        let error = check(&event(EventType::AddrinfoError, -110)).unwrap_err();
        assert_eq!(error.errno(), 110);
    }
}
