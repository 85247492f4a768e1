//! Memory windows and their regions.

use std::sync::Arc;

use portolan::provider::traits::Mw;
use portolan::provider::verbs::{MwBind, MwType, RemoteAddr, SendFlags, SendOp, WcStatus};
use portolan::{Access, Cause};

use crate::pair::*;

/// The part of an end's memory that windows open: offset and length.
const PART: (usize, usize) = (4096, 64);

fn bind_of(end: &End) -> MwBind {
    MwBind {
        lkey: end.mr.lkey(),
        addr: end.sge(PART.0, PART.1).addr,
        length: PART.1 as u64,
        access: Access::REMOTE_WRITE,
    }
}

/// A type 2 window that opens the part, with its key.
fn opened(end: &End) -> (Arc<dyn Mw>, u32) {
    let mw = end.pd.alloc_mw(MwType::Type2).unwrap();
    let (rkey, new_rkey) = (mw.rkey(), mw.rkey() ^ 0x55);
    let bind = bind_of(end);
    let op = SendOp::BindMw {
        rkey,
        new_rkey,
        bind,
    };
    end.work(1, op).unwrap();
    assert_eq!(end.complete().status, WcStatus::Success);
    (mw, new_rkey)
}

fn write_through(active: &End, passive: &End, rkey: u32) -> WcStatus {
    let addr = bind_of(passive).addr;
    active.post_send(2, SendOp::RdmaWrite(RemoteAddr { addr, rkey }), 0, 8);
    active.complete().status
}

#[test]
fn a_window_of_type_1_is_bound_by_a_call_and_has_a_new_key_each_time() {
    let (active, passive) = connected();
    let mw = passive.pd.alloc_mw(MwType::Type1).unwrap();
    let bind = bind_of(&passive);
    let rkey = passive.qp.bind_mw(&mw, 1, &bind, SendFlags::SIGNALED);
    let rkey = rkey.unwrap();
    assert_eq!(passive.complete().status, WcStatus::Success);
    assert_eq!(mw.rkey(), rkey);
    assert_eq!(write_through(&active, &passive, rkey), WcStatus::Success);
    mw.deallocate().unwrap();
    let refused = write_through(&active, &passive, rkey);
    assert_eq!(refused, WcStatus::RemAccessErr);
}

#[test]
fn a_window_of_one_type_cannot_be_bound_like_the_other() {
    let (_active, passive) = connected();
    let mw = passive.pd.alloc_mw(MwType::Type2).unwrap();
    let bind = bind_of(&passive);
    let error = passive.qp.bind_mw(&mw, 1, &bind, SendFlags::SIGNALED);
    let error = error.unwrap_err();
    assert!(
        matches!(error.cause, Cause::InvalidArgument { .. }),
        "{error}"
    );
}

#[test]
fn a_deallocated_window_cannot_be_bound_even_if_another_has_its_place() {
    let (_active, passive) = connected();
    let gone = passive.pd.alloc_mw(MwType::Type1).unwrap();
    gone.deallocate().unwrap();
    gone.deallocate().unwrap();
    // More windows than the allocator and the kernel's table of keys have free places before the old one.
    let others: Vec<_> = (0..16)
        .map(|_| passive.pd.alloc_mw(MwType::Type1).unwrap())
        .collect();
    let bind = bind_of(&passive);
    gone.deallocate().unwrap();
    for other in &others {
        let bound = passive.qp.bind_mw(other, 2, &bind, SendFlags::SIGNALED);
        bound.unwrap();
        assert_eq!(passive.complete().status, WcStatus::Success);
    }
    // Refused at once, or by the completion.
    let bound = passive.qp.bind_mw(&gone, 1, &bind, SendFlags::SIGNALED);
    assert!(bound.is_err() || passive.complete().status != WcStatus::Success);
    let _ = passive.qp.destroy();
}

#[test]
fn a_region_with_bound_windows_is_in_use_until_they_are_gone() {
    let (active, passive) = connected();
    let (mw, rkey) = opened(&passive);
    let error = passive.mr.deregister().unwrap_err();
    assert!(
        matches!(error.cause, Cause::InUse { count: 1, .. }),
        "{error}"
    );
    assert_eq!(write_through(&active, &passive, rkey), WcStatus::Success);
    mw.deallocate().unwrap();
    passive.mr.deregister().unwrap();
}

#[test]
fn a_window_may_grant_rights_that_its_region_does_not_grant_and_its_owners() {
    let (active, passive) = connected();
    let mut memory = vec![0u8; 4096].into_boxed_slice();
    let addr = memory.as_mut_ptr() as u64;
    let access = Access::LOCAL_WRITE | Access::MW_BIND;
    // SAFETY: the memory is dropped after the region, and only the peer writes to it meanwhile.
    #[allow(unsafe_code, reason = "verbs work on plain memory")]
    let region = unsafe { passive.pd.register(addr, 4096, access) }.unwrap();
    let bind = MwBind {
        lkey: region.lkey(),
        addr,
        length: 64,
        access: Access::LOCAL_WRITE | Access::REMOTE_WRITE,
    };
    let mw = passive.pd.alloc_mw(MwType::Type1).unwrap();
    let bound = passive.qp.bind_mw(&mw, 1, &bind, SendFlags::SIGNALED);
    let rkey = bound.unwrap();
    assert_eq!(passive.complete().status, WcStatus::Success);
    let to = RemoteAddr { addr, rkey };
    active.post_send(2, SendOp::RdmaWrite(to), 0, 8);
    assert_eq!(active.complete().status, WcStatus::Success);
    mw.deallocate().unwrap();
    drop(region);
    drop(memory);
}

#[test]
fn dropping_a_region_invalidates_its_windows() {
    let (active, passive) = connected();
    let mut memory = vec![0u8; 4096].into_boxed_slice();
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::MW_BIND;
    let addr = memory.as_mut_ptr() as u64;
    // SAFETY: the memory is dropped after the region, and only the peer writes to it meanwhile.
    #[allow(unsafe_code, reason = "verbs work on plain memory")]
    let region = unsafe { passive.pd.register(addr, 4096, access) }.unwrap();
    let mw = passive.pd.alloc_mw(MwType::Type2).unwrap();
    let new_rkey = mw.rkey() ^ 0x55;
    let bind = MwBind {
        lkey: region.lkey(),
        addr,
        length: 64,
        access: Access::REMOTE_WRITE,
    };
    let rkey = mw.rkey();
    let op = SendOp::BindMw {
        rkey,
        new_rkey,
        bind,
    };
    passive.work(1, op).unwrap();
    assert_eq!(passive.complete().status, WcStatus::Success);
    let to = RemoteAddr {
        addr,
        rkey: new_rkey,
    };
    active.post_send(2, SendOp::RdmaWrite(to), 0, 8);
    assert_eq!(active.complete().status, WcStatus::Success);
    drop(region);
    active.post_send(3, SendOp::RdmaWrite(to), 0, 8);
    assert_eq!(active.complete().status, WcStatus::RemAccessErr);
    mw.deallocate().unwrap();
    drop(memory);
}
