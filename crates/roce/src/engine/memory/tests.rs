use proptest::prelude::*;

use super::*;

const PD: PdId = PdId(1);
const QPN: Qpn = Qpn::new(0x11);
const RIGHTS: Access = Access::LOCAL_WRITE.union(Access::REMOTE_READ);

fn region(addr: u64, length: u64) -> Region {
    Region {
        pd: PD,
        iova: addr,
        addr,
        length,
        access: RIGHTS,
    }
}

fn table_with(region: Region) -> MemoryTable {
    let mut table = MemoryTable::new(8);
    table.insert(1, region).expect("an empty table");
    table
}

#[test]
fn an_access_has_the_same_offset_in_the_region_wherever_the_region_is() {
    let table = table_with(Region {
        iova: 0,
        ..region(0x5000, 100)
    });
    assert_eq!(table.check_local(PD, 1, 40, 60, true), Ok(0x5028));
    let read = Access::REMOTE_READ;
    assert_eq!(table.check_remote(PD, QPN, 1, 40, 60, read), Ok(0x5028));
}

#[test]
fn errors_of_local_accesses_name_the_cause() {
    let table = table_with(region(0x1000, 100));
    let check = |pd, key, addr, len| table.check_local(pd, key, addr, len, false);
    assert_eq!(check(PD, 2, 0x1000, 1), Err(LocalAccessError::UnknownKey));
    let elsewhere = check(PdId(2), 1, 0x1000, 1);
    assert_eq!(elsewhere, Err(LocalAccessError::ProtectionDomain));
    assert_eq!(check(PD, 1, 0x1000, 101), Err(LocalAccessError::Range));
    assert_eq!(check(PD, 1, 0xFFF, 1), Err(LocalAccessError::Range));

    let constant = Region {
        access: Access::empty(),
        ..region(0x1000, 100)
    };
    let table = table_with(constant);
    assert!(table.check_local(PD, 1, 0x1000, 100, false).is_ok());
    let written = table.check_local(PD, 1, 0x1000, 100, true);
    assert_eq!(written, Err(LocalAccessError::Access));
}

#[test]
fn a_replaced_region_covers_only_its_new_range() {
    let mut table = table_with(region(0x1000, 100));
    let read = |table: &MemoryTable, addr| {
        let read = Access::REMOTE_READ;
        table.check_remote(PD, QPN, 1, addr, 100, read).is_ok()
    };
    table.replace(1, region(0x2000, 100)).unwrap();
    assert_eq!((read(&table, 0x1000), read(&table, 0x2000)), (false, true));
    assert!(table.replace(1, region(u64::MAX, 2)).is_err());
    assert!(table.replace(2, region(0x1000, 100)).is_err());
    assert_eq!((read(&table, 0x1000), read(&table, 0x2000)), (false, true));
    assert_eq!(table.len(), 1);
}

#[test]
fn remote_accesses_need_every_right_they_use() {
    let table = table_with(region(0x1000, 100));
    let check = |access| table.check_remote(PD, QPN, 1, 0x1000, 1, access);
    assert!(check(Access::REMOTE_READ).is_ok());
    assert_eq!(check(Access::REMOTE_WRITE), Err(RemoteAccessError));
    assert_eq!(
        check(Access::REMOTE_READ | Access::REMOTE_WRITE),
        Err(RemoteAccessError)
    );
}

#[test]
fn a_removed_region_is_gone_and_its_key_is_free() {
    let mut table = table_with(region(0x1000, 100));
    assert_eq!(table.remove(1), Some(region(0x1000, 100)));
    assert_eq!(table.remove(1), None);
    let gone = table.check_local(PD, 1, 0x1000, 1, false);
    assert_eq!(gone, Err(LocalAccessError::UnknownKey));
    assert!(table.insert(1, region(0x2000, 1)).is_ok());
}

#[test]
fn impossible_regions_are_refused() {
    let mut table = table_with(region(0x1000, 100));
    let write_alone = Region {
        access: Access::REMOTE_WRITE,
        ..region(0x1000, 100)
    };
    for (key, bad) in [
        (1, region(0x1000, 100)),
        (2, region(u64::MAX, 2)),
        (2, write_alone),
    ] {
        let error = table.insert(key, bad).expect_err("a bad region");
        assert!(
            matches!(error.cause, Cause::InvalidArgument { .. }),
            "{error}"
        );
    }
    assert!(table.insert(2, region(u64::MAX, 1)).is_ok());
}

#[test]
fn a_full_table_refuses_until_a_region_is_removed() {
    let mut table = MemoryTable::new(2);
    table.insert(1, region(0, 1)).expect("room");
    table.insert(2, region(0, 1)).expect("room");
    let error = table.insert(3, region(0, 1)).expect_err("full");
    assert_eq!(
        error.cause,
        Cause::LimitReached {
            what: "memory regions",
            limit: 2
        }
    );
    table.remove(1);
    assert!(table.insert(3, region(0, 1)).is_ok());
}

proptest! {
    #[test]
    fn an_access_is_allowed_exactly_if_all_its_bytes_are_in_the_region(
        start in prop_oneof![0u64..100, u64::MAX - 300..=u64::MAX - 200],
        length in 0u64..100,
        offset in -120i64..120,
        len in 0u32..120,
    ) {
        let table = table_with(region(start, length));
        let addr = start.wrapping_add_signed(offset);
        let first = i128::from(addr) - i128::from(start);
        let inside = first >= 0 && first + i128::from(len) <= i128::from(length);
        let checked = table.check_local(PD, 1, addr, len, true);
        prop_assert_eq!(checked, if inside { Ok(addr) } else { Err(LocalAccessError::Range) });
    }

    #[test]
    fn any_keys_are_found_again(keys in proptest::collection::hash_set(any::<u32>(), 0..200)) {
        let mut table = MemoryTable::new(200);
        for key in &keys {
            table.insert(*key, region(u64::from(*key), 1)).expect("room");
        }
        for key in &keys {
            let addr = u64::from(*key);
            prop_assert_eq!(table.check_local(PD, *key, addr, 1, false), Ok(addr));
        }
        prop_assert_eq!(table.len(), keys.len());
    }
}
