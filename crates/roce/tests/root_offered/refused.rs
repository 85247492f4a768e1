//! Links that could not be made for a moment.

use portolan_roce::io::{Way, WhySocket};
use portolan_wire::Qpn;

use crate::by_hand::Member;
use crate::harness::*;
use crate::{FIRST_FILE, table, tag};

#[test]
fn a_connection_gets_its_link_once_the_other_process_accepts_calls_again() {
    let mut config = config();
    config.local_memory = true;
    let stack = stack(&config);
    let ip = "127.0.0.1".parse().unwrap();
    let end = End::new(&stack, ip, PATIENT);
    let busy = Member::join(&config.group);
    let waiting = busy.fill_backlog();
    let peer = Qpn::new(busy.first_qpn());
    end.connect(ip, peer, PATIENT);
    until("it is refused", || {
        stack.way_of(end.qp.qpn()) == Some(Way::Socket(WhySocket::Refused))
    });
    busy.accept_all(waiting);
    let _called = busy.accept(&table(
        [(peer, end.qp.qpn())].into_iter(),
        tag(),
        FIRST_FILE,
    ));
    until("the link is up", || {
        matches!(
            stack.way_of(end.qp.qpn()),
            Some(Way::Memory | Way::Rings(_))
        )
    });
}
