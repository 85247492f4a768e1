//! Writes and reads that are longer than one work request, and batches posted as one operation.

use portolan::provider::verbs::WcStatus;
use portolan::{Access, Buffer, Cause};

use crate::harness::*;

/// More than 2 GiB: three work requests.
const LONG: usize = (2 << 30) + 4097;
/// Offsets of marked bytes: the first and last byte of each work request.
const MARKS: [usize; 6] = [0, (1 << 30) - 1, 1 << 30, (2 << 30) - 1, 2 << 30, LONG - 1];

/// A buffer with marked bytes. The zero pages take no memory until they are written.
fn marked() -> Vec<u8> {
    let mut bytes = vec![0; LONG];
    for (number, at) in (1..).zip(MARKS) {
        bytes[at] = number;
    }
    bytes
}

#[test]
fn more_than_two_gibibytes_are_written_and_read_in_one_call_each_that_ends_once() {
    let (active, passive) = pair();
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
    let memory = passive.share_memory(vec![0; LONG], access);
    let memory = memory.map_err(|(error, _)| error).unwrap();
    let bytes = marked();
    let at = bytes.as_ptr();
    let posted = active.write_with_immediate(bytes, memory.remote(), 9);
    let done = posted.unwrap().wait().unwrap();
    assert_eq!(done.length, LONG);
    let message = passive.receive_within(PATIENCE).unwrap();
    assert_eq!(message.immediate(), Some(9));
    assert!(passive.try_receive().unwrap().is_none());
    let mut bytes: Vec<u8> = done.buffer.into_memory().unwrap();
    assert_eq!((bytes.as_ptr(), bytes.len()), (at, LONG));

    for at in MARKS {
        bytes[at] = 0;
    }
    let done = active.read(bytes, memory.remote()).unwrap().wait().unwrap();
    assert_eq!(done.length, LONG);
    for (number, at) in (1..).zip(MARKS) {
        assert_eq!(done.buffer[at], number, "{at}");
        assert_eq!(done.buffer[at.saturating_sub(2)], u8::from(at == 0), "{at}");
    }
}

#[test]
fn a_long_write_takes_a_place_for_each_of_its_requests_and_is_refused_whole() {
    let few = options().send_depth(2);
    let (active, passive) = pair_with(&few, &options());
    let memory = passive.share_memory(vec![0; LONG], Access::REMOTE_WRITE);
    let memory = memory.map_err(|(error, _)| error).unwrap();
    let failed = active.write(vec![0; LONG], memory.remote()).unwrap_err();
    assert!(failed.error.is_limit(), "{failed}");
    assert_eq!(failed.buffer.unwrap().len(), LONG);
    active.send(b"ahoy".to_vec()).unwrap().wait().unwrap();
    assert_eq!(&passive.receive_within(PATIENCE).unwrap()[..], b"ahoy");
}

#[test]
fn a_batch_that_is_one_operation_ends_once_and_gives_all_buffers_back_in_order() {
    let few = options().send_depth(3);
    let (active, passive) = pair_with(&few, &options());
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
    let memory = passive.share(16, access).unwrap();
    let half = |at| memory.remote().slice(at, 8).unwrap();
    // Repeat often enough to show that the slots are freed.
    for round in 0..20u8 {
        let mut batch = active.batch();
        batch.write(vec![round; 8], half(0)).unwrap();
        batch.write(vec![round + 1; 8], half(8)).unwrap();
        batch.send(vec![round; 3]).unwrap();
        let transfer = batch.post_as_one().unwrap();
        assert!(active.send(vec![1]).unwrap_err().error.is_limit());
        let message = passive.receive_within(PATIENCE).unwrap();
        assert_eq!(&message[..], [round; 3]);
        let done = transfer.wait().unwrap();
        assert_eq!(done.length, 19);
        let lengths = done.more.iter().map(|buffer| buffer.len());
        assert_eq!((done.buffer.len(), lengths.collect()), (8, vec![8, 3]));
        let mut found = [0; 16];
        memory.load(0, &mut found);
        assert_eq!((found[0], found[15]), (round, round + 1));
    }
    let empty = active.batch().post_as_one().unwrap_err();
    assert!(
        empty
            .error
            .to_string()
            .contains("requests of a batch: expected 1 or more")
    );
}

#[test]
fn a_batch_that_is_one_operation_fails_with_its_first_failure_and_loses_no_buffer() {
    let (active, passive) = pair();
    let memory = passive.share(8, Access::REMOTE_WRITE).unwrap();
    let mut gone = memory.remote();
    gone.rkey ^= 1;
    let mut batch = active.batch();
    batch.write(vec![1; 8], memory.remote()).unwrap();
    batch.write(vec![2; 8], gone).unwrap();
    batch.send(vec![3; 8]).unwrap();
    let failed = batch.post_as_one().unwrap().wait().unwrap_err();
    assert_eq!(
        failed.error.cause,
        Cause::WorkFailed(WcStatus::RemAccessErr)
    );
    assert_eq!(failed.buffer.unwrap()[..], [1; 8]);
    let bytes = |buffer: &Buffer| buffer[0];
    assert_eq!(failed.more.iter().map(bytes).collect::<Vec<_>>(), [2, 3]);
}
