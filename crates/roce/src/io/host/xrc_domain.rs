//! XRC domains as their queue pairs see them (IBTA annex A14).

use std::collections::HashMap;
use std::sync::Arc;

use portolan_provider::verbs::Srqn;
use portolan_threads::lock::Mutex;

use crate::engine::{ReceiveDomain, ReceiveSource};
use crate::io::host::completion_queue::CqCore;
use crate::io::host::shared_receive_queue::SrqCore;

/// An XRC domain: its shared receive queues by number, each with its completion queue.
#[derive(Debug, Default)]
pub(crate) struct XrcDomain(Mutex<HashMap<Srqn, Member>>);

#[derive(Debug)]
struct Member {
    srq: Arc<SrqCore>,
    cq: Arc<CqCore>,
}

impl XrcDomain {
    pub(crate) fn insert(&self, srq: &Arc<SrqCore>, cq: Arc<CqCore>) {
        let srq = Arc::clone(srq);
        self.0.lock().insert(srq.number(), Member { srq, cq });
    }

    pub(crate) fn remove(&self, srqn: Srqn) {
        self.0.lock().remove(&srqn);
    }

    pub(crate) fn cq_of(&self, srqn: Srqn) -> Option<Arc<CqCore>> {
        let members = self.0.lock();
        members.get(&srqn).map(|member| Arc::clone(&member.cq))
    }
}

impl ReceiveDomain for XrcDomain {
    fn find(&self, srqn: Srqn) -> Option<Arc<dyn ReceiveSource>> {
        let members = self.0.lock();
        let srq = Arc::clone(&members.get(&srqn)?.srq);
        Some(srq)
    }
}
