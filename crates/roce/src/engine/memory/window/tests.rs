use portolan_provider::error::errno;

use super::super::Region;
use super::*;

const PD: PdId = PdId(1);
const OTHER_PD: PdId = PdId(2);
const QPN: Qpn = Qpn::new(0x11);
const OTHER_QPN: Qpn = Qpn::new(0x12);
const LKEY: u32 = 0x5555_5555;
/// The window's initial key.
const RKEY: u32 = 0x0A0B_0C00;
const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::MW_BIND);

fn table(access: Access, mw_type: MwType) -> MemoryTable {
    let mut table = MemoryTable::new(8);
    let region = Region {
        pd: PD,
        iova: 0x1000,
        addr: 0x9000,
        length: 0x1000,
        access,
    };
    table.insert(LKEY, region).expect("an empty table");
    table.alloc_window(RKEY, PD, mw_type, 8).expect("the first");
    table
}

fn whole() -> MwBind {
    MwBind {
        lkey: LKEY,
        addr: 0x1000,
        length: 0x1000,
        access: Access::REMOTE_READ | Access::REMOTE_WRITE,
    }
}

fn bind(rkey: u32, new_rkey: u32, bind: MwBind) -> MemoryOperation {
    MemoryOperation {
        pd: PD,
        qpn: QPN,
        rkey,
        change: WindowChange::Bind { new_rkey, bind },
    }
}

fn invalidate(rkey: u32) -> MemoryOperation {
    MemoryOperation {
        pd: PD,
        qpn: QPN,
        rkey,
        change: WindowChange::Invalidate,
    }
}

#[test]
fn a_window_opens_only_its_range_with_its_rights() {
    for mw_type in [MwType::Type1, MwType::Type2] {
        let mut table = table(ALL, mw_type);
        let part = MwBind {
            addr: 0x1100,
            length: 0x100,
            access: Access::REMOTE_READ,
            ..whole()
        };
        assert_eq!(table.apply(&bind(RKEY, RKEY + 1, part)), Ok(()));
        let read =
            |rkey, iova, len| table.check_remote(PD, QPN, rkey, iova, len, Access::REMOTE_READ);
        assert_eq!(read(RKEY + 1, 0x1100, 0x100), Ok(0x9100));
        assert_eq!(read(RKEY + 1, 0x11FF, 1), Ok(0x91FF));
        for (rkey, iova, len) in [
            (RKEY, 0x1100, 1),
            (RKEY + 2, 0x1100, 1),
            (RKEY + 1, 0x10FF, 1),
            (RKEY + 1, 0x11FF, 2),
            (RKEY + 1, u64::MAX, 2),
        ] {
            assert_eq!(read(rkey, iova, len), Err(RemoteAccessError));
        }
        let write = table.check_remote(PD, QPN, RKEY + 1, 0x1100, 1, Access::REMOTE_WRITE);
        assert_eq!(write, Err(RemoteAccessError));
        let elsewhere = table.check_remote(OTHER_PD, QPN, RKEY + 1, 0x1100, 1, Access::REMOTE_READ);
        assert_eq!(elsewhere, Err(RemoteAccessError));
        let by_another =
            table.check_remote(PD, OTHER_QPN, RKEY + 1, 0x1100, 1, Access::REMOTE_READ);
        assert_eq!(by_another.is_ok(), mw_type == MwType::Type1);
        let local = table.check_local(PD, RKEY + 1, 0x1100, 1, false);
        assert!(local.is_err(), "a window has no local key");
    }
}

#[test]
fn each_rule_of_binding_is_checked_and_a_refused_binding_changes_nothing() {
    let no_bind = ALL - Access::MW_BIND;
    let no_write = Access::REMOTE_READ | Access::MW_BIND;
    let ok = bind(RKEY, RKEY + 1, whole());
    let with = |change: fn(&mut MwBind)| {
        let mut changed = whole();
        change(&mut changed);
        bind(RKEY, RKEY + 1, changed)
    };
    let other_pd = MemoryOperation { pd: OTHER_PD, ..ok };
    for (access, operation, error) in [
        (no_bind, ok, WindowError::RegionAccess),
        (no_write, ok, WindowError::RegionAccess),
        (ALL, other_pd, WindowError::ProtectionDomain),
        (
            ALL,
            bind(RKEY + 7, RKEY + 1, whole()),
            WindowError::UnknownKey,
        ),
        (ALL, bind(7, 8, whole()), WindowError::UnknownKey),
        (ALL, bind(LKEY, LKEY + 1, whole()), WindowError::UnknownKey),
        (ALL, bind(RKEY, RKEY, whole()), WindowError::NewKey),
        (ALL, bind(RKEY, RKEY + 0x100, whole()), WindowError::NewKey),
        (ALL, with(|bind| bind.lkey = 9), WindowError::Region),
        (ALL, with(|bind| bind.lkey = RKEY), WindowError::Region),
        (ALL, with(|bind| bind.length += 1), WindowError::Range),
        (ALL, with(|bind| bind.addr -= 1), WindowError::Range),
        (ALL, with(|bind| bind.length = u64::MAX), WindowError::Range),
        (ALL, with(|bind| bind.length = 0), WindowError::Empty),
    ] {
        let mut table = table(access, MwType::Type2);
        assert_eq!(table.apply(&operation), Err(error), "{operation:?}");
        assert!(table.deregister(LKEY).is_ok(), "no window is on the region");
    }
    // Only reading does not need the owner's write permission.
    let mut table = table(no_write, MwType::Type2);
    let reading = with(|bind| bind.access = Access::REMOTE_READ);
    assert_eq!(table.apply(&reading), Ok(()));
}

