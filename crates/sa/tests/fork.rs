//! After fork(2) the child has no client thread: calls in the child must fail and never hang.

#[path = "../../threads/tests/support/child.rs"]
mod child;
mod scripted;

use std::sync::Mutex;
use std::time::Duration;

use child::in_child;
use portolan_sa::engine::Request;
use portolan_sa::{Client, ClientConfig, LinkLayer, Port, PortState};
use portolan_wire::sa::{PathRecord, Query};
use portolan_wire::{Gid, PKey};
use scripted::pair;

const PATIENCE: Duration = Duration::from_secs(60);
const EINVAL: i32 = 22;

#[test]
fn a_childs_calls_fail_and_the_parent_continues() {
    let port = Port {
        device: "ib0".into(),
        port_num: 1,
        link_layer: LinkLayer::InfiniBand,
        state: PortState::Active,
        lid: 3,
        lmc: 0,
        sm_lid: 7,
        sm_sl: 0,
        gids: vec![Gid([1; 16])],
        pkeys: vec![PKey::DEFAULT],
    };
    let (transport, _script) = pair(port);
    let transport = Mutex::new(Some(transport));
    let client = Client::new(ClientConfig::default(), move || {
        let transport = transport
            .lock()
            .expect("whole")
            .take()
            .expect("opened once");
        Ok(Box::new(transport))
    });
    client.port(PATIENCE).expect("there");
    let request = || Request::get(&Query::<PathRecord>::new().dlid(1)).expect("fits");
    let pending = client.ask(request(), PATIENCE, |_| {});
    let inherited = client.clone();
    let status = in_child(move || {
        drop(pending);
        let errno = inherited
            .wait(request(), PATIENCE)
            .map_or_else(|failure| failure.errno(), |_| 0);
        drop(inherited);
        errno
    });
    assert_eq!(status, EINVAL);
    assert_eq!(client.port(PATIENCE).expect("still there").lid, 3);
}
