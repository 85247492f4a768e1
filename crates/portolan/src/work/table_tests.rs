use portolan_provider::traits::Provider;

use super::*;
use crate::software::own_group;

/// A buffer of a device in a group of its own.
fn buffer() -> Buffer {
    let provider = own_group::provider();
    let device = provider.devices().unwrap().remove(0);
    Buffer::new(&device.alloc_pd().unwrap(), 8).unwrap()
}

#[test]
fn a_second_completion_of_the_same_work_changes_nothing() {
    let mut state = TableState::default();
    let kind = Kind::Ring;
    *state.posted(kind) = 1;
    let slot = Slot::new(Gather::from(buffer()), kind, 1, 0);
    let key = state.slots.insert(slot);
    let completion = WorkCompletion {
        wr_id: key as u64,
        status: WcStatus::Success,
        ..WorkCompletion::EMPTY
    };
    for _ in 0..2 {
        assert!(state.finish(&completion).is_none());
        assert_eq!(*state.posted(kind), 0);
        assert_eq!(state.arrived, [key]);
    }
}

#[test]
fn an_operation_of_several_requests_ends_once_and_with_its_first_failure() {
    let mut state = TableState::default();
    *state.posted(Kind::Send) = 3;
    let slot = Slot::new(Gather::from(vec![1, 2, 3]), Kind::Send, 3, 3);
    let key = state.slots.insert(slot);
    let of = |wr_id, status| WorkCompletion {
        wr_id,
        status,
        ..WorkCompletion::EMPTY
    };
    let others = key as u64 | MORE;
    // The first request has succeeded, and has no completion.
    state.finish(&of(others, WcStatus::RemAccessErr));
    assert!(state.slots[key].done.is_none());
    state.finish(&of(key as u64, WcStatus::WrFlushErr));
    let done = state.slots[key].done.unwrap();
    assert_eq!(done.status, WcStatus::RemAccessErr);
    assert_eq!(state.broken, Some(WcStatus::RemAccessErr));
    assert_eq!(*state.posted(Kind::Send), 0);
}
