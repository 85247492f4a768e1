//! The ids on an event channel, by the numbers whose events they take.

use portolan_threads::lock::Mutex;
use std::sync::{Arc, Weak};

use portolan_provider::cm::UserId;
use portolan_provider::number_map::NumberMap;
use portolan_provider::traits::{CmChannel, Provider};

use super::IdShared;

/// A provider's channel, and the ids on it.
#[derive(Debug)]
pub(in crate::cm) struct ChannelIds {
    pub(in crate::cm) provider: Arc<dyn Provider>,
    pub(in crate::cm) channel: Arc<dyn CmChannel>,
    ids: Mutex<NumberMap<UserId, Weak<IdShared>>>,
}

impl ChannelIds {
    pub(in crate::cm) fn new(provider: Arc<dyn Provider>, channel: Arc<dyn CmChannel>) -> Self {
        let ids = Mutex::default();
        Self {
            provider,
            channel,
            ids,
        }
    }

    pub(in crate::cm) fn enroll(&self, uid: UserId, id: &Arc<IdShared>) {
        self.ids.lock().insert(uid, Arc::downgrade(id));
    }

    pub(in crate::cm) fn forget(&self, uid: UserId) {
        self.ids.lock().remove(&uid);
    }

    pub(in crate::cm) fn find(&self, uid: UserId) -> Option<Arc<IdShared>> {
        self.ids.lock().get(&uid)?.upgrade()
    }
}
