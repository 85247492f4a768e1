//! Shared memory copies exactly the requested bytes, whatever the offset and length.

use portolan::{Access, RemoteMemory, SharedMemory};
use proptest::prelude::*;

use crate::harness::*;

const LENGTH: usize = 100;

fn shared() -> SharedMemory {
    let device = provider().devices().unwrap().remove(0);
    let pd = device.alloc_pd().unwrap();
    SharedMemory::new(&pd, LENGTH, Access::REMOTE_READ).unwrap()
}

proptest! {
    #[test]
    fn stores_and_loads_agree_with_an_array(
        steps in proptest::collection::vec((0..LENGTH, proptest::collection::vec(any::<u8>(), 0..40)), 1..20)
    ) {
        let memory = shared();
        let mut model = [0; LENGTH];
        for (offset, bytes) in steps {
            let bytes = &bytes[..bytes.len().min(LENGTH - offset)];
            memory.store(offset, bytes);
            model[offset..offset + bytes.len()].copy_from_slice(bytes);
            let mut found = vec![0; LENGTH - offset];
            memory.load(offset, &mut found);
            prop_assert_eq!(&found[..], &model[offset..]);
        }
    }

    #[test]
    fn an_offer_is_parsed_as_it_was_written_as_bytes(addr: u64, length: u64, rkey: u32, rights in 0u32..8) {
        let mut remote = RemoteMemory::new(addr, length, rkey);
        remote.access = Access::from_bits_truncate(rights << 1);
        prop_assert_eq!(RemoteMemory::from_bytes(&remote.to_bytes()), Some(remote));
        prop_assert_eq!(RemoteMemory::from_bytes(&remote.to_bytes()[..RemoteMemory::LEN - 1]), None);
    }

    #[test]
    fn a_slice_of_an_offer_is_inside_it_or_refused(length: u64, offset: usize, part: usize) {
        let mut remote = RemoteMemory::new(1 << 40, length, 7);
        remote.access = Access::REMOTE_READ;
        let fits = (offset as u128) + (part as u128) <= u128::from(length);
        let expected = fits.then(|| {
            let addr = remote.addr.wrapping_add(offset as u64);
            let mut slice = RemoteMemory::new(addr, part as u64, 7);
            slice.access = remote.access;
            slice
        });
        prop_assert_eq!(remote.slice(offset, part), expected);
    }
}

#[test]
#[should_panic(expected = "range 96+5 is outside of 100 bytes")]
fn a_load_past_the_end_panics() {
    shared().load(96, &mut [0; 5]);
}

#[test]
#[should_panic(expected = "is outside of 100 bytes")]
fn a_store_whose_end_overflows_panics() {
    shared().store(usize::MAX, &[0; 5]);
}
