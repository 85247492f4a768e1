//! QUERY and INIT_QP_ATTR: the attributes of an id.

use portolan_kernel::raw::{
    self, Fields, InitQpAttr, PathData, QUERY_ADDR, QUERY_GID, QUERY_PATH, Query, QueryAddrResp,
    QueryPathResp,
};
use portolan_provider::Address;
use portolan_provider::address::{SockaddrIb, unspecified_like};
use portolan_provider::cm::{IdAddresses, IdNumber, PathRecord};
use portolan_provider::verbs::{AhAttr, QpAttr, QpAttrMask, QpState};
use portolan_wire::sa;
use portolan_wire::{Gid, PKey};
use rustix::io::Errno;

use crate::address;
use crate::channel::{Channel, Command};
use crate::errno::errno;

type Result<T> = std::result::Result<T, Errno>;

/// Flags of the paths that a connection has (`IB_PATH_GMP`, `_PRIMARY`, `_BIDIRECTIONAL`).
pub(crate) const PATH_FLAGS: u32 = 1 | 2 | 8 | 32;

impl Channel {
    pub(crate) fn query(&self, command: &Command<'_>) -> Result<()> {
        let query: Query = command.read()?;
        match query.option {
            QUERY_ADDR => {
                command.expect_room::<QueryAddrResp>()?;
                let answer = self.query_addresses(self.own(query.id)?)?;
                command.answer(query.response, &answer)
            }
            QUERY_PATH => {
                command.expect_room::<QueryPathResp>()?;
                let answer = self.query_paths(self.own(query.id)?)?;
                command.answer(query.response, &answer)
            }
            QUERY_GID => {
                command.expect_room::<QueryAddrResp>()?;
                let answer = self.query_gids(self.own(query.id)?)?;
                command.answer(query.response, &answer)
            }
            _ => Err(Errno::NOSYS),
        }
    }

    fn query_addresses(&self, id: IdNumber) -> Result<QueryAddrResp> {
        let known = self.commands().addresses(id).map_err(errno)?;
        let mut answer = QueryAddrResp::zeroed();
        // The kernel fills in the family of the other end in advance.
        let remote = known.remote.or(known.local.map(wildcard));
        (answer.src_addr, answer.src_size) = address::encode(known.local);
        (answer.dst_addr, answer.dst_size) = address::encode(remote);
        self.describe_device(&known, &mut answer)?;
        Ok(answer)
    }

    /// The device, if the id is bound to one. Ethernet has no partitions: the kernel reports 0.
    fn describe_device(&self, known: &IdAddresses, answer: &mut QueryAddrResp) -> Result<()> {
        let Some(index) = known.device_index else {
            return Ok(());
        };
        let device = self.device().provider().device(index).map_err(errno)?;
        let device = device.ok_or(Errno::NODEV)?;
        answer.node_guid = device.attr().map_err(errno)?.node_guid.to_be();
        answer.port_num = known.port_num;
        answer.ibdev_index = index;
        Ok(())
    }

    /// GIDs in the form of `AF_IB` addresses, as the kernel returns them.
    fn query_gids(&self, id: IdNumber) -> Result<QueryAddrResp> {
        let known = self.commands().addresses(id).map_err(errno)?;
        let mut answer = QueryAddrResp::zeroed();
        (answer.src_addr, answer.src_size) = address::encode(Some(of_gid(known.sgid)));
        (answer.dst_addr, answer.dst_size) = address::encode(Some(of_gid(known.dgid)));
        self.describe_device(&known, &mut answer)?;
        Ok(answer)
    }

    fn query_paths(&self, id: IdNumber) -> Result<QueryPathResp> {
        let paths = self.commands().paths(id).map_err(errno)?;
        let mut answer = QueryPathResp::zeroed();
        for (path, place) in paths.iter().zip(&mut answer.path_data) {
            *place = PathData {
                flags: PATH_FLAGS,
                reserved: 0,
                path_rec: path_record(path)?,
            };
            answer.num_paths += 1;
        }
        Ok(answer)
    }

    pub(crate) fn init_qp_attr(&self, command: &Command<'_>) -> Result<()> {
        let init: InitQpAttr = command.read()?;
        command.expect_room::<raw::QpAttr>()?;
        let state = state(init.qp_state).ok_or(Errno::INVAL)?;
        let id = self.own(init.id)?;
        let (attr, mask) = self.commands().init_qp_attr(id, state).map_err(errno)?;
        command.answer(init.response, &qp_attr(&attr, mask))
    }
}

/// The wildcard address of the same family.
fn wildcard(address: Address) -> Address {
    match address {
        Address::Inet(address) => unspecified_like(address).into(),
        Address::Ib(_) => of_gid(None),
    }
    .with_port(0)
}

fn of_gid(gid: Option<Gid>) -> Address {
    Address::Ib(SockaddrIb {
        pkey: PKey(0),
        flowinfo: 0,
        gid: gid.unwrap_or(Gid::UNSPECIFIED),
        sid: 0,
        sid_mask: 0,
        scope_id: 0,
    })
}

/// A path record in the format of management datagrams.
fn path_record(path: &PathRecord) -> Result<[u8; 64]> {
    let record = sa::PathRecord::from(path);
    let mut bytes = [0; 64];
    // A value that exceeds its field is an error of the provider.
    record.emit(&mut bytes).map_err(|_| Errno::IO)?;
    Ok(bytes)
}

/// A state of `enum ib_qp_state`.
fn state(number: u32) -> Option<QpState> {
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
    let all = [Reset, Init, Rtr, Rts, Sqd, Sqe, Err];
    all.get(number as usize).copied()
}

/// Fields that the mask does not contain are 0, as in the kernel.
fn qp_attr(attr: &QpAttr, mask: QpAttrMask) -> raw::QpAttr {
    let named = |which: QpAttrMask, value: u32| if mask.contains(which) { value } else { 0 };
    raw::QpAttr {
        qp_attr_mask: mask.bits(),
        qp_state: attr.state as u32,
        path_mtu: named(QpAttrMask::PATH_MTU, attr.path_mtu as u32),
        qkey: attr.qkey.0,
        rq_psn: attr.rq_psn.value(),
        sq_psn: attr.sq_psn.value(),
        dest_qp_num: attr.dest_qpn.value(),
        qp_access_flags: attr.access.bits(),
        ah_attr: match mask.contains(QpAttrMask::AV) {
            true => ah_attr(&attr.ah_attr),
            false => raw::AhAttr::zeroed(),
        },
        pkey_index: attr.pkey_index,
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: attr.min_rnr_timer,
        port_num: named(QpAttrMask::PORT, attr.port_num.into()) as u8,
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
        ..raw::QpAttr::zeroed()
    }
}

/// The address vector of a destination; RoCE always has a global route.
pub(crate) fn ah_attr(attr: &AhAttr) -> raw::AhAttr {
    raw::AhAttr {
        dgid: attr.dgid.0,
        flow_label: attr.flow_label,
        sgid_index: attr.sgid_index,
        hop_limit: attr.hop_limit,
        traffic_class: attr.traffic_class,
        sl: attr.sl,
        is_global: 1,
        port_num: attr.port_num,
        ..raw::AhAttr::zeroed()
    }
}
