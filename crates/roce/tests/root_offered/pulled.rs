//! Writes that the peer's process is asked to copy.

use std::sync::Arc;
use std::time::Duration;

use portolan_port_sharing::{GroupConfig, Trust};
use portolan_provider::error::errno;
use portolan_provider::verbs::{RemoteAddr, SendOp, WcStatus};
use portolan_roce::io::{Stack, Way};
use portolan_wire::Qpn;

use crate::by_hand::{Asked, Called, Member};
use crate::harness::*;
use crate::{ALICE, PROGRAM, RKEY, become_user, table, tag};

/// Long enough to be copied.
const LEN: usize = 100_000;
/// An answer may take half a second.
const SHAPE: Shape = Shape {
    retry_cnt: 1,
    in_file: false,
    ..PATIENT
};

/// A stack with a queue pair that has asked the other process to copy a write.
struct Asking {
    config: GroupConfig,
    stack: Arc<Stack>,
    end: End,
    target: Member,
    called: Called,
}

impl Asking {
    fn new() -> (Self, Asked) {
        let mut config = config();
        config.local_memory = true;
        config.group.trust = Trust::Users(vec![ALICE]);
        let stack = stack(&config);
        let ip = "127.0.0.1".parse().unwrap();
        let end = End::new(&stack, ip, SHAPE);
        let target = Member::join(&config.group);
        let peer = Qpn::new(target.first_qpn());
        end.connect(ip, peer, SHAPE);
        let table = table([(peer, end.qp.qpn())].into_iter(), tag(), PROGRAM);
        let called = target.accept(&table);
        until("the link is up", || {
            let way = stack.way_of(end.qp.qpn());
            matches!(way, Some(Way::Memory | Way::Rings(_)))
        });
        let remote = RemoteAddr {
            addr: 64,
            rkey: RKEY,
        };
        end.post(7, SendOp::RdmaWrite(remote), end.sge(0, LEN));
        let asked = called.asked();
        assert!(called.waits(asked));
        let asking = Self {
            config: config.group,
            stack,
            end,
            target,
            called,
        };
        (asking, asked)
    }
}

#[test]
fn an_answer_of_a_user_who_is_trusted_for_the_port_alone_completes_no_write() {
    let (asking, asked) = Asking::new();
    let Asking { stack, end, .. } = &asking;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            become_user(ALICE);
            let alice = Member::join(&asking.config);
            let link = alice.call(stack.block(), asking.target.block());
            link.unwrap().answer_done(end.qp.qpn(), tag(), asked);
        });
    });
    assert_eq!(end.poll().status, WcStatus::RetryExcErr);
}

#[test]
fn memory_stays_registered_while_it_is_copied_for_a_queue_pair_that_is_destroyed() {
    let (asking, asked) = Asking::new();
    let Asking { stack, end, .. } = &asking;
    let target = &asking.target;
    let copying = target.call(stack.block(), target.block()).unwrap();
    copying.announce(Some(asked));
    end.qp.destroy().unwrap();
    assert!(!asking.called.waits(asked));
    let other = end.memory.register(&end.pd, ALL_RIGHTS);
    other.deregister().unwrap();
    let busy = end.mr.deregister().unwrap_err();
    assert_eq!(busy.errno(), errno::EBUSY);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(1));
            copying.announce(None);
        });
        end.mr.deregister().unwrap();
    });
}

#[test]
fn a_request_to_copy_is_withdrawn_when_the_link_ends() {
    let (mut asking, asked) = Asking::new();
    asking.called.end();
    until("it does not wait any more", || !asking.called.waits(asked));
}
