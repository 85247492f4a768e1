//! The sample program of rdma_getaddrinfo's Chinese manual page: every result can be connected to.

use portolan::cm::{CmId, EventChannel};
use portolan::provider::cm::EventType;
use portolan::resolve::{Hints, QpType, get_addrinfo};
use portolan::wire::addr::PortSpace;

use crate::harness::*;
use crate::low::*;

#[test]
fn each_result_from_the_first_to_the_last_leads_to_a_connection() {
    let listening = channel();
    let listener = CmId::with_service(&listening, TCP).unwrap();
    listener.bind("[::]:0".parse().unwrap()).unwrap();
    listener.listen(0).unwrap();
    let local = listener.addresses().unwrap().local.unwrap();

    let hints = Hints::new().qp_type(QpType::Rc).port_space(PortSpace::Tcp);
    let port = local.port().to_string();
    let results = get_addrinfo(Some("localhost"), Some(&port), Some(&hints)).unwrap();
    for result in &results {
        let to = result.dst_addr.and_then(|address| address.inet()).unwrap();
        let (channel, id) = routed_on(EventChannel::open_on(provider()).unwrap(), TCP, to);
        id.connect(&param(&result.connect)).unwrap();
        let child = next(&listening, EventType::ConnectRequest).id().clone();
        child.accept(&param(b"")).unwrap();
        next(&channel, EventType::ConnectResponse);
        id.establish().unwrap();
        next(&listening, EventType::Established);
        id.destroy(PATIENCE).unwrap();
        next(&listening, EventType::Disconnected);
        child.destroy(PATIENCE).unwrap();
    }
    assert!(!results.is_empty());
}
