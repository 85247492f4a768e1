//! RDMA_CM_EVENT_ADDRINFO_ERROR: a name could not be looked up (rdma_resolve_addrinfo).

use portolan::Step;
use portolan::cm::CmId;
use portolan::provider::cm::EventType;
use portolan_addrinfo::Eai;

use super::assert_bare;
use crate::low::*;

#[test]
fn addrinfo_error_carries_the_code_and_the_id_may_try_again() {
    let channel = channel();
    let id = CmId::new(&channel).unwrap();
    let (node, service) = (Some("localhost"), Some("no-such-service"));
    for _ in 0..2 {
        id.resolve_addrinfo(node, service, None).unwrap();
        let event = next(&channel, EventType::AddrinfoError);
        assert_eq!(event.id().number(), id.number());
        let why = event.addrinfo_error().unwrap();
        assert_eq!(why.code(), Eai::NoName, "{why}");
        assert_bare(&event, -why.errno());
        let error = event.failure().unwrap();
        assert_eq!(error.step, Step::ResolveName);
        assert!(error.to_string().contains("no-such-service"), "{error}");
        drop(event);
        assert_eq!(id.query_addrinfo().unwrap_err().errno(), 2);
    }
    id.resolve_addrinfo(Some("127.0.0.1"), None, None).unwrap();
    next(&channel, EventType::AddrinfoResolved);
}

#[test]
fn an_error_in_an_addresss_zone_is_reported_by_the_event() {
    let channel = channel();
    let id = CmId::new(&channel).unwrap();
    let cases = [
        ("fe80::1", "7471", Eai::NoName),
        ("fe80::1%no-such-link", "7471", Eai::NoName),
    ];
    for (node, service, code) in cases {
        id.resolve_addrinfo(Some(node), Some(service), None)
            .unwrap();
        let event = next(&channel, EventType::AddrinfoError);
        let why = event.addrinfo_error().unwrap();
        assert_eq!(why.code(), code, "{node} {service}: {why}");
    }
}
