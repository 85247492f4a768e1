//! Queries of an id: addresses, paths, queue pair attributes.

use portolan_provider::address::Address;
use portolan_provider::cm::{IdAddresses, IdNumber, PathRecord};
use portolan_provider::verbs::{QpAttr, QpAttrMask, QpState, ROCE_PKEY};
use portolan_provider::{Cause, Error, Result, Step};
use portolan_wire::addr::PKey;
use rustix::io::Errno;

use super::abi::{
    self, InitQpAttr, PATHS_MAX, QUERY_ADDR, QUERY_GID, QUERY_PATH, Query, QueryAddrResp,
    QueryPathResp, number,
};
use super::fields::Fields;
use super::{address, attr};
use crate::error::refused;
use crate::sys::rdma_cm::Channel;

/// QUERY for addresses. GIDs, which an id has once it has a device, are not included.
pub(super) fn addresses(device: &Channel, id: IdNumber) -> Result<IdAddresses> {
    let known: QueryAddrResp = ask(device, id, QUERY_ADDR)?;
    let mut result = IdAddresses {
        local: is_set(address::decode(&known.src_addr, known.src_size)),
        remote: is_set(address::decode(&known.dst_addr, known.dst_size)),
        ..IdAddresses::default()
    };
    // The kernel numbers ports from 1.
    if known.port_num == 0 {
        return Ok(result);
    }
    result.device_index = Some(known.ibdev_index);
    result.port_num = known.port_num;
    // Ethernet has no partitions: the kernel reports 0 but uses the only entry of its table.
    result.pkey = match PKey(u16::from_be(known.pkey)) {
        PKey(0) => ROCE_PKEY,
        pkey => pkey,
    };
    Ok(result)
}

/// QUERY for the GIDs of an id with a device, added to `known`.
pub(super) fn gids(device: &Channel, id: IdNumber, known: IdAddresses) -> Result<IdAddresses> {
    let gids: QueryAddrResp = ask(device, id, QUERY_GID)?;
    let gid = |address: Option<Address>| match address {
        Some(Address::Ib(ib)) => Some(ib.gid),
        _ => None,
    };
    let source = gid(address::decode(&gids.src_addr, gids.src_size));
    let destination = gid(address::decode(&gids.dst_addr, gids.dst_size));
    Ok(IdAddresses {
        sgid: source.filter(|gid| !gid.is_unspecified()),
        dgid: known.remote.and(destination),
        ..known
    })
}

/// QUERY for paths; empty until they are resolved.
pub(super) fn paths(device: &Channel, id: IdNumber) -> Result<Vec<PathRecord>> {
    let known: QueryPathResp = ask(device, id, QUERY_PATH)?;
    let count = usize::try_from(known.num_paths).map_or(PATHS_MAX, |count| count.min(PATHS_MAX));
    let records = known.path_data[..count].iter();
    records
        .map(|data| attr::path_record(&data.path_rec))
        .collect()
}

/// INIT_QP_ATTR.
pub(super) fn qp_attr(
    device: &Channel,
    id: IdNumber,
    state: QpState,
) -> Result<(QpAttr, QpAttrMask)> {
    let question = InitQpAttr {
        id: id.0,
        qp_state: state as u32,
        ..InitQpAttr::zeroed()
    };
    let answer = device.ask(number::INIT_QP_ATTR, question, &abi::QpAttr::zeroed());
    let raw = answer.map_err(|errno| refused(Step::InitQpAttr, "INIT_QP_ATTR", errno))?;
    attr::qp_attr(&raw, state)
}

fn ask<A: Fields>(device: &Channel, id: IdNumber, option: u32) -> Result<A> {
    let query = Query {
        id: id.0,
        option,
        ..Query::zeroed()
    };
    let answer = device.ask(number::QUERY, query, &A::zeroed());
    answer.map_err(|errno| match errno {
        Errno::NOENT => Error::new(Step::Query, Cause::NoSuchObject("id")),
        _ => refused(Step::Query, "QUERY", errno),
    })
}

/// An address that was set: the kernel fills in the other end's family in advance.
fn is_set(address: Option<Address>) -> Option<Address> {
    address.filter(|address| !address.is_unspecified() || address.port() != 0)
}
