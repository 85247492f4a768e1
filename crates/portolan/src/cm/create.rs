//! Creating ids.

use portolan_provider::Result;
use portolan_provider::cm::Service;
use portolan_provider::verbs::QpType;
use portolan_wire::addr::PortSpace;

use super::channel::EventChannel;
use super::id::{CmId, IdShared, next_uid};

impl CmId {
    /// Creates an id for reliable connections in the TCP port space (`rdma_create_id(3)`).
    ///
    /// # Errors
    /// The provider's limit of ids is reached.
    pub fn new(channel: &EventChannel) -> Result<Self> {
        Self::with_service(
            channel,
            Service {
                port_space: PortSpace::Tcp,
                qp_type: QpType::Rc,
            },
        )
    }

    /// Creates an id for a port space and queue pair type.
    ///
    /// # Errors
    /// The provider's limit of ids is reached, or it does not support the service.
    pub fn with_service(channel: &EventChannel, service: Service) -> Result<Self> {
        let uid = next_uid();
        let number = channel.shared.channel.create_id(uid, service)?;
        let shared = IdShared::enrolled(&channel.shared, number, uid, service);
        Ok(Self { shared })
    }

    pub(super) fn event_channel(&self) -> EventChannel {
        let shared = self.shared.channel.lock().clone();
        EventChannel { shared }
    }
}
