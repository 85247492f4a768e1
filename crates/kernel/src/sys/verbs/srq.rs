//! Shared receive queues.

use portolan_threads::lock::RwLock;
use std::any::Any;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use portolan_abi_layout as abi;
use portolan_provider::error::errno::EOPNOTSUPP;
use portolan_provider::traits::Srq;
use portolan_provider::verbs::{RecvWr, SrqAttr, Srqn};
use portolan_provider::{Cause, Error, Result, Step};

use super::domain::Domain;
use super::outcome::{check, made};
use super::post::{Full, with_recv};

/// A shared receive queue of the kernel's.
#[derive(Debug)]
pub(super) struct KernelSrq {
    /// `None` once it is destroyed.
    raw: RwLock<Option<NonNull<abi::Srq>>>,
    number: Srqn,
    pub(super) pd: Arc<Domain>,
}

// SAFETY: libibverbs may be called by any thread.
unsafe impl Send for KernelSrq {}
// SAFETY: as above.
unsafe impl Sync for KernelSrq {}

impl KernelSrq {
    pub(super) fn new(pd: Arc<Domain>, attr: &SrqAttr) -> Result<Self> {
        let mut init = abi::SrqInitAttr {
            srq_context: null_mut(),
            attr: abi::SrqAttr {
                max_wr: attr.max_wr,
                max_sge: attr.max_sge,
                // Creation ignores the limit (ibv_create_srq(3)).
                srq_limit: 0,
            },
        };
        // SAFETY: the protection domain is valid; the library reads and writes the attributes.
        let raw = unsafe { (pd.device.library.create_srq)(pd.raw.as_ptr(), &mut init) };
        let raw = made(Step::CreateSrq, "ibv_create_srq", raw)
            .map_err(|error| pd.device.explain(error))?;
        // SAFETY: the queue exists.
        let number = Srqn(unsafe { (*raw.as_ptr()).handle });
        let srq = Self {
            raw: RwLock::new(Some(raw)),
            number,
            pd,
        };
        if attr.srq_limit > 0 {
            srq.modify(None, Some(attr.srq_limit))?;
        }
        Ok(srq)
    }

    /// Runs `act` with the queue, unless it is destroyed.
    pub(super) fn with<T>(
        &self,
        step: Step,
        act: impl FnOnce(NonNull<abi::Srq>) -> Result<T>,
    ) -> Result<T> {
        self.pd.device.check(step)?;
        let raw = self.raw.read();
        let gone = Error::new(step, Cause::NoSuchObject("shared receive queue"));
        raw.ok_or(gone).and_then(act)
    }

    fn attr(&self, raw: NonNull<abi::Srq>) -> Result<abi::SrqAttr> {
        let mut attr = abi::SrqAttr::zeroed();
        // SAFETY: the queue exists, and there is room for the attributes.
        let code = unsafe { (self.pd.device.library.query_srq)(raw.as_ptr(), &mut attr) };
        check(Step::ModifySrq, "ibv_query_srq", code)
            .map_err(|error| self.pd.device.explain(error))?;
        Ok(attr)
    }
}

impl portolan_provider::sealed::Sealed for KernelSrq {}

impl Srq for KernelSrq {
    fn number(&self) -> Srqn {
        self.number
    }

    fn post_recv(&self, wr: &RecvWr<'_>) -> Result<()> {
        self.with(Step::PostReceive, |raw| {
            let full = Full {
                step: Step::PostReceive,
                verb: "ibv_post_srq_recv",
                what: "work requests of the shared receive queue",
                limit: || self.attr(raw).map_or(0, |attr| attr.max_wr),
            };
            with_recv(wr, full, |request, bad| {
                let post = self.pd.device.ops().post_srq_recv;
                post.map_or(EOPNOTSUPP, |post| {
                    // SAFETY: the queue exists; the request and `bad` are valid during the call.
                    unsafe { post(raw.as_ptr(), request, bad) }
                })
            })
        })
    }

    fn modify(&self, max_wr: Option<u32>, srq_limit: Option<u32>) -> Result<()> {
        let mut attr = abi::SrqAttr {
            max_wr: max_wr.unwrap_or(0),
            max_sge: 0,
            srq_limit: srq_limit.unwrap_or(0),
        };
        let bit = |is_set: bool, bit: u32| if is_set { bit } else { 0 };
        let mask =
            bit(max_wr.is_some(), abi::SRQ_MAX_WR) | bit(srq_limit.is_some(), abi::SRQ_LIMIT);
        self.with(Step::ModifySrq, |raw| {
            let library = &self.pd.device.library;
            // SAFETY: the queue exists.
            let code = unsafe { (library.modify_srq)(raw.as_ptr(), &mut attr, mask.cast_signed()) };
            check(Step::ModifySrq, "ibv_modify_srq", code)
                .map_err(|error| self.pd.device.explain(error))
        })
    }

    fn query(&self) -> Result<SrqAttr> {
        let attr = self.with(Step::ModifySrq, |raw| self.attr(raw))?;
        Ok(SrqAttr {
            max_wr: attr.max_wr,
            max_sge: attr.max_sge,
            srq_limit: attr.srq_limit,
        })
    }

    fn destroy(&self) -> Result<()> {
        self.pd.device.check(Step::CreateSrq)?;
        let mut raw = self.raw.write();
        let Some(queue) = *raw else {
            return Ok(());
        };
        // SAFETY: the queue exists, and the write lock excludes all other users.
        let code = unsafe { (self.pd.device.library.destroy_srq)(queue.as_ptr()) };
        let device = &self.pd.device;
        device.ended(Step::CreateSrq, "ibv_destroy_srq", code)?;
        *raw = None;
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for KernelSrq {
    fn drop(&mut self) {
        if self.pd.device.is_own()
            && let Err(error) = self.destroy()
        {
            tracing::warn!(%error, "shared receive queue not destroyed");
        }
    }
}
