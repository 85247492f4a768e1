//! Numbers of the commands, and their response address fields.

use super::abi::*;
use crate::sys::rdma_cm::{Command, Question};

macro_rules! commands {
    ($($name:ident = $number:ident;)*) => {$(
        impl Command for $name {
            const NUMBER: u32 = number::$number;
        }
    )*};
}

macro_rules! questions {
    ($($name:ident),*) => {$(
        impl Question for $name {
            fn set_response(&mut self, address: u64) {
                self.response = address;
            }
        }
    )*};
}

commands! {
    Bind = BIND;
    ResolveAddr = RESOLVE_ADDR;
    ResolveRoute = RESOLVE_ROUTE;
    Connect = CONNECT;
    Listen = LISTEN;
    Accept = ACCEPT;
    Reject = REJECT;
    Disconnect = DISCONNECT;
    Notify = NOTIFY;
    ResolveIbService = RESOLVE_IB_SERVICE;
    WriteCmEvent = WRITE_CM_EVENT;
}

questions!(
    CreateId, DestroyId, Query, InitQpAttr, GetEvent, JoinMcast, MigrateId
);