#[test]
fn a_window_of_type_2_is_bound_once_until_it_is_invalidated() {
    let mut table = table(ALL, MwType::Type2);
    assert_eq!(table.apply(&bind(RKEY, RKEY + 1, whole())), Ok(()));
    let again = table.apply(&bind(RKEY + 1, RKEY + 2, whole()));
    assert_eq!(again, Err(WindowError::Bound));
    let stale = table.apply(&invalidate(RKEY));
    assert_eq!(stale, Err(WindowError::UnknownKey));
    let by_another = MemoryOperation {
        qpn: OTHER_QPN,
        ..invalidate(RKEY + 1)
    };
    assert_eq!(table.apply(&by_another), Err(WindowError::NotInvalidatable));
    assert_eq!(table.apply(&invalidate(RKEY + 1)), Ok(()));
    let twice = table.apply(&invalidate(RKEY + 1));
    assert_eq!(twice, Err(WindowError::NotInvalidatable));
    let read = table.check_remote(PD, QPN, RKEY + 1, 0x1000, 1, Access::REMOTE_READ);
    assert_eq!(read, Err(RemoteAccessError));
    assert_eq!(table.apply(&bind(RKEY + 1, RKEY + 2, whole())), Ok(()));
}

#[test]
fn a_window_of_type_1_can_be_rebound_is_closed_by_length_0_and_never_invalidated() {
    let mut table = table(ALL, MwType::Type1);
    assert_eq!(table.apply(&bind(RKEY, RKEY + 1, whole())), Ok(()));
    assert_eq!(table.apply(&bind(RKEY + 1, RKEY + 2, whole())), Ok(()));
    let refused = table.apply(&invalidate(RKEY + 2));
    assert_eq!(refused, Err(WindowError::NotInvalidatable));
    let read = |table: &MemoryTable, rkey| {
        table.check_remote(PD, QPN, rkey, 0x1000, 1, Access::REMOTE_READ)
    };
    assert_eq!(read(&table, RKEY + 1), Err(RemoteAccessError));
    assert_eq!(read(&table, RKEY + 2), Ok(0x9000));
    let nothing = MwBind {
        length: 0,
        ..whole()
    };
    assert_eq!(table.apply(&bind(RKEY + 2, RKEY + 3, nothing)), Ok(()));
    assert_eq!(read(&table, RKEY + 3), Err(RemoteAccessError));
    assert!(table.deregister(LKEY).is_ok());
}

#[test]
fn a_region_with_windows_cannot_be_removed_except_by_force_which_closes_them() {
    let mut table = table(ALL, MwType::Type2);
    let second = 0x0B00_0000;
    table
        .alloc_window(second, PD, MwType::Type2, 8)
        .expect("the second");
    for key in [RKEY, second] {
        assert_eq!(table.apply(&bind(key, key + 1, whole())), Ok(()));
    }
    let error = table.deregister(LKEY).expect_err("two windows");
    assert_eq!(error.errno(), errno::EBUSY);
    assert!(matches!(error.cause, Cause::InUse { count: 2, .. }));
    assert_eq!(table.apply(&invalidate(RKEY + 1)), Ok(()));
    table.dealloc_window(second);
    assert!(table.deregister(LKEY).is_ok());
    // Removed by force, with the key given to another region.
    let mut table = super::tests::table(ALL, MwType::Type2);
    assert_eq!(table.apply(&bind(RKEY, RKEY + 1, whole())), Ok(()));
    let region = table.remove(LKEY).expect("it existed");
    table.insert(LKEY, region).expect("a free key");
    let read = table.check_remote(PD, QPN, RKEY + 1, 0x1000, 1, Access::REMOTE_READ);
    assert_eq!(read, Err(RemoteAccessError));
}

#[test]
fn windows_of_a_destroyed_queue_pair_are_closed_to_the_next_one_with_its_number() {
    let read =
        |table: &MemoryTable| table.check_remote(PD, QPN, RKEY + 1, 0x1000, 1, Access::REMOTE_READ);
    for (mw_type, gone, stays) in [
        (MwType::Type2, QPN, false),
        (MwType::Type2, OTHER_QPN, true),
        (MwType::Type1, QPN, true),
    ] {
        let mut table = table(ALL, mw_type);
        assert_eq!(table.apply(&bind(RKEY, RKEY + 1, whole())), Ok(()));
        table.unbind_queue_pair(gone);
        assert_eq!(read(&table).is_ok(), stays, "{mw_type:?}");
        assert_eq!(table.deregister(LKEY).is_err(), stays, "{mw_type:?}");
    }
}

#[test]
fn regions_and_windows_never_share_a_key() {
    let mut table = table(ALL, MwType::Type2);
    let region = table.remove(LKEY).expect("it existed");
    for key in [RKEY, RKEY + 0xFF] {
        let taken = table.insert(key, region).expect_err("the window's");
        assert_eq!(taken.errno(), errno::EINVAL);
    }
    table.insert(RKEY + 0x100, region).expect("beyond them");
    for key in [RKEY + 3, RKEY + 0x105] {
        let taken = table.alloc_window(key, PD, MwType::Type1, 8);
        assert_eq!(taken.expect_err("in use").errno(), errno::EINVAL);
    }
    let full = table.alloc_window(0x0C00_0000, PD, MwType::Type1, 1);
    assert_eq!(
        full.expect_err("the table has room for one").errno(),
        errno::ENOMEM
    );
}
