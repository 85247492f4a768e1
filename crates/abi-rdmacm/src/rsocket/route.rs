//! Routes in the format of the option `RDMA_ROUTE`: arrays of `struct ibv_path_data`.

use portolan_kernel::raw::{Fields, PathData};
use portolan_provider::cm::PathRecord;
use portolan_wire::sa;
use rustix::io::Errno;

use crate::guard::Result;

/// Bytes of one `struct ibv_path_data`.
pub(super) const PATH_BYTES: usize = PathData::SIZE;
/// `IBV_PATH_FLAG_GMP`, `_PRIMARY` and `_BIDIRECTIONAL`. The kernel rejects a route without them.
const FLAGS: u32 = 0x2B;

/// The paths as an array of C's structure, which a program can set on another socket.
pub(super) fn encode(paths: &[PathRecord]) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for path in paths {
        let record = sa::PathRecord::from(path);
        let mut data = PathData {
            flags: FLAGS,
            reserved: 0,
            path_rec: [0; 64],
        };
        // A value that exceeds its field is an error of the provider.
        record.emit(&mut data.path_rec).map_err(|_| Errno::IO)?;
        bytes.extend_from_slice(&data.to_bytes());
    }
    Ok(bytes)
}
