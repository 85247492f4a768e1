//! The sockets of the process, by their descriptors.

use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::Arc;

use portolan_threads::lock::RwLock;
use rustix::io::Errno;

use super::socket::Rsocket;
use crate::fork::{Known, absent};
use crate::guard::Result;

static SOCKETS: Known<RwLock<HashMap<c_int, Arc<Rsocket>>>> = Known::new();

pub(super) fn insert(socket: Rsocket) -> c_int {
    insert_shared(socket).number
}

pub(super) fn insert_shared(socket: Rsocket) -> Arc<Rsocket> {
    let socket = Arc::new(socket);
    let former = SOCKETS.get().write().insert(socket.number, socket.clone());
    // The previous socket of this number: the program closed its descriptor with close(2).
    drop(former);
    socket
}

/// The socket with this number.
///
/// # Errors
/// `EBADF`; `EOPNOTSUPP` in a forked child, where the socket may belong to its parent.
pub(crate) fn find(number: c_int) -> Result<Arc<Rsocket>> {
    look_up(number).ok_or_else(|| absent(Errno::BADF))
}

pub(super) fn look_up(number: c_int) -> Option<Arc<Rsocket>> {
    SOCKETS.get().read().get(&number).cloned()
}

pub(super) fn remove(number: c_int) -> Result<Arc<Rsocket>> {
    SOCKETS
        .get()
        .write()
        .remove(&number)
        .ok_or_else(|| absent(Errno::BADF))
}
