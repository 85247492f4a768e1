use portolan_wire::eth::CREDITS_UNLIMITED;
use proptest::prelude::*;

use super::*;

const MTU: u32 = 1024;

fn acknowledge(psn: u32) -> Acknowledge {
    Acknowledge {
        psn: Psn::new(psn),
        syndrome: Syndrome::Ack {
            credits: CREDITS_UNLIMITED,
        },
        msn: 0,
    }
}

fn read(psn: u32, packets: u32, is_repeated: bool) -> Reply {
    Reply::Read(ReadReply {
        psn: Psn::new(psn),
        pd: PdId(1),
        is_first: true,
        remaining: packets * MTU,
        va: 0,
        rkey: 1,
        msn: 0,
        is_repeated,
    })
}

fn atomic(psn: u32, is_repeated: bool) -> Reply {
    Reply::Atomic(AtomicReply {
        psn: Psn::new(psn),
        original: 0,
        msn: 0,
        is_repeated,
    })
}

fn psns(replies: &Replies) -> alloc::vec::Vec<u32> {
    let psn = |reply: &Reply| reply.psn().value();
    let last = replies.last.map(Reply::Acknowledge);
    replies.queue.iter().chain(&last).map(psn).collect()
}

#[test]
fn acknowledgements_that_become_adjacent_are_merged() {
    let mut replies = Replies::default();
    replies.push_data(read(10, 1, true), MTU);
    replies.push_acknowledge(acknowledge(11));
    replies.push_data(atomic(12, false), MTU);
    replies.push_acknowledge(acknowledge(13));
    assert_eq!(psns(&replies), [10, 11, 12, 13]);
    assert!(replies.drop_oldest_repeated());
    assert_eq!(psns(&replies), [11, 12, 13]);
    assert!(
        !replies.drop_oldest_repeated(),
        "a first answer is not dropped"
    );
    // A read that contains the atomic's PSN replaces it, and would leave 11 beside 13.
    replies.push_data(read(12, 4, false), MTU);
    assert_eq!(psns(&replies), [12, 13]);
    assert_eq!(replies.data(), 1);
}

/// An operation on the queue.
#[derive(Clone, Debug)]
enum Step {
    Acknowledge(u32),
    Data {
        psn: u32,
        packets: u32,
        is_repeated: bool,
        is_atomic: bool,
    },
    Drop,
    Send,
}

fn step() -> impl Strategy<Value = Step> {
    let data = (0u32..64, 1u32..4, any::<bool>(), any::<bool>());
    prop_oneof![
        (0u32..64).prop_map(Step::Acknowledge),
        data.prop_map(|(psn, packets, is_repeated, is_atomic)| Step::Data {
            psn,
            packets,
            is_repeated,
            is_atomic
        }),
        Just(Step::Drop),
        Just(Step::Send),
    ]
}

proptest! {
    /// For any sequence from a peer, checks the bound that the type's documentation proves.
    #[test]
    fn the_queue_is_never_longer_than_twice_the_resources_and_one(
        resources in 1usize..8,
        steps in proptest::collection::vec(step(), 0..400),
    ) {
        let mut replies = Replies::default();
        for step in steps {
            match step {
                Step::Acknowledge(psn) => replies.push_acknowledge(acknowledge(psn)),
                Step::Data { psn, packets, is_repeated, is_atomic } => {
                    // The responder does this before it adds one.
                    if replies.data() < resources || replies.drop_oldest_repeated() {
                        let reply = match is_atomic {
                            true => atomic(psn, is_repeated),
                            false => read(psn, packets, is_repeated),
                        };
                        replies.push_data(reply, MTU);
                    }
                }
                Step::Drop => drop(replies.drop_oldest_repeated()),
                Step::Send => replies.pop_front(),
            }
            let data = replies.queue.iter().filter(|reply| reply.has_data()).count();
            prop_assert_eq!(replies.data(), data);
            let last = replies.last.map(Reply::Acknowledge);
            let all = || replies.queue.iter().chain(&last);
            prop_assert!(all().count() <= 2 * resources + 1, "{:?}", replies);
            for (first, second) in all().zip(all().skip(1)) {
                prop_assert!(first.has_data() || second.has_data(), "{:?}", replies);
            }
            // So the last acknowledgement is not there.
            prop_assert!(replies.queue.back().is_none_or(Reply::has_data), "{:?}", replies);
        }
    }
}
