//! The kernel's commands for an id, and the fields of C's part that their answers fill.

#![allow(unsafe_code, reason = "pointers of C programs and libibverbs")]

use std::sync::Arc;

use portolan_kernel::raw::{self, CreateId, CreateIdResp, Fields, QueryAddrResp, QueryPathResp};
use portolan_kernel::raw::{DestroyId, EventsReported, InitQpAttr, Query, number};
use portolan_wire::addr::Gid as WireGid;
use rustix::io::Errno;

use crate::channel;
use crate::convert;
use crate::device::{self, NO_INDEX};
use crate::guard::Result;
use crate::id::{Id, get, set};
use crate::layout::{self, Gid, QpAttr, SaPathRec, TRANSPORT_IB, malloc_copy};

/// Offset of the GID in an address of `AF_IB`.
const IB_ADDRESS_GID: usize = 8;

impl Id {
    /// The channel for its commands.
    ///
    /// # Errors
    /// `EBADF` if the program has destroyed its channel.
    pub(crate) fn commands(&self) -> Result<Arc<channel::Open>> {
        channel::hold(get!(&self, channel))
    }

    /// CREATE_ID.
    pub(crate) fn create_in_kernel(&self) -> Result<()> {
        let create = CreateId {
            uid: self.own().uid,
            ps: get!(&self, ps) as u16,
            qp_type: get!(&self, qp_type) as u8,
            ..CreateId::zeroed()
        };
        let commands = self.commands()?;
        let answer = commands.ask(number::CREATE_ID, create, &CreateIdResp::zeroed())?;
        self.set_handle(answer.id);
        Ok(())
    }

    /// DESTROY_ID. Returns the number of events reported.
    pub(crate) fn destroy_in_kernel(&self) -> Result<u32> {
        let destroy = DestroyId {
            id: self.handle(),
            ..DestroyId::zeroed()
        };
        let commands = self.commands()?;
        let answer = commands.ask(number::DESTROY_ID, destroy, &EventsReported::zeroed())?;
        Ok(answer.events_reported)
    }

    /// Queries its addresses, and its device if it is bound to one.
    pub(crate) fn query_addresses(&self) -> Result<()> {
        let unknown = QueryAddrResp {
            // Kernels before 5.8 do not write this field.
            ibdev_index: NO_INDEX,
            ..QueryAddrResp::zeroed()
        };
        let query = self.query(raw::QUERY_ADDR);
        let answer = self.commands()?.ask(number::QUERY, query, &unknown)?;
        // SAFETY: inside C's part of the id, which exists.
        let route = unsafe { &raw mut (*self.as_c()).route.addr };
        let copy = |from: &[u8; 128], length: u16, to: *mut u8| {
            let length = usize::from(length).min(from.len());
            // SAFETY: the destination has room for all bytes.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, length) };
        };
        // SAFETY: inside C's part of the id.
        let (source, destination) =
            unsafe { (&raw mut (*route).src_storage, &raw mut (*route).dst_storage) };
        copy(&answer.src_addr, answer.src_size, source.cast());
        copy(&answer.dst_addr, answer.dst_size, destination.cast());
        // Ports of devices are numbered from one.
        if answer.port_num != 0 && self.state().device.is_none() {
            self.take_device(answer.node_guid, answer.ibdev_index)?;
            set!(&self, port_num = answer.port_num);
            set!(&self, route.addr.addr.pkey = answer.pkey);
        }
        Ok(())
    }

    fn take_device(&self, guid: u64, index: u32) -> Result<()> {
        let device = device::find(guid, index)?;
        let domain = device.use_domain()?;
        set!(&self, verbs = device.context);
        set!(&self, pd = domain);
        let mut state = self.state();
        state.initiator_depth = device.initiator_depth_max;
        state.responder_resources = device.responder_resources_max;
        state.device = Some(device);
        Ok(())
    }

    /// Queries its GIDs.
    pub(crate) fn query_gids(&self) -> Result<()> {
        let query = self.query(raw::QUERY_GID);
        let commands = self.commands()?;
        let answer = commands.ask(number::QUERY, query, &QueryAddrResp::zeroed())?;
        let gid = |address: &[u8; 128]| -> Gid {
            WireGid(std::array::from_fn(|at| address[IB_ADDRESS_GID + at])).into()
        };
        set!(&self, route.addr.addr.sgid = gid(&answer.src_addr));
        set!(&self, route.addr.addr.dgid = gid(&answer.dst_addr));
        Ok(())
    }

    /// Queries its paths.
    pub(crate) fn query_paths(&self) -> Result<()> {
        let query = self.query(raw::QUERY_PATH);
        let commands = self.commands()?;
        let answer = commands.ask(number::QUERY, query, &QueryPathResp::zeroed())?;
        let count = (answer.num_paths as usize).min(raw::PATHS_MAX);
        let paths: Vec<SaPathRec> = answer.path_data[..count]
            .iter()
            .map(convert::path)
            .collect();
        // C's part owns them. The program may have replaced the previous ones.
        let former = get!(&self, route.path_rec);
        set!(&self, route.num_paths = count as i32);
        set!(&self, route.path_rec = malloc_copy(&paths));
        // SAFETY: allocated by malloc, and C's part does not refer to it.
        unsafe { layout::free(former) };
        Ok(())
    }

    fn query(&self, option: u32) -> Query {
        Query {
            response: 0,
            id: self.handle(),
            option,
        }
    }

    /// The transport of its device (`enum ibv_transport_type`).
    pub(crate) fn transport(&self) -> Option<i32> {
        self.state().device.as_ref().map(|device| device.transport)
    }

    pub(crate) fn is_infiniband(&self) -> bool {
        self.transport() == Some(TRANSPORT_IB)
    }

    /// INIT_QP_ATTR: the attributes for a queue pair's transition to a state, and their mask.
    pub(crate) fn init_qp_attr(&self, state: u32) -> Result<(QpAttr, u32)> {
        let ask = InitQpAttr {
            response: 0,
            id: self.handle(),
            qp_state: state,
        };
        let commands = self.commands()?;
        let answer = commands.ask(number::INIT_QP_ATTR, ask, &raw::QpAttr::zeroed())?;
        Ok(((&answer).into(), answer.qp_attr_mask))
    }

    /// The device that it is bound to.
    ///
    /// # Errors
    /// `EINVAL` if it is not bound to a device.
    pub(crate) fn device(&self) -> Result<Arc<device::Device>> {
        self.state().device.clone().ok_or(Errno::INVAL)
    }
}
