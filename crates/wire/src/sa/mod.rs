//! Subnet administration (IBTA 15.2): its datagrams and their records.

mod mcmember_record;
mod node_record;
mod packet;
mod path_record;
mod query;
mod rate;
mod service_record;
mod status;

pub use mcmember_record::{JoinState, McMemberRecord};
pub use node_record::{NodeRecord, NodeType};
pub use packet::{CLASS_VERSION, SA_DATA_LEN, SaHeader, SaPacket};
pub use path_record::{PathRecord, Selected, Selector};
pub use query::{AttributeId, ComponentMask, Query, Record};
pub use rate::{RATES, rate_mbps};
pub use service_record::{NAME_LEN, ServiceRecord};
pub use status::{SaStatus, Status};
