//! RDMA_CM_EVENT_TIMEWAIT_EXIT: the QP associated with a connection has exited its timewait state and
//! is now ready to be re-used.

use portolan::seam::cm::EventType;

use super::assert_bare;
use crate::low::*;

#[test]
fn timewait_exit_comes_to_both_sides_after_disconnected() {
    let passive = Passive::listen();
    let (channel, id) = routed(passive.address);
    id.connect(&param(b"")).unwrap();
    let child = passive.request();
    child.accept(&param(b"")).unwrap();
    next(&channel, EventType::ConnectResponse);
    id.establish().unwrap();
    next(&passive.channel, EventType::Established);

    id.disconnect().unwrap();
    next(&passive.channel, EventType::Disconnected);
    child.disconnect().unwrap();
    next(&channel, EventType::Disconnected);
    for (channel, id) in [(&channel, &id), (&passive.channel, &child)] {
        let event = next(channel, EventType::TimewaitExit);
        assert_eq!(event.id().number(), id.number());
        assert_bare(&event, 0);
    }
}
