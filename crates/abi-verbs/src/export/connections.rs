//! The entry for our own librdmacm.so.1.

#![allow(unsafe_code, reason = "pointers of C programs and libibverbs")]

use portolan_abi_layout::exports;
use portolan_kernel::raw::RdmaCmTable;

exports! {
    fn portolan_rdma_cm() -> *const RdmaCmTable {
        crate::rdma_cm::table()
    }
}
