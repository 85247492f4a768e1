//! A wildcard listener's memory, reached by connections on each of its devices.

use portolan::{Access, Connector};

use crate::harness::{PATIENCE, connector_on, listener_on, options, own_provider, pair_at};
use crate::{addr, on_interfaces};

const INTERFACES: &str = "link add tdoma type veth peer name pa\n\
    link add tdomb type veth peer name pb\n\
    link set pa up\n\
    link set pb up\n\
    link set tdoma up\n\
    link set tdomb up\n\
    addr add 192.0.2.21/28 dev tdoma\n\
    addr add 192.0.2.37/28 dev tdomb\n";

#[test]
fn memory_of_a_wildcard_listener_is_reached_on_every_device_and_the_buffers_serve_them_all() {
    on_interfaces(INTERFACES, || {
        let provider = own_provider();
        let listener = listener_on(provider.clone(), "0.0.0.0:0");
        let port = listener.local_addr().unwrap().port();
        let domain = listener.domain().unwrap();
        let memory = domain.share(8, Access::REMOTE_ATOMIC).unwrap();
        let passive = options().domain(Some(domain));
        let connector = |source: &str| -> Connector {
            let source = addr(&format!("{source}:0"));
            connector_on(provider.clone()).source(source)
        };
        let mut keys = Vec::new();
        let mut buffer = portolan::Buffer::from(vec![0; 8]);
        let hosts = ["192.0.2.21", "192.0.2.37", "127.0.0.1", "192.0.2.21"];
        for (number, host) in hosts.into_iter().enumerate() {
            let to = addr(&format!("{host}:{port}"));
            let (active, passive) = pair_at(connector(host), &listener, to, &passive);
            let offer = passive.offer(&memory).unwrap();
            let done = active.fetch_add(buffer, offer, 1).unwrap().wait().unwrap();
            assert_eq!(done.original(), Some(number as u64), "{host}");
            buffer = passive.send(done.buffer).unwrap().wait().unwrap().buffer;
            drop(active.receive_within(PATIENCE).unwrap());
            let device = passive.id().device().unwrap().name().to_owned();
            keys.push((device, offer.rkey));
        }
        let devices = keys.iter().map(|(device, _)| device.as_str());
        let expected = ["sw_tdoma", "sw_tdomb", "sw_lo", "sw_tdoma"];
        assert_eq!(devices.collect::<Vec<_>>(), expected);
        assert_eq!(keys[0], keys[3], "registered once on each device");
        let vector: Vec<u8> = buffer.into_memory().unwrap();
        assert_eq!(vector.len(), 8);
    });
}
