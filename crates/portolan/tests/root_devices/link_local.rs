//! A link-local address on two interfaces: its zone selects one.

use std::net::{SocketAddr, SocketAddrV6};
use std::sync::Arc;

use portolan::Cause;
use portolan::cm::{CmId, EventChannel};

use crate::harness::own_provider;
use crate::support::{interface_index, ip_batch};
use crate::{bound, on_interfaces};

const INTERFACES: &str = "link add tlla type veth peer name pa\n\
    link add tllb type veth peer name pb\n\
    link set pa up\n\
    link set pb up\n\
    link set tlla up\n\
    link set tllb up\n";

#[test]
fn an_id_is_bound_to_the_device_of_the_zone_of_its_link_local_address() {
    on_interfaces(INTERFACES, || {
        for name in ["tlla", "tllb"] {
            let off = format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6");
            std::fs::write(off, "0").unwrap();
            ip_batch(&format!("addr add fe80::77/64 dev {name} nodad"));
        }
        let provider = own_provider();
        for name in ["tlla", "tllb", "tlla"] {
            let (_channel, id) = bound(
                &provider,
                &format!("[fe80::77%{}]:0", interface_index(name)),
            );
            assert_eq!(id.device().unwrap().name(), format!("sw_{name}"));
        }
        let without_zone: SocketAddr =
            SocketAddrV6::new("fe80::77".parse().unwrap(), 0, 0, 0).into();
        let channel = EventChannel::open_on(Arc::clone(&provider) as _).unwrap();
        let refused = CmId::new(&channel).unwrap().bind(without_zone);
        let error = refused.unwrap_err();
        let names_the_zone = error.to_string().contains("with its zone");
        assert!(
            matches!(error.cause, Cause::InvalidArgument { .. }) && names_the_zone,
            "{error}"
        );
    });
}
