//! Binding of memory windows.

use std::sync::Arc;

use portolan_provider::Result;
use portolan_provider::traits::Mw;
use portolan_provider::verbs::{MwBind, SendData, SendFlags, SendOp, SendWr};
use portolan_provider::{Cause, Error, Step};

use super::pieces::Gather;
use super::slot::{Kind, Slot};
use super::table::Work;
use crate::sys::KeptRegistered;

impl Work {
    /// Posts the binding of a window, which the table keeps until the binding has ended, with the memory: the request
    /// names both, and a binding that fails breaks the connection. Pass the returned key to [`Work::taken`].
    pub(crate) fn post_bind(
        &self,
        window: &Arc<dyn Mw>,
        new_rkey: u32,
        bind: MwBind,
        memory: KeptRegistered,
    ) -> Result<usize> {
        if !self.claim_sends(1) {
            let (what, limit) = ("posted sends", u64::from(self.depths.sends));
            let cause = Cause::LimitReached { what, limit };
            return Err(Error::new(Step::BindMw, cause));
        }
        let nothing = Gather::from(Vec::<u8>::new());
        let mut slot = Slot::new(nothing, Kind::Send, 1, 0);
        slot.window = Some((window.clone(), memory));
        let keys = self.insert_sends(std::iter::once(slot));
        let rkey = window.rkey();
        let posted = self.qp.post_send(&SendWr {
            wr_id: keys[0] as u64,
            op: SendOp::BindMw {
                rkey,
                new_rkey,
                bind,
            },
            data: SendData::Sges(&[]),
            flags: SendFlags::SIGNALED,
            ud: None,
            srq: None,
        });
        match posted {
            Ok(()) => Ok(keys[0]),
            Err(error) => {
                self.remove_sends(&keys);
                Err(error)
            }
        }
    }
}
