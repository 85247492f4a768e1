//! SET_OPTION.

use portolan_kernel::raw::{
    Fields, OPTION_ACK_TIMEOUT, OPTION_AFONLY, OPTION_LEVEL_ID, OPTION_REUSEADDR, OPTION_TOS,
    PathData, SetOption,
};
use portolan_provider::cm::{IdNumber, IdOption};
use portolan_wire::Gid;
use portolan_wire::sa::PathRecord;
use rustix::io::Errno;
use std::time::Duration;

use crate::channel::{Channel, Command};
use crate::errno::errno;
use crate::query::PATH_FLAGS;

type Result<T> = std::result::Result<T, Errno>;

/// `RDMA_OPTION_IB`.
const LEVEL_IB: u32 = 1;
/// `RDMA_OPTION_IB_PATH`: an array of `struct ib_path_rec_data`.
const IB_PATH: u32 = 1;
/// Longest value; arrays of paths are shorter.
const VALUE_MAX: u32 = 64 * 1024;
/// A route that was set resolves at once, without a query.
const ROUTE_TIMEOUT: Duration = Duration::from_secs(2);

impl Channel {
    pub(crate) fn set_option(&self, command: &Command<'_>) -> Result<()> {
        let option: SetOption = command.read()?;
        if option.optlen > VALUE_MAX {
            return Err(Errno::INVAL);
        }
        let id = self.own(option.id)?;
        let value = command.value(option.optval, option.optlen)?;
        match (option.level, option.optname) {
            (OPTION_LEVEL_ID, OPTION_TOS) => self.set(id, IdOption::Tos(byte(&value)?)),
            (OPTION_LEVEL_ID, OPTION_REUSEADDR) => {
                self.set(id, IdOption::ReuseAddr(int(&value)? != 0))
            }
            (OPTION_LEVEL_ID, OPTION_AFONLY) => self.set(id, IdOption::AfOnly(int(&value)? != 0)),
            (OPTION_LEVEL_ID, OPTION_ACK_TIMEOUT) => {
                self.set(id, IdOption::AckTimeout(byte(&value)?))
            }
            (LEVEL_IB, IB_PATH) => self.set_path(id, &value),
            _ => Err(Errno::NOSYS),
        }
    }

    fn set(&self, id: IdNumber, option: IdOption) -> Result<()> {
        self.commands().set_option(id, option).map_err(errno)
    }

    /// Sets a route that the program found. On RoCE the route follows from the addresses: a route between the id's own
    /// addresses is accepted, and RouteResolved follows; any other is `EINVAL`.
    fn set_path(&self, id: IdNumber, value: &[u8]) -> Result<()> {
        if !value.len().is_multiple_of(PathData::SIZE) {
            return Err(Errno::INVAL);
        }
        let mut given = value.chunks(PathData::SIZE).map(PathData::from_bytes);
        let path = given.find(|path| path.flags == PATH_FLAGS);
        let record = path.ok_or(Errno::INVAL)?.path_rec;
        let record = PathRecord::parse(&record).map_err(|_| Errno::INVAL)?;
        let known = self.commands().addresses(id).map_err(errno)?;
        let is_its = |known: Option<Gid>, given: Gid| known == Some(given);
        if !is_its(known.sgid, record.sgid) || !is_its(known.dgid, record.dgid) {
            return Err(Errno::INVAL);
        }
        let resolved = self.commands().resolve_route(id, ROUTE_TIMEOUT);
        resolved.map_err(errno)
    }
}

fn byte(value: &[u8]) -> Result<u8> {
    match value {
        [byte] => Ok(*byte),
        _ => Err(Errno::INVAL),
    }
}

fn int(value: &[u8]) -> Result<u32> {
    let bytes = value.try_into().map_err(|_| Errno::INVAL)?;
    Ok(u32::from_ne_bytes(bytes))
}
